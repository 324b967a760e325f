// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// handle.h - the life of every public object, so that one thread may close what another one uses.
// A table has the handles that are open. A call looks its object up there before it reads a byte of
// it, and holds it until the call returns. Closing takes the object out of the table. Its memory
// goes with the last call, and with the last object that refers to it.

#ifndef AULE_CLIENT_HANDLE_H
#define AULE_CLIENT_HANDLE_H

#include "aule/aule.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <sys/types.h>

#define HASH_NONFATAL_OOM 1
#include <uthash.h>

struct handle;

struct handle_kind {
    const char *name;             // "the cache"
    enum aule_status closed;      // of a call on one that is not open
    void (*end)(struct handle *); // frees the object: nothing uses it or refers to it any more
};

// The first member of each public object.
struct handle {
    const struct handle_kind *kind;
    pid_t pid; // of the process that opened it
    // References in the low 32 bits, calls in flight above. A forked child counts no calls: those
    // that its parent had in flight never end there.
    atomic_ullong uses;
    const void *address; // of the object: the table's key
    UT_hash_handle hh;   // guarded by handle.c
};

// Puts the object into the table, with one reference, which handle_close() takes over.
// AULE_NO_MEMORY: it is not in the table, and the caller frees it.
enum aule_status handle_open(struct handle *handle, const struct handle_kind *kind);
// Takes it out: no call enters it from now on. After true the caller owes a handle_unref(). False,
// with a sentence: `object` is not open, and was not read.
bool handle_close(const void *object, const struct handle_kind *kind);

void handle_ref(struct handle *handle);
void handle_unref(struct handle *handle);

// Begins a call of `function` on its argument `object`, called `name`. AULE_INVALID: NULL.
// kind->closed: it is not open. AULE_FORKED. On failure *out is NULL.
enum aule_status handle_enter(const void *object, const struct handle_kind *kind,
                              const char *function, const char *name, struct handle **out);
void handle_leave(struct handle **handle); // takes the address of NULL

// The beginning of a public function: enters its argument until the function returns.
#define USE(object)                                                                                \
    struct handle *object##_in_use __attribute__((cleanup(handle_leave))) = NULL;                  \
    do {                                                                                           \
        const enum aule_status object##_status =                                                   \
            handle_enter((object), &object##_handles, __func__, #object, &object##_in_use);        \
        if (object##_status != AULE_OK)                                                            \
            return object##_status;                                                                \
    } while (0)

extern const struct handle_kind session_handles, cache_handles, batch_handles, sequence_handles,
    step_handles, monitor_handles;

#endif
