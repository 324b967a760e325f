// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// submitter.h - the submitter thread: it prepares submissions in order and gives them to the GPU.
// Returns when the engine stops and no submission is left, or when the device is lost.

#ifndef AULE_ENGINE_SUBMITTER_H
#define AULE_ENGINE_SUBMITTER_H

void *submitter_thread(void *engine);

#endif
