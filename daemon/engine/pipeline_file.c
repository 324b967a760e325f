// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// pipeline_file.c - the file that keeps the driver's pipeline cache between lives. A driver may crash on data that is not its
// own, so a header with length and hash stands before it and the driver's own header is checked too. Written beside and
// renamed, so that a reader sees all or nothing. Any thread.

#include "pipeline.h"

#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

struct file_header {
    char magic[8];
    uint64_t size; // bytes that follow
    uint64_t hash; // XXH3 of them
};
static const char magic[8] = "aulePC1";
static const uint64_t largest = UINT64_C(1) << 30; // bytes; no driver's cache of a few pipelines comes near

static bool read_all(int fd, void *data, size_t size)
{
    for (char *at = data; size > 0;) {
        ssize_t got = read(fd, at, size);
        if (got == 0)
            errno = EIO; // the file is shorter than it says
        if (got <= 0 && (got == 0 || errno != EINTR))
            return false;
        at += got > 0 ? got : 0;
        size -= got > 0 ? (size_t)got : 0;
    }
    return true;
}

// NULL if the driver's header says that the data is this device's, else what is wrong.
static const char *check_driver_header(const struct device *device, const void *data, size_t size)
{
    VkPipelineCacheHeaderVersionOne header;
    if (size < sizeof header)
        return "its data is too short";
    memcpy(&header, data, sizeof header);
    VkPhysicalDeviceProperties properties;
    vkGetPhysicalDeviceProperties(device->adapter.physical, &properties);
    if (header.headerVersion != VK_PIPELINE_CACHE_HEADER_VERSION_ONE || header.headerSize < sizeof header)
        return "its data has an unknown form";
    if (header.vendorID != properties.vendorID || header.deviceID != properties.deviceID ||
        memcmp(header.pipelineCacheUUID, properties.pipelineCacheUUID, VK_UUID_SIZE) != 0)
        return "it was written for another device or driver";
    return NULL;
}

// Reads and checks the open file. *why is NULL and the data malloc'd, or the other way round.
static void *load(const struct device *device, int fd, size_t *size, const char **why)
{
    struct file_header header;
    void *data = NULL;
    *why = "it is no pipeline cache, or cut short";
    if (!read_all(fd, &header, sizeof header) || memcmp(header.magic, magic, sizeof magic) != 0 ||
        header.size > largest)
        return NULL;
    data = malloc(header.size ? header.size : 1);
    if (!data)
        *why = "there is no memory for it";
    if (!data || !read_all(fd, data, header.size))
        goto fail;
    *why = "it is corrupt";
    if (XXH3_64bits(data, header.size) != header.hash)
        goto fail;
    *why = check_driver_header(device, data, header.size);
    if (*why)
        goto fail;
    *size = header.size;
    return data;
fail:
    free(data);
    return NULL;
}

void *pipeline_file_load(struct device *device, const char *path, size_t *size)
{
    *size = 0;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        if (errno != ENOENT)
            device_log(device, 1, "pipeline cache %s: %s", path, strerror(errno));
        return NULL;
    }
    const char *why = NULL;
    void *data = load(device, fd, size, &why);
    close(fd);
    if (why)
        device_log(device, 1, "pipeline cache %s is ignored: %s", path, why);
    else
        device_log(device, 3, "pipeline cache %s: %zu bytes", path, *size);
    return data;
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
