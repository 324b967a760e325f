// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// error.h - the sentence behind aule_error(): one for each thread, kept until its next failure.

#ifndef AULE_CLIENT_ERROR_H
#define AULE_CLIENT_ERROR_H

#include "aule/aule.h"

// Keeps the sentence for the calling thread and returns `status`, so that a check reads `return
// fail(...)`.
enum aule_status fail(enum aule_status status, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

// Between error_mute(true) and its error_mute(false) the thread's fail() keeps no sentence. Pairs
// may nest. Cleaning up after a failure may fail, too, and the first sentence is the one to read.
void error_mute(bool mute);

// Returns AULE_NO_MEMORY: `what` needs a file descriptor, and none is left. The sentence has the
// process's limit.
enum aule_status fail_no_descriptor(const char *what);

// Returns AULE_INVALID: the argument `pointer` of `function` is NULL. The sentence has the public
// name, without _sized.
enum aule_status fail_null(const char *function, const char *pointer);

#define REQUIRE(pointer)                                                                           \
    do {                                                                                           \
        if (!(pointer))                                                                            \
            return fail_null(__func__, #pointer);                                                  \
    } while (0)

#endif
