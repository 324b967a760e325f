// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// pipeline_file.c - the file that keeps the driver's pipeline cache from one daemon to the next. A
// driver may crash on foreign data. So the file has a header with length and hash, and the driver's
// own header is checked, too. file.h replaces a file as a whole. Any thread.

#include "pipeline_file.h"

#include "base/uuid.h"
#include "engine/file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

struct file_header {
    char magic[8];
    uint64_t size; // bytes after this header
    uint64_t hash; // XXH3 of these bytes
};
static const char magic[8] = "aulePC1";
// Bytes; no driver's cache of a few pipelines comes near.
static const uint64_t largest = UINT64_C(1) << 30;

// NULL if the driver's own header fits this device, else the reason.
static const char *check_driver_header(const struct device *device, const void *data, size_t size)
{
    VkPipelineCacheHeaderVersionOne header;
    if (size < sizeof header)
        return "its data is too short";
    memcpy(&header, data, sizeof header);
    VkPhysicalDeviceProperties properties;
    vkGetPhysicalDeviceProperties(device->adapter.physical, &properties);
    if (header.headerVersion != VK_PIPELINE_CACHE_HEADER_VERSION_ONE ||
        header.headerSize < sizeof header)
        return "its data has an unknown form";
    if (header.vendorID != properties.vendorID || header.deviceID != properties.deviceID ||
        memcmp(header.pipelineCacheUUID, properties.pipelineCacheUUID, VK_UUID_SIZE) != 0)
        return "it was written for another device or driver";
    return NULL;
}

// NULL if the file is whole and fits this device, else the reason.
static const char *check(const struct device *device, const char *file, size_t size)
{
    struct file_header header;
    if (size < sizeof header)
        return "it is no pipeline cache, or cut short";
    memcpy(&header, file, sizeof header);
    if (memcmp(header.magic, magic, sizeof magic) != 0 || header.size > size - sizeof header)
        return "it is no pipeline cache, or cut short";
    if (XXH3_64bits(file + sizeof header, header.size) != header.hash)
        return "it is corrupt";
    return check_driver_header(device, file + sizeof header, header.size);
}

char *pipeline_file_path(const struct device *device, const char *folder)
{
    char uuid[UUID_TEXT_SIZE];
    size_t size = strlen(folder) + sizeof "/pipelines-" + sizeof uuid;
    char *path = malloc(size);
    if (path)
        snprintf(path, size, "%s/pipelines-%s", folder, uuid_text(device->adapter.info.uuid, uuid));
    return path;
}

void *pipeline_file_load(struct device *device, const char *path, size_t *size)
{
    struct file_header header;
    struct error error = {0};
    char *file = NULL;
    size_t file_size = 0;
    *size = 0;
    file_sweep(path);
    enum status status = file_read(path, largest + sizeof header, &file, &file_size, &error);
    if (status == STATUS_NOT_FOUND)
        return NULL;
    const char *why = status == STATUS_OK ? check(device, file, file_size) : error.text;
    if (why) {
        device_log(device, 1, "pipeline cache %s is ignored: %s", path, why);
        free(file);
        return NULL;
    }
    memcpy(&header, file, sizeof header);
    *size = header.size;
    memmove(file, file + sizeof header, header.size);
    device_log(device, 3, "pipeline cache %s: %zu bytes", path, *size);
    return file;
}

bool pipeline_file_save(struct device *device, const char *path, const void *data, size_t size)
{
    struct error error = {0};
    struct file_header header = {.size = size, .hash = XXH3_64bits(data, size)};
    memcpy(header.magic, magic, sizeof magic);
    const struct iovec pieces[] = {{&header, sizeof header}, {(void *)data, size}};
    if (file_replace(path, pieces, 2, &error) == STATUS_OK)
        return true;
    device_log(device, 1, "pipeline cache %s is not written: %s", path, error.text);
    return false;
}
