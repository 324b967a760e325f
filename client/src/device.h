// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// device.h - a session's arena of device memory: which bytes are allocated, and where this
// process's CUDA has mapped it. Any thread.

#ifndef AULE_CLIENT_DEVICE_H
#define AULE_CLIENT_DEVICE_H

#include "aule/aule.h"
#include "schema/wire.h"

#include <stdbool.h>

struct attachment;
struct device_arena;

// *out NULL with AULE_OK: none was asked for. `socket` is the daemon's. AULE_UNSUPPORTED: the
// daemon is too old.
enum aule_status device_open(const struct wire_hello_reply *hello, uint64_t asked,
                             const char *socket, struct device_arena **out);
// The last reference's end unmaps the memory from CUDA. Takes NULL.
void device_unref(struct device_arena *device);
void device_ref(struct device_arena *device);

struct device_place {
    int cuda_device;
    uint64_t address, size; // where CUDA has mapped it, bytes
    struct arena *places;   // lent
};
// False: it is not mapped.
bool device_place(struct device_arena *device, struct device_place *place);
// AULE_NOT_FOUND: the session has no device arena. After AULE_OK call session_put().
enum aule_status device_get(struct aule_session *session, struct attachment **attachment);

#endif
