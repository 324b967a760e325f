// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// cuda.c - see cuda.h. The few types and constants of cuda.h of CUDA that it needs stand here; they
// are part of the driver's ABI. libcuda stays loaded: it cannot be unloaded safely.

#include "cuda.h"

#include "base/uuid.h"
#include "client/src/error.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef int cu_result; // CUresult; 0 = success
typedef int cu_device;
typedef struct cu_context *cu_context;
typedef struct cu_memory *cu_memory; // CUexternalMemory
typedef unsigned long long cu_address;

enum {
    OPAQUE_FD = 1,
    DEDICATED = 1
}; // CU_EXTERNAL_MEMORY_HANDLE_TYPE_OPAQUE_FD, CUDA_..._DEDICATED

struct cu_handle_desc { // CUDA_EXTERNAL_MEMORY_HANDLE_DESC
    int type;
    union {
        int fd;
        struct {
            void *handle;
            const void *name;
        } win32;
    } handle;
    unsigned long long size;
    unsigned flags;
    unsigned reserved[16];
};
struct cu_buffer_desc { // CUDA_EXTERNAL_MEMORY_BUFFER_DESC
    unsigned long long offset, size;
    unsigned flags;
    unsigned reserved[16];
};

// X(field, symbol, arguments)
#define FUNCTIONS(X)                                                                               \
    X(init, "cuInit", (unsigned))                                                                  \
    X(device_count, "cuDeviceGetCount", (int *))                                                   \
    X(device_at, "cuDeviceGet", (cu_device *, int))                                                \
    X(device_uuid, "cuDeviceGetUuid", (void *, cu_device))                                         \
    X(context_retain, "cuDevicePrimaryCtxRetain", (cu_context *, cu_device))                       \
    X(context_release, "cuDevicePrimaryCtxRelease_v2", (cu_device))                                \
    X(context_push, "cuCtxPushCurrent_v2", (cu_context))                                           \
    X(context_pop, "cuCtxPopCurrent_v2", (cu_context *))                                           \
    X(context_synchronize, "cuCtxSynchronize", (void))                                             \
    X(memory_import, "cuImportExternalMemory", (cu_memory *, const struct cu_handle_desc *))       \
    X(memory_map, "cuExternalMemoryGetMappedBuffer",                                               \
      (cu_address *, cu_memory, const struct cu_buffer_desc *))                                    \
    X(memory_destroy, "cuDestroyExternalMemory", (cu_memory))                                      \
    X(memory_free, "cuMemFree_v2", (cu_address))                                                   \
    X(error_name, "cuGetErrorName", (cu_result, const char **))

static struct {
#define FIELD(field, symbol, arguments) cu_result(*field) arguments;
    FUNCTIONS(FIELD)
#undef FIELD
} cu;
static char load_error[256]; // "" = all functions are there
static pthread_once_t loaded = PTHREAD_ONCE_INIT;

struct cuda_import {
    pid_t pid;
    int ordinal;
    cu_device device;
    cu_context context; // retained
    cu_memory memory;
    cu_address address;
};

// ---- libcuda ----

static void load(void)
{
    static const struct {
        size_t offset;
        const char *symbol;
    } functions[] = {
#define ENTRY(field, symbol, arguments) {(size_t)((char *)&cu.field - (char *)&cu), symbol},
        FUNCTIONS(ENTRY)
#undef ENTRY
    };
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (!library) {
        snprintf(load_error, sizeof load_error, "libcuda cannot be loaded: %s", dlerror());
        return;
    }
    for (size_t i = 0; i < sizeof functions / sizeof *functions; i++) {
        void *function = dlsym(library, functions[i].symbol);
        if (!function) {
            snprintf(load_error, sizeof load_error,
                     "libcuda is too old: it has no %s (CUDA 10.2 or later is needed)",
                     functions[i].symbol);
            return;
        }
        memcpy((char *)&cu + functions[i].offset, &function, sizeof function);
    }
}

static enum aule_status refused(const char *call, cu_result result)
{
    const char *name = NULL;
    if (cu.error_name(result, &name) != 0 || !name)
        name = "an unknown error";
    return fail(AULE_UNSUPPORTED, "CUDA refuses: %s returned %d (%s)", call, result, name);
}

#define CU_TRY(call)                                                                               \
    do {                                                                                           \
        cu_result result_ = cu.call;                                                               \
        if (result_ != 0)                                                                          \
            return refused(#call, result_);                                                        \
    } while (0)

static enum aule_status start(int *num_devices)
{
    pthread_once(&loaded, load);
    if (load_error[0])
        return fail(AULE_UNSUPPORTED, "%s", load_error);
    CU_TRY(init(0));
    CU_TRY(device_count(num_devices));
    if (*num_devices == 0)
        return fail(AULE_UNSUPPORTED, "CUDA has no device (is CUDA_VISIBLE_DEVICES empty?)");
    return AULE_OK;
}

// ---- which device ----

static enum aule_status uuid_of(int ordinal, cu_device *device, uint8_t uuid[16])
{
    CU_TRY(device_at(device, ordinal));
    CU_TRY(device_uuid(uuid, *device));
    return AULE_OK;
}

static enum aule_status other_gpu(int ordinal, const uint8_t own[16], const uint8_t daemons[16])
{
    char own_text[UUID_TEXT_SIZE], daemons_text[UUID_TEXT_SIZE];
    return fail(AULE_MISMATCH,
                "CUDA device %d is GPU %s, but the daemon has GPU %s; memory is shared only on one "
                "GPU",
                ordinal, uuid_text(own, own_text), uuid_text(daemons, daemons_text));
}

static enum aule_status choose(const uint8_t wanted[16], int device, int num_devices,
                               struct cuda_import *import)
{
    uint8_t uuid[16], first[16] = {0};
    const int from = device < 0 ? 0 : device, to = device < 0 ? num_devices : device + 1;
    if (device >= num_devices)
        return fail(AULE_INVALID, "CUDA device %d; this process sees %d", device, num_devices);
    for (int i = from; i < to; i++) {
        enum aule_status status = uuid_of(i, &import->device, uuid);
        if (status != AULE_OK)
            return status;
        import->ordinal = i;
        if (memcmp(uuid, wanted, sizeof uuid) == 0)
            return AULE_OK;
        if (i == from)
            memcpy(first, uuid, sizeof first);
    }
    return other_gpu(from, first, wanted);
}

// ---- import ----

// On success CUDA owns the descriptor that it gets, so it gets a copy.
static enum aule_status import_memory(const struct cuda_memory *memory, struct cuda_import *import)
{
    struct cu_handle_desc desc = {.type = OPAQUE_FD,
                                  .handle.fd = fcntl(memory->fd, F_DUPFD_CLOEXEC, 0),
                                  .size = memory->allocated,
                                  .flags = memory->dedicated ? DEDICATED : 0};
    if (desc.handle.fd < 0)
        return fail_no_descriptor("device memory");
    cu_result result = cu.memory_import(&import->memory, &desc);
    if (result == 0)
        return AULE_OK;
    import->memory = NULL;
    close(desc.handle.fd);
    return refused("cuImportExternalMemory", result);
}

static enum aule_status map_in_context(const struct cuda_memory *memory, struct cuda_import *import)
{
    const struct cu_buffer_desc desc = {.size = memory->size};
    enum aule_status status = import_memory(memory, import);
    if (status != AULE_OK)
        return status;
    CU_TRY(memory_map(&import->address, import->memory, &desc));
    return AULE_OK;
}

static enum aule_status map(const struct cuda_memory *memory, struct cuda_import *import)
{
    cu_context top;
    CU_TRY(context_retain(&import->context, import->device));
    CU_TRY(context_push(import->context));
    enum aule_status status = map_in_context(memory, import);
    cu.context_pop(&top);
    return status;
}

enum aule_status cuda_import(const struct cuda_memory *memory, int device, struct cuda_import **out,
                             uint64_t *address)
{
    int num_devices = 0;
    enum aule_status status = start(&num_devices);
    if (status != AULE_OK)
        return status;
    struct cuda_import *import = calloc(1, sizeof *import);
    if (!import)
        return fail(AULE_NO_MEMORY, "no memory to import device memory");
    import->pid = getpid();
    status = choose(memory->uuid, device, num_devices, import);
    if (status == AULE_OK)
        status = map(memory, import);
    if (status != AULE_OK) {
        cuda_import_end(import);
        return status;
    }
    *address = import->address;
    *out = import;
    return AULE_OK;
}

int cuda_import_device(const struct cuda_import *import)
{
    return import->ordinal;
}

static void unmap(struct cuda_import *import)
{
    cu_context top;
    if (cu.context_push(import->context) == 0) {
        cu.context_synchronize(); // a kernel may still use the memory; a failed context is over
        if (import->address)
            cu.memory_free(import->address);
        if (import->memory)
            cu.memory_destroy(import->memory);
        cu.context_pop(&top);
    }
    cu.context_release(import->device);
}

void cuda_import_end(struct cuda_import *import)
{
    if (import && import->context && import->pid == getpid())
        unmap(import);
    free(import);
}
