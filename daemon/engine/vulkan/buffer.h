// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// buffer.h - a buffer with memory of its own and an address that shaders follow.

#ifndef AULE_ENGINE_BUFFER_H
#define AULE_ENGINE_BUFFER_H

#include "device.h"

enum memory_use {
    MEMORY_POOL,     // only the GPU touches it: its own memory
    MEMORY_METADATA, // written by the CPU, read by the GPU: the GPU's own memory where the CPU can
                     // write there
    MEMORY_STAGING,  // read and written by both: the machine's memory, cached
    MEMORY_USES
};

struct buffer {
    VkBuffer handle;
    VkDeviceMemory memory;
    uint64_t size;    // bytes
    uint64_t address; // for shaders
    void *mapped;     // for the CPU, coherent; NULL for MEMORY_POOL and imported memory
    bool in_pool_heap;
    bool imported;
};

// Any thread. LIMIT: more than max_allocation_bytes. NO_MEMORY says how many bytes were wanted. On
// failure *buffer is zeroed.
enum status buffer_init(struct device *device, enum memory_use use, uint64_t size, const char *name,
                        struct buffer *buffer, struct error *error);
// The memory [base, base + size) of this process itself, in place. `base` and `size` are multiples
// of import_alignment.
enum status buffer_import(struct device *device, void *base, uint64_t size, const char *name,
                          struct buffer *buffer, struct error *error);
void buffer_finish(struct device *device, struct buffer *buffer); // takes a zeroed one

#endif
