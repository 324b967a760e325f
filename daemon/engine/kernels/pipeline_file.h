// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// pipeline_file.h - the file that keeps the driver's pipeline cache between lives. Any thread.

#ifndef AULE_ENGINE_PIPELINE_FILE_H
#define AULE_ENGINE_PIPELINE_FILE_H

#include "engine/vulkan/device.h"

// Malloc'd: "FOLDER/pipelines-UUID", so that the daemons of a host's devices leave each other's
// alone. NULL without memory.
char *pipeline_file_path(const struct device *device, const char *folder);
// A malloc'd copy of the driver's data in the file, if it is whole and was written for this device;
// else NULL, and the log says why.
void *pipeline_file_load(struct device *device, const char *path, size_t *size);
bool pipeline_file_save(struct device *device, const char *path, const void *data, size_t size);

#endif
