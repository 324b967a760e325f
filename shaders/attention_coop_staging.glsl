// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// attention_coop_staging.glsl - how attention_coop.comp assigns matrices to subgroups, rows to
// threads, and shared memory to its uses. Also the way of a tile of K and V: from memory through
// registers to shared memory. A tile is loaded while the one before is computed, and then stored.
// Knows where keys lie and which of them a row may see (`hull`); nothing of scores.
//
// Shared memory is one array of 16-byte units, so matrices and threads find data at the same index,
// whatever its type:
//
//   keys, values   f16 [key][dim]; dims are rounded up to 16, and a row has one unit more. So a row
//                  has an odd number of units, and eight rows read together use all banks
//   scores         f32 [row][key]; then, in the same row, f16 weights [key] and behind them the
//                  factor of the row's sums, once for each column of a matrix
//   Q              f16 [row][dim], before the first tile, in the place of the others
//   sums           f32, behind the last tile, in the place of the others

#ifndef AULE_ATTENTION_COOP_STAGING_GLSL
#define AULE_ATTENTION_COOP_STAGING_GLSL

#include "attention_work.glsl"

#include "attention_elements.glsl"

// 8 or 16, like the next two
layout(constant_id = AULE_SPEC_MATRIX_ROWS) const uint MATRIX_ROWS = 16;
layout(constant_id = AULE_SPEC_MATRIX_COLUMNS) const uint MATRIX_COLUMNS = 16;
layout(constant_id = AULE_SPEC_MATRIX_DEPTH) const uint MATRIX_DEPTH = 16;     // terms of one sum
layout(constant_id = AULE_SPEC_SUBGROUP) const uint SUBGROUP = 32;             // 8 to THREADS / 2

layout(constant_id = AULE_SPEC_SOFTWARE) const uint SOFTWARE = 0;

// Factor of the number of rounds of a loop over matrices. It is always 1. Compilers that know this
// unroll the loops, because registers have no addresses. A software device's compiler must not know
// it.
uint once = SOFTWARE != 0 ? min(gl_NumWorkGroups.x, 1u) : 1u;
#define TIMES(NUMBER) ((NUMBER) * once)

const uint THREADS = 128; // LOCAL_SIZE of the host; a constant, because array sizes depend on it

#define LARGER(A, B) ((A) > (B) ? (A) : (B)) // max() is no constant expression

const uint K_DIMS = (HEAD_DIM_K + 15) / 16 * 16;
const uint V_DIMS = (HEAD_DIM_V + 15) / 16 * 16;
const uint TILE_KEYS = K_DIMS > 128 || V_DIMS > 128 ? 16 : 32;

// ---- the work of a subgroup ----

const uint SUBGROUPS = THREADS / SUBGROUP;
const uint ROW_BLOCKS = TILE_ROWS / MATRIX_ROWS;
// A band is a set of row blocks. Each band has SHARES subgroups, which share its columns.
const uint BANDS = SUBGROUPS < ROW_BLOCKS ? SUBGROUPS : ROW_BLOCKS;
const uint SHARES = SUBGROUPS / BANDS;
const uint BAND_BLOCKS = ROW_BLOCKS / BANDS;
const uint ROW_THREADS = THREADS / TILE_ROWS; // neighbours in one subgroup, which weigh one row
const bool OWN_ROWS = SHARES == 1; // these are in the subgroup of the row's band, so no other waits

// ---- shared memory, in units ----

const uint K_ROW = K_DIMS / 8 + 1;
const uint V_ROW = V_DIMS / 8 + 1;
// Units of a row of scores, of weights and of the factor.
const uint SCORE_UNITS = TILE_KEYS / 4, WEIGHT_UNITS = TILE_KEYS / 8,
           FACTOR_UNITS = MATRIX_COLUMNS / 4;
const uint SCORE_ROW = LARGER(SCORE_UNITS, WEIGHT_UNITS + FACTOR_UNITS) | 1;
// Columns of matrices stored together.
const uint SUM_SHARES = SHARES < V_DIMS / MATRIX_COLUMNS ? SHARES : V_DIMS / MATRIX_COLUMNS;
const uint SUM_ROW = SUM_SHARES * FACTOR_UNITS | 1;

const uint VALUES_AT = TILE_KEYS * K_ROW;
const uint SCORES_AT = VALUES_AT + TILE_KEYS * V_ROW;
const uint TILE_UNITS = SCORES_AT + TILE_ROWS * SCORE_ROW;
const uint UNITS = LARGER(TILE_UNITS, LARGER(TILE_ROWS * K_ROW, TILE_ROWS * SUM_ROW));

shared uvec4 units[UNITS];

// ---- loads: of 16 bytes ----

// Keys that share one look-up; never across a block's end.
const uint STRIP_KEYS = BLOCK_SIZE < 16 ? BLOCK_SIZE : 16;
const uint STRIPS = TILE_KEYS / STRIP_KEYS;
const uint K_PIECES = HEAD_DIM_K * DTYPE_BYTES(K_DTYPE) / 16; // pieces of a key
const uint V_PIECES = HEAD_DIM_V * DTYPE_BYTES(V_DTYPE) / 16;
const uint K_LOADS = (TILE_KEYS * K_PIECES + THREADS - 1) / THREADS; // loads of one thread
const uint V_LOADS = (TILE_KEYS * V_PIECES + THREADS - 1) / THREADS;

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Pieces {
    uvec4 at[];
};

// Addresses of the strips of the tile to be loaded next.
shared uint64_t strip_keys[STRIPS], strip_values[STRIPS];
shared float key_scales[K_SCALES ? TILE_KEYS : 1];        // of the stored tile

uint thread;  // thread number by subgroup and lane, as for matrices
uvec2 hull;   // no row of the tile sees a key outside; set by the includer, not empty

uvec4 loaded_keys[K_LOADS]; // this thread's part of the tile in flight
uvec4 loaded_values[V_LOADS];
float loaded_scale;                  // of key number `thread` of the tile
uint64_t found_keys, found_values; // of the thread's strip, in the tile after the one in flight

// ---- addresses of a tile's strips: one thread for each ----

// Strips outside the hull are not looked up; the first or the last strip inside takes their place.
uint strip_clamp(uint strip)
{
    return clamp(strip, hull.x / STRIP_KEYS, (hull.y - 1) / STRIP_KEYS);
}

void strips_find(uint start)
{
    if (thread < STRIPS) {
        const uint strip = strip_clamp(start / STRIP_KEYS + thread);
        const uint part = strip * STRIP_KEYS / BLOCK_SIZE,
                   inside = strip * STRIP_KEYS & BLOCK_SIZE - 1;
        found_keys = part_keys(seq, part, kv_head) + key_offset(inside);
        found_values = part_values(seq, part, kv_head) + value_offset(inside);
    }
}

void strips_store()
{
    if (thread < STRIPS) {
        strip_keys[thread] = found_keys;
        strip_values[thread] = found_values;
    }
}

// In contiguous rows there may be no memory beyond the sequence's end, so the last key is loaded
// instead. A block is always whole.
uint strip_row(uint start, uint key)
{
    if (PLACE != AULE_PLACE_ROWS)
        return key & STRIP_KEYS - 1;
    const uint first = strip_clamp((start + key) / STRIP_KEYS) * STRIP_KEYS;
    return min(first + (key & STRIP_KEYS - 1), hull.y - 1) - first;
}

// ---- a tile; a barrier stands between two of these calls ----

// Loads the tile at key `start` into registers; its strips are stored. Looks up the strips of the
// next tile.
void tile_load(uint start)
{
    [[unroll]] for (uint i = 0; i < K_LOADS; i++) {
        const uint piece = min(thread + i * THREADS, TILE_KEYS * K_PIECES - 1),
                   key = piece / K_PIECES;
        loaded_keys[i] = Pieces(strip_keys[key / STRIP_KEYS] + key_offset(strip_row(start, key)))
                             .at[piece % K_PIECES];
    }
    [[unroll]] for (uint i = 0; i < V_LOADS; i++) {
        const uint piece = min(thread + i * THREADS, TILE_KEYS * V_PIECES - 1),
                   key = piece / V_PIECES;
        loaded_values[i] =
            Pieces(strip_values[key / STRIP_KEYS] + value_offset(strip_row(start, key)))
                .at[piece % V_PIECES];
    }
    if (K_SCALES && thread < TILE_KEYS)
        loaded_scale =
            Floats(key_scale_of(seq, clamp(start + thread, hull.x, hull.y - 1), kv_head)).at[0];
    strips_find(start + TILE_KEYS);
}

// Converts four 8-bit elements to f16; all are exact.
uvec2 bytes_widen(uint word, uint dtype)
{
    const vec4 elements = bytes_load(word, dtype);
    return uvec2(packFloat2x16(f16vec2(elements.xy)), packFloat2x16(f16vec2(elements.zw)));
}

// Stores piece `piece` of the row that begins at unit `row`.
void piece_store(uint row, uint piece, uvec4 words, uint dtype)
{
    if (dtype == DTYPE_F16) {
        units[row + piece] = words;
    } else {
        units[row + piece * 2] = uvec4(bytes_widen(words.x, dtype), bytes_widen(words.y, dtype));
        units[row + piece * 2 + 1] =
            uvec4(bytes_widen(words.z, dtype), bytes_widen(words.w, dtype));
    }
}

// Stores the loaded tile to shared memory. Values that no row sees may be NaN, and 0 * NaN is NaN;
// they become 0.
void tile_store(uint start)
{
    strips_store();
    [[unroll]] for (uint i = 0; i < K_LOADS; i++) {
        const uint piece = thread + i * THREADS;
        if (piece < TILE_KEYS * K_PIECES)
            piece_store(piece / K_PIECES * K_ROW, piece % K_PIECES, loaded_keys[i], K_DTYPE);
    }
    [[unroll]] for (uint i = 0; i < V_LOADS; i++) {
        const uint piece = thread + i * THREADS, key = piece / V_PIECES;
        const bool inside = start + key >= hull.x && start + key < hull.y;
        if (piece < TILE_KEYS * V_PIECES)
            piece_store(VALUES_AT + key * V_ROW, piece % V_PIECES,
                        inside ? loaded_values[i] : uvec4(0), V_DTYPE);
    }
    if (K_SCALES && thread < TILE_KEYS)
        key_scales[thread] = loaded_scale;
}

// Clears the dims beyond HEAD_DIM_K, which no tile writes: Q has zeros there, and NaN * 0 would be
// NaN.
void key_pads_clear()
{
    if (K_DIMS > HEAD_DIM_K && thread < TILE_KEYS)
        units[thread * K_ROW + HEAD_DIM_K / 8] = uvec4(0);
}

#endif
