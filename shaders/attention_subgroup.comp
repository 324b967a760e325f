// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// attention_subgroup - attention_tiles.glsl with eight lanes of a subgroup for every four keys: neighbouring lanes read neighbouring
// pieces of a key, so that K comes in whole lines of memory, and shuffles add up their shares of the dots. Needs subgroups of 8 lanes or more,
// all of them full, with shuffle. All else stands in attention_tiles.glsl.
//
// Same bits: a lane's share is every LANES-th oct of the head, the shares are added as a tree over the lanes: neither depends on
// the size of the subgroup.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference2 : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require

#include "attention_tiles.glsl"

const uint LANES = 8;
const uint SUMS = TILE_ROWS * KEYS; // of one cluster of lanes

// Halves the number of sums and doubles what each stands for: a lane keeps the half that its bit names and gets its
// neighbour's share of it. After three of these each lane has SUMS / 8 whole dots.
#define FOLD(FROM, TO, COUNT, BIT)                                                                                     \
    for (uint i = 0; i < (COUNT) / 2; i++) {                                                                           \
        const bool upper = (lane & (BIT)) != 0;                                                                        \
        const float keep = upper ? FROM[i + (COUNT) / 2] : FROM[i], give = upper ? FROM[i] : FROM[i + (COUNT) / 2];    \
        TO[i] = keep + subgroupShuffleXor(give, BIT);                                                                  \
    }

// The four keys from `key` on; those outside [keys.x, keys.y) are not touched: the first or the last one takes their place.
// Shuffles want every lane, so that a cluster beyond the keys repeats the last ones and stores nothing.
void cluster_scores(uint slot, uvec2 keys, uint key, uint lane)
{
    uint64_t k[KEYS];
    for (uint j = 0; j < KEYS; j++)
        k[j] = tile_key(slot, clamp(key + j, keys.x, keys.y - 1));
    float sums[SUMS];
    for (uint i = 0; i < SUMS; i++)
        sums[i] = 0;
    [[dont_unroll]] for (uint oct = lane; oct < K_OCTS; oct += LANES) {
        Eight keys8[KEYS];
        for (uint j = 0; j < KEYS; j++)
            keys8[j] = eight_load(k[j] + oct * K_OCT_BYTES, K_DTYPE);
        for (uint r = 0; r < TILE_ROWS; r++) {
            const Eight q = q_eight(r, oct);
            for (uint j = 0; j < KEYS; j++)
                sums[r * KEYS + j] += dot_eight(q, keys8[j]);
        }
    }
    float half_sums[SUMS / 2], quarter_sums[SUMS / 4], whole[SUMS / 8];
    FOLD(sums, half_sums, SUMS, 4)
    FOLD(half_sums, quarter_sums, SUMS / 2, 2)
    FOLD(quarter_sums, whole, SUMS / 4, 1)
    if (key >= keys.y || key + KEYS <= keys.x)
        return;
    // This lane's dots are number lane * SUMS / 8 and on: TILE_ROWS 8: one row, all keys; 4: half a row.
    for (uint i = 0; i < SUMS / 8; i += 2) {
        const uint number = lane * (SUMS / 8) + i, row = number / KEYS, j = number % KEYS;
        vec2 pair = vec2(whole[i], whole[i + 1]);
        if (K_SCALES)
            pair *= vec2(tile_scale(slot, clamp(key + j, keys.x, keys.y - 1), false),
                         tile_scale(slot, clamp(key + j + 1, keys.x, keys.y - 1), false));
        scores_store(slot, row, key + j, pair.x, pair.y);
    }
}

void scores(uint slot, uvec2 keys)
{
    const uint lane = gl_SubgroupInvocationID % LANES, clusters = LOCAL_SIZE / LANES;
    const uint cluster = gl_SubgroupID * (gl_SubgroupSize / LANES) + gl_SubgroupInvocationID / LANES;
    uint first = keys.x / (clusters * KEYS) * (clusters * KEYS); // the same for all clusters
    do {
        cluster_scores(slot, keys, first + cluster * KEYS, lane);
        first += clusters * KEYS;
    } while (first < keys.y);
}

void main()
{
    tiles_main();
}
