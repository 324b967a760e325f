// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// variant.c - the table of attention shaders, best first. A new variant is a row here and a file in shaders/; adapter.h has what
// a row's `missing` may ask of the device.

#include "variant.h"

#include "attention_merge_spv.h"
#include "attention_plain_spv.h"
#include "attention_subgroup_spv.h"
#include "copy_spv.h"
#include "kv_gather_spv.h"
#include "kv_write_spv.h"
#include "merge_spv.h"

#include <stdio.h>
#include <string.h>

// What attention_tiles.glsl declares as shared, at its largest; a device with less has no variant.
enum {
    TILES_LOCAL_SIZE = 128,
    TILES_ROWS = 8,      // up to TILES_HEAD_DIM of K
    TILES_ROWS_WIDE = 4, // beyond
    TILES_HEAD_DIM = 256,
    TILES_HEAD_DIM_WIDE = 576,
    TILES_KEYS = 4 * TILES_LOCAL_SIZE,
    TILES_PARTS = TILES_KEYS / 8,
    TILES_SHARED_MEMORY = TILES_ROWS * TILES_HEAD_DIM / 2 * 8 // q_pairs
                          + TILES_ROWS * TILES_KEYS / 2 * 8   // weight_pairs
                          + TILES_LOCAL_SIZE * 4              // row_partials
                          + TILES_ROWS * 4                    // row_rescale
                          + 2 * 2 * TILES_PARTS * 8,          // key_parts, value_parts
};
_Static_assert(TILES_SHARED_MEMORY <= 32768, "what every GPU of the last decade has");
_Static_assert(TILES_ROWS_WIDE *TILES_HEAD_DIM_WIDE + TILES_ROWS_WIDE * TILES_KEYS <=
                   TILES_ROWS * TILES_HEAD_DIM + TILES_ROWS * TILES_KEYS,
               "fewer rows of more elements take less");

static uint32_t tiles_rows(const struct engine_kv *kv)
{
    return kv->head_dim_k <= TILES_HEAD_DIM ? TILES_ROWS : TILES_ROWS_WIDE;
}

// attention_subgroup.comp counts on eight neighbouring lanes that exchange values, and on a lane's place in the workgroup.
static void subgroup_missing(const struct adapter *adapter, char *text, size_t size)
{
    const VkSubgroupFeatureFlags wanted = VK_SUBGROUP_FEATURE_BASIC_BIT | VK_SUBGROUP_FEATURE_SHUFFLE_BIT;
    if (adapter->info.subgroup_size < 8)
        snprintf(text, size, "subgroups of 8 invocations (it has %u)", adapter->info.subgroup_size);
    else if ((adapter->subgroups.operations & wanted) != wanted)
        snprintf(text, size, "shuffles in compute shaders");
    else if (!adapter->subgroups.full)
        snprintf(text, size, "full subgroups (computeFullSubgroups)");
}

static const struct variant variants[] = {
    {
        .shader = {"subgroup", attention_subgroup_spv, sizeof attention_subgroup_spv, TILES_LOCAL_SIZE, true},
        .needs = "full subgroups of 8 invocations or more, with shuffles",
        .tile_rows = tiles_rows,
        .shared_memory = TILES_SHARED_MEMORY,
        .split_keys = 2048,
        .split_rows = 64,
        .missing = subgroup_missing,
    },
    {
        .shader = {"plain", attention_plain_spv, sizeof attention_plain_spv, TILES_LOCAL_SIZE, false},
        .needs = "any Vulkan 1.2 device that the engine can use",
        .tile_rows = tiles_rows,
        .shared_memory = TILES_SHARED_MEMORY,
        .split_keys = 2048,
        .split_rows = 64,
    },
};
enum { NUM_VARIANTS = sizeof variants / sizeof *variants };

const struct shader shader_splits = {"attention_merge", attention_merge_spv, sizeof attention_merge_spv, 128, false};
const struct shader shader_kv_write = {"kv_write", kv_write_spv, sizeof kv_write_spv, 128, false};
const struct shader shader_gather = {"kv_gather", kv_gather_spv, sizeof kv_gather_spv, 128, false};
const struct shader shader_copy = {"copy", copy_spv, sizeof copy_spv, 128, false};
const struct shader shader_merge = {"merge", merge_spv, sizeof merge_spv, 128, false};

const struct variant *variant_at(uint32_t index)
{
    return index < NUM_VARIANTS ? &variants[index] : NULL;
}

void variant_missing(const struct variant *variant, const struct adapter *adapter, char *text, size_t size)
{
    text[0] = '\0';
    if (adapter->info.shared_memory_bytes < variant->shared_memory)
        snprintf(text, size, "%u bytes of shared memory (it has %u)", variant->shared_memory,
                 adapter->info.shared_memory_bytes);
    else if (variant->missing)
        variant->missing(adapter, text, size);
}

static enum status unknown(const char *name, struct error *error)
{
    char names[128];
    size_t used = 0;
    for (uint32_t i = 0; i < NUM_VARIANTS && used < sizeof names; i++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", variants[i].shader.name);
    return error_set(error, STATUS_NOT_FOUND, "no attention variant is \"%.64s\"; there are %s", name, names);
}

enum status variant_choose(const struct adapter *adapter, const char *name, const struct variant **out,
                           struct error *error)
{
    char missing[256] = "";
    bool known = false;
    bool any = !name || !name[0];
    for (uint32_t i = 0; i < NUM_VARIANTS; i++) {
        if (!any && strcmp(variants[i].shader.name, name) != 0)
            continue;
        known = true;
        variant_missing(&variants[i], adapter, missing, sizeof missing);
        if (missing[0] == '\0') {
            *out = &variants[i];
            return STATUS_OK;
        }
    }
    if (!known)
        return unknown(name, error);
    return error_set(error, STATUS_UNSUPPORTED, "attention variant %s does not run on %.100s, which lacks %.160s",
                     any ? variants[NUM_VARIANTS - 1].shader.name : name, adapter->info.name, missing);
}

uint32_t variant_least_shared_memory(void)
{
    uint32_t least = UINT32_MAX;
    for (size_t i = 0; i < NUM_VARIANTS; i++)
        if (variants[i].shared_memory < least)
            least = variants[i].shared_memory;
    return least;
}
