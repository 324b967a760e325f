// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// stream.h - the bytes of one connection, with TLS or without. Nothing blocks. One thread.

#ifndef AULE_TIER_REDIS_STREAM_H
#define AULE_TIER_REDIS_STREAM_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

struct tls;
struct tls_conn;

struct stream {
    int fd;               // -1: none
    struct tls_conn *tls; // owned; NULL: plain
};

// Begins to connect to a numeric address. False: errno.
bool stream_open(struct stream *stream, const char *ip, uint16_t port);
// The outcome of connecting: 0 or an errno.
int stream_outcome(const struct stream *stream);
// Begins TLS on a connected stream; see tls_begin(). False: no memory.
bool stream_begin_tls(struct stream *stream, const struct tls *tls, const char *host);
void stream_close(struct stream *stream);
// As readv() and writev(): -1 with EAGAIN if there is nothing now. Reading gives 0 at the end.
ssize_t stream_read(struct stream *stream, struct iovec *to, int count);
ssize_t stream_write(struct stream *stream, struct iovec *from, int count);
bool stream_wants_room(const struct stream *stream); // see tls_wants_room() and tls_has_more()
bool stream_has_more(const struct stream *stream);

#endif
