// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// side_socket.h - a Unix socket beside the daemon's own: its path is that of the daemon's socket
// and a suffix. Knows files, not what goes through a socket. Call it under the daemon's lock.
// Thread: dispatcher.

#ifndef AULE_SERVER_SIDE_SOCKET_H
#define AULE_SERVER_SIDE_SOCKET_H

#include "base/socket_rule.h"
#include "bound.h"
#include "schema/status.h"

struct side_socket {
    const char *what;   // "doorbell", for sentences
    int type;           // SOCK_DGRAM, SOCK_SEQPACKET
    int fd;             // owned; -1 = not open
    struct bound bound; // its file
    char path[SOCKET_PATH_MAX + 1];
    const char *name; // the file name, inside `path`
};

// Sets all fields but fd, which becomes -1. `suffix` is at most as long as SOCKET_CONTROL.
void side_socket_name(struct side_socket *side, const char *socket, const char *suffix,
                      const char *what, int type);
// Removes what a killed daemon left at the path. INVALID: something else lies there, and stays.
enum status side_socket_clear(const struct side_socket *side, struct error *error);
// Clears the path and binds a socket that does not block. `for_all`: other users may write to it.
// Watches it in `epoll_fd` with `mark`.
enum status side_socket_open(struct side_socket *side, bool for_all, int epoll_fd, void *mark,
                             struct error *error);
// Removes the file, unless another one lies there now. Takes one that is not open.
void side_socket_remove(const struct side_socket *side);
// The same, and closes the socket.
void side_socket_close(struct side_socket *side);

#endif
