// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// error.h - the sentence behind aule_error(): one a thread, kept until the thread's next failure.

#ifndef AULE_CLIENT_ERROR_H
#define AULE_CLIENT_ERROR_H

#include "aule/aule.h"

// Keeps the sentence for the calling thread and returns `status`, so that a check reads `return
// fail(...)`.
enum aule_status fail(enum aule_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

// Between error_mute(true) and error_mute(false) of a thread fail() keeps no sentence: what is
// given back after a failure may fail as well, and the first sentence is the one to be read.
void error_mute(bool mute);

// AULE_NO_MEMORY: `what` wants a file descriptor, and there is none; the sentence has the process's
// limit.
enum aule_status fail_no_descriptor(const char *what);

// AULE_INVALID: the argument `pointer` of `function` is NULL. The sentence has the name that the
// caller knows, without _sized.
enum aule_status fail_null(const char *function, const char *pointer);

#define REQUIRE(pointer)                                                                           \
    do {                                                                                           \
        if (!(pointer))                                                                            \
            return fail_null(__func__, #pointer);                                                  \
    } while (0)

#endif
