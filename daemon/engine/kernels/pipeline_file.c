// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// pipeline_file.c - the file that keeps the driver's pipeline cache from one daemon to the next. A
// driver may crash on foreign data, or run it. So the file has a header with length and a keyed
// hash, and the driver's own header is checked, too. The key lies in the same folder, readable for
// the daemon's user alone. So data counts only if a daemon of this folder wrote it: not what was
// put there while the folder was open to others, or comes from another machine. It is no help
// against a process of the same user, which can read the key. file.h replaces a file as a whole.
// Any thread.

#include "pipeline_file.h"

#include "base/sha256.h"
#include "base/uuid.h"
#include "engine/file.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>

struct file_header {
    char magic[8];
    uint64_t size;              // bytes after this header
    uint8_t hash[SHA256_BYTES]; // seal()
};
static const char magic[8] = "aulePC2", older_magic[8] = "aulePC1";
// Bytes; no driver's cache of a few pipelines comes near.
static const uint64_t largest = UINT64_C(1) << 30;

// ---- the key ----

enum { KEY_BYTES = SHA256_BYTES };

// "FOLDER/pipelines.key", for a file in that folder; malloc'd. NULL: no memory.
static char *key_path(const char *path)
{
    static const char name[] = "pipelines.key";
    const char *slash = strrchr(path, '/');
    const size_t folder = slash ? (size_t)(slash - path) + 1 : 0;
    char *out = malloc(folder + sizeof name);
    if (out) {
        memcpy(out, path, folder);
        memcpy(out + folder, name, sizeof name);
    }
    return out;
}

static bool key_read(const char *path, uint8_t key[KEY_BYTES])
{
    struct stat info;
    struct error error;
    char *data = NULL;
    size_t size = 0;
    const bool secret = lstat(path, &info) == 0 && (info.st_mode & 077) == 0;
    const bool whole = secret && file_read(path, KEY_BYTES, &data, &size, &error) == STATUS_OK &&
                       size == KEY_BYTES;
    if (whole)
        memcpy(key, data, KEY_BYTES);
    free(data);
    return whole;
}

// Another daemon may make one at the same time. Then the later one stays, and what was sealed with
// the other is ignored once.
static enum status key_make(const char *path, uint8_t key[KEY_BYTES], struct error *error)
{
    const struct iovec piece = {key, KEY_BYTES};
    if (getrandom(key, KEY_BYTES, 0) != KEY_BYTES)
        return error_set(error, STATUS_INTERNAL, "no random key: %s", strerror(errno));
    return file_replace(path, &piece, 1, error);
}

static enum status key_get(const char *file, uint8_t key[KEY_BYTES], struct error *error)
{
    char *path = key_path(file);
    if (!path)
        return error_set(error, STATUS_NO_MEMORY, "no memory");
    enum status status = key_read(path, key) ? STATUS_OK : key_make(path, key, error);
    free(path);
    return status;
}

static void seal(const uint8_t key[KEY_BYTES], const struct file_header *header, const void *data,
                 uint8_t hash[SHA256_BYTES])
{
    struct sha256 sha;
    uint8_t digest[SHA256_BYTES];
    sha256_begin(&sha);
    sha256_add(&sha, header->magic, sizeof header->magic);
    sha256_add(&sha, &header->size, sizeof header->size);
    sha256_add(&sha, data, header->size);
    sha256_end(&sha, digest);
    sha256_hmac(key, KEY_BYTES, digest, sizeof digest, hash);
}

// ---- reading ----

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
static const char *check(const struct device *device, const char *path, const char *file,
                         size_t size)
{
    struct file_header header;
    uint8_t key[KEY_BYTES], hash[SHA256_BYTES];
    if (size >= sizeof older_magic && memcmp(file, older_magic, sizeof older_magic) == 0)
        return "an older version wrote it";
    if (size < sizeof header)
        return "it is no pipeline cache, or cut short";
    memcpy(&header, file, sizeof header);
    if (memcmp(header.magic, magic, sizeof magic) != 0 || header.size > size - sizeof header)
        return "it is no pipeline cache, or cut short";
    char *beside = key_path(path);
    const bool has_key = beside && key_read(beside, key);
    free(beside);
    if (!has_key)
        return "its key, pipelines.key, is not there, or not secret";
    seal(key, &header, file + sizeof header, hash);
    if (memcmp(hash, header.hash, sizeof hash) != 0)
        return "it is corrupt, or was not written with the key in pipelines.key";
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
    const char *why = status == STATUS_OK ? check(device, path, file, file_size) : error.text;
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
    struct file_header header = {.size = size};
    uint8_t key[KEY_BYTES];
    memcpy(header.magic, magic, sizeof magic);
    const struct iovec pieces[] = {{&header, sizeof header}, {(void *)data, size}};
    if (key_get(path, key, &error) == STATUS_OK) {
        seal(key, &header, data, header.hash);
        if (file_replace(path, pieces, 2, &error) == STATUS_OK)
            return true;
    }
    device_log(device, 1, "pipeline cache %s is not written: %s", path, error.text);
    return false;
}
