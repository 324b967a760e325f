// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// fake_libcuda.c - a libcuda without a GPU: a shared library with the functions that
// client/src/gpu/cuda.c takes. It imports a descriptor by mapping it, as a software device's memory
// allows; so its device addresses are this process's own.

#include "fake_libcuda.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))
enum { SUCCESS = 0, INVALID = 1, NO_CONTEXT = 201, REFUSED = 999 };

EXPORTED struct fake_libcuda fake_libcuda;
static void *current;
struct import { // owned by the program until cuDestroyExternalMemory()
    int fd;
    uint64_t allocated;
};
struct mapping {
    struct mapping *next;
    char *base;
    size_t size;
};
static struct mapping *mappings;

struct handle_desc { // CUDA_EXTERNAL_MEMORY_HANDLE_DESC of cuda.h
    int type;
    union {
        int fd;
        void *win32[2];
    } handle;
    unsigned long long size;
    unsigned flags;
    unsigned reserved[16];
};
struct buffer_desc {
    unsigned long long offset, size;
    unsigned flags;
    unsigned reserved[16];
};

EXPORTED int cuInit(unsigned flags)
{
    return flags == 0 ? SUCCESS : INVALID;
}

EXPORTED int cuDeviceGetCount(int *count)
{
    *count = fake_libcuda.num_devices;
    return SUCCESS;
}

EXPORTED int cuDeviceGet(int *device, int ordinal)
{
    *device = ordinal + 100;
    return ordinal < fake_libcuda.num_devices ? SUCCESS : INVALID;
}

EXPORTED int cuDeviceGetUuid(void *uuid, int device)
{
    memcpy(uuid, fake_libcuda.uuids[device - 100], 16);
    return SUCCESS;
}

EXPORTED int cuDevicePrimaryCtxRetain(void **context, int device)
{
    *context = &fake_libcuda.uuids[device - 100];
    fake_libcuda.contexts++;
    return SUCCESS;
}

EXPORTED int cuDevicePrimaryCtxRelease_v2(int device)
{
    fake_libcuda.contexts--;
    return device >= 100 ? SUCCESS : INVALID;
}

EXPORTED int cuCtxPushCurrent_v2(void *context)
{
    current = context;
    return SUCCESS;
}

EXPORTED int cuCtxPopCurrent_v2(void **context)
{
    *context = current;
    current = NULL;
    return SUCCESS;
}

EXPORTED int cuCtxSynchronize(void)
{
    fake_libcuda.synchronized++;
    return current ? SUCCESS : NO_CONTEXT;
}

EXPORTED int cuImportExternalMemory(void **memory, const struct handle_desc *desc)
{
    if (!current)
        return NO_CONTEXT;
    if (fake_libcuda.refuses_imports || desc->type != 1)
        return REFUSED;
    fake_libcuda.dedicated = desc->flags & 1;
    fake_libcuda.allocated = desc->size;
    struct import *import = malloc(sizeof *import);
    if (!import)
        return REFUSED;
    *import = (struct import){desc->handle.fd, desc->size}; // CUDA's from now on
    *memory = import;
    fake_libcuda.imports++;
    return SUCCESS;
}

EXPORTED int cuExternalMemoryGetMappedBuffer(unsigned long long *address, void *memory,
                                             const struct buffer_desc *desc)
{
    if (!current)
        return NO_CONTEXT;
    const struct import *import = memory;
    if (fake_libcuda.refuses_maps || desc->offset + desc->size > import->allocated)
        return REFUSED;
    struct mapping *mapping = malloc(sizeof *mapping);
    if (!mapping)
        return REFUSED;
    mapping->size = fake_libcuda.begin + desc->size;
    mapping->base = mmap(NULL, mapping->size, PROT_READ | PROT_WRITE, MAP_SHARED, import->fd, 0);
    if (mapping->base == MAP_FAILED) {
        free(mapping);
        return REFUSED;
    }
    mapping->next = mappings;
    mappings = mapping;
    *address = (uintptr_t)mapping->base + fake_libcuda.begin;
    fake_libcuda.maps++;
    return SUCCESS;
}

EXPORTED int cuDestroyExternalMemory(void *memory)
{
    close(((struct import *)memory)->fd);
    free(memory);
    fake_libcuda.imports--;
    return current ? SUCCESS : NO_CONTEXT;
}

EXPORTED int cuMemFree_v2(unsigned long long address)
{
    struct mapping **at = &mappings;
    while (*at && address != (uintptr_t)(*at)->base + fake_libcuda.begin)
        at = &(*at)->next;
    struct mapping *mapping = *at;
    if (!current || !mapping)
        return INVALID;
    munmap(mapping->base, mapping->size);
    *at = mapping->next;
    free(mapping);
    fake_libcuda.maps--;
    return SUCCESS;
}

EXPORTED int cuGetErrorName(int error, const char **name)
{
    *name = error == REFUSED ? "CUDA_ERROR_UNKNOWN" : "CUDA_ERROR_INVALID_VALUE";
    return SUCCESS;
}
