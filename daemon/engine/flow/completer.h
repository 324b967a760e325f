// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// completer.h - see completer.c.

#ifndef AULE_ENGINE_COMPLETER_H
#define AULE_ENGINE_COMPLETER_H

void *completer_thread(void *engine);

#endif
