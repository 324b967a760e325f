// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// device.h - a session's arena of device memory: which bytes are allocated, and where this
// process's CUDA has mapped it. Any thread.

#ifndef AULE_CLIENT_DEVICE_H
#define AULE_CLIENT_DEVICE_H

#include "aule/aule.h"
#include "schema/wire.h"

struct device_arena;

// *out NULL with AULE_OK: none was asked for. `socket` is the daemon's. AULE_UNSUPPORTED: the
// daemon is too old.
enum aule_status device_open(const struct wire_hello_reply *hello, uint64_t asked,
                             const char *socket, struct device_arena **out);
// Unmaps the memory from CUDA. Takes NULL.
void device_close(struct device_arena *device);

#endif
