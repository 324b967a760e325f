// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// attention_plain - attention for any device: no subgroup operation, no f16 arithmetic, no matrix
// unit. One workgroup computes one work item: TILE_ROWS rows of one sequence and KV head against
// all their keys, or one part of them. Here each thread multiplies four keys with all rows of the
// tile; everything else, with grid, push constants and specialisation constants, is in
// attention_tiles.glsl.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference2 : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require

#include "attention_tiles.glsl"

void scores_begin()
{
}

// A key outside [keys.x, keys.y) is not read. The first or the last one is read in its place; no
// row uses that score.
void scores(uint slot, uvec2 keys)
{
    const uint key = gl_LocalInvocationID.x * KEYS;
    if (key >= keys.y || key + KEYS <= keys.x)
        return;
    const uint64_t part = tile_key(slot, key / BLOCK_SIZE * BLOCK_SIZE);
    uint64_t k[KEYS];
    for (uint j = 0; j < KEYS; j++)
        k[j] = part + key_offset(clamp(key + j, keys.x, keys.y - 1) & BLOCK_SIZE - 1);

    float sums[TILE_ROWS][KEYS];
    for (uint r = 0; r < TILE_ROWS; r++)
        for (uint j = 0; j < KEYS; j++)
            sums[r][j] = 0;
    uint oct = 0;
    [[dont_unroll]] do {
        Eight keys8[KEYS];
        for (uint j = 0; j < KEYS; j++)
            keys8[j] = eight_load(k[j] + oct * K_OCT_BYTES, K_DTYPE);
        for (uint r = 0; r < TILE_ROWS; r++) {
            const Eight q = q_eight(r, oct);
            for (uint j = 0; j < KEYS; j++)
                sums[r][j] += dot_eight(q, keys8[j]);
        }
    } while (++oct < K_OCTS);
    float scales[KEYS];
    for (uint j = 0; j < KEYS; j++)
        scales[j] = K_SCALES ? tile_scale(slot, clamp(key + j, keys.x, keys.y - 1), false) : 1.0;
    for (uint r = 0; r < TILE_ROWS; r++)
        for (uint j = 0; j < KEYS; j += 2)
            scores_store(slot, r, key + j, sums[r][j] * scales[j], sums[r][j + 1] * scales[j + 1]);
}

uint values_thread()
{
    return gl_LocalInvocationID.x;
}

void values(uint slot, uvec2 keys, uint quad, uint group_index, inout vec4 totals[TILE_ROWS])
{
    values_add(slot, keys, quad, group_index, totals);
}

void main()
{
    tiles_main();
}
