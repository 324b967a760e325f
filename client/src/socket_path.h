// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// socket_path.h - finds a daemon's socket.

#ifndef AULE_CLIENT_SOCKET_PATH_H
#define AULE_CLIENT_SOCKET_PATH_H

#include "aule/aule.h"

enum { SOCKET_PATH_MAX = 107 }; // bytes that sockaddr_un takes, without the NUL

// The first of: `given`, $AULE_SOCKET, $AULE_RUNTIME_DIR/0.sock, $XDG_RUNTIME_DIR/aule/0.sock,
// /run/aule/0.sock. An empty variable counts as unset. *path is malloc'd, the caller's.
// AULE_INVALID: longer than SOCKET_PATH_MAX.
enum aule_status socket_path(const char *given, char **path);

#endif
