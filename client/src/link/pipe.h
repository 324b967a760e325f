// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// pipe.h - messages over a Unix stream socket in the framing of nng's REQ protocol, which the
// daemon's nng speaks: "SP over IPC". Knows frames but not their contents, and starts no thread.
// The client does not use nng itself: nng starts threads by the number of cores, keeps descriptors
// after the last close, and does not survive fork().
//
// Each side first sends a greeting of 8 bytes: 0 'S' 'P' 0, the protocol in 16 bits (REQ 0x30, REP
// 0x31), and 0 0. Each message is then a frame: the byte 1, the size of the rest in 64 bits, an id
// in 32 bits, and the body. The highest bit of the id is set. The answer repeats the id. Numbers
// are big-endian. Source: nng's IPC and REQ mappings, nanomsg's rfc/sp-request-reply-01.

#ifndef AULE_CLIENT_PIPE_H
#define AULE_CLIENT_PIPE_H

#include "aule/aule.h"
#include "timeout.h"

#include <stdbool.h>
#include <stddef.h>

// Connects to the socket at `path` and exchanges greetings. *fd is the caller's to close.
// AULE_DAEMON_GONE: nothing listens there, or the listener is no daemon. AULE_DENIED: also by
// peer_check(). AULE_INVALID: $AULE_DAEMON_UID. AULE_TIMEOUT. AULE_NO_MEMORY.
enum aule_status pipe_open(const char *path, const struct timeout *timeout, int *fd);

enum { PIPE_HEAD = 13 }; // bytes before a body
// The id of a frame that answers no request: it says why the daemon closes the connection.
#define PIPE_PARTING (UINT32_C(1) << 31)
void pipe_write_head(uint8_t head[PIPE_HEAD], uint32_t id, size_t body_size);

// Sends `size` bytes, and waits for room in the socket until `timeout` has passed. Returns the
// number of bytes sent. It is less than `size` if time ran out or, with *gone set, if the peer has
// hung up.
size_t pipe_send(int fd, const void *data, size_t size, const struct timeout *timeout, bool *gone);

// Waits for the next frame. *body is malloc'd and the caller's; NULL: there was no memory for it.
// False: the peer has hung up, or sent something that is no frame.
bool pipe_receive(int fd, uint32_t *id, void **body, size_t *size);

#endif
