// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// attention_parameters.h - what a run of attention may ask for beside its tensors, drawn by dice.
// Knows the geometry, no sequence.

#ifndef AULE_ATTENTION_PARAMETERS_H
#define AULE_ATTENTION_PARAMETERS_H

#include "engine/engine.h"
#include "rigs/dice.h"

enum {
    FEATURE_SOFT_CAP = 1,
    FEATURE_ALIBI = 2,
    FEATURE_WINDOW = 4,
    FEATURE_MASK = 8,
    FEATURE_POSITIONS = 16,
    FEATURE_SINKS = 32,
    FEATURE_LSE = 64,
    FEATURE_ROPE = 128,
    FEATURE_PAIRS = 256, // RoPE's pairs are neighbours; nothing without FEATURE_ROPE
    FEATURE_CHUNK = 512,
    NUM_FEATURES = 10,
    FEATURES_ALL = 1023,
    FEATURES_OF_WRITES =
        FEATURE_ROPE | FEATURE_PAIRS | FEATURE_POSITIONS, // what decides about K as it is written
    MAX_HEADS = 64,
    MAX_HEAD_DIM = 576,
};

struct attention_shape {
    enum engine_place place;
    struct engine_kv kv; // with a block size in every place: a case keeps its contents by blocks
    uint32_t group;      // query heads a KV head
    uint32_t num_layers, layer, chunk_blocks;
    enum dtype io_dtype;
    bool causal;
    float scale;
    uint32_t features,
        other_features; // bits; of the case's first and of its second set of parameters
    uint32_t num_splits;
};
uint32_t shape_heads(const struct attention_shape *shape);
uint64_t shape_k_bytes(const struct attention_shape *shape); // of one row
uint64_t shape_v_bytes(const struct attention_shape *shape);

// What a run may ask for. A case has two sets, so that runs with different ones meet in a wave and
// in a dispatch.
struct attention_parameters {
    uint32_t features;
    bool causal;
    int32_t window_left, window_right;
    uint32_t attention_chunk;
    float soft_cap;
    float slopes[MAX_HEADS], sinks[MAX_HEADS];
    uint32_t num_splits;
    float k_scale, v_scale; // SCALE_PER_TENSOR
    uint32_t rope_dim;
    float theta;
    bool by_frequencies;
    double frequencies[MAX_HEAD_DIM / 2];
};

struct attention_parameters attention_parameters_draw(struct dice *dice,
                                                      const struct attention_shape *shape,
                                                      uint32_t features);

#endif
