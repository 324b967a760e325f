// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// torch.c - the device arena as an allocator for frameworks: aule_torch_begin() and what follows it
// in aule.h. torch's CUDAPluggableAllocator calls C functions that have no context. So a list of
// this process has the arenas, one for each CUDA device at a time. torch keeps memory of its pools
// for long, and may free it after the session's end. So each allocation keeps the arena mapped. Any
// thread.

#include "client/src/arena.h"
#include "client/src/caller.h"
#include "client/src/error.h"
#include "client/src/session.h"
#include "device.h"

#include <pthread.h>
#include <stdlib.h>

struct torch_arena {
    struct torch_arena *next;
    struct device_arena *device; // a reference
    struct device_place place;
    uint64_t num_allocated;
    bool over; // it only waits for frees
};

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; // guards the list and what is in it
static struct torch_arena *arenas;

// ---- with the mutex held ----

static struct torch_arena *serving(int cuda_device)
{
    struct torch_arena *arena = arenas;
    while (arena && (arena->over || arena->place.cuda_device != cuda_device))
        arena = arena->next;
    return arena;
}

static struct torch_arena *holding(uint64_t address)
{
    struct torch_arena *arena = arenas;
    while (arena &&
           (address < arena->place.address || address - arena->place.address >= arena->place.size))
        arena = arena->next;
    return arena;
}

static struct torch_arena *entry_of(const struct device_arena *device)
{
    struct torch_arena *arena = arenas;
    while (arena && arena->device != device)
        arena = arena->next;
    return arena;
}

// An arena has at most one entry. One that was over serves again.
static enum aule_status add(struct device_arena *device, const struct device_place *place)
{
    const struct torch_arena *serves = serving(place->cuda_device);
    struct torch_arena *has = entry_of(device);
    if (serves && serves != has)
        return fail(AULE_BUSY,
                    "torch allocates in the device arena of another session on CUDA device %d",
                    place->cuda_device);
    if (has) {
        has->over = false;
        return AULE_OK;
    }
    struct torch_arena *arena = calloc(1, sizeof *arena);
    if (!arena)
        return fail(AULE_NO_MEMORY, "no memory for an allocator");
    device_ref(device);
    *arena = (struct torch_arena){.next = arenas, .device = device, .place = *place};
    arenas = arena;
    return AULE_OK;
}

// Takes it out of the list if nothing needs it; returns the reference to end then.
static struct device_arena *settle(struct torch_arena *arena)
{
    if (!arena->over || arena->num_allocated)
        return NULL;
    struct torch_arena **at = &arenas;
    while (*at != arena)
        at = &(*at)->next;
    *at = arena->next;
    struct device_arena *device = arena->device;
    free(arena);
    return device;
}

// ---- public ----

// The arena's session has ended, or torch shall use it no more: nothing is allocated in it from now
// on.
static void torch_ended(const struct device_arena *device)
{
    struct device_arena *over = NULL;
    pthread_mutex_lock(&mutex);
    struct torch_arena *arena = entry_of(device);
    if (arena && !arena->over) {
        arena->over = true;
        over = settle(arena);
    }
    pthread_mutex_unlock(&mutex);
    device_unref(over); // after the mutex: it may wait for kernels
}

enum aule_status aule_torch_begin(struct aule_session *session)
{
    struct life *life;
    struct device_arena *device;
    struct device_place place;
    REQUIRE(session);
    enum aule_status status = device_get(session, &life, &device);
    if (status != AULE_OK)
        return status;
    if (device_place(device, &place)) {
        device_at_end(device, torch_ended);
        pthread_mutex_lock(&mutex);
        status = add(device, &place);
        pthread_mutex_unlock(&mutex);
    } else {
        status = fail(AULE_NOT_FOUND, "the device arena is not mapped (aule_device_map_cuda)");
    }
    session_put(life);
    return status;
}

void aule_torch_end(struct aule_session *session)
{
    struct life *life;
    struct device_arena *device;
    if (!session || device_get(session, &life, &device) != AULE_OK)
        return;
    torch_ended(device);
    session_put(life);
}

void *aule_torch_alloc(ptrdiff_t size, int cuda_device, void *stream)
{
    uint64_t offset = 0, address = 0;
    (void)stream; // the framework orders its own use of the memory
    pthread_mutex_lock(&mutex);
    struct torch_arena *arena = serving(cuda_device);
    if (!arena) {
        (void)fail(AULE_NOT_FOUND, "no session lets torch allocate on CUDA device %d", cuda_device);
    } else if (size <= 0) {
        (void)fail(AULE_INVALID, "torch asks for %td bytes", size);
    } else if (arena_alloc(arena->place.places, (uint64_t)size, &offset) == AULE_OK) {
        arena->num_allocated++;
        address = arena->place.address + offset;
    }
    pthread_mutex_unlock(&mutex);
    return (void *)(uintptr_t)address; // NOLINT(performance-no-int-to-ptr)
}

void aule_torch_free(void *pointer, ptrdiff_t size, int cuda_device, void *stream)
{
    const uint64_t address = (uint64_t)(uintptr_t)pointer;
    struct device_arena *over = NULL;
    (void)size;
    (void)cuda_device;
    (void)stream;
    pthread_mutex_lock(&mutex);
    struct torch_arena *arena = holding(address);
    if (arena && arena_free(arena->place.places, address - arena->place.address) == AULE_OK) {
        arena->num_allocated--;
        over = settle(arena);
    }
    pthread_mutex_unlock(&mutex);
    device_unref(over);
}
