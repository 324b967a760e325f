// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// fake_libcuda.c - a libcuda without a GPU: a shared library with the functions that
// client/src/cuda.c takes. It imports a descriptor by mapping it, as a software device's memory
// allows; so its device addresses are this process's own.

#include "fake_libcuda.h"

#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define EXPORTED __attribute__((visibility("default")))
enum { SUCCESS = 0, INVALID = 1, NO_CONTEXT = 201, REFUSED = 999 };

EXPORTED struct fake_libcuda fake_libcuda;
static void *current, *mapped;
static size_t mapped_size;
static int imported_fd = -1;

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
    imported_fd = desc->handle.fd; // CUDA's from now on
    *memory = &imported_fd;
    fake_libcuda.imports++;
    return SUCCESS;
}

EXPORTED int cuExternalMemoryGetMappedBuffer(unsigned long long *address, void *memory,
                                             const struct buffer_desc *desc)
{
    if (!current)
        return NO_CONTEXT;
    if (fake_libcuda.refuses_maps || memory != &imported_fd ||
        desc->offset + desc->size > fake_libcuda.allocated)
        return REFUSED;
    mapped_size = fake_libcuda.begin + desc->size;
    mapped = mmap(NULL, mapped_size, PROT_READ | PROT_WRITE, MAP_SHARED, imported_fd, 0);
    if (mapped == MAP_FAILED)
        return REFUSED;
    *address = (uintptr_t)mapped + fake_libcuda.begin;
    fake_libcuda.maps++;
    return SUCCESS;
}

EXPORTED int cuDestroyExternalMemory(void *memory)
{
    close(*(int *)memory);
    fake_libcuda.imports--;
    return current ? SUCCESS : NO_CONTEXT;
}

EXPORTED int cuMemFree_v2(unsigned long long address)
{
    if (!current || address != (uintptr_t)mapped + fake_libcuda.begin)
        return INVALID;
    munmap(mapped, mapped_size);
    fake_libcuda.maps--;
    return SUCCESS;
}

EXPORTED int cuGetErrorName(int error, const char **name)
{
    *name = error == REFUSED ? "CUDA_ERROR_UNKNOWN" : "CUDA_ERROR_INVALID_VALUE";
    return SUCCESS;
}
