// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// device.c - see device.h. Any thread; a mutex guards the import.

#include "device.h"

#include "arena.h"
#include "caller.h"
#include "client/src/link/descriptor.h"
#include "cuda.h"
#include "error.h"
#include "session.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct device_arena {
    atomic_uint references;     // the attachment, and what torch.c keeps
    struct sockaddr_un address; // of the export socket
    uint64_t size;              // bytes
    struct arena *places;
    pthread_mutex_t mutex; // guards the rest
    struct cuda_import *import;
    uint64_t cuda_address;
};

enum aule_status device_open(const struct wire_hello_reply *hello, uint64_t asked,
                             const char *socket, struct device_arena **out)
{
    *out = NULL;
    if (asked == 0)
        return AULE_OK;
    if (hello->device_arena_size < asked)
        return fail(AULE_MALFORMED,
                    "the daemon gave a device arena of %" PRIu64 " bytes; %" PRIu64
                    " were asked for",
                    hello->device_arena_size, asked);
    struct device_arena *device = calloc(1, sizeof *device);
    if (!device)
        return fail(AULE_NO_MEMORY, "no memory for a session");
    atomic_init(&device->references, 1);
    pthread_mutex_init(&device->mutex, NULL);
    device->size = hello->device_arena_size;
    enum aule_status status =
        descriptor_find(socket, hello->export_socket ? hello->export_socket : "", &device->address);
    if (status == AULE_OK)
        status = arena_create(device->size, &device->places);
    if (status == AULE_OK)
        *out = device;
    else
        device_unref(device);
    return status;
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
    pthread_mutex_destroy(&device->mutex);
    free(device);
}

// ---- the descriptor ----

// With the attachment's token_mutex held.
static enum aule_status trade_token(struct attachment *attachment,
                                    struct aule_device_export *export)
{
    struct wire_request request = {.command = WIRE_COMMAND_DEVICE_ARENA};
    struct answer answer;
    enum aule_status status =
        attachment_call(attachment, &request, 0, WIRE_ANSWER_DEVICE_ARENA, &answer);
    if (status != AULE_OK)
        return status;
    const struct wire_device_arena_reply *reply = &answer.reply.device_arena;
    *export = (struct aule_device_export){.fd = -1,
                                          .dedicated = reply->dedicated,
                                          .size = reply->size,
                                          .allocated = reply->allocated};
    memcpy(export->device_uuid, attachment->info.device_uuid, sizeof export->device_uuid);
    status = descriptor_redeem(&attachment->device->address, reply->token, attachment->grace_ms,
                               &export->fd);
    answer_finish(&answer);
    return status;
}

static enum aule_status take_descriptor(struct attachment *attachment,
                                        struct aule_device_export *export)
{
    pthread_mutex_lock(&attachment->token_mutex);
    enum aule_status status = trade_token(attachment, export);
    pthread_mutex_unlock(&attachment->token_mutex);
    return status;
}

// ---- public ----

enum aule_status device_get(struct aule_session *session, struct attachment **attachment)
{
    enum aule_status status = session_get(session, attachment);
    if (status != AULE_OK || (*attachment)->device)
        return status;
    session_put(*attachment);
    return fail(AULE_NOT_FOUND,
                "the session has no device arena; it was opened with device_arena_size 0");
}

enum aule_status aule_device_export_sized(struct aule_session *session,
                                          struct aule_device_export *export, size_t export_size)
{
    struct aule_device_export whole;
    struct attachment *attachment;
    REQUIRE(session);
    REQUIRE(export);
    enum aule_status status = device_get(session, &attachment);
    if (status != AULE_OK)
        return status;
    status = take_descriptor(attachment, &whole);
    if (status == AULE_OK)
        GIVE(export, export_size, whole);
    session_put(attachment);
    return status;
}

// With the mutex held.
static enum aule_status import(struct attachment *attachment, int cuda_device)
{
    struct device_arena *device = attachment->device;
    struct aule_device_export export;
    enum aule_status status = take_descriptor(attachment, &export);
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
    struct attachment *attachment;
    REQUIRE(session);
    REQUIRE(base);
    enum aule_status status = device_get(session, &attachment);
    if (status != AULE_OK)
        return status;
    struct device_arena *device = attachment->device;
    pthread_mutex_lock(&device->mutex);
    status = device->import ? check_device(device, cuda_device) : import(attachment, cuda_device);
    if (status == AULE_OK) {
        *base = (void *)(uintptr_t)device->cuda_address; // NOLINT(performance-no-int-to-ptr)
        if (mapped_device)
            *mapped_device = cuda_import_device(device->import);
    }
    pthread_mutex_unlock(&device->mutex);
    session_put(attachment);
    return status;
}

enum aule_status aule_device_alloc(struct aule_session *session, uint64_t size, uint64_t *offset)
{
    struct attachment *attachment;
    REQUIRE(session);
    REQUIRE(offset);
    enum aule_status status = device_get(session, &attachment);
    if (status != AULE_OK)
        return status;
    status = arena_alloc(attachment->device->places, size, offset);
    session_put(attachment);
    return status;
}

void aule_device_free(struct aule_session *session, uint64_t offset)
{
    struct attachment *attachment;
    if (!session || device_get(session, &attachment) != AULE_OK)
        return;
    arena_free(attachment->device->places, offset);
    session_put(attachment);
}
