// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// cuda.h - imports device memory into this process's CUDA. libcuda is loaded when it is first
// asked for; nothing links it. Knows descriptors and devices, no session. Any thread.

#ifndef AULE_CLIENT_CUDA_H
#define AULE_CLIENT_CUDA_H

#include "aule/aule.h"

struct cuda_import;

struct cuda_memory {
    int fd; // stays the caller's
    bool dedicated;
    uint64_t size, allocated; // bytes: to map; of the allocation
    uint8_t uuid[16];         // of the device that exported it
};

// Maps the memory into the primary context of CUDA device `device`, which torch and the CUDA
// runtime use; -1: of the device with this UUID. *address is where it begins. AULE_UNSUPPORTED: no
// libcuda, no such device, or the driver refuses. AULE_MISMATCH: the device has another UUID; the
// sentence has both.
enum aule_status cuda_import(const struct cuda_memory *memory, int device, struct cuda_import **out,
                             uint64_t *address);
int cuda_import_device(const struct cuda_import *import);
// Waits for the context's kernels and unmaps. In a forked child it does nothing. Takes NULL.
void cuda_import_end(struct cuda_import *import);

#endif
