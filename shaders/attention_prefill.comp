// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// attention_prefill - attention for many rows (prompts), on tensor cores. One workgroup computes
// one work item: TILE_ROWS rows of one sequence and KV head against all keys that a row of them
// sees. A warp has 16 rows and all of V's dims up to 128. With more dims, two warps have the same
// rows, compute the same scores, and have half of V's dims each. All warps share the tiles of
// TILE_KEYS keys that attention_staging.glsl loads. Its time goes about equally to reading these
// tiles from shared memory and to the products. NOTEBOOK.md has the measurements.
//
//   S[16 rows, 8 keys] = Q K^T        Q is A, in registers; K^T is B; scaled only if SHAPED
//   P = 2^(factor (S - m))            in place: two matrices of S lie in a lane as A needs them
//   O[16 rows, 8 dims] += P V         V is B
//
// Tiles are walked from the last to the first. The first tiles of the walk follow the maxima, as in
// online softmax, up to a tile of which every row sees every key. So does the very last tile. In
// between every row sees every key, and rows keep their maxima. Weights may then grow to f16's
// largest number: a score may be 16 (in log2 units) above those of the nearest keys. More is rare.
// Then the weight is infinite, and no sum of the row is finite any more. With bf16, weights or sums
// become too large instead (AULE_PREFILL_NO_SUM). Such an item is noted (struct gpu_redo). Another
// pipeline, the one with REDO, computes it again and follows maxima in every tile. One pipeline for
// both would need more registers than there are.
//
// So there are three loops, two of them equal. A branch in one loop would cost registers: the
// compiler would keep the sums in two places.
//
// Same bits: the rows of a tile belong to one sequence and always have the same row numbers in it.
// Rows that are no queries are zeros.
//
// Grid: x = KV head; item number = gl_WorkGroupID.y + gl_WorkGroupID.z * items_y. The item belongs
// to the last run whose first_item is not beyond it. With REDO: as struct gpu_redo says. Bindings:
// none. Push constants: struct gpu_dispatch. Specialisation constants: all of layout.h (host:
// struct geometry). LOCAL_SIZE is 256. TILE_ROWS is 128, or 64 if V has more than 128 dims. Q and
// out are MATRIX_DTYPE; K and V are MATRIX_DTYPE or 8-bit. Head dims are at most 256, BLOCK_SIZE is
// at least 16. No SPLIT, no MASK.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference2 : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require

#include "attention_staging.glsl"

#include "attention_rows.glsl"

#include "attention_query.glsl"

const uint WARP_ROWS = 16;
const uint SCORES = TILE_KEYS / 8; // matrices of a tile's scores
const uint PAIRS = OWN_STEPS * 2;  // of a lane's sum matrices
const float LEAST_FACTOR = 1e-30;  // instead of a scale of 0, which would lose the scores' order
// From this magnitude on, in log2 units, f32's rounding of a maximum changes weights visibly.
const float FAR = 4096;
// Largest sum of weights in a lane. bf16 holds every weight, but the last tile may scale all
// weights down by a factor that must be a normal float. With V_SCALES, weights that only f32 holds
// have a limit in f16, too, for the same reason.
const float MOST_WEIGHTS = V_SCALES ? 18014398509481984.0 : 16777216;
// Limit for log2 of a scale, up and down: beyond the range of f16's values. The last tile may scale
// by 2^(2 LOG_MOST) for scales alone.
const float LOG_MOST = 30;
const uint INFINITE = 0x7f800000u; // bits of infinity
const bool REDO = (FEATURES & AULE_FEATURE_REDO) != 0;
// With fewer keys, maxima are followed in every tile.
const uint DOUBTFUL_KEYS = AULE_PREFILL_DOUBTFUL_TILES * MOST_TILE_KEYS;

uint g, t;    // the lane in its warp is 4 g + t
uint rows[2]; // the lane's rows in the tile: elements x, y of a matrix, and z, w
Row selves[2];
uvec2 full;   // keys that all rows see
float factor; // from a score to log2 units
// V_SCALES: tiles that follow maxima multiply scores by `factor` first. So all their numbers have
// the same rounding, however large.
#define FACTORED(EXACT) (V_SCALES && !SHAPED && (EXACT))

MatrixA q_matrices[K_STEPS * 2];
MATRIX_PAIRS(sums, PAIRS);
// For both rows. Weights are each lane's own. A maximum is a score; times `factor` it is in log2
// units. With V_SCALES it is the largest score + log2(V's scale), in log2 units. Then weight times
// scale, the factor of the value, is near 1. The weights have the same frame, so their sums have an
// additional factor of up to 2^LOG_MOST, which f32 holds although f16 would not.
vec2 maxima, weights;

layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Redo {
    gpu_redo head;
    uvec2 places[];
};

uvec2 place; // KV head and item number

shared uint noted; // not 0: the item has been noted

// ---- Q ----

uvec4 q_words[K_STEPS * 2];

uvec4 q_turned(uint row, uint piece)
{
    const Eight q = q_oct(row, piece);
    return oct_convert(Oct(floatBitsToUint(q.low), floatBitsToUint(q.high)), DTYPE_F32,
                       MATRIX_DTYPE)
        .first;
}

// Requests the words of Q. Rows that are no queries load the first row's words, so there is no
// branch around a load. A negative scale changes Q's signs here, so that the largest score has the
// largest weight.
void q_fetch()
{
    const uint signs = !SHAPED && run.scale_log2e < 0 ? 0x80008000u : 0, last = HEAD_DIM_K / 8 - 1;
    UNROLLED for (uint i = 0; i < 2; i++) {
        const bool real = rows[i] < num_rows && row_query(rows[i]) < q_len;
        const uint row = real ? rows[i] : 0;
        const uint64_t address = q_address(row);
        UNROLLED for (uint step = 0; step < K_STEPS; step++) {
            const uint piece = step * 4 + t;
            const uvec4 words =
                ROPE ? q_turned(row, min(piece, last)) : Pieces(address).at[min(piece, last)];
            q_words[step * 2 + i] = real && piece <= last ? query_words(words) ^ signs : uvec4(0);
        }
    }
}

void q_load()
{
    UNROLLED for (uint step = 0; step < K_STEPS; step++) {
        const uvec4 low = q_words[step * 2], high = q_words[step * 2 + 1];
        q_matrices[step * 2] = matrix_a(uvec4(low.xy, high.xy));
        q_matrices[step * 2 + 1] = matrix_a(uvec4(low.zw, high.zw));
    }
}

// ---- the keys in sight ----

shared uint least_first, most_end, most_first, least_end;

// Finds `hull` and `full` for rows in any order. A query that sees nothing makes `full` empty.
void ranges_gather()
{
    const uint row = gl_LocalInvocationID.x;
    if (row == 0) {
        least_first = least_end = 0xffffffffu;
        most_end = most_first = 0;
    }
    barrier();
    if (row < num_rows && row_query(row) < q_len) {
        const uvec2 range = row_range(row);
        atomicMax(most_first, range.x);
        atomicMin(least_end, range.y);
        if (range.x < range.y) {
            atomicMin(least_first, range.x);
            atomicMax(most_end, range.y);
        }
    }
    barrier();
    hull = uvec2(least_first, most_end);
    full = uvec2(most_first, least_end);
}

// Finds `hull` and `full`. Without window and positions the first row sees the fewest keys, and the
// last query the most.
void ranges_find()
{
    if (WINDOW || POSITIONS) {
        ranges_gather();
    } else {
        hull = tile_range();
        full = row_range(0);
    }
}

// ---- one tile ----

// Scores of the tile. Successive products have no sum in common, so none waits for the one before.
void tile_scores(out vec4 s[SCORES])
{
    MATRIX_PAIRS(products, SCORES / 2);
    UNROLLED for (uint pair = 0; pair < SCORES / 2; pair++)
        pair_clear(products, pair);
    UNROLLED for (uint step = 0; step < K_STEPS; step++) {
        uvec4 keys[SCORES];
        UNROLLED for (uint n = 0; n < SCORES; n++)
            keys[n] = staged_key(n, step, g, t);
        UNROLLED for (uint pair = 0; pair < SCORES / 2; pair++)
            pair_multiply(products, pair, q_matrices[step * 2], keys[pair * 2].xy,
                          keys[pair * 2 + 1].xy);
        UNROLLED for (uint pair = 0; pair < SCORES / 2; pair++)
            pair_multiply(products, pair, q_matrices[step * 2 + 1], keys[pair * 2].zw,
                          keys[pair * 2 + 1].zw);
    }
    UNROLLED for (uint n = 0; n < SCORES; n++)
        s[n] = pair_elements(products, n);
}

void scores_scale(inout vec4 s[SCORES])
{
    UNROLLED for (uint strip = 0; strip < STRIPS; strip++) {
        const vec4 scales = staged_key_scales(strip, t);
        s[strip * 2] *= scales.xyxy;
        s[strip * 2 + 1] *= scales.zwzw;
    }
}

void scores_shape(uint start, inout vec4 s[SCORES])
{
    UNROLLED for (uint n = 0; n < SCORES; n++)
        UNROLLED for (uint i = 0; i < 4; i++)
            s[n][i] = score_shape(selves[i / 2], s[n][i] * bytes_factor(run.scale_log2e, K_DTYPE),
                                  start + n * 8 + t * 2 + i % 2);
}

void scores_hide(uint start, inout vec4 s[SCORES])
{
    UNROLLED for (uint n = 0; n < SCORES; n++)
        UNROLLED for (uint i = 0; i < 4; i++) {
            const Row self = selves[i / 2];
            const uint key = start + n * 8 + t * 2 + i % 2;
            if (!key_between(key, self.range))
                s[n][i] = uintBitsToFloat(UNSEEN_SCORE);
        }
}

void scores_factor(inout vec4 s[SCORES])
{
    UNROLLED for (uint n = 0; n < SCORES; n++) {
        precise vec4 factored = s[n] * factor; // not fused with later operations
        s[n] = factored;
    }
}

// From a maximum to log2 units.
float maximum_factor()
{
    return V_SCALES ? 1 : factor;
}

// The largest score + log2(V's scale) of both rows. Scales are held within 2^LOG_MOST up and down,
// also a scale of 0.
vec2 tops_scaled(vec4 s[SCORES])
{
    vec2 tops = vec2(uintBitsToFloat(UNSEEN_SCORE));
    UNROLLED for (uint strip = 0; strip < STRIPS; strip++) {
        const vec4 logs = min(log2(max(staged_value_scales(strip, t), exp2(-LOG_MOST))), LOG_MOST);
        const vec4 first = s[strip * 2] + logs.xyxy, second = s[strip * 2 + 1] + logs.zwzw;
        tops = max(tops, max(max(first.xz, first.yw), max(second.xz, second.yw)));
    }
    return tops;
}

vec2 tops_plain(vec4 s[SCORES])
{
    vec2 tops = max(s[0].xz, s[0].yw);
    UNROLLED for (uint n = 1; n < SCORES; n++)
        tops = max(tops, max(s[n].xz, s[n].yw));
    return tops;
}

void scores_follow(vec4 s[SCORES])
{
    vec2 tops;
    if (V_SCALES)
        tops = tops_scaled(s);
    else
        tops = tops_plain(s);
    tops = max(tops, vec2(warp_xor(tops.x, 1), warp_xor(tops.y, 1)));
    tops = max(tops, vec2(warp_xor(tops.x, 2), warp_xor(tops.y, 2)));
    const vec2 larger = max(maxima, tops), keep = exp2((maxima - larger) * maximum_factor());
    maxima = larger;
    weights *= keep;
    UNROLLED for (uint pair = 0; pair < PAIRS; pair++)
        pair_scale(sums, pair, keep.x, keep.y);
}

// Turns scores into weights, as the words of A. A row that has seen no key yet has no maximum. In a
// tile that follows maxima, a maximum that is FAR is subtracted before the multiplication, which
// then is exact. Other maxima are subtracted as in the other tiles.
void scores_weigh(vec4 s[SCORES], bool exact, out uvec4 words[STRIPS])
{
    vec2 added = vec2(0), before = vec2(0), base = maxima * maximum_factor();
    if (exact)
        base = max(base, NO_MAXIMUM);
    if (exact && !SHAPED && !V_SCALES) {
        const bvec2 far = greaterThanEqual(abs(base), vec2(FAR));
        before = mix(before, maxima, far);
        base = mix(base, vec2(0), far);
    }
    const vec4 times = vec4(FACTORED(exact) ? 1 : factor);
    UNROLLED for (uint strip = 0; strip < STRIPS; strip++) {
        vec4 first = exp2(fma(s[strip * 2] - before.xxyy, times, -base.xxyy));
        vec4 second = exp2(fma(s[strip * 2 + 1] - before.xxyy, times, -base.xxyy));
        added += first.xz + first.yw + (second.xz + second.yw);
        if (V_SCALES) {
            const vec4 scales = staged_value_scales(strip, t);
            first *= scales.xyxy;
            second *= scales.zwzw;
        }
        words[strip] = uvec4(halves_round(first.xy), halves_round(second.xy),
                             halves_round(first.zw), halves_round(second.zw));
    }
    weights += added;
}

void values_add(uvec4 words[STRIPS])
{
    UNROLLED for (uint strip = 0; strip < STRIPS; strip++) {
        const MatrixA p = matrix_a(words[strip]);
        UNROLLED for (uint pair = 0; pair < PAIRS; pair++) {
            const uvec4 values = staged_value(strip, pair, g, t);
            pair_multiply(sums, pair, p, values.xy, values.zw);
        }
    }
}

// ---- REDO: values that are not finite ----
// A product with a weight of 0 is NaN then. So in a tile that some rows do not see whole, such
// values are left out of the product. Then they reach the rows that see them: by products of 1 or
// 0, a row sees a key, with 1 or 0, its value is infinite or NaN.

const uint HALF_ONE = MATRIX_DTYPE == DTYPE_BF16 ? 0x3f80u : 0x3c00u;
const uint HALF_EXPONENTS = MATRIX_DTYPE == DTYPE_BF16 ? 0x7f807f80u : 0x7c007c00u;
const uint HALF_FRACTIONS = MATRIX_DTYPE == DTYPE_BF16 ? 0x007f007fu : 0x03ff03ffu;
const uint HALF_SIGNS = 0x80008000u;

// The sign bits of halves that are infinite or NaN. The other bits are 0.
uvec4 halves_beyond(uvec4 words)
{
    // A carry out of the exponent.
    return (words & HALF_EXPONENTS) + (HALF_EXPONENTS & ~(HALF_EXPONENTS << 1)) & HALF_SIGNS;
}

// The same of halves that are NaN, if they are infinite or NaN.
uvec4 halves_nan(uvec4 words)
{
    const uint shift = MATRIX_DTYPE == DTYPE_BF16 ? 8 : 5;
    return (words & HALF_FRACTIONS) + HALF_FRACTIONS << shift & HALF_SIGNS;
}

uvec4 halves_finite(uvec4 words)
{
    return words & ~((halves_beyond(words) >> 15) * 0xffffu);
}

// 1 for halves that are NaN or infinite: with positive infinity, or with the other one.
uvec4 halves_told(uvec4 words, bool positive)
{
    const uvec4 signs = positive ? ~words : words;
    return ((halves_beyond(words) & (signs | halves_nan(words))) >> 15) * HALF_ONE;
}

// The words of A: 1 where the lane's rows see a key of the strip.
uvec4 keys_seen(uint first)
{
    uvec4 words;
    UNROLLED for (uint i = 0; i < 4; i++) {
        const uint key = first + t * 2 + i % 2 * 8;
        const uvec2 range = selves[i / 2].range;
        words[i] = (key_between(key, range) ? HALF_ONE : 0) |
                   (key_between(key + 1, range) ? HALF_ONE << 16 : 0);
    }
    return words;
}

// What sums become by values above all numbers, and by values below.
vec4 sums_told(vec4 above, vec4 below)
{
    const uvec4 up = mix(uvec4(0), uvec4(INFINITE), greaterThan(above, vec4(0)));
    const uvec4 down = mix(uvec4(0), uvec4(INFINITE | 0x80000000u), greaterThan(below, vec4(0)));
    return uintBitsToFloat(up) + uintBitsToFloat(down);
}

// As values_add(), with the same sums if all values are finite.
void values_add_told(uvec4 words[STRIPS], uint start)
{
    UNROLLED for (uint pair = 0; pair < PAIRS; pair++) {
        MATRIX_PAIRS(above, 1);
        MATRIX_PAIRS(below, 1);
        pair_clear(above, 0);
        pair_clear(below, 0);
        UNROLLED for (uint strip = 0; strip < STRIPS; strip++) {
            const uvec4 values = staged_value(strip, pair, g, t);
            const uvec4 finite = halves_finite(values), up = halves_told(values, true),
                        down = halves_told(values, false);
            const MatrixA p = matrix_a(words[strip]),
                          seen = matrix_a(keys_seen(start + strip * STRIP_KEYS));
            pair_multiply(sums, pair, p, finite.xy, finite.zw);
            pair_multiply(above, 0, seen, up.xy, up.zw);
            pair_multiply(below, 0, seen, down.xy, down.zw);
        }
        const vec4 left = sums_told(pair_elements(above, 0), pair_elements(below, 0)),
                   right = sums_told(pair_elements(above, 1), pair_elements(below, 1));
        pair_add(sums, pair, left, right);
    }
}

bool tile_hides(uint start)
{
    return start < full.x || start + TILE_KEYS > full.y;
}

void tile_compute(uint start, bool exact)
{
    vec4 s[SCORES];
    uvec4 words[STRIPS];
    tile_scores(s);
    if (K_SCALES)
        scores_scale(s);
    if (SHAPED)
        scores_shape(start, s);
    if (FACTORED(exact))
        scores_factor(s);
    if (exact) {
        scores_hide(start, s);
        scores_follow(s);
    }
    scores_weigh(s, exact, words);
    if (REDO && tile_hides(start))
        values_add_told(words, start);
    else
        values_add(words);
}

// ---- all tiles ----

// A row beyond the queries begins with maximum 0: its scores are 0, so none of its weights is too
// large.
void state_clear()
{
    UNROLLED for (uint i = 0; i < 2; i++)
        maxima[i] = selves[i].range.x < selves[i].range.y ? NO_MAXIMUM : 0;
    weights = vec2(0);
    UNROLLED for (uint pair = 0; pair < PAIRS; pair++)
        pair_clear(sums, pair);
}

// Loads Q into registers and the tile that ends at `tile` into shared memory. Loads that depend on
// nothing come first.
void first_load(uint tile)
{
    tiles_ask((tile - 1) * TILE_KEYS);
    q_fetch();
    tiles_begin((tile - 1) * TILE_KEYS);
    barrier();
    tile_load((tile - 1) * TILE_KEYS);
    tile_turn((tile - 1) * TILE_KEYS);
    barrier();
    tile_store((tile - 1) * TILE_KEYS);
    q_load();
}

// Computes the tile that ends at `tile`, which is being stored to shared memory. Meanwhile the next
// tile is loaded into registers.
void tile_step(uint tile, bool exact)
{
    const uint start = (tile - 1) * TILE_KEYS;
    barrier();
    tile_load(start - TILE_KEYS);
    tile_compute(start, exact);
    tile_turn(start - TILE_KEYS);
    barrier();
    tile_store(start - TILE_KEYS);
}

void tiles_walk(inout uint tile, uint end, bool exact)
{
    [[dont_unroll]] for (; tile > end; tile--)
        tile_step(tile, exact);
}

// Makes sums of weights above MOST_WEIGHTS infinite.
void weights_bound()
{
    if (!REDO && (MATRIX_DTYPE == DTYPE_BF16 || V_SCALES))
        weights =
            mix(weights, vec2(uintBitsToFloat(INFINITE)), greaterThan(weights, vec2(MOST_WEIGHTS)));
}

void tiles_compute()
{
    const uint end = (hull.y + TILE_KEYS - 1) / TILE_KEYS, first = hull.x / TILE_KEYS;
    // Tiles [quick.x, quick.y) do not follow maxima. The walk meets a tile that every row sees
    // whole before them, and the very last tile behind them.
    uvec2 quick = uvec2(max((full.x + TILE_KEYS - 1) / TILE_KEYS, first + 1), full.y / TILE_KEYS);
    if (WIDE && kv_len < DOUBTFUL_KEYS)
        quick.y = 0; // no tile
    quick = !REDO && quick.y > quick.x + 1 ? quick - uvec2(0, 1) : uvec2(first);
    uint tile = end;
    first_load(tile);
    if (EMULATED) { // one copy of the code is enough
        [[dont_unroll]] for (uint i = 0; i < 3; i++) {
            tiles_walk(tile, i == 0 ? quick.y : i == 1 ? quick.x : first, i != 1);
            if (i == 1)
                weights_bound();
        }
    } else if (REDO) {
        tiles_walk(tile, first, true);
    } else {
        tiles_walk(tile, quick.y, true);
        tiles_walk(tile, quick.x, false);
        weights_bound();
        tiles_walk(tile, first, true);
    }
}

// ---- noting an item for the second pass ----

// The sum of the magnitudes of a lane's sums, for each of its rows. It is infinite or NaN if one of
// them is.
vec2 sizes_find()
{
    vec4 sizes = abs(pair_elements(sums, 0));
    UNROLLED for (uint n = 1; n < PAIRS * 2; n++)
        sizes += abs(pair_elements(sums, n));
    return sizes.xz + sizes.yw;
}

// Whether the item must be computed again.
//   f16: a weight that was too large is infinite in A, and so are its row's sums.
//   bf16: holds every weight, but f32 may not hold its product with a value, nor their sum.
//   A maximum that is FAR has made weights wrong in tiles that do not follow maxima.
//   A value that is not finite may have reached rows that do not see it.
bool is_doubtful(vec2 sizes)
{
    float size = sizes.x + sizes.y;
    if (MATRIX_DTYPE == DTYPE_BF16 || V_SCALES)
        size += weights.x + weights.y;
    // As bits, since a compiler may assume that there is no NaN and no infinity.
    return (floatBitsToUint(size) & 0x7fffffffu) >= AULE_PREFILL_NO_SUM ||
           (!SHAPED && max(abs(maxima.x), abs(maxima.y)) * maximum_factor() >= FAR);
}

// Notes a doubtful item. NaN in Q or K makes it one, too, and only costs time. Every lane checks.
// Lanes that find a reason read kv_len again, so that no register holds it until then.
void redo_note(vec2 sizes)
{
    if (!is_doubtful(sizes))
        return;
    if (Items(run.items).at[place.y - run.first_item].tile.kv_len < DOUBTFUL_KEYS ||
        atomicExchange(noted, 1) != 0)
        return;
    Redo redo = Redo(dispatch.redo);
    const uint number = atomicAdd(redo.head.count, 1);
    redo.places[number] = place;
    if (number < AULE_REDO_WIDTH)
        atomicAdd(redo.head.x, 1);
    else if (number % AULE_REDO_WIDTH == 0)
        atomicAdd(redo.head.y, 1);
}

// Finds the item that this workgroup computes. false: there is none.
bool place_find()
{
    place = uvec2(gl_WorkGroupID.x, gl_WorkGroupID.y + gl_WorkGroupID.z * dispatch.items_y);
    if (!REDO)
        return true;
    const uint number = gl_WorkGroupID.x + gl_WorkGroupID.y * AULE_REDO_WIDTH;
    Redo redo = Redo(dispatch.redo);
    if (number >= redo.head.count)
        return false;
    place = redo.places[number];
    return true;
}

// ---- the end ----

// f16: makes infinite halves the largest number.
uvec4 halves_bounded(uvec4 words)
{
    const uvec4 low = mix(uvec4(0), uvec4(1), equal(words & 0x7fffu, uvec4(0x7c00u)));
    const uvec4 high =
        mix(uvec4(0), uvec4(0x10000u), equal(words & 0x7fff0000u, uvec4(0x7c000000u)));
    return words - low - high;
}

// `size` is that of sizes_find(). If all sums are finite, so are all results: see mean_bounded().
void row_store(uint i, float sum, float size)
{
    const uint row = rows[i];
    if (row >= num_rows)
        return;
    const bool idle = selves[i].range.x >= selves[i].range.y;
    if (idle)
        sum = 0; // its weights are not weights
    float maximum = idle ? NO_MAXIMUM : max(maxima[i] * maximum_factor(), NO_MAXIMUM);
    if (ALIBI)
        maximum = true_maximum(selves[i], maximum);
    const vec2 end = row_end(row, sum, maximum);
    if (LSE && t == 0 && value_share() == 0)
        lse_store(row, end.y);
    const uint64_t address = out_address(row);
    const float most = size * abs(bytes_factor(end.x, V_DTYPE));
    const bool bounds = MATRIX_DTYPE == DTYPE_F16 && most >= 65504 &&
                        (floatBitsToUint(most) & 0x7fffffffu) < INFINITE;
    UNROLLED for (uint step = 0; step < OWN_STEPS; step++) {
        vec4 low, high;
        UNROLLED for (uint n = 0; n < 4; n++) {
            const vec4 elements = (idle ? vec4(0) : pair_elements(sums, step * 4 + n)) *
                                  bytes_factor(end.x, V_DTYPE);
            low[n] = elements[i * 2];
            high[n] = elements[i * 2 + 1];
        }
        low = uintBitsToFloat(plus_zero(low));
        high = uintBitsToFloat(plus_zero(high));
        const uint piece = (value_share() * OWN_STEPS + step) * 4 + t;
        uvec4 words = uvec4(halves_round(low.xy), halves_round(low.zw), halves_round(high.xy),
                            halves_round(high.zw));
        if (bounds)
            words = halves_bounded(words);
        if (piece < HEAD_DIM_V / 8)
            Units(address).at[piece] = words;
    }
}

void main()
{
    gpu_item item;
    if (!place_find() || !item_find_at(place.y, item))
        return;
    if (gl_LocalInvocationID.x == 0)
        noted = 0; // there are barriers before its use
    work_begin(item.tile);
    kv_head = place.x;
    g = warp_lane() / 4;
    t = warp_lane() % 4;
    UNROLLED for (uint i = 0; i < 2; i++) {
        rows[i] =
            (V_SHARES == 1 ? warp_number() : warp_number() / V_SHARES) * WARP_ROWS + g + i * 8;
        selves[i] = row_begin(rows[i]);
    }
    factor = SHAPED ? 1 : max(abs(bytes_factor(run.scale_log2e, K_DTYPE)), LEAST_FACTOR);
    state_clear();
    ranges_find();
    hull = uvec2(warp_first(hull.x), warp_first(hull.y));
    full = uvec2(warp_first(full.x), warp_first(full.y));
    if (hull.x < hull.y)
        tiles_compute();
    run_again();
    const vec2 sizes = sizes_find();
    if (!REDO)
        redo_note(sizes);
    vec2 totals = weights + vec2(warp_xor(weights.x, 1), warp_xor(weights.y, 1));
    totals += vec2(warp_xor(totals.x, 2), warp_xor(totals.y, 2));
    row_store(0, totals.x, sizes.x);
    row_store(1, totals.y, sizes.y);
}
