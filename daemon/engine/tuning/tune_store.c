// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// tune_store.c - see tune_store.h. The file may have been edited, and its entries choose the size
// of workgroups. So each entry is checked like a client's message.

#include "tune_store.h"

#include "engine/file.h"
#include "engine/kernels/kv.h"
#include "engine/state/state.h"
#include "shaders/layout.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

// ---- kernels ----

static void hash_more(uint64_t *hash, const void *data, size_t size)
{
    *hash = XXH3_64bits_withSeed(data, size, *hash);
}

uint64_t kernel_hash(const struct kernel *kernel)
{
    const uint32_t numbers[] = {kernel->shader.local_size, kernel->most_rows,  kernel->long_rows,
                                kernel->long_keys,         kernel->part_grain, kernel->merges,
                                kernel->half_local_size,   kernel->whole_keys, MOST_WORKGROUPS,
                                MOST_KEYS};
    uint64_t hash = XXH3_64bits(kernel->shader.code, kernel->shader.size);
    hash_more(&hash, numbers, sizeof numbers);
    for (const uint32_t *at = kernel->candidates; at && *at; at++)
        hash_more(&hash, at, sizeof *at);
    for (uint32_t dim = AULE_NARROW_HEAD_DIM; dim <= 2 * AULE_NARROW_HEAD_DIM; dim *= 2)
        for (uint64_t keys = 1; keys <= 2 * MOST_KEYS; keys *= 2) {
            const struct engine_kv kv = {.head_dim_k = dim, .head_dim_v = dim};
            const uint64_t parts[] = {kernel_part_keys(kernel, &kv, 1, keys, 0),
                                      kernel_usual_parts(&kv, keys)};
            hash_more(&hash, parts, sizeof parts);
        }
    return hash;
}

// NULL: no kernel of this name has this hash. *known: there is a kernel of this name. Several
// kernels may share a shader.
static const struct kernel *find_kernel(const char *name, uint64_t hash, bool *known)
{
    const struct variant *variant;
    *known = false;
    for (uint32_t i = 0; (variant = variant_at(i)); i++)
        for (uint32_t j = 0; j < variant->num_kernels; j++) {
            const struct kernel *kernel = variant->kernels[j];
            bool named = strcmp(kernel->shader.name, name) == 0;
            *known |= named;
            if (named && kernel->candidates && kernel_hash(kernel) == hash)
                return kernel;
        }
    return NULL;
}

uint32_t tune_store_kernel(const struct tune_store *store, uint64_t hash)
{
    const struct variant *variant = store->engine->pipelines.variant;
    uint32_t number = 0;
    while (number < variant->num_kernels && store->kernels[number] != hash)
        number++;
    return number < variant->num_kernels ? number : MOST_KERNELS;
}

// ---- checks of an entry: each returns what is wrong, NULL = nothing ----

// A local size that is no candidate would give other results.
static bool is_candidate(const struct kernel *kernel, uint32_t local_size)
{
    for (const uint32_t *at = kernel->candidates; at && *at; at++)
        if (*at == local_size)
            return local_size <= kernel->shader.local_size;
    return false;
}

static const char *check_sizes(const struct tune_key *key)
{
    bool splits =
        key->num_splits == 0 || tune_size(key->num_splits, MOST_SPLITS) == key->num_splits;
    if (splits && tune_size(key->num_workgroups, MOST_WORKGROUPS) == key->num_workgroups &&
        tune_size(key->num_keys, MOST_KEYS) == key->num_keys)
        return NULL;
    return "it is of a size that is none";
}

// Some run must lead geometry_of_run() and the plan to this geometry.
static const char *check_geometry(const struct engine *engine, const struct kernel *kernel,
                                  const struct tune_key *key)
{
    const uint32_t *spec = key->spec, known = 2 * AULE_FEATURE_SPLIT - 1;
    struct engine_kv kv = geometry_kv(spec);
    struct geometry geometry = {.kernel = 0};
    struct error error;
    memcpy(geometry.spec, spec, sizeof geometry.spec);
    geometry.spec[AULE_SPEC_TILE_ROWS] = 0;
    geometry.spec[AULE_SPEC_FEATURES] &= ~AULE_FEATURE_SPLIT;
    if (spec[AULE_SPEC_PLACE] > AULE_PLACE_ROWS || spec[AULE_SPEC_V_IN_K] > 1 ||
        spec[AULE_SPEC_LOCAL_SIZE] || spec[AULE_SPEC_BLOCK_SIZE] != kv_block_size(&kv) ||
        dtype_size((int)spec[AULE_SPEC_IO_DTYPE]) == 0 ||
        kv_check((enum engine_place)spec[AULE_SPEC_PLACE], &kv,
                 engine->device.adapter.max_groups[0], &error) != STATUS_OK)
        return "no run is of its geometry";
    if (spec[AULE_SPEC_TILE_ROWS] != kernel->tile_rows(&kv))
        return "its tile rows are not the kernel's";
    if (spec[AULE_SPEC_FEATURES] & ~known ||
        !(spec[AULE_SPEC_FEATURES] & AULE_FEATURE_SPLIT) == kernel_may_cut(kernel, key->num_splits))
        return "its features are not those of a run with its splits";
    if (kernel->serves && !kernel->serves(&geometry))
        return "the kernel does not serve its geometry";
    return NULL;
}

static const char *check_entry(const struct tune_store *store, const struct tune_entry *entry)
{
    bool known;
    const struct kernel *kernel = find_kernel(entry->kernel, entry->key.shader, &known);
    if (!kernel)
        return known ? "the kernel has changed" : "there is no such kernel";
    if (!is_candidate(kernel, entry->local_size) || !is_candidate(kernel, entry->rule_local_size))
        return "it is none of the kernel's candidates";
    const char *wrong = check_sizes(&entry->key);
    return wrong ? wrong : check_geometry(store->engine, kernel, &entry->key);
}

// ---- reading ----

static void tell(const struct tune_store *store, const struct tune_entry *entry, const char *wrong)
{
    device_log(&store->engine->device, 1,
               "tuning file %s: an entry of %s with workgroups of %u is ignored: %s", store->path,
               entry->kernel, entry->local_size, wrong);
}

// Drops unsound entries from the list, and keeps the order of the others.
static void keep_sound(const struct tune_store *store, struct tune_list *list)
{
    uint32_t kept = 0;
    if (list->num_damaged)
        device_log(&store->engine->device, 1, "tuning file %s: %u entries are ignored: %s",
                   store->path, list->num_damaged, list->damage);
    for (uint32_t i = 0; i < list->count; i++) {
        struct tune_entry *entry = &list->entries[i];
        const char *wrong = check_entry(store, entry);
        entry->ours = tune_store_kernel(store, entry->key.shader) != MOST_KERNELS;
        if (wrong)
            tell(store, entry, wrong);
        else
            list->entries[kept++] = *entry;
    }
    list->count = kept;
}

// What the table has already stays as it is there.
static void take(const struct tune_store *store, struct tune_list *list)
{
    uint32_t counts[TUNE_UNUSED + 1] = {0};
    keep_sound(store, list);
    for (uint32_t i = 0; i < list->count; i++) {
        enum tune_added added = tune_add(store->table, &list->entries[i]);
        if (added == TUNE_UNUSED)
            tell(store, &list->entries[i], "it is there already");
        counts[added]++;
    }
    if (counts[TUNE_SPARE])
        device_log(
            &store->engine->device, 1,
            "tuning file %s: %u entries are beyond --max-tuned %u; they only stay in the file",
            store->path, counts[TUNE_SPARE], store->table->max_entries);
    device_log(&store->engine->device, 3, "tuning file %s: %u entries", store->path,
               counts[TUNE_ADDED]);
}

// Whether the file may be replaced. It is taken at the start, or as soon as it can be read.
static bool look(struct tune_store *store, bool at_start)
{
    const struct device *device = &store->engine->device;
    const bool was_unread = store->unread;
    struct tune_list list;
    struct error error = {0};
    enum status status = tune_file_read(store->path, &store->device, &list, &error);
    const bool useless = status == STATUS_NOT_FOUND || status == STATUS_VERSION;
    store->unread = status != STATUS_OK && !useless;
    if (store->unread && !was_unread)
        device_log(
            device, 1,
            "tuning file %s is ignored: %s. It is not written until it can be read; remove it, "
            "or let aule-ctl tune clear do so",
            store->path, error.text);
    if (status == STATUS_VERSION && at_start)
        device_log(device, 1, "tuning file %s is ignored: %s", store->path, error.text);
    if (status == STATUS_OK && (at_start || was_unread))
        take(store, &list);
    tune_list_finish(&list);
    return !store->unread;
}

// ---- writing ----

static enum status replace(const struct tune_store *store, struct error *error)
{
    struct tune_list list = {.entries = NULL};
    list.entries = tune_copy(store->table, &list.count);
    if (!list.entries)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %u entries", list.count);
    enum status status = tune_file_write(store->path, &store->device, &list, error);
    tune_list_finish(&list);
    return status;
}

void tune_store_save(struct tune_store *store, bool clear)
{
    struct error error = {0};
    if (!store->path)
        return;
    const bool may_replace = clear || look(store, false);
    if (may_replace && replace(store, &error) == STATUS_OK)
        return;
    tune_not_saved(store->table);
    if (may_replace)
        device_log(&store->engine->device, 1, "tuning file %s is not written: %s", store->path,
                   error.text);
}

// ---- life ----

enum status tune_store_init(struct tune_store *store, struct engine *engine, struct tune *table,
                            const char *folder, struct error *error)
{
    const struct variant *variant = engine->pipelines.variant;
    *store = (struct tune_store){
        .engine = engine, .table = table, .device = tune_device_of(&engine->device.adapter.info)};
    for (uint32_t i = 0; i < variant->num_kernels; i++)
        store->kernels[i] = kernel_hash(variant->kernels[i]);
    if (!folder)
        return STATUS_OK;
    store->path = tune_file_path(folder, &store->device);
    if (!store->path)
        return error_set(error, STATUS_NO_MEMORY, "no memory for a path");
    file_sweep(store->path);
    look(store, true);
    return STATUS_OK;
}

void tune_store_finish(struct tune_store *store)
{
    free(store->path);
    store->path = NULL;
}
