// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// statistics.h - the driver's statistics of a compiled pipeline: registers, shared memory, spills.
// Knows no shader. Any thread; no state.

#ifndef AULE_ENGINE_STATISTICS_H
#define AULE_ENGINE_STATISTICS_H

#include "device.h"

// Sets adapter->statistics. The rest of *adapter is set.
void statistics_describe(struct adapter *adapter);
// Flags for creating a pipeline that statistics_log() will be called for; 0 if the device was
// opened without statistics.
VkPipelineCreateFlags statistics_flags(const struct device *device);
// Logs "compiled `name`" at level 3, followed by the driver's statistics if the device was opened
// with them.
void statistics_log(struct device *device, VkPipeline pipeline, const char *name);

// Writes "Register Count 152, Shared Memory Size 8448". An entry that does not fit is left out.
void statistics_text(const VkPipelineExecutableStatisticKHR *list, uint32_t count, char *text,
                     size_t size);

#endif
