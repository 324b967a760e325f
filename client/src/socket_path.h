// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// socket_path.h - where a daemon's socket is.

#ifndef AULE_CLIENT_SOCKET_PATH_H
#define AULE_CLIENT_SOCKET_PATH_H

#include "aule/aule.h"
#include "base/socket_rule.h"

// `given`, else $AULE_SOCKET, else by the rule of base/socket_rule.h. An empty variable counts as
// unset. *path is malloc'd, the caller's. AULE_INVALID: it is longer than SOCKET_PATH_MAX.
enum aule_status socket_path(const char *given, char **path);

#endif
