// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// device.h - a session's arena of device memory: which bytes are allocated, and where this
// process's CUDA has mapped it. It is a part of the session's life. Any thread.

#ifndef AULE_CLIENT_DEVICE_H
#define AULE_CLIENT_DEVICE_H

#include "client/src/life.h"

struct device_arena;

// AULE_NOT_FOUND: the session has no device arena. AULE_NO_MEMORY. After AULE_OK *device is lent
// until session_put(), which the caller owes.
enum aule_status device_get(struct aule_session *session, struct life **life,
                            struct device_arena **device);
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

// `ended` is called when the session's life has ended, but not in a forked child. Between
// device_get() and session_put(). All callers give the same function.
void device_at_end(struct device_arena *device, void (*ended)(const struct device_arena *device));

#endif
