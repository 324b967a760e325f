// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// device.c - see device.h. The descriptor comes over the export socket, a socket beside the
// daemon's, for a token that a message brings. Any thread; a mutex guards the import.

#include "device.h"

#include "arena.h"
#include "caller.h"
#include "cuda.h"
#include "error.h"
#include "session.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

struct device_arena {
    struct sockaddr_un address; // of the export socket
    uint64_t size;              // bytes
    struct arena *places;
    pthread_mutex_t mutex; // guards the rest
    struct cuda_import *import;
    uint64_t cuda_address;
};

static enum aule_status find_socket(const char *socket, const char *name,
                                    struct sockaddr_un *address)
{
    const char *slash = strrchr(socket, '/');
    int folder = slash ? (int)(slash - socket) + 1 : 0;
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    int size =
        snprintf(address->sun_path, sizeof address->sun_path, "%.*s%s", folder, socket, name);
    if (*name == '\0' || strchr(name, '/') || size < 0 || (size_t)size >= sizeof address->sun_path)
        return fail(AULE_MISMATCH,
                    "the name \"%s\" of the export socket of the daemon at %s is not valid", name,
                    socket);
    return AULE_OK;
}

enum aule_status device_open(const struct wire_hello_reply *hello, uint64_t asked,
                             const char *socket, struct device_arena **out)
{
    *out = NULL;
    if (asked == 0)
        return AULE_OK;
    if (hello->device_arena_size < asked)
        return fail(AULE_UNSUPPORTED,
                    "the daemon is too old (protocol %u.%u; a device arena needs 2.8)",
                    hello->major, hello->minor);
    struct device_arena *device = calloc(1, sizeof *device);
    if (!device)
        return fail(AULE_NO_MEMORY, "no memory for a session");
    pthread_mutex_init(&device->mutex, NULL);
    device->size = hello->device_arena_size;
    enum aule_status status =
        find_socket(socket, hello->export_socket ? hello->export_socket : "", &device->address);
    if (status == AULE_OK)
        status = arena_create(device->size, &device->places);
    if (status == AULE_OK)
        *out = device;
    else
        device_close(device);
    return status;
}

void device_close(struct device_arena *device)
{
    if (!device)
        return;
    cuda_import_end(device->import);
    arena_destroy(device->places);
    pthread_mutex_destroy(&device->mutex);
    free(device);
}

// ---- the descriptor ----

static enum aule_status connect_to(const struct sockaddr_un *address, int grace_ms, int *fd)
{
    const struct timeval limit = {.tv_sec = grace_ms < 0 ? 0 : grace_ms / 1000,
                                  .tv_usec = grace_ms < 0 ? 0 : grace_ms % 1000 * 1000};
    *fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (*fd < 0)
        return fail_no_descriptor(address->sun_path);
    setsockopt(*fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(*fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    if (connect(*fd, (const struct sockaddr *)address, sizeof *address) == 0)
        return AULE_OK;
    const int error = errno;
    close(*fd);
    if (error == EAGAIN)
        return fail(AULE_TIMEOUT, "the export socket %s took no connection in %d ms",
                    address->sun_path, grace_ms);
    return fail(error == EACCES ? AULE_DENIED : AULE_DAEMON_GONE, "the export socket %s: %s",
                address->sun_path, strerror(error));
}

// Copies the answer's descriptor, if it has one.
static int descriptor_of(struct msghdr *message)
{
    int fd = -1;
    const struct cmsghdr *first = CMSG_FIRSTHDR(message);
    if (first && first->cmsg_level == SOL_SOCKET && first->cmsg_type == SCM_RIGHTS &&
        first->cmsg_len == CMSG_LEN(sizeof fd))
        memcpy(&fd, CMSG_DATA(first), sizeof fd);
    return fd;
}

static enum aule_status take_answer(int peer, const char *path, int *fd)
{
    struct wire_export_answer answer;
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(sizeof *fd)];
    struct iovec bytes = {&answer, sizeof answer};
    struct msghdr message = {.msg_iov = &bytes,
                             .msg_iovlen = 1,
                             .msg_control = control,
                             .msg_controllen = sizeof control};
    ssize_t size = recvmsg(peer, &message, MSG_CMSG_CLOEXEC);
    if (size < 0 && errno == EAGAIN)
        return fail(AULE_TIMEOUT, "the export socket %s did not answer", path);
    if (size <= 0)
        return fail(AULE_DAEMON_GONE, "the export socket %s ended without an answer", path);
    *fd = descriptor_of(&message);
    answer.message[sizeof answer.message - 1] = '\0';
    if (size == (ssize_t)sizeof answer && answer.status == STATUS_OK && *fd >= 0)
        return AULE_OK;
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
    if (size != (ssize_t)sizeof answer || answer.status == STATUS_OK)
        return fail(answer.status == STATUS_OK ? AULE_NO_MEMORY : AULE_MALFORMED,
                    "the answer of the export socket %s has %zd bytes and no descriptor; has this "
                    "process reached its limit of descriptors?",
                    path, size);
    return fail((enum aule_status)answer.status, "the export socket %s: %s", path, answer.message);
}

static enum aule_status redeem(const struct sockaddr_un *address,
                               const uint8_t token[WIRE_TOKEN_SIZE], int grace_ms, int *fd)
{
    struct wire_export_request request = {.magic = {0}};
    int peer;
    enum aule_status status = connect_to(address, grace_ms, &peer);
    if (status != AULE_OK)
        return status;
    memcpy(request.magic, WIRE_EXPORT_MAGIC, sizeof request.magic);
    memcpy(request.token, token, sizeof request.token);
    send(peer, &request, sizeof request, MSG_NOSIGNAL); // if this fails, the answer says why
    status = take_answer(peer, address->sun_path, fd);
    close(peer);
    return status;
}

static enum aule_status take_descriptor(struct attachment *attachment,
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
    status = redeem(&attachment->device->address, reply->token, attachment->grace_ms, &export->fd);
    answer_finish(&answer);
    return status;
}

// ---- public ----

// AULE_NOT_FOUND: the session has no device arena. After AULE_OK call session_put().
static enum aule_status get(struct aule_session *session, struct attachment **attachment)
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
    enum aule_status status = get(session, &attachment);
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
    enum aule_status status = get(session, &attachment);
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
    enum aule_status status = get(session, &attachment);
    if (status != AULE_OK)
        return status;
    status = arena_alloc(attachment->device->places, size, offset);
    session_put(attachment);
    return status;
}

void aule_device_free(struct aule_session *session, uint64_t offset)
{
    struct attachment *attachment;
    if (!session || get(session, &attachment) != AULE_OK)
        return;
    arena_free(attachment->device->places, offset);
    session_put(attachment);
}
