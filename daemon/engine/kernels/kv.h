// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// kv.h - what follows from the shape of K and V alone.

#ifndef AULE_ENGINE_KV_H
#define AULE_ENGINE_KV_H

#include "engine/engine.h"

enum {
    KV_MOST_HEAD_DIM_K = 576,
    KV_MOST_HEAD_DIM_V = 512,
    KV_ROWS_BLOCK_SIZE =
        32, // ENGINE_ROWS has no blocks: the keys whose addresses shaders find at once
};

// As engine_kv_check(), on a device whose dispatches take `most_heads` KV heads.
enum status kv_check(enum engine_place place, const struct engine_kv *kv, uint32_t most_heads,
                     struct error *error);
// One layer of one block of the pool: K, V if it is apart, then the scales of each if they are per
// token and head. `kv` was checked.
uint64_t kv_block_bytes(const struct engine_kv *kv);
bool kv_is_scaled(const struct engine_kv *kv,
                  enum dtype dtype);                // elements of `dtype` are multiplied by a scale
uint32_t kv_block_size(const struct engine_kv *kv); // as shaders know it

#endif
