// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// descriptor.c - see descriptor.h.

#include "descriptor.h"

#include "client/src/error.h"
#include "client/src/link/peer.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

enum aule_status descriptor_find(const char *socket, const char *name, struct sockaddr_un *address)
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

static enum aule_status connect_to(const struct sockaddr_un *address, int grace_ms, int *fd)
{
    const struct timeval limit = {.tv_sec = grace_ms < 0 ? 0 : grace_ms / 1000,
                                  .tv_usec = grace_ms < 0 ? 0 : grace_ms % 1000 * 1000};
    *fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (*fd < 0)
        return fail_no_descriptor(address->sun_path);
    setsockopt(*fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    setsockopt(*fd, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    if (connect(*fd, (const struct sockaddr *)address, sizeof *address) == 0) {
        enum aule_status status = peer_check(*fd, address->sun_path);
        if (status != AULE_OK)
            close(*fd);
        return status;
    }
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
                    "the answer of the export socket %s has %zd bytes and no descriptor; this "
                    "process may have reached its limit of descriptors",
                    path, size);
    return fail((enum aule_status)answer.status, "the export socket %s: %s", path, answer.message);
}

enum aule_status descriptor_redeem(const struct sockaddr_un *address,
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
