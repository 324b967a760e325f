// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// attention_subgroup - attention with shuffles. One workgroup computes one work item: TILE_ROWS
// rows of one sequence and KV head against all their keys, or one part of them. Here eight lanes of
// a subgroup multiply four keys. Neighbouring lanes read neighbouring pieces of a key, so K is read
// in whole lines of memory. Shuffles add the lanes' partial dot products. It needs full subgroups
// of 8 lanes or more, with shuffle. Everything else, with grid, push constants and specialisation
// constants, is in attention_tiles.glsl.
//
// Same bits: a lane takes every LANES-th oct (eight dims) of the head, and the lanes' sums are
// added as a tree. Neither depends on the size of the subgroup.
//
// On a software device (SOFTWARE) a load is a loop over lanes, even from shared memory. A shuffle
// is one instruction there, and a lane's own array is as near as shared memory. So there each lane
// keeps its Q, and shuffles pass on weights and addresses of values. The sums are the same, in the
// same order.
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
const uint SUMS = TILE_ROWS * KEYS; // of one cluster of eight lanes

// ---- Q ----

// SOFTWARE: this lane's octs of each row. A loop fills the array, because such a compiler makes a
// loop of each load. Reads use constant indices, which cost nothing.
const bool OWN_Q = SOFTWARE != 0;
const uint LANE_OCTS = (K_OCTS + LANES - 1) / LANES;
Eight own_q[OWN_Q ? LANE_OCTS * TILE_ROWS : 1]; // [the lane's oct number][row]

uint lane_of_eight()
{
    return gl_SubgroupInvocationID % LANES;
}

void scores_begin()
{
    if (OWN_Q)
        [[dont_unroll]] for (uint i = 0; i < LANE_OCTS * TILE_ROWS; i++)
            own_q[i] =
                q_eight(i % TILE_ROWS, min(lane_of_eight() + i / TILE_ROWS * LANES, K_OCTS - 1));
}

// ---- scores ----

// Halves the number of sums in a lane. The lane keeps the half that its bit names, and adds its
// neighbour's sums for this half. After three folds each lane has SUMS / 8 whole dot products.
#define FOLD(FROM, TO, COUNT, BIT)                                                                 \
    for (uint i = 0; i < (COUNT) / 2; i++) {                                                       \
        const bool upper = (lane & (BIT)) != 0;                                                    \
        const float keep = upper ? FROM[i + (COUNT) / 2] : FROM[i],                                \
                    give = upper ? FROM[i] : FROM[i + (COUNT) / 2];                                \
        TO[i] = keep + subgroupShuffleXor(give, BIT);                                              \
    }

// Adds the products of four keys with the lane's oct number `i` of all rows.
void oct_scores(uint64_t k[KEYS], uint i, inout float sums[SUMS])
{
    const uint oct = lane_of_eight() + i * LANES;
    Eight keys8[KEYS];
    for (uint j = 0; j < KEYS; j++)
        keys8[j] = eight_load(k[j] + oct * K_OCT_BYTES, K_DTYPE);
    for (uint r = 0; r < TILE_ROWS; r++) {
        const Eight q = OWN_Q ? own_q[i * TILE_ROWS + r] : q_eight(r, oct);
        for (uint j = 0; j < KEYS; j++)
            sums[r * KEYS + j] += dot_eight(q, keys8[j]);
    }
}

// Scores of the four keys from `key` on. A key outside [keys.x, keys.y) is not read; the first or
// the last one is read in its place. Shuffles need every lane, so a cluster beyond the keys
// computes too, but stores nothing.
void cluster_scores(uint slot, uvec2 keys, uint key, uint lane)
{
    uint64_t k[KEYS];
    for (uint j = 0; j < KEYS; j++)
        k[j] = tile_key(slot, clamp(key + j, keys.x, keys.y - 1));
    float sums[SUMS];
    for (uint i = 0; i < SUMS; i++)
        sums[i] = 0;
    if (OWN_Q) {
        [[unroll]] for (uint i = 0; i < LANE_OCTS; i++)
            if (lane + i * LANES < K_OCTS)
                oct_scores(k, i, sums);
    } else {
        [[dont_unroll]] for (uint i = 0; lane + i * LANES < K_OCTS; i++)
            oct_scores(k, i, sums);
    }
    float half_sums[SUMS / 2], quarter_sums[SUMS / 4], whole[SUMS / 8];
    FOLD(sums, half_sums, SUMS, 4)
    FOLD(half_sums, quarter_sums, SUMS / 2, 2)
    FOLD(quarter_sums, whole, SUMS / 4, 1)
    if (key >= keys.y || key + KEYS <= keys.x)
        return;
    // This lane's dot products begin at number lane * SUMS / 8. TILE_ROWS 8: one row, all four
    // keys; TILE_ROWS 4: half of that.
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
    const uint lane = lane_of_eight(), clusters = LOCAL_SIZE / LANES,
               cluster = values_thread() / LANES;
    uint first = keys.x / (clusters * KEYS) * (clusters * KEYS); // the same for all clusters
    do {
        cluster_scores(slot, keys, first + cluster * KEYS, lane);
        first += clusters * KEYS;
    } while (first < keys.y);
}

// ---- values ----

// The thread's number: neighbouring lanes of a subgroup have neighbouring numbers.
uint values_thread()
{
    return gl_SubgroupID * gl_SubgroupSize + gl_SubgroupInvocationID;
}

uvec2 from_lane(uvec2 value, uint lane)
{
    return uvec2(subgroupShuffle(value.x, lane), subgroupShuffle(value.y, lane));
}

// SOFTWARE, if all eight lanes of a cluster belong to one group. As values_add(), but each lane
// looks up one of the next eight pairs for all eight.
void values_shared(uint slot, uvec2 keys, uint quad, uint group_index, inout vec4 totals[TILE_ROWS])
{
    for (uint r = 0; r < TILE_ROWS; r++)
        totals[r] *= row_rescale[r];
    const uint lane = lane_of_eight(), first_lane = gl_SubgroupInvocationID - lane;
    const uint quad_bytes = quad * 4 * DTYPE_BYTES(V_DTYPE);
    const uint rounds = ((keys.y + 1) / 2 + GROUPS - 1) / GROUPS;
    uint round = WINDOW ? keys.x / 2 / GROUPS : 0;
    do {
        vec4 sums[TILE_ROWS];
        for (uint r = 0; r < TILE_ROWS; r++)
            sums[r] = vec4(0);
        const uint end = min((round / CHUNK_PAIRS + 1) * CHUNK_PAIRS, rounds);
        do {
            const uint pair = min(round + lane, end - 1) * GROUPS + group_index;
            const uint first = clamp(pair * 2, keys.x, keys.y - 1),
                       second = clamp(pair * 2 + 1, keys.x, keys.y - 1);
            const bool weighed = pair * 2 < keys.y && (!WINDOW || pair * 2 + 1 >= keys.x);
            const uvec2 own_value = unpackUint2x32(tile_value(slot, first));
            uvec2 own_weights[TILE_ROWS];
            for (uint r = 0; r < TILE_ROWS; r++)
                own_weights[r] = weighed ? unpackUint2x32(weight_pairs[r * TILE_PAIRS + pair])
                                         : floatBitsToUint(vec2(UNSEEN));
            const uint last = first_lane + min(LANES, end - round);
            uint from = first_lane;
            [[dont_unroll]] do {
                const uint64_t v = packUint2x32(from_lane(own_value, from)) + quad_bytes;
                const vec4 v0 = four_load(v, V_DTYPE);
                const vec4 v1 =
                    four_load(v + value_offset(subgroupShuffle(second - first, from)), V_DTYPE);
                for (uint r = 0; r < TILE_ROWS; r++) {
                    const vec2 w = uintBitsToFloat(from_lane(own_weights[r], from));
                    sums[r] = weighted(weighted(sums[r], w.x, v0), w.y, v1);
                }
            } while (++from < last);
            round += LANES;
        } while (round < end);
        for (uint r = 0; r < TILE_ROWS; r++)
            totals[r] += sums[r];
        round = end;
    } while (round < rounds);
}

void values(uint slot, uvec2 keys, uint quad, uint group_index, inout vec4 totals[TILE_ROWS])
{
    if (SOFTWARE != 0 && QUADS % LANES == 0)
        values_shared(slot, keys, quad, group_index, totals);
    else
        values_add(slot, keys, quad, group_index, totals);
}

void main()
{
    tiles_main();
}
