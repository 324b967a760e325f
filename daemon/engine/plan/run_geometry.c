// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// run_geometry.c - see run_geometry.h. Knows no pipeline and no kernel. Any thread; no state.

#include "run_geometry.h"

#include "engine/kernels/kv.h"
#include "engine/memory/batch.h"
#include "shaders/layout.h"

static uint32_t rope_features(const struct engine_run *run)
{
    if (run->rope.dim == 0)
        return 0;
    return AULE_FEATURE_ROPE | (run->rope.interleaved ? AULE_FEATURE_ROPE_PAIRS : 0) |
           (run->batch->address[BATCH_POSITIONS] ? AULE_FEATURE_POSITIONS : 0);
}

// A feature that is off must not need another pipeline, so a window without borders is no window.
static uint32_t attention_features(const struct engine_run *run)
{
    const uint64_t *address = run->batch->address;
    const bool chunk = run->options.attention_chunk;
    bool window = chunk || (run->windowed && (run->window_left >= 0 || run->window_right >= 0));
    return (run->soft_cap > 0 ? AULE_FEATURE_SOFT_CAP : 0) |
           (run->slopes ? AULE_FEATURE_ALIBI : 0) | (window ? AULE_FEATURE_WINDOW : 0) |
           (chunk ? AULE_FEATURE_CHUNK : 0) | (address[BATCH_MASK_STARTS] ? AULE_FEATURE_MASK : 0) |
           (address[BATCH_POSITIONS] ? AULE_FEATURE_POSITIONS : 0) |
           (run->sinks ? AULE_FEATURE_SINKS : 0) | (run->lse.dtype ? AULE_FEATURE_LSE : 0) |
           rope_features(run);
}

static struct geometry kv_geometry(const struct engine_batch *batch, enum dtype io)
{
    const struct engine_kv *kv = &batch->kv;
    return (struct geometry){.spec = {
                                 [AULE_SPEC_HEAD_DIM_K] = kv->head_dim_k,
                                 [AULE_SPEC_HEAD_DIM_V] = kv->head_dim_v,
                                 [AULE_SPEC_NUM_KV_HEADS] = kv->num_kv_heads,
                                 [AULE_SPEC_BLOCK_SIZE] = kv_block_size(kv),
                                 [AULE_SPEC_K_DTYPE] = kv->k_dtype,
                                 [AULE_SPEC_V_DTYPE] = kv->v_dtype,
                                 [AULE_SPEC_IO_DTYPE] = io,
                                 [AULE_SPEC_PLACE] = batch->place,
                                 [AULE_SPEC_V_IN_K] = kv->v_is_k_prefix,
                                 [AULE_SPEC_SCALE_MODE] = kv->scale_mode,
                             }};
}

_Static_assert((int)ENGINE_POOL == AULE_PLACE_POOL && (int)ENGINE_BLOCKS == AULE_PLACE_BLOCKS &&
                   (int)ENGINE_ROWS == AULE_PLACE_ROWS,
               "one numbering");
_Static_assert((int)SCALE_NONE == AULE_SCALE_NONE_MODE &&
                   (int)SCALE_PER_TENSOR == AULE_SCALE_TENSOR_MODE &&
                   (int)SCALE_PER_TOKEN_HEAD == AULE_SCALE_TOKEN_HEAD_MODE,
               "one numbering");

struct geometry geometry_of_run(const struct engine_run *run)
{
    struct geometry geometry = {0};
    switch (run->kind) {
    case ENGINE_ATTEND:
        geometry = kv_geometry(run->batch, run->q.dtype);
        geometry.spec[AULE_SPEC_FEATURES] = attention_features(run);
        break;
    case ENGINE_WRITE:
        geometry = kv_geometry(run->batch, run->k.dtype);
        geometry.spec[AULE_SPEC_FEATURES] = rope_features(run);
        break;
    case ENGINE_GATHER: geometry = kv_geometry(run->batch, run->k.dtype); break;
    case ENGINE_MERGE: geometry.spec[AULE_SPEC_IO_DTYPE] = run->out.dtype; break;
    case ENGINE_COPY: break;
    }
    return geometry;
}
