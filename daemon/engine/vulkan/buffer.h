// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// buffer.h - a buffer with its own memory and a shader address. Knows no contents.

#ifndef AULE_ENGINE_BUFFER_H
#define AULE_ENGINE_BUFFER_H

#include "device.h"

enum memory_use {
    MEMORY_POOL, // device memory; only the GPU uses it
    // The CPU writes, the GPU reads: device memory if the CPU can write there.
    MEMORY_METADATA,
    MEMORY_STAGING,  // both read and write: cached host memory
    MEMORY_EXPORTED, // device memory that other processes can import; info.memory_export
    MEMORY_USES
};

struct buffer {
    VkBuffer handle;
    VkDeviceMemory memory;
    uint64_t size;      // bytes
    uint64_t allocated; // bytes of `memory`
    uint64_t address;   // for shaders
    void *mapped;       // coherent; NULL for MEMORY_POOL, MEMORY_EXPORTED and imported memory
    bool in_pool_heap;
    bool imported;  // uses the client's memory
    bool dedicated; // MEMORY_EXPORTED: importers must say so, too
};

// Creates a buffer; on failure *buffer is zeroed. LIMIT: `size` exceeds max_allocation_bytes.
// NO_MEMORY: the error says how many bytes. Any thread.
enum status buffer_init(struct device *device, enum memory_use use, uint64_t size, const char *name,
                        struct buffer *buffer, struct error *error);
// Makes a buffer of the process's own memory [base, base + size), without a copy. Both are
// multiples of import_alignment.
enum status buffer_import(struct device *device, void *base, uint64_t size, const char *name,
                          struct buffer *buffer, struct error *error);
// Opens a descriptor of a MEMORY_EXPORTED buffer's memory. The caller closes *fd; the memory lives
// until the buffer and all imports have ended.
enum status buffer_export(struct device *device, const struct buffer *buffer, int *fd,
                          struct error *error);
void buffer_finish(struct device *device, struct buffer *buffer); // takes a zeroed one

#endif
