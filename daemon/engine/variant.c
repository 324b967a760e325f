// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// variant.c - the table of attention shaders, best first. A new variant is a row here and a file in shaders/.

#include "variant.h"

#include "attention_plain_spv.h"
#include "kv_write_spv.h"
#include "zero_spv.h"

// What attention_plain.comp declares as shared, at its largest head_dim; a device with less has no variant.
enum {
    PLAIN_LOCAL_SIZE = 128,
    PLAIN_TILE_ROWS = 8,
    PLAIN_HEAD_DIM = 256,
    PLAIN_TILE_KEYS = 4 * PLAIN_LOCAL_SIZE,
    PLAIN_SHARED_MEMORY = PLAIN_TILE_ROWS * PLAIN_HEAD_DIM / 2 * 8    // q_pairs
                          + PLAIN_TILE_ROWS * PLAIN_TILE_KEYS / 2 * 8 // weight_pairs
                          + PLAIN_LOCAL_SIZE * 4                      // row_partials
                          + PLAIN_TILE_ROWS * 4                       // row_rescale
                          + 2 * PLAIN_TILE_KEYS / 8 * 8,              // block_addresses
};
_Static_assert(PLAIN_SHARED_MEMORY <= 32768, "what every GPU of the last decade has");

static const struct variant variants[] = {
    {
        .shader = {"plain", attention_plain_spv, sizeof attention_plain_spv, PLAIN_LOCAL_SIZE},
        .tile_rows = PLAIN_TILE_ROWS,
        .shared_memory = PLAIN_SHARED_MEMORY,
        .max_head_dim = PLAIN_HEAD_DIM,
    },
};

const struct shader shader_kv_write = {"kv_write", kv_write_spv, sizeof kv_write_spv, 128};
const struct shader shader_zero = {"zero", zero_spv, sizeof zero_spv, 128};

const struct variant *variant_choose(const struct adapter *adapter)
{
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        const struct variant *variant = &variants[i];
        if (adapter->info.shared_memory_bytes >= variant->shared_memory && (!variant->fits || variant->fits(adapter)))
            return variant;
    }
    return NULL;
}

uint32_t variant_least_shared_memory(void)
{
    uint32_t least = UINT32_MAX;
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++)
        if (variants[i].shared_memory < least)
            least = variants[i].shared_memory;
    return least;
}
