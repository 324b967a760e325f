// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// tune_file.c - see tune_file.h.

#include "tune_file.h"

#include "engine/file.h"

#include <cjson/cJSON.h>
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

// The next number when an entry begins to mean something else.
static const char format[] = "aule tuning 2";
static const char *const older_formats[] = {"aule tuning 1"};
static const size_t largest = 64 << 20; // bytes: more than --max-tuned can want

struct tune_device tune_device_of(const struct engine_device *device)
{
    struct tune_device out;
    uuid_text(device->uuid, out.uuid);
    snprintf(out.driver, sizeof out.driver, "%s", device->driver);
    return out;
}

// What of a driver's name and version may stand in a file name: "llvmpipe-mesa-22.3.6".
static void put_driver(const char *driver, char *to, size_t size)
{
    size_t used = 0;
    for (; *driver && used + 1 < size; driver++) {
        bool plain = isalnum((unsigned char)*driver) || *driver == '.';
        if (plain || (used > 0 && to[used - 1] != '-'))
            to[used++] = plain ? (char)tolower((unsigned char)*driver) : '-';
    }
    while (used > 0 && to[used - 1] == '-')
        used--;
    to[used] = '\0';
}

char *tune_file_path(const char *folder, const struct tune_device *device)
{
    char driver[96];
    put_driver(device->driver, driver, sizeof driver);
    size_t size = strlen(folder) + sizeof "/tuning--.json" + strlen(device->uuid) + strlen(driver);
    char *path = malloc(size);
    if (path)
        snprintf(path, size, "%s/tuning-%s-%s.json", folder, device->uuid, driver);
    return path;
}

// ---- fields ----

#define NUMBER(field)                                                                              \
    {                                                                                              \
#field, offsetof(struct tune_entry, field)                                                 \
    }
static const struct field {
    const char *name;
    size_t offset;
} words[] =
    {
        {"num_workgroups", offsetof(struct tune_entry, key.num_workgroups)},
        {"num_keys", offsetof(struct tune_entry, key.num_keys)},
        {"num_splits", offsetof(struct tune_entry, key.num_splits)},
        NUMBER(local_size),
        NUMBER(rule_local_size),
        NUMBER(num_candidates),
        NUMBER(num_samples),
},
  times[] = {NUMBER(gpu_ns), NUMBER(rule_gpu_ns)};
enum { NUM_WORDS = sizeof words / sizeof *words, NUM_TIMES = sizeof times / sizeof *times };
static const double most_ns = 9e15; // what a double counts exactly, more or less

static bool whole(const cJSON *item, double most, uint64_t *out)
{
    double value = cJSON_GetNumberValue(item);
    if (!cJSON_IsNumber(item) || !(value >= 0) || value > most || value != floor(value))
        return false;
    *out = (uint64_t)value;
    return true;
}

// ---- reading: each returns what is wrong, NULL = nothing ----

static const char *read_numbers(const cJSON *from, struct tune_entry *entry)
{
    uint64_t value;
    for (int i = 0; i < NUM_WORDS; i++) {
        if (!whole(cJSON_GetObjectItemCaseSensitive(from, words[i].name), UINT32_MAX, &value))
            return words[i].name;
        *(uint32_t *)((char *)entry + words[i].offset) = (uint32_t)value;
    }
    for (int i = 0; i < NUM_TIMES; i++)
        if (!whole(cJSON_GetObjectItemCaseSensitive(from, times[i].name), most_ns,
                   (uint64_t *)((char *)entry + times[i].offset)))
            return times[i].name;
    return NULL;
}

static const char *read_spec(const cJSON *from, uint32_t spec[SPEC_CONSTANTS])
{
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(from, "spec");
    uint64_t value;
    if (!cJSON_IsArray(list) || cJSON_GetArraySize(list) != SPEC_CONSTANTS)
        return "spec";
    for (int i = 0; i < SPEC_CONSTANTS; i++) {
        if (!whole(cJSON_GetArrayItem(list, i), UINT32_MAX, &value))
            return "spec";
        spec[i] = (uint32_t)value;
    }
    return NULL;
}

static const char *read_entry(const cJSON *from, struct tune_entry *entry)
{
    const char *kernel = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(from, "kernel"));
    const char *shader = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(from, "shader"));
    *entry = (struct tune_entry){.state = ENGINE_TUNE_MEASURED};
    if (!kernel || strlen(kernel) >= sizeof entry->kernel)
        return "kernel";
    if (!shader || strlen(shader) != 16 || strspn(shader, "0123456789abcdef") != 16)
        return "shader";
    memcpy(entry->kernel, kernel, strlen(kernel) + 1);
    entry->key.shader = strtoull(shader, NULL, 16);
    const char *wrong = read_spec(from, entry->key.spec);
    return wrong ? wrong : read_numbers(from, entry);
}

static enum status read_entries(const cJSON *list, struct tune_list *out, struct error *error)
{
    int count = cJSON_GetArraySize(list), number = 0;
    const cJSON *item;
    *out = (struct tune_list){.entries = calloc((size_t)count + 1, sizeof *out->entries)};
    if (!out->entries)
        return error_set(error, STATUS_NO_MEMORY, "there is no memory for %d entries", count);
    cJSON_ArrayForEach(item, list)
    {
        const char *wrong = read_entry(item, &out->entries[out->count]);
        if (wrong && out->num_damaged++ == 0)
            snprintf(out->damage, sizeof out->damage, "\"%s\" of entry %d is missing or wrong",
                     wrong, number);
        out->count += !wrong;
        number++;
    }
    return STATUS_OK;
}

static enum status check_device(const cJSON *root, const char *name, const char *own,
                                struct error *error)
{
    const char *text = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(root, name));
    if (text && strcmp(text, own) == 0)
        return STATUS_OK;
    return error_set(error, STATUS_MISMATCH, "its %s is \"%.80s\", not \"%.80s\"", name,
                     text ? text : "", own);
}

static bool is_older(const char *said)
{
    for (size_t i = 0; i < sizeof older_formats / sizeof *older_formats; i++)
        if (strcmp(said, older_formats[i]) == 0)
            return true;
    return false;
}

static enum status read_root(const cJSON *root, const struct tune_device *device,
                             struct tune_list *out, struct error *error)
{
    const char *said = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(root, "format"));
    const cJSON *list = cJSON_GetObjectItemCaseSensitive(root, "entries");
    if (said && is_older(said))
        return error_set(error, STATUS_VERSION, "it is of the older format \"%s\"", said);
    if (!said || strcmp(said, format) != 0 || !cJSON_IsArray(list))
        return error_set(error, STATUS_MALFORMED, "it is no JSON document of the format \"%s\"",
                         format);
    enum status status = check_device(root, "device", device->uuid, error);
    if (status == STATUS_OK)
        status = check_device(root, "driver", device->driver, error);
    return status == STATUS_OK ? read_entries(list, out, error) : status;
}

enum status tune_file_read(const char *path, const struct tune_device *device,
                           struct tune_list *out, struct error *error)
{
    char *text = NULL;
    size_t size;
    *out = (struct tune_list){.entries = NULL};
    enum status status = file_read(path, largest, &text, &size, error);
    if (status != STATUS_OK)
        return status;
    cJSON *root = cJSON_ParseWithOpts(text, NULL, 1);
    status = read_root(root, device, out, error);
    cJSON_Delete(root);
    free(text);
    return status;
}

void tune_list_finish(struct tune_list *list)
{
    free(list->entries);
    *list = (struct tune_list){.entries = NULL};
}

// ---- writing: false without memory ----

static bool put_entry(cJSON *to, const struct tune_entry *entry)
{
    char shader[17], text[200];
    cJSON *spec = cJSON_AddArrayToObject(to, "spec");
    bool done = spec;
    snprintf(shader, sizeof shader, "%016" PRIx64, entry->key.shader);
    geometry_text(entry->key.spec, text, sizeof text);
    done = done && cJSON_AddStringToObject(to, "kernel", entry->kernel) &&
           cJSON_AddStringToObject(to, "shader", shader) &&
           cJSON_AddStringToObject(to, "geometry", text);
    for (int i = 0; i < SPEC_CONSTANTS && done; i++)
        done = cJSON_AddItemToArray(spec, cJSON_CreateNumber(entry->key.spec[i]));
    for (int i = 0; i < NUM_WORDS && done; i++)
        done = cJSON_AddNumberToObject(to, words[i].name,
                                       *(const uint32_t *)((const char *)entry + words[i].offset));
    for (int i = 0; i < NUM_TIMES && done; i++)
        done = cJSON_AddNumberToObject(
            to, times[i].name, (double)*(const uint64_t *)((const char *)entry + times[i].offset));
    return done;
}

static bool put_entries(cJSON *to, const struct tune_list *list)
{
    for (uint32_t i = 0; i < list->count; i++) {
        if (list->entries[i].local_size == 0)
            continue;
        cJSON *item = cJSON_CreateObject();
        if (!cJSON_AddItemToArray(to, item) || !put_entry(item, &list->entries[i]))
            return false;
    }
    return true;
}

static char *print(const struct tune_device *device, const struct tune_list *list)
{
    cJSON *root = cJSON_CreateObject();
    bool done = cJSON_AddStringToObject(root, "format", format) &&
                cJSON_AddStringToObject(root, "device", device->uuid) &&
                cJSON_AddStringToObject(root, "driver", device->driver) &&
                put_entries(cJSON_AddArrayToObject(root, "entries"), list);
    char *text = done ? cJSON_Print(root) : NULL;
    cJSON_Delete(root);
    return text;
}

static bool any_measured(const struct tune_list *list)
{
    for (uint32_t i = 0; i < list->count; i++)
        if (list->entries[i].local_size != 0)
            return true;
    return false;
}

enum status tune_file_write(const char *path, const struct tune_device *device,
                            const struct tune_list *list, struct error *error)
{
    if (!any_measured(list))
        return unlink(path) == 0 || errno == ENOENT
                   ? STATUS_OK
                   : error_set(error, STATUS_INTERNAL, "%s", strerror(errno));
    char *text = print(device, list);
    if (!text)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %u entries", list->count);
    const struct iovec pieces[] = {{text, strlen(text)}, {(void *)"\n", 1}};
    size_t size = pieces[0].iov_len + pieces[1].iov_len;
    enum status status = size <= largest
                             ? file_replace(path, pieces, 2, error)
                             : error_set(error, STATUS_LIMIT,
                                         "%u entries take %zu bytes, and no more than %zu are read",
                                         list->count, size, largest);
    free(text);
    return status;
}
