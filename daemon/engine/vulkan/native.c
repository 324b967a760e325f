// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// native.c - see native.h.

#include "native.h"

#include "vk.h"

#include <stdio.h>

void native_missing(const struct adapter *adapter, char *text, size_t size)
{
    text[0] = '\0';
    if (!adapter->natives.extension)
        snprintf(text, size, "native kernels (VK_NVX_binary_import)");
    else if (!adapter->natives.family)
        snprintf(text, size, "a queue family for compute only");
    else if (adapter->natives.failure[0])
        snprintf(text, size, "%s", adapter->natives.failure);
    else if (!adapter->natives.taken)
        snprintf(text, size, "a test of native kernels, because another variant was named");
}

// Vulkan does not tell the compute capability. Code for sm_90a runs on 9.0 alone.
bool native_probe(struct device *device)
{
    static const char ptx[] = ".version 8.3\n.target sm_90a\n.address_size 64\n"
                              ".visible .entry aule_probe()\n{\nret;\n}\n";
    static const struct native_code code = {
        .name = "aule_probe",
        .ptx = (const unsigned char *)ptx,
        .end = (const unsigned char *)ptx + sizeof ptx,
        .function = "aule_probe",
        .threads = 1,
    };
    struct natives *natives = &device->adapter.natives;
    struct native native;
    struct error error;
    if (!device->natives.create_module || !device->natives.create_function ||
        !device->natives.destroy_module || !device->natives.destroy_function ||
        !device->natives.launch)
        snprintf(natives->failure, sizeof natives->failure, "functions of VK_NVX_binary_import");
    else if (native_load(device, &code, &native, &error) != STATUS_OK)
        snprintf(natives->failure, sizeof natives->failure, "compute capability 9.0: %.64s",
                 error.text);
    else
        native_unload(device, &native);
    return !natives->failure[0];
}

enum status native_load(struct device *device, const struct native_code *code,
                        struct native *native, struct error *error)
{
    VkCuModuleCreateInfoNVX module = {
        .sType = VK_STRUCTURE_TYPE_CU_MODULE_CREATE_INFO_NVX,
        .dataSize = (size_t)(code->end - code->ptx),
        .pData = code->ptx,
    };
    *native = (struct native){.code = code};
    VkResult result = device->natives.create_module(device->handle, &module, NULL, &native->module);
    if (result == VK_SUCCESS) {
        VkCuFunctionCreateInfoNVX function = {
            .sType = VK_STRUCTURE_TYPE_CU_FUNCTION_CREATE_INFO_NVX,
            .module = native->module,
            .pName = code->function,
        };
        result =
            device->natives.create_function(device->handle, &function, NULL, &native->function);
    }
    if (result == VK_SUCCESS)
        return STATUS_OK;
    native_unload(device, native);
    return error_set(error, STATUS_UNSUPPORTED, "the driver refuses kernel %s (%s)", code->name,
                     vk_result_name(result));
}

void native_unload(struct device *device, struct native *native)
{
    if (native->function)
        device->natives.destroy_function(device->handle, native->function, NULL);
    if (native->module)
        device->natives.destroy_module(device->handle, native->module, NULL);
    *native = (struct native){0};
}

void native_launch(const struct device *device, VkCommandBuffer commands,
                   const struct native *native, uint32_t blocks, uint32_t shared_bytes,
                   const void *const *params, uint32_t num_params)
{
    VkCuLaunchInfoNVX info = {
        .sType = VK_STRUCTURE_TYPE_CU_LAUNCH_INFO_NVX,
        .function = native->function,
        .gridDimX = blocks,
        .gridDimY = 1,
        .gridDimZ = 1,
        .blockDimX = native->code->threads,
        .blockDimY = 1,
        .blockDimZ = 1,
        .sharedMemBytes = shared_bytes,
        .paramCount = num_params,
        .pParams = params,
    };
    device->natives.launch(commands, &info);
}
