// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// peer.h - whether what listens at a path may have this process's prompts: whose process it is, and
// who could put another socket in its place. The kernel says both. Any thread.

#ifndef AULE_CLIENT_PEER_H
#define AULE_CLIENT_PEER_H

#include "aule/aule.h"

// Trusted are this process's user, root, and the user id in $AULE_DAEMON_UID. AULE_DENIED: the
// sentence has the user ids. AULE_INVALID: the variable has no user id.

// `fd` is connected to a listener at `path`. Call this before the first byte is sent.
enum aule_status peer_check(int fd, const char *path);
// For a datagram socket, which the kernel knows no listener of: by the owner of its file.
enum aule_status peer_check_file(const char *path);

#endif
