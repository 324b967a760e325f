// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// pipe.c - see pipe.h. One thread may send while another receives.

#include "pipe.h"

#include "client/src/error.h"
#include "client/src/socket_path.h"
#include "knock.h"
#include "peer.h"
#include "schema/frame.h"
#include "schema/wire.h"

#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

// ---- opening ----

static enum aule_status too_late(const char *path, const struct timeout *timeout)
{
    return fail(AULE_TIMEOUT, "the daemon at %s did not accept the connection within %d ms", path,
                timeout->ms);
}

// Python's connect() waits for a daemon after a sentence that begins so: one may start anew there.
static enum aule_status hung_up(const char *path)
{
    return fail(
        AULE_DAEMON_GONE,
        "what listens at %s hung up at once: it is no daemon, has just ended, or is too old "
        "to say why",
        path);
}

// More may wait to be accepted than the socket's queue holds, as when a host's workers start at
// once: connect() then waits as long as the socket may wait to send.
static enum aule_status try_to_connect(int fd, const char *path, int wait_ms, bool *connected)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const struct timeval wait = {.tv_sec = wait_ms / 1000, .tv_usec = wait_ms % 1000 * 1000 + 1};
    strncpy(address.sun_path, path, sizeof address.sun_path - 1);
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof wait);
    *connected = connect(fd, (const struct sockaddr *)&address, sizeof address) == 0;
    if (*connected || errno == EAGAIN || errno == EINTR)
        return AULE_OK;
    if (errno == ENOMEM || errno == ENOBUFS)
        return fail(AULE_NO_MEMORY, "no memory to connect to %s", path);
    if (errno == EACCES || errno == EPERM)
        return fail(AULE_DENIED, "the permissions of %s refuse this process", path);
    if (errno == EPROTOTYPE) // knock() cannot tell these from streams
        return fail(AULE_DAEMON_GONE,
                    "no daemon can listen at %s: that socket takes packets and no streams", path);
    return fail(AULE_DAEMON_GONE, "no daemon listens at %s any more: %s", path, strerror(errno));
}

static enum aule_status connect_to(int fd, const char *path, const struct timeout *timeout)
{
    for (;;) {
        int left = timeout_left(timeout);
        bool connected;
        enum aule_status status = try_to_connect(fd, path, timeout_look(timeout), &connected);
        if (status != AULE_OK || connected)
            return status;
        if (left == 0)
            return too_late(path, timeout);
        status = knock(path);
        if (status != AULE_OK)
            return status;
    }
}

static enum aule_status read_greeting(int fd, const char *path, const struct timeout *timeout)
{
    uint8_t greeting[FRAME_GREETING];
    for (size_t got = 0; got < FRAME_GREETING;) {
        int left = timeout_left(timeout);
        struct pollfd readable = {.fd = fd, .events = POLLIN};
        int ready = poll(&readable, 1, timeout_look(timeout));
        ssize_t count = ready > 0 ? read(fd, greeting + got, FRAME_GREETING - got) : 0;
        if (ready > 0 && count <= 0)
            return hung_up(path);
        got += (size_t)count;
        enum aule_status status = ready > 0 ? AULE_OK : knock(path);
        if (status != AULE_OK)
            return status;
        if (ready <= 0 && left == 0)
            return too_late(path, timeout);
    }
    if (memcmp(greeting, frame_daemon_greeting, FRAME_GREETING) != 0)
        return fail(AULE_DAEMON_GONE,
                    "no daemon can listen at %s: what listens there is no daemon, it speaks "
                    "another protocol",
                    path);
    return AULE_OK;
}

static enum aule_status greet(int fd, const char *path, const struct timeout *timeout)
{
    bool gone = false;
    // A daemon that hangs up at once has said why before, behind its greeting.
    if (pipe_send(fd, frame_client_greeting, FRAME_GREETING, timeout, &gone) != FRAME_GREETING &&
        !gone)
        return too_late(path, timeout);
    return read_greeting(fd, path, timeout);
}

enum aule_status pipe_open(const char *path, const struct timeout *timeout, int *out)
{
    enum aule_status status = knock(path);
    if (status != AULE_OK)
        return status;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return errno == EMFILE || errno == ENFILE
                   ? fail_no_descriptor(path)
                   : fail(AULE_NO_MEMORY, "no memory to connect to %s", path);
    status = connect_to(fd, path, timeout);
    if (status == AULE_OK)
        status = peer_check(fd, path);
    if (status == AULE_OK)
        status = greet(fd, path, timeout);
    if (status == AULE_OK)
        *out = fd;
    else
        close(fd);
    return status;
}

// ---- frames ----

size_t pipe_send(int fd, const void *data, size_t size, const struct timeout *timeout, bool *gone)
{
    size_t sent = 0;
    while (sent < size) {
        ssize_t count =
            send(fd, (const char *)data + sent, size - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (count > 0) {
            sent += (size_t)count;
            continue;
        }
        if (errno == EINTR)
            continue;
        *gone = errno != EAGAIN && errno != EWOULDBLOCK && errno != ENOBUFS;
        int left = timeout_left(timeout);
        if (*gone || left == 0)
            return sent;
        struct pollfd writable = {.fd = fd, .events = POLLOUT};
        poll(&writable, 1, left);
    }
    return sent;
}

static bool receive_all(int fd, void *to, size_t size)
{
    while (size > 0) {
        ssize_t count = recv(fd, to, size, MSG_WAITALL);
        if (count < 0 && errno == EINTR)
            continue;
        if (count <= 0)
            return false;
        to = (char *)to + count;
        size -= (size_t)count;
    }
    return true;
}

// An answer that there is no memory for is read all the same: others come behind it.
static bool skip(int fd, size_t size)
{
    char part[4096];
    for (; size > sizeof part; size -= sizeof part)
        if (!receive_all(fd, part, sizeof part))
            return false;
    return receive_all(fd, part, size);
}

bool pipe_receive(int fd, uint32_t *id, void **body, size_t *size)
{
    uint8_t head[FRAME_HEAD];
    if (!receive_all(fd, head, sizeof head) || head[0] != 1)
        return false;
    const uint64_t length = frame_length(head);
    if (length < FRAME_NUMBER_SIZE || length > FRAME_NUMBER_SIZE + WIRE_MAX_MESSAGE)
        return false;
    *id = frame_number(head);
    *size = length - FRAME_NUMBER_SIZE;
    *body = malloc(*size ? *size : 1);
    if (!*body)
        return skip(fd, *size);
    if (receive_all(fd, *body, *size))
        return true;
    free(*body);
    return false;
}
