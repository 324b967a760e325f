// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// submitter.h - see submitter.c.

#ifndef AULE_ENGINE_SUBMITTER_H
#define AULE_ENGINE_SUBMITTER_H

void *submitter_thread(void *engine);

#endif
