// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// socket_path.h - where the socket lies, and the lock beside it that makes its daemon the only one.
// Knows nothing of nng. Thread: dispatcher, at start and end only.

#ifndef AULE_SERVER_SOCKET_PATH_H
#define AULE_SERVER_SOCKET_PATH_H

#include "base/socket_rule.h"
#include "bound.h"
#include "schema/status.h"

enum { SOCKET_PATH_ROOM = SOCKET_DAEMON_MAX + 1 };

// The absolute path of the socket: `option`, or by the rule of base/socket_rule.h if that is NULL.
// `number` is the device's place in --list-devices. The folder is made, with mode 0700, if only its
// last part is missing. It must belong to us or root, and not be writable for others unless it is
// sticky. INVALID, DENIED with the path.
enum status socket_path_resolve(const char *option, uint32_t number, char path[SOCKET_PATH_ROOM],
                                struct error *error);

struct socket_lock {
    int fd;                          // owned; -1 = not held
    char path[SOCKET_PATH_ROOM + 8]; // SOCKET.lock
    struct bound bound;              // the file
};
// BUSY with the owner's pid if another process holds it; DENIED if the file cannot be made.
enum status socket_lock_take(const char *socket_path, struct socket_lock *lock,
                             struct error *error);
// Removes the file, unless it is another daemon's now; takes one that is not held.
void socket_lock_release(struct socket_lock *lock);

// Frees the path; call this under the lock. Removes a socket that no program listens on. INVALID:
// something else lies there, which stays; nng would delete it.
enum status socket_path_clear(const char *path, struct error *error);

#endif
