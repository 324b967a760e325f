// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// attention_coop - attention on tensor cores of any size and layout. Matrices are loaded from
// shared memory and stored there, so it does not matter which lane has which element. Sizes of
// matrices and subgroups are the device's. One workgroup computes one work item: TILE_ROWS rows of
// one sequence and KV head against all their keys, or one part of them. TILE_ROWS is small for
// decode and large for prefill. attention_coop_staging.glsl loads the keys and assigns matrices to
// subgroups.
//
// A tile of keys takes four steps, between barriers:
//
//   store     the loaded K and V go to shared memory; then the next tile's loads begin
//   scores    S = Q K^T: Q is A and stays in matrices, K^T is B
//   weights   ROW_THREADS threads a row: new maximum, weights P = 2^(s - maximum) as f16, factor
//   sums      O = O * factor + P V; the factor is a matrix like O, whose rows have one value each
//
// Same bits: the rows of a tile belong to one sequence and always have the same row numbers in it.
// A row of a product depends on no other row of its matrix. Tiles are counted from the item's first
// key. A tile that a row does not see multiplies its sums by 1 and adds zeros. A key that only
// another row sees has the weight 0; its V must not be NaN, so there is no MASK.
//
// Grid: x = KV head; item number = gl_WorkGroupID.y + gl_WorkGroupID.z * items_y. The item belongs
// to the last run whose first_item is not beyond it. Bindings: none. Push constants: struct
// gpu_dispatch. Specialisation constants: all of layout.h (host: struct geometry, and struct
// matrix_size of the device). LOCAL_SIZE is 128, TILE_ROWS at least 16. Q and out are f16; K and V
// are f16 or 8-bit, in rows that are multiples of 16 bytes. V has no scales per token and head.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference2 : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_KHR_shader_subgroup_basic : require
#extension GL_KHR_shader_subgroup_shuffle : require

#include "attention_coop_staging.glsl"

#include "attention_rows.glsl"

#include "attention_query.glsl"

const uint SCORE_BLOCKS = TILE_KEYS / MATRIX_COLUMNS;  // columns of matrices in a tile's scores
const uint SCORE_OWN = (SCORE_BLOCKS + SHARES - 1) / SHARES;
// SCORE_OWN, VALUE_OWN: columns of one subgroup, in the scores and in the output.
const uint VALUE_BLOCKS = V_DIMS / MATRIX_COLUMNS;
const uint VALUE_OWN = (VALUE_BLOCKS + SHARES - 1) / SHARES;
const uint K_STEPS = K_DIMS / MATRIX_DEPTH;
const uint KEY_STEPS = TILE_KEYS / MATRIX_DEPTH;
// Units of a row's scores for one of its threads.
const uint ROW_UNITS = (SCORE_UNITS + ROW_THREADS - 1) / ROW_THREADS;
// 16-byte units of f16
const uint DEPTH_UNITS = MATRIX_DEPTH / 8, COLUMN_UNITS = MATRIX_COLUMNS / 8;
const uint V_OCTS = HEAD_DIM_V / 8;

#define MatrixA coopmat<float16_t, gl_ScopeSubgroup, MATRIX_ROWS, MATRIX_DEPTH, gl_MatrixUseA>
#define MatrixB coopmat<float16_t, gl_ScopeSubgroup, MATRIX_DEPTH, MATRIX_COLUMNS, gl_MatrixUseB>
#define MatrixC                                                                                    \
    coopmat<float, gl_ScopeSubgroup, MATRIX_ROWS, MATRIX_COLUMNS, gl_MatrixUseAccumulator>

uint band, band_share; // of the subgroup
uint row, row_share;   // of the thread, when rows are weighed
Row self;
float maximum = NO_MAXIMUM, weight_sum; // of the row; of this thread's part of its weights

MatrixA q_matrices[BAND_BLOCKS * K_STEPS];
MatrixC sums[BAND_BLOCKS * VALUE_OWN];

// Waits for the stores of the subgroup or, if subgroups share a band, of the workgroup.
void band_wait()
{
    if (OWN_ROWS) {
        subgroupMemoryBarrierShared();
        subgroupBarrier();
    } else {
        barrier();
    }
}

uint band_row(uint block)
{
    return (band * BAND_BLOCKS + block) * MATRIX_ROWS;
}

// ---- Q ----

uvec4 q_words(uint at_row, uint oct)
{
    if (at_row >= num_rows || row_query(at_row) >= q_len || oct >= HEAD_DIM_K / 8)
        return uvec4(0);
    if (!ROPE)
        return Pieces(q_address(at_row)).at[oct];
    const Eight q = q_oct(at_row, oct);
    return oct_convert(Oct(floatBitsToUint(q.low), floatBitsToUint(q.high)), DTYPE_F32, DTYPE_F16)
        .first;
}

void q_load()
{
    for (uint i = thread; i < TILE_ROWS * (K_DIMS / 8); i += THREADS)
        units[i / (K_DIMS / 8) * K_ROW + i % (K_DIMS / 8)] =
            q_words(i / (K_DIMS / 8), i % (K_DIMS / 8));
    barrier();
    [[unroll]] for (uint block = 0; block < TIMES(BAND_BLOCKS); block++)
        [[unroll]] for (uint step = 0; step < TIMES(K_STEPS); step++)
            coopMatLoad(q_matrices[block * K_STEPS + step], units,
                        band_row(block) * K_ROW + step * DEPTH_UNITS, K_ROW,
                        gl_CooperativeMatrixLayoutRowMajor);
    barrier();
    key_pads_clear();
}

// ---- the keys in sight ----

shared uint hull_first, hull_end;

// The hull of the ranges of rows in any order.
uvec2 ranges_gather()
{
    if (thread == 0) {
        hull_first = 0xffffffffu;
        hull_end = 0;
    }
    barrier();
    if (row_share == 0 && self.range.x < self.range.y) {
        atomicMin(hull_first, self.range.x);
        atomicMax(hull_end, self.range.y);
    }
    barrier();
    return uvec2(hull_first, hull_end);
}

// ---- one tile ----

// Scores of this subgroup's keys. A subgroup that has none leaves them to the others.
void tile_scores()
{
    if (band_share >= SCORE_BLOCKS)
        return;
    MatrixC scores[SCORE_OWN * BAND_BLOCKS];
    [[unroll]] for (uint i = 0; i < TIMES(SCORE_OWN * BAND_BLOCKS); i++)
        scores[i] = MatrixC(0.0);
    [[unroll]] for (uint step = 0; step < TIMES(K_STEPS); step++)
        [[unroll]] for (uint i = 0; i < TIMES(SCORE_OWN); i++) {
            MatrixB keys;
            coopMatLoad(keys, units,
                        (band_share + i * SHARES) * MATRIX_COLUMNS * K_ROW + step * DEPTH_UNITS,
                        K_ROW, gl_CooperativeMatrixLayoutColumnMajor);
            [[unroll]] for (uint block = 0; block < TIMES(BAND_BLOCKS); block++)
                scores[i * BAND_BLOCKS + block] = coopMatMulAdd(
                    q_matrices[block * K_STEPS + step], keys, scores[i * BAND_BLOCKS + block]);
        }
    [[unroll]] for (uint i = 0; i < TIMES(SCORE_OWN); i++)
        [[unroll]] for (uint block = 0; block < TIMES(BAND_BLOCKS); block++)
            coopMatStore(scores[i * BAND_BLOCKS + block], units,
                         SCORES_AT + band_row(block) * SCORE_ROW +
                             (band_share + i * SHARES) * FACTOR_UNITS,
                         SCORE_ROW, gl_CooperativeMatrixLayoutRowMajor);
}

// Shapes four scores, of keys from `key` of the tile on.
vec4 scores_shape(uint start, uint key, uvec4 words)
{
    vec4 scores;
    for (uint i = 0; i < 4; i++) {
        precise float score = uintBitsToFloat(words[i]) * run.scale_log2e;
        if (K_SCALES)
            score *= key_scales[key + i];
        if (SHAPED)
            score = score_shape(self, score, start + key + i);
        scores[i] = score;
    }
    return scores;
}

bvec4 scores_seen(uint start, uint key, uvec2 range)
{
    const uvec4 keys = uvec4(start + key) + uvec4(0, 1, 2, 3);
    return bvec4(key_between(keys.x, range), key_between(keys.y, range), key_between(keys.z, range),
                 key_between(keys.w, range));
}

// Weighs this thread's part of its row. The weights take the place of scores that other threads of
// the row have already read.
void tile_weigh(uint start, uvec2 range)
{
    const uint at = SCORES_AT + row * SCORE_ROW;
    vec4 scores[ROW_UNITS];
    bvec4 seen[ROW_UNITS];
    float larger = maximum;
    [[unroll]] for (uint i = 0; i < ROW_UNITS; i++) {
        const uint unit = min(row_share + i * ROW_THREADS, SCORE_UNITS - 1);
        scores[i] = scores_shape(start, unit * 4, units[at + unit]);
        seen[i] = scores_seen(start, unit * 4, range);
        const vec4 candidates = mix(vec4(NO_MAXIMUM), scores[i], seen[i]);
        larger = max(larger, max(max(candidates.x, candidates.y), max(candidates.z, candidates.w)));
    }
    [[unroll]] for (uint mask = 1; mask < ROW_THREADS; mask *= 2)
        larger = max(larger, subgroupShuffleXor(larger, mask));
    subgroupMemoryBarrierShared();
    subgroupBarrier();
    const float keep = exp2(maximum - larger);
    maximum = larger;
    weight_sum *= keep;
    [[unroll]] for (uint i = 0; i < ROW_UNITS; i++) {
        const uint unit = row_share + i * ROW_THREADS;
        if (unit < SCORE_UNITS) {
            const vec4 weights = mix(vec4(0), exp2(scores[i] - maximum), seen[i]);
            weight_sum += weights.x + weights.y + (weights.z + weights.w);
            const uvec2 words =
                uvec2(packFloat2x16(f16vec2(weights.xy)), packFloat2x16(f16vec2(weights.zw)));
            if (unit % 2 == 0)
                units[at + unit / 2].xy = words;
            else
                units[at + unit / 2].zw = words;
        }
    }
    for (uint i = row_share; i < FACTOR_UNITS; i += ROW_THREADS)
        units[at + WEIGHT_UNITS + i] = uvec4(floatBitsToUint(keep));
}

void tile_sums()
{
    MatrixA weights[BAND_BLOCKS * KEY_STEPS];
    [[unroll]] for (uint block = 0; block < TIMES(BAND_BLOCKS); block++) {
        const uint at = SCORES_AT + band_row(block) * SCORE_ROW;
        MatrixC factor;
        coopMatLoad(factor, units, at + WEIGHT_UNITS, SCORE_ROW,
                    gl_CooperativeMatrixLayoutRowMajor);
        [[unroll]] for (uint i = 0; i < TIMES(VALUE_OWN); i++)
            sums[block * VALUE_OWN + i] = sums[block * VALUE_OWN + i] * factor;
        [[unroll]] for (uint step = 0; step < TIMES(KEY_STEPS); step++)
            coopMatLoad(weights[block * KEY_STEPS + step], units, at + step * DEPTH_UNITS,
                        SCORE_ROW, gl_CooperativeMatrixLayoutRowMajor);
    }
    [[unroll]] for (uint step = 0; step < TIMES(KEY_STEPS); step++)
        [[unroll]] for (uint i = 0; i < TIMES(VALUE_OWN); i++) {
            const uint column = band_share + i * SHARES;
            if (column < VALUE_BLOCKS) {
                MatrixB values;
                coopMatLoad(values, units,
                            VALUES_AT + step * MATRIX_DEPTH * V_ROW + column * COLUMN_UNITS, V_ROW,
                            gl_CooperativeMatrixLayoutRowMajor);
                [[unroll]] for (uint block = 0; block < TIMES(BAND_BLOCKS); block++)
                    sums[block * VALUE_OWN + i] = coopMatMulAdd(
                        weights[block * KEY_STEPS + step], values, sums[block * VALUE_OWN + i]);
            }
        }
}

// After the last tile one more is loaded and not used: a branch around the loads would cost more.
void tiles_compute(uint first_key, uvec2 range)
{
    uint start = first_key + (hull.x - first_key) / TILE_KEYS * TILE_KEYS;
    strips_find(start);
    strips_store();
    barrier();
    tile_load(start);
    [[dont_unroll]] for (; start < hull.y; start += TILE_KEYS) {
        barrier();
        tile_store(start);
        barrier();
        tile_load(start + TILE_KEYS);
        tile_scores();
        band_wait();
        tile_weigh(start, range);
        band_wait();
        tile_sums();
    }
}

// ---- the end ----

layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer Partial {
    float at[];
};
layout(buffer_reference, scalar, buffer_reference_align = 16) writeonly buffer PartialOcts {
    vec4 at[];
};

shared float row_factors[TILE_ROWS];

// Ends a row. For a part it stores the maximum and the sum of weights, for the merge. Else it
// stores the LSE and the factor of the row's sums.
void row_finish(gpu_item item, bool partial)
{
    [[unroll]] for (uint mask = 1; mask < ROW_THREADS; mask *= 2)
        weight_sum += subgroupShuffleXor(weight_sum, mask);
    if (row_share != 0 || row >= num_rows)
        return;
    if (partial) {
        const uint64_t address = partial_address(item.partial);
        Partial(address).at[PARTIAL_MAXIMA + row] = maximum;
        Partial(address).at[PARTIAL_WEIGHTS + row] = weight_sum;
        return;
    }
    const vec2 end = row_end(row, weight_sum, ALIBI ? true_maximum(self, maximum) : maximum);
    row_factors[row] = end.x;
    if (LSE)
        lse_store(row, end.y);
}

// Stores eight dims of row `at_row`.
void oct_finish(gpu_item item, bool partial, uint at_row, uint oct, vec4 low, vec4 high)
{
    if (partial) {
        PartialOcts octs = PartialOcts(partial_address(item.partial));
        octs.at[(at_row * V_OCTS + oct) * 2] = low;
        octs.at[(at_row * V_OCTS + oct) * 2 + 1] = high;
        return;
    }
    const float factor = row_factors[at_row];
    const Oct f32 = Oct(plus_zero(factor == 0 ? vec4(0) : low * factor),
                        plus_zero(factor == 0 ? vec4(0) : high * factor));
    oct_store(out_address(at_row) + oct * IO_OCT_BYTES, IO_DTYPE,
              oct_convert(f32, DTYPE_F32, IO_DTYPE));
}

// Stores the sums through shared memory, one column of matrices of each subgroup at a time.
void sums_finish(gpu_item item, bool partial)
{
    const uint octs = SUM_SHARES * COLUMN_UNITS; // octs of a row at a time
    [[unroll]] for (uint i = 0; i < TIMES(VALUE_OWN); i++) {
        barrier();
        if (band_share + i * SHARES < VALUE_BLOCKS)
            [[unroll]] for (uint block = 0; block < TIMES(BAND_BLOCKS); block++)
                coopMatStore(sums[block * VALUE_OWN + i], units,
                             band_row(block) * SUM_ROW + band_share * FACTOR_UNITS, SUM_ROW,
                             gl_CooperativeMatrixLayoutRowMajor);
        barrier();
        for (uint n = thread; n < TILE_ROWS * octs; n += THREADS) {
            const uint at_row = n / octs, at = at_row * SUM_ROW + n % octs * 2;
            const uint oct = i * SHARES * COLUMN_UNITS + n % octs;
            if (at_row < num_rows && oct < V_OCTS)
                oct_finish(item, partial, at_row, oct, uintBitsToFloat(units[at]),
                           uintBitsToFloat(units[at + 1]));
        }
    }
}

void main()
{
    gpu_item item;
    if (!item_find(item))
        return;
    work_begin(item.tile);
    thread = gl_SubgroupID * SUBGROUP + gl_SubgroupInvocationID;
    band = gl_SubgroupID / SHARES;
    band_share = gl_SubgroupID % SHARES;
    row = thread / ROW_THREADS;
    row_share = thread % ROW_THREADS;
    self = row_begin(row);
    weight_sum = 0;
    [[unroll]] for (uint i = 0; i < TIMES(BAND_BLOCKS * VALUE_OWN); i++)
        sums[i] = MatrixC(0.0);
    hull = WINDOW || POSITIONS ? ranges_gather() : tile_range();
    uvec2 range = self.range;
    if (SPLIT) {
        hull = uvec2(max(hull.x, item.first_key), min(hull.y, item.end_key));
        range.y = min(range.y, item.end_key);
    }
    if (hull.x < hull.y) {
        q_load();
        tiles_compute(SPLIT ? item.first_key : 0, range);
    }
    const bool partial = SPLIT && item.partial != AULE_NO_PARTIAL;
    row_finish(item, partial);
    sums_finish(item, partial);
}
