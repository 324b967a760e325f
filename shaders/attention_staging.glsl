// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// attention_staging.glsl - brings tiles of K and V from memory through registers to shared memory,
// and from there into matrices, for attention_prefill. The whole workgroup loads a tile while the
// one before is computed, then stores it as f16 or bf16. 8-bit elements are converted on the way
// (halves.glsl). Knows where keys lie and which of them a row may see (`hull`); nothing of scores.
//
// A product may add its terms in any order, if both factors have the same order. So a lane takes 16
// bytes of a key as they lie. Piece 4j + t has 8 dims, from 8 (4j + t) on. They are elements 2t, 2t
// + 1, 2t + 8 and 2t + 9 of products 2j and 2j + 1, which have 16 dims each. Converted 8-bit
// elements come as 0, 2, 1, 3 of each four dims, so Q needs the same order: query_words(). Values
// are transposed here, once: what a lane needs of two columns is one piece of 16 bytes.
//
//   keys     [key][piece]: K_PIECES pieces a key
//   values   [quad][step][half][c]: quad 4b + t has keys 16b + {2t, 2t + 1, 2t + 8, 2t + 9};
//            a piece has two dims of these four keys: 32 step + 4c + 2 half + {0, 1}
//
// Pieces are permuted in both, so that eight lanes that read together use all banks.
//
// Column g of output matrix n is dim 32 (n / 4) + 4g + n % 4. So a lane ends with eight successive
// dims. If V has more than 128 dims, two warps share them: n / 4 then counts the steps of the
// warp's own half.

#ifndef AULE_ATTENTION_STAGING_GLSL
#define AULE_ATTENTION_STAGING_GLSL

#include "attention_work.glsl"

#include "matrix.glsl" // needs the workgroup's size

#include "halves.glsl"

#ifdef MATRIX_EMULATED
#define UNROLLED [[dont_unroll]] // a software device compiles unrolled code for too long
#else
#define UNROLLED [[unroll]] // registers have no addresses
#endif

const bool WIDE = HEAD_DIM_K > AULE_NARROW_HEAD_DIM || HEAD_DIM_V > AULE_NARROW_HEAD_DIM;
// Emulated, matrices need shared memory, too.
const uint MOST_TILE_KEYS = EMULATED ? AULE_PREFILL_KEYS_EMULATED : AULE_PREFILL_KEYS;
const uint TILE_KEYS = WIDE ? MOST_TILE_KEYS / 2 : MOST_TILE_KEYS;
const uint STRIP_KEYS = 16; // keys that share one look-up; never across a block's end
const uint STRIPS = TILE_KEYS / STRIP_KEYS;
const uint THREADS = gl_WorkGroupSize.x;

const uint K_STEPS = (HEAD_DIM_K + 31) / 32; // steps of 32 dims
// Warps that share V's dims for the same rows.
const uint V_SHARES = HEAD_DIM_V > AULE_NARROW_HEAD_DIM ? 2 : 1;
const uint OWN_STEPS = (HEAD_DIM_V + V_SHARES * 32 - 1) / (V_SHARES * 32); // steps of one warp
const uint V_STEPS = V_SHARES * OWN_STEPS; // the last one may be unused
const bool K_BYTES = K_DTYPE > DTYPE_BF16, V_BYTES = V_DTYPE > DTYPE_BF16; // 8-bit elements
const uint K_PIECES = K_STEPS * 4;         // pieces of 8 elements, of a key
const uint V_PIECES = V_STEPS * 4;         // likewise of a value
const uint K_UNITS = TILE_KEYS * K_PIECES; // pieces of a tile's keys
const uint V_UNITS = TILE_KEYS / 4 * V_PIECES; // pieces of a tile's quads of values
const uint K_LOADS = (K_UNITS + THREADS - 1) / THREADS; // loads of one thread
const uint V_LOADS = (V_UNITS + THREADS - 1) / THREADS;
// All threads load equally often.
const bool K_EVEN = K_UNITS % THREADS == 0, V_EVEN = V_UNITS % THREADS == 0;
// Distance by which odd keys' pieces are moved. An odd number of steps needs none.
const uint K_SWAP = K_STEPS % 2 == 0 ? 4 : 0;
const uint QUAD_PIECES = V_STEPS * 16;

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Pieces {
    uvec4 at[];
};

// The scales follow the elements, as bits: one piece has those of a quad's four keys or values.
const uint KEY_SCALES = TILE_KEYS * K_PIECES, VALUE_SCALES = TILE_KEYS / 4 * QUAD_PIECES;
const uint SCALE_STRIPS = K_SCALES || V_SCALES ? STRIPS : 0;

shared uvec4 staged_keys[KEY_SCALES + (K_SCALES ? TILE_KEYS / 4 : 0)];
shared uvec4 staged_values[VALUE_SCALES + (V_SCALES ? TILE_KEYS / 4 : 0)];
// Addresses of the strips of the tile to be loaded next, and of their K scales.
shared uint64_t strip_keys[STRIPS + SCALE_STRIPS], strip_values[STRIPS];

uvec2 hull; // no row of the tile sees a key outside; set by the includer, not empty

// This thread's part of the tile in flight. 8-bit elements: in x and y, until tile_turn().
uvec4 loaded_keys[K_LOADS];
uvec4 loaded_values[V_LOADS * 4];
float loaded_key_scale, loaded_value_scale; // of key number gl_LocalInvocationID.x of the tile
uint found_block, next_block; // of this thread's strip: in the next tile, and in the one after it
uint64_t found_chunk;         // of found_block

// ---- addresses of a tile's strips: one thread for each ----
// Look-ups run a tile ahead, so no load waits for another.

// Strips outside the hull are not looked up; the first or the last strip inside takes their place.
uint strip_clamp(uint strip)
{
    return clamp(strip, hull.x / STRIP_KEYS, (hull.y - 1) / STRIP_KEYS);
}

uint strip_block(uint start)
{
    const uint part =
        strip_clamp(start / STRIP_KEYS + gl_LocalInvocationID.x) * STRIP_KEYS / BLOCK_SIZE;
    return PLACE == AULE_PLACE_ROWS ? part : seq_block(seq, part);
}

// Looks up the chunk for the tile whose block was found before, and the block for the tile at
// `next`.
void strips_find(uint next)
{
    if (gl_LocalInvocationID.x < STRIPS) {
        found_block = next_block;
        if (PLACE == AULE_PLACE_POOL)
            found_chunk =
                Addresses(run.chunks).at[(found_block >> run.chunk_shift) * run.chunk_stride];
        next_block = strip_block(next);
    }
}

void strips_store(uint start)
{
    const uint number = gl_LocalInvocationID.x;
    if (number < STRIPS) {
        const uint inside = strip_clamp(start / STRIP_KEYS + number) * STRIP_KEYS & BLOCK_SIZE - 1;
        if (PLACE == AULE_PLACE_POOL) {
            const uint64_t base =
                found_chunk + uint64_t(found_block & (1u << run.chunk_shift) - 1u) * BLOCK_BYTES;
            strip_keys[number] = base + (kv_head * K_HEAD_BYTES + inside * K_ROW_BYTES);
            strip_values[number] = base + (NUM_KV_HEADS * K_HEAD_BYTES + kv_head * V_HEAD_BYTES +
                                           inside * V_ROW_BYTES);
            if (SCALE_STRIPS > 0)
                strip_keys[STRIPS + number] =
                    base + (SCALES_AT + (kv_head * BLOCK_SIZE + inside) * 4);
        } else if (PLACE == AULE_PLACE_BLOCKS) {
            strip_keys[number] = key_block(found_block, kv_head) + key_offset(inside);
            strip_values[number] = value_block(found_block, kv_head) + value_offset(inside);
        } else {
            strip_keys[number] = part_keys(seq, found_block, kv_head) + key_offset(inside);
            strip_values[number] = part_values(seq, found_block, kv_head) + value_offset(inside);
        }
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

// ---- loading ----

// Key number `number` of a quad, counted in the tile.
uint quad_key(uint quad, uint number)
{
    return quad / 4 * STRIP_KEYS + quad % 4 * 2 + number % 2 + number / 2 * 8;
}

// Loads piece `piece`, or the last one if there are fewer.
uvec4 piece_load(uint64_t row, uint piece, uint pieces, bool bytes)
{
    if (bytes)
        return uvec4(Bytes8(row + min(piece, pieces - 1) * 8).bytes, 0, 0);
    return Pieces(row).at[min(piece, pieces - 1)];
}

void keys_load(uint start)
{
    UNROLLED for (uint i = 0; i < K_LOADS; i++) {
        const uint unit = gl_LocalInvocationID.x + i * THREADS, key = unit / K_PIECES,
                   piece = unit % K_PIECES;
        if (K_EVEN || unit < K_UNITS)
            loaded_keys[i] =
                piece_load(strip_keys[key / STRIP_KEYS] + key_offset(strip_row(start, key)), piece,
                           HEAD_DIM_K / 8, K_BYTES); // beyond the row Q is 0
    }
}

void values_load(uint start)
{
    UNROLLED for (uint i = 0; i < V_LOADS; i++) {
        const uint unit = gl_LocalInvocationID.x + i * THREADS, quad = unit / V_PIECES,
                   piece = unit % V_PIECES;
        if (V_EVEN || unit < V_UNITS)
            UNROLLED for (uint j = 0; j < 4; j++) {
                const uint64_t row =
                    strip_values[quad / 4] + value_offset(strip_row(start, quad_key(quad, j)));
                // Pieces beyond the row are not stored.
                loaded_values[i * 4 + j] = piece_load(row, piece, HEAD_DIM_V / 8, V_BYTES);
            }
    }
}

void scales_load()
{
    const uint number = gl_LocalInvocationID.x;
    if (SCALE_STRIPS > 0 && number < TILE_KEYS) {
        const uint64_t scale = strip_keys[STRIPS + number / STRIP_KEYS] + number % STRIP_KEYS * 4;
        if (K_SCALES)
            loaded_key_scale = Floats(scale).at[0];
        if (V_SCALES)
            loaded_value_scale = Floats(scale + SCALES_BYTES).at[0];
    }
}

// ---- from 8 bits to 16, in place ----

// Converts two e4m3 elements, the upper bytes of the halves of `bytes`, to 1/256 of their value;
// all are exact. The NaN pattern is all ones, and only there a 1 added to the lowest bit
// carries out of the magnitude. The carry makes it a NaN of f16. The infinity of halves.glsl would
// do for sums at their end. But an infinite score might belong to a key with no weight, and there
// are more scores to check than keys.
uint e4m3_halves(uint bytes)
{
    const uint halves = bytes >> 1 & 0x3f803f80u | bytes & 0x80008000u;
    return halves_cast(halves | halves + 0x00800080u & 0x40004000u);
}

// The factor for sums of products with such elements, if it would be `factor` without them.
float bytes_factor(float factor, uint dtype)
{
    return dtype == DTYPE_FP8_E4M3 ? factor * 256 : factor;
}

// Converts bytes 0 and 2 of a word; bytes_odd() converts bytes 1 and 3.
uint bytes_even(uint word, uint dtype)
{
    return dtype == DTYPE_FP8_E4M3 ? e4m3_halves(word << 8) : halves_even(word, dtype);
}

uint bytes_odd(uint word, uint dtype)
{
    return dtype == DTYPE_FP8_E4M3 ? e4m3_halves(word) : halves_odd(word, dtype);
}

uvec2 key_words(uint word)
{
    return uvec2(bytes_even(word, K_DTYPE), bytes_odd(word, K_DTYPE));
}

// Puts eight elements of Q into the order of the keys' elements.
uvec4 query_words(uvec4 q)
{
    if (!K_BYTES)
        return q;
    return uvec4(halves_low(q.x, q.y), halves_high(q.x, q.y), halves_low(q.z, q.w),
                 halves_high(q.z, q.w));
}

// ---- storing ----

void byte_keys_turn()
{
    UNROLLED for (uint i = 0; i < K_LOADS; i++)
        loaded_keys[i] = uvec4(key_words(loaded_keys[i].x), key_words(loaded_keys[i].y));
}

void keys_store()
{
    UNROLLED for (uint i = 0; i < K_LOADS; i++) {
        const uint unit = gl_LocalInvocationID.x + i * THREADS, key = unit / K_PIECES,
                   piece = unit % K_PIECES;
        if (K_EVEN || unit < K_UNITS)
            staged_keys[key * K_PIECES + (piece ^ (key & 1) * K_SWAP)] = loaded_keys[i];
    }
}

// The scale of a value that no row sees may be anything, so 0 is stored.
void scales_store(uint start)
{
    const uint number = gl_LocalInvocationID.x, key = start + number;
    const uint quad = number / STRIP_KEYS * 4 + number % 8 / 2,
               part = number % 2 + number % STRIP_KEYS / 8 * 2;
    if (SCALE_STRIPS > 0 && number < TILE_KEYS) {
        if (K_SCALES)
            staged_keys[KEY_SCALES + quad][part] = floatBitsToUint(loaded_key_scale);
        if (V_SCALES)
            staged_values[VALUE_SCALES + quad][part] =
                key >= hull.x && key < hull.y ? floatBitsToUint(loaded_value_scale) : 0;
    }
}

// Values that no row sees may be NaN, and 0 * NaN is NaN. They become 0.
void values_clean(uint start)
{
    UNROLLED for (uint i = 0; i < V_LOADS; i++) {
        const uint quad = (gl_LocalInvocationID.x + i * THREADS) / V_PIECES;
        UNROLLED for (uint j = 0; j < 4; j++) {
            const uint key = start + quad_key(quad, j);
            if (key < hull.x || key >= hull.y)
                loaded_values[i * 4 + j] = uvec4(0);
        }
    }
}

// Two dims of four keys, from the words that have them. Result: [dim][pair of keys].
uvec4 pairs_turn(uint a, uint b, uint c, uint d)
{
    return uvec4(halves_low(a, b), halves_low(c, d), halves_high(a, b), halves_high(c, d));
}

// The same for bytes, which are joined before they are converted. `n` is the pair of dims.
uvec4 byte_pairs_turn(uvec4 a, uvec4 b, uvec4 c, uvec4 d, uint n)
{
    const uint w = n / 2;
    const uint x = n % 2 == 0 ? halves_low(a[w], b[w]) : halves_high(a[w], b[w]);
    const uint y = n % 2 == 0 ? halves_low(c[w], d[w]) : halves_high(c[w], d[w]);
    return uvec4(bytes_even(x, V_DTYPE), bytes_even(y, V_DTYPE), bytes_odd(x, V_DTYPE),
                 bytes_odd(y, V_DTYPE));
}

// Transposes all four pairs of dims of four values, in place.
void byte_values_turn()
{
    UNROLLED for (uint i = 0; i < V_LOADS * 4; i += 4) {
        const uvec4 a = loaded_values[i], b = loaded_values[i + 1], c = loaded_values[i + 2],
                    d = loaded_values[i + 3];
        UNROLLED for (uint n = 0; n < 4; n++)
            loaded_values[i + n] = byte_pairs_turn(a, b, c, d, n);
    }
}

// Index of piece c of half a step; `step` counts inside the warp's share.
uint value_place(uint quad, uint share, uint step, uint half_step, uint c)
{
    return quad * QUAD_PIECES + (share * OWN_STEPS + step) * 16 + half_step * 8 +
           (c ^ (quad & 3) * 2 ^ step & 1);
}

void values_store()
{
    UNROLLED for (uint i = 0; i < V_LOADS; i++) {
        const uint unit = gl_LocalInvocationID.x + i * THREADS, quad = unit / V_PIECES,
                   piece = unit % V_PIECES;
        const uint share = V_SHARES == 1 ? 0 : piece / (OWN_STEPS * 4);
        const uint own = V_SHARES == 1 ? piece : piece % (OWN_STEPS * 4);
        if (V_EVEN || unit < V_UNITS)
            UNROLLED for (uint w = 0; w < 4; w++)
                staged_values[value_place(quad, share, own / 4, w % 2, own % 4 * 2 + w / 2)] =
                    V_BYTES ? loaded_values[i * 4 + w]
                            : pairs_turn(loaded_values[i * 4][w], loaded_values[i * 4 + 1][w],
                                         loaded_values[i * 4 + 2][w], loaded_values[i * 4 + 3][w]);
    }
}

// ---- tiles, from the last to the first; a barrier stands between two of these calls ----
// Behind the first tile some useless ones are loaded, from strips of others: a branch would cost
// more.

// For the tile that is loaded first: tiles_ask() requests its blocks, tiles_begin() uses them
// later.
void tiles_ask(uint start)
{
    next_block = strip_block(start);
}

void tiles_begin(uint start)
{
    strips_find(start - TILE_KEYS);
    strips_store(start);
}

// Loads the tile at key `start` into registers; its strips are stored. Looks up the strips of the
// next tile.
void tile_load(uint start)
{
    keys_load(start);
    values_load(start);
    scales_load();
    strips_find(start - 2 * TILE_KEYS);
}

void values_clean_some(uint start)
{
    if (start < hull.x || start + TILE_KEYS > hull.y)
        values_clean(start);
}

// Converts loaded bytes before the barrier, since it takes a while, and other warps still multiply
// then.
void tile_turn(uint start)
{
    if (K_BYTES)
        byte_keys_turn();
    if (V_BYTES) {
        values_clean_some(start);
        byte_values_turn();
    }
}

// Stores the loaded tile to shared memory.
void tile_store(uint start)
{
    strips_store(start - TILE_KEYS);
    keys_store();
    scales_store(start);
    if (!V_BYTES)
        values_clean_some(start);
    values_store();
}

// ---- matrices ----

// Keys 8n + g: the dims of products 2 step (x, y) and 2 step + 1 (z, w).
uvec4 staged_key(uint n, uint step, uint g, uint t)
{
    return staged_keys[(n * 8 + g) * K_PIECES + (step * 4 + t ^ (g & 1) * K_SWAP)];
}

// Scales of keys 16 strip + {2t, 2t + 1, 2t + 8, 2t + 9}.
vec4 staged_key_scales(uint strip, uint t)
{
    return uintBitsToFloat(staged_keys[KEY_SCALES + strip * 4 + t]);
}

vec4 staged_value_scales(uint strip, uint t)
{
    return uintBitsToFloat(staged_values[VALUE_SCALES + strip * 4 + t]);
}

// This warp's share of V's dims.
uint value_share()
{
    return V_SHARES == 1 ? 0 : warp_number() % V_SHARES;
}

// Values of strip `strip`: column g of output matrices 2 pair (x, y) and 2 pair + 1 (z, w).
uvec4 staged_value(uint strip, uint pair, uint g, uint t)
{
    return staged_values[value_place(strip * 4 + t, value_share(), pair / 2, pair % 2, g)];
}

#endif
