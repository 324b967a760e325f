// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// descriptor.h - descriptors of device memory, from the export socket beside the daemon's, for
// tokens that messages bring. Knows no session. Any thread.

#ifndef AULE_CLIENT_DESCRIPTOR_H
#define AULE_CLIENT_DESCRIPTOR_H

#include "aule/aule.h"
#include "schema/wire.h"

#include <sys/un.h>

// The address of the export socket with the file name `name`, in the folder of the daemon's
// `socket`. AULE_MISMATCH: that is no valid name.
enum aule_status descriptor_find(const char *socket, const char *name, struct sockaddr_un *address);
// Trades the token for a descriptor, which the caller closes. Waits at most grace_ms, -1 for ever.
enum aule_status descriptor_redeem(const struct sockaddr_un *address,
                                   const uint8_t token[WIRE_TOKEN_SIZE], int grace_ms, int *fd);

#endif
