// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// stream.c - see stream.h. hiredis connects; its own buffers are not used.

#include "stream.h"

#include "tls.h"

#include <errno.h>
#include <fcntl.h>
#include <hiredis/hiredis.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

bool stream_open(struct stream *stream, const char *ip, uint16_t port)
{
    redisContext *context = redisConnectNonBlock(ip, port);
    const int one = 1;
    *stream = (struct stream){.fd = -1};
    if (!context) {
        errno = ENOMEM;
        return false;
    }
    if (context->err) {
        redisFree(context);
        errno = ECONNREFUSED;
        return false;
    }
    stream->fd = redisFreeKeepFd(context);
    fcntl(stream->fd, F_SETFD, FD_CLOEXEC);
    setsockopt(stream->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    setsockopt(stream->fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
    return true;
}

int stream_outcome(const struct stream *stream)
{
    int outcome = 0;
    socklen_t size = sizeof outcome;
    return getsockopt(stream->fd, SOL_SOCKET, SO_ERROR, &outcome, &size) != 0 ? errno : outcome;
}

bool stream_begin_tls(struct stream *stream, const struct tls *tls, const char *host)
{
    stream->tls = tls_begin(tls, stream->fd, host);
    return stream->tls != NULL;
}

bool stream_wants_room(const struct stream *stream)
{
    return stream->tls && tls_wants_room(stream->tls);
}

bool stream_has_more(const struct stream *stream)
{
    return stream->tls && tls_has_more(stream->tls);
}

void stream_close(struct stream *stream)
{
    tls_end(stream->tls);
    stream->tls = NULL;
    if (stream->fd >= 0)
        close(stream->fd);
    stream->fd = -1;
}

ssize_t stream_read(struct stream *stream, struct iovec *to, int count)
{
    ssize_t got;
    if (stream->tls)
        return tls_read(stream->tls, to, count);
    do
        got = readv(stream->fd, to, count);
    while (got < 0 && errno == EINTR);
    return got;
}

ssize_t stream_write(struct stream *stream, struct iovec *from, int count)
{
    const struct msghdr message = {.msg_iov = from, .msg_iovlen = (size_t)count};
    ssize_t put;
    if (stream->tls)
        return tls_write(stream->tls, from, count);
    do
        put = sendmsg(stream->fd, &message, MSG_NOSIGNAL);
    while (put < 0 && errno == EINTR);
    return put;
}
