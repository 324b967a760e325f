// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// index.h - the index arithmetic of the native kernels, in C for the host and in CUDA for the
// kernels: work units, rows and keys of an item, where blocks lie, the tensor map, swizzled shared
// memory. The host's tests run the same functions. Knows no memory and no threads.

#ifndef AULE_SHADERS_HOPPER_INDEX_H
#define AULE_SHADERS_HOPPER_INDEX_H

#include <stdint.h>

#ifdef __CUDA__
#define HOPPER_FUNCTION static __attribute__((device)) __attribute__((always_inline)) inline
#else
#define HOPPER_FUNCTION static inline
#endif

enum {
    HOPPER_ROWS = 128, // rows of an item: 64 for each of two warpgroups
    HOPPER_KEYS = 128, // keys of a tile
    HOPPER_DIM = 128,  // head dim of K and V
    HOPPER_HALF = 64,  // elements of a line: tiles lie in shared memory as [half][row][64]
    HOPPER_LINE_BYTES = 2 * HOPPER_HALF,
    HOPPER_ROW_BYTES = 2 * HOPPER_DIM, // of a key in the pool
    HOPPER_HALF_BYTES = HOPPER_KEYS * HOPPER_LINE_BYTES,
    HOPPER_TILE_BYTES = 2 * HOPPER_HALF_BYTES,
    HOPPER_STAGES = 2,
    HOPPER_THREADS = 384,
    // Shared memory: Q, then the stages of K, then those of V, then barriers and work units.
    HOPPER_Q_AT = 0,
    HOPPER_K_AT = HOPPER_TILE_BYTES,
    HOPPER_V_AT = HOPPER_K_AT + HOPPER_STAGES * HOPPER_TILE_BYTES,
    HOPPER_BARRIERS_AT = HOPPER_V_AT + HOPPER_STAGES * HOPPER_TILE_BYTES,
    HOPPER_SHARED_BYTES = HOPPER_BARRIERS_AT + 256 + 1024,
    HOPPER_LEAST_BLOCK = 16, // keys
    HOPPER_MOST_BLOCK = 256,
    HOPPER_NUM_MAPS = 4, // tensor maps, for boxes of 16, 32, 64 and 128 keys
    HOPPER_MAP_WORDS = 32,
};

// ---- work units: an item of the list, for one KV head ----
// All items of a head come before the next head, so that K and V of one head stay in the near half
// of the L2 cache.

struct hopper_unit {
    uint32_t head, item;
};

HOPPER_FUNCTION struct hopper_unit hopper_unit_of(uint32_t unit, uint32_t num_items)
{
    struct hopper_unit of = {unit / num_items, unit % num_items};
    return of;
}

// ---- rows and keys of an item ----
// Row r of a sequence is query r / group. The query stands at kv_len - q_len + query.

// Keys [0, end) are those that the query sees.
HOPPER_FUNCTION uint32_t hopper_seen(uint32_t query, uint32_t q_len, uint32_t kv_len,
                                     uint32_t causal)
{
    int64_t end = causal ? (int64_t)kv_len - q_len + query + 1 : (int64_t)kv_len;
    if (query >= q_len || end < 0)
        return 0;
    return end < (int64_t)kv_len ? (uint32_t)end : kv_len;
}

// The rows of an item and the tiles of keys that it goes through, from the last one to tile 0.
struct hopper_span {
    uint32_t num_rows; // that exist; those of idle tokens get zeros
    uint32_t tiles;    // 0: no row sees a key
    uint32_t masked;   // tiles from this one on have keys that some row does not see
};

HOPPER_FUNCTION struct hopper_span hopper_span_of(uint32_t first_row, uint32_t num_tokens,
                                                  uint32_t q_len, uint32_t kv_len, uint32_t group,
                                                  uint32_t causal)
{
    uint32_t all = num_tokens * group - first_row, live = q_len * group;
    struct hopper_span span = {all < HOPPER_ROWS ? all : HOPPER_ROWS, 0, 0};
    if (live <= first_row)
        return span;
    live -= first_row;
    live = live < span.num_rows ? live : span.num_rows;
    uint32_t first = hopper_seen(first_row / group, q_len, kv_len, causal);
    uint32_t last = hopper_seen((first_row + live - 1) / group, q_len, kv_len, causal);
    span.tiles = last / HOPPER_KEYS + (last % HOPPER_KEYS != 0);
    span.masked = first ? (first - 1) / HOPPER_KEYS : 0;
    return span;
}

// ---- boxes: what one copy brings, up to 128 keys of half a row ----

HOPPER_FUNCTION uint32_t hopper_box_keys(uint32_t block_size)
{
    return block_size < HOPPER_KEYS ? block_size : (uint32_t)HOPPER_KEYS;
}

HOPPER_FUNCTION uint32_t hopper_map_number(uint32_t block_size)
{
    uint32_t keys = hopper_box_keys(block_size), number = 0;
    while ((uint32_t)HOPPER_LEAST_BLOCK << number < keys)
        number++;
    return number;
}

// Column of the block table for box `box` of a tile. Boxes behind the last key repeat the last
// block, so that only the sequence's own blocks are read.
HOPPER_FUNCTION uint32_t hopper_box_part(uint32_t tile, uint32_t box, uint32_t block_size,
                                         uint32_t kv_len)
{
    uint32_t part = (tile * HOPPER_KEYS + box * hopper_box_keys(block_size)) / block_size;
    uint32_t last = (kv_len - 1) / block_size;
    return part < last ? part : last;
}

// Bytes from a chunk's address to the first key of that box. `which` is 0 for K and 1 for V.
HOPPER_FUNCTION uint64_t hopper_box_offset(uint32_t block, uint32_t chunk_shift, uint32_t tile,
                                           uint32_t block_size, uint32_t num_kv_heads,
                                           uint32_t head, uint32_t which)
{
    uint32_t in_chunk = block & ((1u << chunk_shift) - 1);
    uint32_t key = block_size > HOPPER_KEYS ? tile * HOPPER_KEYS % block_size : 0;
    return ((((uint64_t)in_chunk * 2 + which) * num_kv_heads + head) * block_size + key) *
           HOPPER_ROW_BYTES;
}

// ---- the tensor map ----
// One map serves all of the address space: {128 elements, 2^24 rows of 256 bytes, windows of 4 GiB}
// from address 0. Rows overlap into the next window, so that a box may begin anywhere.

struct hopper_place {
    uint32_t row, window; // coordinates of a row at a multiple of 256 bytes
};

HOPPER_FUNCTION struct hopper_place hopper_place_of(uint64_t address)
{
    struct hopper_place place = {(uint32_t)address >> 8, (uint32_t)(address >> 32)};
    return place;
}

// Fills the map for boxes of `box_keys` keys, `map` being 128 bytes on a multiple of 64. Copies do
// not look at elements, so it serves bf16, too.
HOPPER_FUNCTION void hopper_map(uint32_t map[HOPPER_MAP_WORDS], uint32_t box_keys)
{
    const uint32_t rank = 3, type_f16 = 6, swizzle_128 = 3;
    for (uint32_t i = 0; i < HOPPER_MAP_WORDS; i++)
        map[i] = 0;
    map[2] = (rank - 1) << 4 | type_f16 << 7 | swizzle_128 << 13;
    map[3] = HOPPER_ROW_BYTES >> 4; // stride of rows; of windows: 2^32 bytes
    map[4] = 1u << 28;
    map[8] = HOPPER_DIM - 1; // sizes, less 1
    map[9] = (1u << 24) + HOPPER_KEYS - 1;
    map[10] = (1u << 17) - 1;
    map[13] = (HOPPER_HALF - 1u) << 24; // the box
    map[14] = box_keys - 1;
}

// ---- shared memory ----

// Bytes from a tile's begin to 16-byte chunk `chunk` of a row: chunks of a line are exchanged
// within eight lines, as copies with a swizzle of 128 bytes leave them.
HOPPER_FUNCTION uint32_t hopper_swizzled(uint32_t row, uint32_t chunk)
{
    return (chunk >> 3) * HOPPER_HALF_BYTES + row * HOPPER_LINE_BYTES +
           (((chunk & 7) ^ (row & 7)) << 4);
}

#endif
