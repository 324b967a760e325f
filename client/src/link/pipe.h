// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// pipe.h - messages over a Unix stream socket in the framing of nng's REQ protocol, which the
// daemon's nng speaks: "SP over IPC". Knows frames, not what is in them, and no thread. nng itself
// is not used on this side: it starts threads by the number of cores, keeps descriptors after the
// last close, and does not survive fork().
//
// A greeting of 8 bytes goes both ways: 0 'S' 'P' 0, the protocol (REQ 0x30, REP 0x31) in 16 bits,
// and 0 0. Each message is a frame: the byte 1, the size of the rest in 64 bits, an id in 32 bits
// whose highest bit is set and which the answer repeats, and the body. Numbers are big-endian.
// Source: nng's IPC and REQ mappings, nanomsg's rfc/sp-request-reply-01.

#ifndef AULE_CLIENT_PIPE_H
#define AULE_CLIENT_PIPE_H

#include "aule/aule.h"
#include "timeout.h"

#include <stdbool.h>
#include <stddef.h>

// Connects to the socket at `path` and exchanges greetings. *fd is the caller's to close.
// AULE_DAEMON_GONE: nobody listens there, or what does is no daemon. AULE_DENIED. AULE_TIMEOUT.
// AULE_NO_MEMORY.
enum aule_status pipe_open(const char *path, const struct timeout *timeout, int *fd);

enum { PIPE_HEAD = 13 }; // bytes before a body
void pipe_write_head(uint8_t head[PIPE_HEAD], uint32_t id, size_t body_size);

// Sends up to `size` bytes and waits for room in the socket as long as `timeout` has left. Returns
// how many went; fewer with *gone set if the peer has hung up.
size_t pipe_send(int fd, const void *data, size_t size, const struct timeout *timeout, bool *gone);

// Waits for the next frame. *body is malloc'd, the caller's, and NULL where there was no memory for
// it. False: the peer has hung up, or sent what is no frame.
bool pipe_receive(int fd, uint32_t *id, void **body, size_t *size);

#endif
