// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// pipe.h - messages over a Unix stream socket, in the framing of schema/frame.h. Knows frames but
// not their contents, and starts no thread. The client does not use nng itself: nng starts threads
// by the number of cores, keeps descriptors after the last close, and does not survive fork().

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

// Sends `size` bytes, and waits for room in the socket until `timeout` has passed. Returns the
// number of bytes sent. It is less than `size` if time ran out or, with *gone set, if the peer has
// hung up.
size_t pipe_send(int fd, const void *data, size_t size, const struct timeout *timeout, bool *gone);

// Waits for the next frame. *body is malloc'd and the caller's; NULL: there was no memory for it.
// False: the peer has hung up, or sent something that is no frame.
bool pipe_receive(int fd, uint32_t *id, void **body, size_t *size);

#endif
