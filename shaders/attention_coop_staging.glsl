// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// attention_coop_staging.glsl - how attention_coop.comp shares its work out: matrices to subgroups, rows to threads, shared memory to
// what stands there by turns; and a tile of keys and values on its way from memory through registers to shared memory: loaded while
// the tile before is computed, stored once that is done. Knows where keys lie and which of them some row sees (`hull`), nothing of scores.
//
// Shared memory is one array of units of 16 bytes, so that what matrices load and store lies where threads see it, whatever the type:
//
//   keys, values   f16 [key][dim], a row each a unit longer than its dims, which are a multiple of 16: an odd number of units, so that
//                  eight rows that are read together touch all banks
//   scores         f32 [row][key]; then in the same row f16 weights [key], and behind them what the row's sums are to be multiplied with,
//                  once for each column of a matrix
//   Q              f16 [row][dim], before the first tile, where the others come to lie; and behind the last tile f32 sums

#ifndef AULE_ATTENTION_COOP_STAGING_GLSL
#define AULE_ATTENTION_COOP_STAGING_GLSL

#include "attention_work.glsl"

#include "attention_elements.glsl"

layout(constant_id = AULE_SPEC_MATRIX_ROWS) const uint MATRIX_ROWS = 16;       // 8 or 16, and the next two
layout(constant_id = AULE_SPEC_MATRIX_COLUMNS) const uint MATRIX_COLUMNS = 16;
layout(constant_id = AULE_SPEC_MATRIX_DEPTH) const uint MATRIX_DEPTH = 16;     // what a product adds up
layout(constant_id = AULE_SPEC_SUBGROUP) const uint SUBGROUP = 32;             // 8 to THREADS / 2 invocations

layout(constant_id = AULE_SPEC_SOFTWARE) const uint SOFTWARE = 0;

// How often a loop over matrices goes round. A compiler that knows it unrolls them, as registers have no addresses; a software
// device's is not told.
uint once = SOFTWARE != 0 ? min(gl_NumWorkGroups.x, 1u) : 1u;
#define TIMES(NUMBER) ((NUMBER) * once)

const uint THREADS = 128; // the host's LOCAL_SIZE; a constant, since arrays depend on it

#define LARGER(A, B) ((A) > (B) ? (A) : (B)) // max() makes no constants

const uint K_DIMS = (HEAD_DIM_K + 15) / 16 * 16;
const uint V_DIMS = (HEAD_DIM_V + 15) / 16 * 16;
const uint TILE_KEYS = K_DIMS > 128 || V_DIMS > 128 ? 16 : 32;

// ---- who computes what ----

const uint SUBGROUPS = THREADS / SUBGROUP;
const uint ROW_BLOCKS = TILE_ROWS / MATRIX_ROWS;
const uint BANDS = SUBGROUPS < ROW_BLOCKS ? SUBGROUPS : ROW_BLOCKS; // of rows; each has so many subgroups, which share its columns:
const uint SHARES = SUBGROUPS / BANDS;
const uint BAND_BLOCKS = ROW_BLOCKS / BANDS;
const uint ROW_THREADS = THREADS / TILE_ROWS; // neighbours in one subgroup, who weigh the scores of one row
const bool OWN_ROWS = SHARES == 1;            // they are of the subgroup that has the row's band: nobody else need wait for them

// ---- shared memory, in units ----

const uint K_ROW = K_DIMS / 8 + 1;
const uint V_ROW = V_DIMS / 8 + 1;
const uint SCORE_UNITS = TILE_KEYS / 4, WEIGHT_UNITS = TILE_KEYS / 8, FACTOR_UNITS = MATRIX_COLUMNS / 4; // of a row
const uint SCORE_ROW = LARGER(SCORE_UNITS, WEIGHT_UNITS + FACTOR_UNITS) | 1;
const uint SUM_SHARES = SHARES < V_DIMS / MATRIX_COLUMNS ? SHARES : V_DIMS / MATRIX_COLUMNS; // columns of matrices at once
const uint SUM_ROW = SUM_SHARES * FACTOR_UNITS | 1;

const uint VALUES_AT = TILE_KEYS * K_ROW;
const uint SCORES_AT = VALUES_AT + TILE_KEYS * V_ROW;
const uint TILE_UNITS = SCORES_AT + TILE_ROWS * SCORE_ROW;
const uint UNITS = LARGER(TILE_UNITS, LARGER(TILE_ROWS * K_ROW, TILE_ROWS * SUM_ROW));

shared uvec4 units[UNITS];

// ---- loads: of 16 bytes ----

const uint STRIP_KEYS = BLOCK_SIZE < 16 ? BLOCK_SIZE : 16; // never across a block's end: what one address is found for
const uint STRIPS = TILE_KEYS / STRIP_KEYS;
const uint K_PIECES = HEAD_DIM_K * DTYPE_BYTES(K_DTYPE) / 16; // of a key
const uint V_PIECES = HEAD_DIM_V * DTYPE_BYTES(V_DTYPE) / 16;
const uint K_LOADS = (TILE_KEYS * K_PIECES + THREADS - 1) / THREADS; // of one thread
const uint V_LOADS = (TILE_KEYS * V_PIECES + THREADS - 1) / THREADS;

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Pieces { uvec4 at[]; };

shared uint64_t strip_keys[STRIPS], strip_values[STRIPS]; // where the tile to be loaded next has its strips
shared float key_scales[K_SCALES ? TILE_KEYS : 1];        // of the stored tile

uint thread;  // by subgroup and lane, as matrices go
uvec2 hull;   // keys that some row of the tile sees are in here; set by whoever includes this, not empty

uvec4 loaded_keys[K_LOADS]; // this thread's part of the tile that is on its way
uvec4 loaded_values[V_LOADS];
float loaded_scale;                  // of key number `thread`
uint64_t found_keys, found_values; // its strip, of the tile thereafter

// ---- where the strips of a tile lie: one thread each ----

// Strips outside of the hull are not looked up: the first or the last one stands for them.
uint strip_clamp(uint strip)
{
    return clamp(strip, hull.x / STRIP_KEYS, (hull.y - 1) / STRIP_KEYS);
}

void strips_find(uint start)
{
    if (thread < STRIPS) {
        const uint strip = strip_clamp(start / STRIP_KEYS + thread);
        const uint part = strip * STRIP_KEYS / BLOCK_SIZE, inside = strip * STRIP_KEYS & BLOCK_SIZE - 1;
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

// Rows are as long as they are: beyond a sequence's end there need be no memory. A block is always whole.
uint strip_row(uint start, uint key)
{
    if (PLACE != AULE_PLACE_ROWS)
        return key & STRIP_KEYS - 1;
    const uint first = strip_clamp((start + key) / STRIP_KEYS) * STRIP_KEYS;
    return min(first + (key & STRIP_KEYS - 1), hull.y - 1) - first;
}

// ---- a tile: a barrier stands between each two of these ----

// The tile that begins with key `start` into registers; its strips are stored. Finds those of the next one.
void tile_load(uint start)
{
    [[unroll]] for (uint i = 0; i < K_LOADS; i++) {
        const uint piece = min(thread + i * THREADS, TILE_KEYS * K_PIECES - 1), key = piece / K_PIECES;
        loaded_keys[i] = Pieces(strip_keys[key / STRIP_KEYS] + key_offset(strip_row(start, key))).at[piece % K_PIECES];
    }
    [[unroll]] for (uint i = 0; i < V_LOADS; i++) {
        const uint piece = min(thread + i * THREADS, TILE_KEYS * V_PIECES - 1), key = piece / V_PIECES;
        loaded_values[i] =
            Pieces(strip_values[key / STRIP_KEYS] + value_offset(strip_row(start, key))).at[piece % V_PIECES];
    }
    if (K_SCALES && thread < TILE_KEYS)
        loaded_scale = Floats(key_scale_of(seq, clamp(start + thread, hull.x, hull.y - 1), kv_head)).at[0];
    strips_find(start + TILE_KEYS);
}

// Every element of 8 bits is an f16.
uvec2 bytes_widen(uint word, uint dtype)
{
    const vec4 elements = bytes_load(word, dtype);
    return uvec2(packFloat2x16(f16vec2(elements.xy)), packFloat2x16(f16vec2(elements.zw)));
}

// Piece `piece` of a row that begins at unit `row`.
void piece_store(uint row, uint piece, uvec4 words, uint dtype)
{
    if (dtype == DTYPE_F16) {
        units[row + piece] = words;
    } else {
        units[row + piece * 2] = uvec4(bytes_widen(words.x, dtype), bytes_widen(words.y, dtype));
        units[row + piece * 2 + 1] = uvec4(bytes_widen(words.z, dtype), bytes_widen(words.w, dtype));
    }
}

// What was loaded into shared memory. Values that no row sees may be anything, and nothing times what is no number is no number.
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
            piece_store(VALUES_AT + key * V_ROW, piece % V_PIECES, inside ? loaded_values[i] : uvec4(0), V_DTYPE);
    }
    if (K_SCALES && thread < TILE_KEYS)
        key_scales[thread] = loaded_scale;
}

// Dims that are none, which no tile writes: Q has zeros there, and so must keys.
void key_pads_clear()
{
    if (K_DIMS > HEAD_DIM_K && thread < TILE_KEYS)
        units[thread * K_ROW + HEAD_DIM_K / 8] = uvec4(0);
}

#endif
