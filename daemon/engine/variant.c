// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// variant.c - the table of attention shaders, best first. A new variant is a row here and a file in shaders/.

#include "variant.h"

#include "attention_plain_spv.h"
#include "kv_write_spv.h"
#include "zero_spv.h"

static const struct variant variants[] = {
    {
        .shader = {"plain", attention_plain_spv, sizeof attention_plain_spv, 128},
        .tile_rows = 8,
        .shared_memory = 26144, // at head_dim 256; Vulkan promises 16384
        .max_head_dim = 256,
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
