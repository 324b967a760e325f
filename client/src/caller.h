// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// caller.h - structs as the caller's header defines them: shorter than the library's if the program
// is older, longer if it is newer. Pure functions.

#ifndef AULE_CLIENT_CALLER_H
#define AULE_CLIENT_CALLER_H

#include "aule/sized.h"

// Copies the library's struct `whole` to the caller's `to`, which has `size` bytes. Bytes that the
// library does not have become 0.
void caller_give(void *to, size_t size, const void *whole, size_t whole_size);
#define GIVE(to, size, whole) caller_give((to), (size), &(whole), sizeof(whole))

// Copies the caller's struct `from` to the library's `whole`, whose other bytes become 0.
// AULE_UNSUPPORTED: the caller has set a field that the library does not have.
enum aule_status caller_take(void *whole, size_t whole_size, const void *from, size_t size,
                             const char *name);
#define TAKE(whole, from, size) caller_take((whole), sizeof *(whole), (from), (size), #from)

// Where the caller wants a run's result; `to` NULL: nowhere.
struct caller_result {
    struct aule_run_result *to;
    size_t size;
};
#define CALLER_RESULT(result, size) (&(const struct caller_result){(result), (size)})

#endif
