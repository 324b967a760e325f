// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// knock.h - asks the kernel whether a daemon listens at a path, before the client connects. Knows
// no connection.

#ifndef AULE_CLIENT_KNOCK_H
#define AULE_CLIENT_KNOCK_H

#include "aule/aule.h"

// AULE_OK: some process has a stream socket at `path`, and this process may connect.
// AULE_DAEMON_GONE: there is none; the sentence says what is there instead. AULE_DENIED: the
// permissions. AULE_NO_MEMORY: no memory or no file descriptor to ask. The other process notices
// nothing. Any thread.
enum aule_status knock(const char *path);

#endif
