// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// statistics.c - asks the driver for a pipeline's statistics
// (VK_KHR_pipeline_executable_properties) and writes them in one line. Knows no shader. Any thread;
// no state.

#include "statistics.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void statistics_describe(struct adapter *adapter)
{
    struct features features;
    if (adapter->info.api_version < VK_API_VERSION_1_2 ||
        !adapter_has_extension(adapter->physical,
                               VK_KHR_PIPELINE_EXECUTABLE_PROPERTIES_EXTENSION_NAME))
        return;
    adapter->statistics = true; // lets adapter_features() ask for the feature
    adapter_features(adapter, &features);
    adapter->statistics = features.executables.pipelineExecutableInfo;
}

VkPipelineCreateFlags statistics_flags(const struct device *device)
{
    return device->adapter.statistics ? VK_PIPELINE_CREATE_CAPTURE_STATISTICS_BIT_KHR : 0;
}

static int put(const VkPipelineExecutableStatisticKHR *one, char *text, size_t size)
{
    switch (one->format) {
    case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_BOOL32_KHR:
        return snprintf(text, size, "%s %s", one->name, one->value.b32 ? "yes" : "no");
    case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_INT64_KHR:
        return snprintf(text, size, "%s %" PRId64, one->name, one->value.i64);
    case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_UINT64_KHR:
        return snprintf(text, size, "%s %" PRIu64, one->name, one->value.u64);
    case VK_PIPELINE_EXECUTABLE_STATISTIC_FORMAT_FLOAT64_KHR:
        return snprintf(text, size, "%s %g", one->name, one->value.f64);
    default: return snprintf(text, size, "%s ?", one->name);
    }
}

void statistics_text(const VkPipelineExecutableStatisticKHR *list, uint32_t count, char *text,
                     size_t size)
{
    size_t used = 0;
    text[0] = '\0';
    for (uint32_t i = 0; i < count; i++) {
        char one[VK_MAX_DESCRIPTION_SIZE + 32];
        size_t length = (size_t)put(&list[i], one, sizeof one);
        if (used + length + 3 > size)
            continue;
        used += (size_t)snprintf(text + used, size - used, "%s%s", used ? ", " : "", one);
    }
}

// A malloc'd list; NULL: the driver has none.
static VkPipelineExecutableStatisticKHR *ask(struct device *device, VkPipeline pipeline,
                                             uint32_t *count)
{
    PFN_vkGetPipelineExecutableStatisticsKHR get =
        (PFN_vkGetPipelineExecutableStatisticsKHR)vkGetDeviceProcAddr(
            device->handle, "vkGetPipelineExecutableStatisticsKHR");
    // A compute pipeline has one executable, or several variants of it; the first is enough.
    VkPipelineExecutableInfoKHR which = {.sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_INFO_KHR,
                                         .pipeline = pipeline};
    *count = 0;
    if (!get || get(device->handle, &which, count, NULL) != VK_SUCCESS || *count == 0)
        return NULL;
    VkPipelineExecutableStatisticKHR *list = calloc(*count, sizeof *list);
    for (uint32_t i = 0; list && i < *count; i++)
        list[i].sType = VK_STRUCTURE_TYPE_PIPELINE_EXECUTABLE_STATISTIC_KHR;
    if (list && get(device->handle, &which, count, list) >= VK_SUCCESS)
        return list;
    free(list);
    return NULL;
}

void statistics_log(struct device *device, VkPipeline pipeline, const char *name)
{
    char text[640] = "";
    uint32_t count = 0;
    VkPipelineExecutableStatisticKHR *list =
        device->adapter.statistics ? ask(device, pipeline, &count) : NULL;
    if (list)
        statistics_text(list, count, text, sizeof text);
    device_log(device, 3, "compiled %s%s%s", name, text[0] ? ": " : "", text);
    free(list);
}
