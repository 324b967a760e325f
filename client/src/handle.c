// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// handle.c - see handle.h. The table lies in several parts with a mutex each, so that threads that
// use different objects seldom meet. A new object may get the address of one that was closed. Then
// a late call on the old one acts on the new one, as with file descriptors. Any thread.

#include "handle.h"

#include "error.h"
#include "fork.h"

#include <pthread.h>
#include <stdint.h>
#include <unistd.h>

enum { NUM_PARTS = 16 };
static const unsigned long long call_unit = 1ull << 32; // of `uses`

static struct part {
    _Alignas(64) pthread_mutex_t mutex; // guards the rest
    struct handle *open;
} parts[NUM_PARTS];

// This process, without a system call for each look. A bare clone() runs no handler of
// pthread_atfork(); there a handle of the parent is noticed by life_enter(), and by the first
// handle that the child opens.
static atomic_int process;

static void for_all(int (*act)(pthread_mutex_t *))
{
    for (int i = 0; i < NUM_PARTS; i++)
        act(&parts[i].mutex);
}

static void lock_all(void)
{
    for_all(pthread_mutex_lock);
}

static void unlock_all(void)
{
    for_all(pthread_mutex_unlock);
}

static void note_process(void)
{
    atomic_store(&process, getpid());
}

static void begin_child(void)
{
    unlock_all();
    note_process();
}

static void begin(void)
{
    for (int i = 0; i < NUM_PARTS; i++)
        pthread_mutex_init(&parts[i].mutex, NULL);
    // A child must be able to close what it has got, also if another thread was in the table.
    pthread_atfork(lock_all, unlock_all, begin_child);
}

// The part of an address, locked. Objects lie some hundred bytes apart.
static struct part *lock_part(const void *object)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    const uint64_t spread = (uint64_t)(uintptr_t)object / 16 * UINT64_C(0x9e3779b97f4a7c15);
    struct part *part = &parts[spread >> 60];
    pthread_once(&once, begin);
    pthread_mutex_lock(&part->mutex);
    return part;
}

// With the part's mutex.
static struct handle *find(const struct part *part, const void *object,
                           const struct handle_kind *kind)
{
    struct handle *handle;
    HASH_FIND_PTR(part->open, &object, handle);
    return handle && handle->kind == kind ? handle : NULL;
}

static enum aule_status not_open(const struct handle_kind *kind)
{
    return fail(kind->closed, "%s is not open: it was closed before this call", kind->name);
}

enum aule_status handle_open(struct handle *handle, const struct handle_kind *kind)
{
    handle->kind = kind;
    handle->pid = getpid();
    handle->address = handle;
    atomic_init(&handle->uses, 1);
    struct part *part = lock_part(handle);
    note_process();
    HASH_ADD_PTR(part->open, address, handle);
    const bool added = handle->hh.tbl != NULL;
    pthread_mutex_unlock(&part->mutex);
    return added ? AULE_OK : fail(AULE_NO_MEMORY, "no memory to open %s", kind->name);
}

bool handle_close(const void *object, const struct handle_kind *kind)
{
    struct part *part = lock_part(object);
    struct handle *handle = find(part, object, kind);
    if (handle)
        HASH_DEL(part->open, handle);
    pthread_mutex_unlock(&part->mutex);
    if (!handle)
        (void)not_open(kind);
    return handle != NULL;
}

void handle_ref(struct handle *handle)
{
    atomic_fetch_add(&handle->uses, 1);
}

void handle_unref(struct handle *handle)
{
    const unsigned long long left = atomic_fetch_sub(&handle->uses, 1) - 1;
    if (handle->pid == getpid() ? left == 0 : (uint32_t)left == 0)
        handle->kind->end(handle);
}

enum aule_status handle_enter(const void *object, const struct handle_kind *kind,
                              const char *function, const char *name, struct handle **out)
{
    *out = NULL;
    if (!object)
        return fail_null(function, name);
    struct part *part = lock_part(object);
    struct handle *handle = find(part, object, kind);
    const pid_t pid = handle ? handle->pid : 0;
    const bool ours = handle && pid == atomic_load(&process);
    if (ours)
        atomic_fetch_add(&handle->uses, call_unit);
    pthread_mutex_unlock(&part->mutex);
    if (!handle)
        return not_open(kind);
    if (!ours)
        return fork_check(pid, kind->name);
    *out = handle;
    return AULE_OK;
}

void handle_leave(struct handle **handle)
{
    if (*handle && atomic_fetch_sub(&(*handle)->uses, call_unit) == call_unit)
        (*handle)->kind->end(*handle);
    *handle = NULL;
}
