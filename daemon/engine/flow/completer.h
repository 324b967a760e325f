// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// completer.h - the completer thread: it waits for submissions in order and reports their end.
// Returns when the submitter has ended and no submission is left, or when the device is lost.

#ifndef AULE_ENGINE_COMPLETER_H
#define AULE_ENGINE_COMPLETER_H

void *completer_thread(void *engine);

#endif
