// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// knock.h - is anybody there? What the file system and the kernel say of a daemon's socket before
// it is connected to. Knows no connection.

#ifndef AULE_CLIENT_KNOCK_H
#define AULE_CLIENT_KNOCK_H

#include "aule/aule.h"

// AULE_OK: some process has a stream socket at `path`, and this one may connect. AULE_DAEMON_GONE:
// there is none, and the sentence says what is there instead. AULE_DENIED: the permissions.
// AULE_NO_MEMORY: no memory or no descriptor to ask with. The process there notices nothing. Any
// thread.
enum aule_status knock(const char *path);

#endif
