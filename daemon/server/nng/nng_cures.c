// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// nng_cures.c - see nng_cures.h. The linker wraps nng's functions (-Wl,--wrap; see CMakeLists.txt),
// which works only with a static library. Knows nng's internals, nothing of aule. Any thread.

#include "nng_cures.h"

#include <pthread.h>
#include <stdalign.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

int __wrap_nni_plat_ncpu(void);
void *__real_nni_alloc(size_t size);
void *__wrap_nni_alloc(size_t size);
void *__real_nni_zalloc(size_t size);
void *__wrap_nni_zalloc(size_t size);
void __real_nni_free(void *memory, size_t size);
void __wrap_nni_free(void *memory, size_t size);
int nni_posix_pfd_fd(void *polled);
void __real_nni_posix_ipc_init(void *stream, void *polled);
void __wrap_nni_posix_ipc_init(void *stream, void *polled);

// nng starts three threads for each core. The daemon's messages are small and one dispatcher
// answers them, so threads for two cores are enough.
int __wrap_nni_plat_ncpu(void)
{
    return 2;
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // guards all below

// ---- descriptors ----

// nng tells nobody the descriptor of a connection, but the kernel names a peer's process only by
// it. Each ear accepts one connection at a time, so a few are enough.
enum { NUM_ACCEPTED = 16 };
static struct accepted {
    const void *stream; // NULL: the slot is free
    int fd;
} accepted[NUM_ACCEPTED];
static uint32_t last_accepted;

void __wrap_nni_posix_ipc_init(void *stream, void *polled)
{
    __real_nni_posix_ipc_init(stream, polled);
    pthread_mutex_lock(&lock);
    accepted[++last_accepted % NUM_ACCEPTED] = (struct accepted){stream, nni_posix_pfd_fd(polled)};
    pthread_mutex_unlock(&lock);
}

int nng_accepted_descriptor(const void *stream)
{
    int fd = -1;
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; i < NUM_ACCEPTED; i++) {
        if (accepted[i].stream != stream)
            continue;
        fd = accepted[i].fd;
        accepted[i].stream = NULL;
    }
    pthread_mutex_unlock(&lock);
    return fd;
}

// ---- the reserve ----

// All that nng allocates for its start takes some 40 pages, and a connection three.
enum { NUM_PAGES = 128, PAGE = 4096 };

static alignas(64) unsigned char pages[NUM_PAGES][PAGE];
static bool taken[NUM_PAGES];
static uint32_t num_taken;

bool nng_reserve_is_short(void)
{
    pthread_mutex_lock(&lock);
    const bool is_short = num_taken > NUM_PAGES / 2;
    pthread_mutex_unlock(&lock);
    return is_short;
}

static void *take_page(size_t size)
{
    void *page = NULL;
    pthread_mutex_lock(&lock);
    for (uint32_t i = 0; size <= PAGE && i < NUM_PAGES && !page; i++) {
        if (taken[i])
            continue;
        taken[i] = true;
        num_taken++;
        page = pages[i];
    }
    pthread_mutex_unlock(&lock);
    return page ? memset(page, 0, PAGE) : NULL;
}

static bool is_page(const void *memory)
{
    const unsigned char *at = memory;
    return at >= pages[0] && at < pages[0] + sizeof pages;
}

void *__wrap_nni_alloc(size_t size)
{
    void *memory = __real_nni_alloc(size);
    return memory ? memory : take_page(size);
}

void *__wrap_nni_zalloc(size_t size)
{
    void *memory = __real_nni_zalloc(size);
    return memory ? memory : take_page(size);
}

void __wrap_nni_free(void *memory, size_t size)
{
    if (!is_page(memory)) {
        __real_nni_free(memory, size);
        return;
    }
    pthread_mutex_lock(&lock);
    taken[((unsigned char *)memory - pages[0]) / PAGE] = false;
    num_taken--;
    pthread_mutex_unlock(&lock);
}
