// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// pipeline_file.h - the file that keeps the driver's pipeline cache from one daemon to the next.
// Knows nothing of pipelines. Any thread.

#ifndef AULE_ENGINE_PIPELINE_FILE_H
#define AULE_ENGINE_PIPELINE_FILE_H

#include "engine/vulkan/device.h"

// Returns "FOLDER/pipelines-UUID", malloc'd. Each device has a file of its own, so the daemons of a
// host do not overwrite each other's. NULL: no memory.
char *pipeline_file_path(const struct device *device, const char *folder);
// Returns the driver's data from the file, malloc'd. NULL: the file is damaged or was not written
// for this device; the log says why.
void *pipeline_file_load(struct device *device, const char *path, size_t *size);
bool pipeline_file_save(struct device *device, const char *path, const void *data, size_t size);

#endif
