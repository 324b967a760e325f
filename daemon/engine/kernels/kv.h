// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// kv.h - checks and sizes that follow from the shape of K and V alone. Knows no memory. Any thread.

#ifndef AULE_ENGINE_KV_H
#define AULE_ENGINE_KV_H

#include "engine/engine.h"

enum {
    KV_MOST_HEAD_DIM_K = 576,
    KV_MOST_HEAD_DIM_V = 512,
    // ENGINE_ROWS has no blocks. There shaders look up the address of so many keys together.
    KV_ROWS_BLOCK_SIZE = 32,
};

// As engine_kv_check(), on a device whose dispatches take at most `most_heads` KV heads.
enum status kv_check(enum engine_place place, const struct engine_kv *kv, uint32_t most_heads,
                     struct error *error);
// Bytes of one block in one layer of the pool: K, V unless it is in K, and scales per token and
// head. `kv` was checked.
uint64_t kv_block_bytes(const struct engine_kv *kv);
// Whether elements of `dtype` are multiplied by a scale.
bool kv_is_scaled(const struct engine_kv *kv, enum dtype dtype);
uint32_t kv_block_size(const struct engine_kv *kv); // AULE_SPEC_BLOCK_SIZE

#endif
