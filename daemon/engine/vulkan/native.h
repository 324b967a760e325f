// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// native.h - native kernels in a Vulkan command buffer (VK_NVX_binary_import): PTX text becomes a
// module, and a launch takes the place of a dispatch. Knows no kernel. Each function names its
// threads.

#ifndef AULE_ENGINE_NATIVE_H
#define AULE_ENGINE_NATIVE_H

#include "device.h"

// A native kernel as the build compiled it.
struct native_code {
    const char *name;
    const unsigned char *ptx, *end; // its text, with a 0 at its end; `end` lies behind that
    const char *function;
    uint32_t threads; // of a thread block
};

// The same, translated by the driver.
struct native {
    const struct native_code *code;
    VkCuModuleNVX module;
    VkCuFunctionNVX function;
};

// What the device needs for any native kernel. Writes what it lacks, as words behind "lacks"; "" =
// nothing. Any thread.
void native_missing(const struct adapter *adapter, char *text, size_t size);

// Whether the driver translates a small kernel for compute capability 9.0. If not, writes why to
// the adapter's natives.failure. The thread that opens the device, which has taken natives.
bool native_probe(struct device *device);

// Translates `code`, which takes about two seconds the first time on a machine; later the driver's
// own cache has it. On failure *native is zeroed. UNSUPPORTED: the driver refuses it, and does not
// say why. The thread that compiles.
enum status native_load(struct device *device, const struct native_code *code,
                        struct native *native, struct error *error);
void native_unload(struct device *device, struct native *native); // takes a zeroed one

// Records a launch of `blocks` thread blocks with `shared_bytes` of shared memory each. `params`
// points to each parameter of the function, in their order. The barriers around it must name all
// stages, not only compute shaders. The thread that records.
void native_launch(const struct device *device, VkCommandBuffer commands,
                   const struct native *native, uint32_t blocks, uint32_t shared_bytes,
                   const void *const *params, uint32_t num_params);

#endif
