// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// statistics.h - what a driver says of the pipelines that it compiled: registers, shared memory,
// spills, in its own words.

#ifndef AULE_ENGINE_STATISTICS_H
#define AULE_ENGINE_STATISTICS_H

#include "device.h"

// Fills adapter->statistics; the rest of *adapter is there.
void statistics_describe(struct adapter *adapter);
// Flags for a pipeline that statistics_log() is to be asked about; 0 where the device was opened
// without.
VkPipelineCreateFlags statistics_flags(const struct device *device);
// Logs, at level 3, "compiled `name`" and behind it what the driver says, where the device was
// opened for that.
void statistics_log(struct device *device, VkPipeline pipeline, const char *name);

// "Register Count 152, Shared Memory Size 8448"; what does not fit is left out whole.
void statistics_text(const VkPipelineExecutableStatisticKHR *list, uint32_t count, char *text,
                     size_t size);

#endif
