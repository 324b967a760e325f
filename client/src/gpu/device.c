// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// device.c - see device.h. Any thread; a mutex guards the import.

#include "device.h"

#include "base/container_of.h"
#include "base/list.h"
#include "client/src/arena.h"
#include "client/src/caller.h"
#include "client/src/error.h"
#include "client/src/session.h"
#include "cuda.h"
#include "descriptor.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct device_arena {
    struct life_part part;
    pid_t pid;              // of the process that made it
    atomic_uint references; // the life, and what torch.c keeps
    uint64_t size;          // bytes
    struct arena *places;
    void (*_Atomic ended)(const struct device_arena *device); // NULL: nothing waits for the end
    pthread_mutex_t mutex;                                    // guards the rest
    struct cuda_import *import;
    uint64_t cuda_address;
};

// ---- a part of the life ----

static void end(struct life_part *part)
{
    struct device_arena *device = container_of(part, struct device_arena, part);
    void (*ended)(const struct device_arena *) = atomic_load(&device->ended);
    if (ended && device->pid == getpid())
        ended(device);
    device_unref(device);
}

static enum aule_status make(uint64_t size, struct device_arena **out)
{
    struct device_arena *device = calloc(1, sizeof *device);
    if (!device)
        return fail(AULE_NO_MEMORY, "no memory for a device arena");
    device->part.end = end;
    device->pid = getpid();
    atomic_init(&device->references, 1);
    pthread_mutex_init(&device->mutex, NULL);
    device->size = size;
    enum aule_status status = arena_create(size, &device->places);
    if (status == AULE_OK)
        *out = device;
    else
        device_unref(device);
    return status;
}

// With the life's mutex held.
static struct device_arena *find(const struct life *life)
{
    struct life_part *part;
    LIST_EACH(life->parts, part)
        if (part->end == end)
            return container_of(part, struct device_arena, part);
    return NULL;
}

// Finds or makes it. Inside life_enter().
static enum aule_status device_of(struct life *life, struct device_arena **out)
{
    pthread_mutex_lock(&life->mutex);
    enum aule_status status = AULE_OK;
    *out = find(life);
    if (!*out) {
        status = make(life->info.device_arena_size, out);
        if (status == AULE_OK)
            LIST_PREPEND(life->parts, &(*out)->part);
    }
    pthread_mutex_unlock(&life->mutex);
    return status;
}

void device_at_end(struct device_arena *device, void (*ended)(const struct device_arena *device))
{
    atomic_store(&device->ended, ended);
}

void device_ref(struct device_arena *device)
{
    atomic_fetch_add(&device->references, 1);
}

bool device_place(struct device_arena *device, struct device_place *place)
{
    pthread_mutex_lock(&device->mutex);
    const bool mapped = device->import;
    if (mapped)
        *place = (struct device_place){.cuda_device = cuda_import_device(device->import),
                                       .address = device->cuda_address,
                                       .size = device->size,
                                       .places = device->places};
    pthread_mutex_unlock(&device->mutex);
    return mapped;
}

void device_unref(struct device_arena *device)
{
    if (!device || atomic_fetch_sub(&device->references, 1) != 1)
        return;
    cuda_import_end(device->import);
    arena_destroy(device->places);
    if (device->pid == getpid()) // in a child another thread may seem to hold it
        pthread_mutex_destroy(&device->mutex);
    free(device);
}

// ---- the descriptor ----

// With the life's token_mutex held.
static enum aule_status trade_token(struct life *life, struct aule_device_export *export)
{
    struct sockaddr_un address;
    struct wire_request request = {.command = WIRE_COMMAND_DEVICE_ARENA};
    struct answer answer;
    enum aule_status status =
        descriptor_find(connection_path(life->connection), life->export_socket, &address);
    if (status == AULE_OK)
        status = life_call(life, &request, 0, WIRE_ANSWER_DEVICE_ARENA, &answer);
    if (status != AULE_OK)
        return status;
    const struct wire_device_arena_reply *reply = &answer.reply.device_arena;
    *export = (struct aule_device_export){.fd = -1,
                                          .dedicated = reply->dedicated,
                                          .size = reply->size,
                                          .allocated = reply->allocated};
    memcpy(export->device_uuid, life->info.device_uuid, sizeof export->device_uuid);
    status = descriptor_redeem(&address, reply->token, life->grace_ms, &export->fd);
    answer_finish(&answer);
    return status;
}

static enum aule_status take_descriptor(struct life *life, struct aule_device_export *export)
{
    pthread_mutex_lock(&life->token_mutex);
    enum aule_status status = trade_token(life, export);
    pthread_mutex_unlock(&life->token_mutex);
    return status;
}

// ---- public ----

enum aule_status device_get(struct aule_session *session, struct life **life,
                            struct device_arena **device)
{
    enum aule_status status = session_get(session, life);
    if (status != AULE_OK)
        return status;
    status = (*life)->info.device_arena_size
                 ? device_of(*life, device)
                 : fail(AULE_NOT_FOUND,
                        "the session has no device arena; it was opened with device_arena_size 0");
    if (status != AULE_OK)
        session_put(*life);
    return status;
}

enum aule_status aule_device_export_sized(struct aule_session *session,
                                          struct aule_device_export *export, size_t export_size)
{
    struct aule_device_export whole;
    struct life *life;
    struct device_arena *device;
    REQUIRE(session);
    REQUIRE(export);
    enum aule_status status = device_get(session, &life, &device);
    if (status != AULE_OK)
        return status;
    status = take_descriptor(life, &whole);
    if (status == AULE_OK)
        GIVE(export, export_size, whole);
    session_put(life);
    return status;
}

// With the mutex held.
static enum aule_status import(struct life *life, struct device_arena *device, int cuda_device)
{
    struct aule_device_export export;
    enum aule_status status = take_descriptor(life, &export);
    if (status != AULE_OK)
        return status;
    struct cuda_memory memory = {.fd = export.fd,
                                 .dedicated = export.dedicated,
                                 .size = export.size,
                                 .allocated = export.allocated};
    memcpy(memory.uuid, export.device_uuid, sizeof memory.uuid);
    status = cuda_import(&memory, cuda_device, &device->import, &device->cuda_address);
    close(export.fd);
    return status;
}

static enum aule_status check_device(const struct device_arena *device, int cuda_device)
{
    const int has = cuda_import_device(device->import);
    if (cuda_device < 0 || cuda_device == has)
        return AULE_OK;
    return fail(AULE_MISMATCH, "the device arena is mapped on CUDA device %d, not on %d", has,
                cuda_device);
}

enum aule_status aule_device_map_cuda(struct aule_session *session, int cuda_device, void **base,
                                      int *mapped_device)
{
    struct life *life;
    struct device_arena *device;
    REQUIRE(session);
    REQUIRE(base);
    enum aule_status status = device_get(session, &life, &device);
    if (status != AULE_OK)
        return status;
    pthread_mutex_lock(&device->mutex);
    status = device->import ? check_device(device, cuda_device) : import(life, device, cuda_device);
    if (status == AULE_OK) {
        *base = (void *)(uintptr_t)device->cuda_address; // NOLINT(performance-no-int-to-ptr)
        if (mapped_device)
            *mapped_device = cuda_import_device(device->import);
    }
    pthread_mutex_unlock(&device->mutex);
    session_put(life);
    return status;
}

enum aule_status aule_device_alloc(struct aule_session *session, uint64_t size, uint64_t *offset)
{
    struct life *life;
    struct device_arena *device;
    REQUIRE(session);
    REQUIRE(offset);
    enum aule_status status = device_get(session, &life, &device);
    if (status != AULE_OK)
        return status;
    status = arena_alloc(device->places, size, offset);
    session_put(life);
    return status;
}

void aule_device_free(struct aule_session *session, uint64_t offset)
{
    struct life *life;
    struct device_arena *device;
    if (!session || device_get(session, &life, &device) != AULE_OK)
        return;
    arena_free(device->places, offset);
    session_put(life);
}
