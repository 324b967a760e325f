// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// socket_path.h - where the socket is, and the lock file beside it, which one daemon at a time can
// hold. Knows files, nothing of nng. Dispatcher thread, only at the daemon's start and end.

#ifndef AULE_SERVER_SOCKET_PATH_H
#define AULE_SERVER_SOCKET_PATH_H

#include "schema/status.h"

enum { SOCKET_PATH_ROOM = 108 }; // sizeof sun_path: at most 107 bytes and the NUL

// Finds the absolute path of the socket. It is `option` if that is not NULL. Otherwise it is
// NUMBER.sock in $AULE_RUNTIME_DIR if that is set, else in $XDG_RUNTIME_DIR/aule if that is set,
// else in /run/aule. `number` is the device's place in --list-devices. A client that is told
// nothing looks for 0, the best device.
// If the folder is missing and its parent is not, it is made with mode 0700. It must belong to this
// user or root. Other users must not be able to write there, unless it is sticky.
// INVALID, DENIED: the error has the path.
enum status socket_path_resolve(const char *option, uint32_t number, char path[SOCKET_PATH_ROOM],
                                struct error *error);

struct socket_lock {
    int fd;                          // owned; -1 = not held
    char path[SOCKET_PATH_ROOM + 8]; // SOCKET.lock
};
// BUSY: another process holds the lock; the error has its pid. DENIED: the file cannot be made.
enum status socket_lock_take(const char *socket_path, struct socket_lock *lock,
                             struct error *error);
void socket_lock_release(struct socket_lock *lock); // removes the file; takes one that is not held

// Call this with the lock. It removes a stale socket at `path`. INVALID: there is another kind of
// file, or a program listens there; it stays, but nng would delete it.
enum status socket_path_clear(const char *path, struct error *error);

// The prefix of all segment names of this daemon, in /dev/shm, without a slash. It depends only on
// the socket's path, so the next daemon with the same lock finds what a killed one left.
enum { SEGMENT_PREFIX_ROOM = 32 };
void socket_path_segment_prefix(const char *path, char prefix[SEGMENT_PREFIX_ROOM]);

#endif
