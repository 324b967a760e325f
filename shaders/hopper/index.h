// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// index.h - the index arithmetic of the native kernels, in C for the host and in CUDA for the
// kernels: work units, rows and keys of an item, where keys lie, tensor maps, swizzled shared
// memory. The host's tests run the same functions. Knows no memory and no threads.
//
// A tile of rows (of Q, K or V) lies in shared memory as [line][row][64]: a line has 64 elements,
// 128 bytes, and a row of d elements has d / 64 lines. K and V of 8-bit elements come as raw tiles,
// whose lines have 64 bytes, and then become tiles.

#ifndef AULE_SHADERS_HOPPER_INDEX_H
#define AULE_SHADERS_HOPPER_INDEX_H

#include <stdint.h>

#ifdef __CUDA__
#define HOPPER_FUNCTION                                                                            \
    static __attribute__((host)) __attribute__((device))                                           \
    __attribute__((always_inline)) inline constexpr
#else
#define HOPPER_FUNCTION static inline
#endif

enum {
    HOPPER_ROWS = 128, // rows of an item: 64 for each of two warpgroups
    HOPPER_LINE = 64,  // elements
    HOPPER_LINE_BYTES = 2 * HOPPER_LINE,
    HOPPER_STAGES = 2,                 // of K and of V
    HOPPER_SHARED_MEMORY = 227 * 1024, // of a multiprocessor
    HOPPER_THREADS = 384,
    HOPPER_LEAST_BLOCK = 16, // keys
    HOPPER_MOST_BLOCK = 256,
    HOPPER_MAP_WORDS = 32,
};

// ---- a kernel's shape ----

struct hopper_shape {
    uint32_t dim_k, dim_v;       // head dims: multiples of 64
    uint32_t keys;               // of a tile
    uint32_t q_stays;            // 1: products read Q in shared memory; 0: it goes to registers
    uint32_t k_bytes, v_bytes;   // of a tile
    uint32_t k_at, v_at;         // in shared memory, behind Q: the stages of K, then those of V
    uint32_t barriers_at;        // then barriers and work units
    uint32_t bytes;              // all of it, without raw tiles
    uint32_t raw_stages;         // raw tiles of K, and of V, that fit behind it
    uint32_t raw_k_at, raw_v_at; // each has half the bytes of a tile
    uint32_t raw_bytes;          // all of it, with raw tiles
};

// Registers decide: a thread has 232. It needs dim_v / 2 for sums, keys / 2 for scores, keys / 4
// for weights, and dim_k / 4 for Q. Raw tiles take what shared memory is left.
HOPPER_FUNCTION struct hopper_shape hopper_shape_of(uint32_t dim_k, uint32_t dim_v)
{
    struct hopper_shape shape = {
        dim_k, dim_v, dim_v > 128 ? 64u : 128u, dim_k > 128, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
    uint32_t raw = 0;
    shape.k_bytes = shape.keys * dim_k * 2;
    shape.v_bytes = shape.keys * dim_v * 2;
    shape.k_at = HOPPER_ROWS * dim_k * 2;
    shape.v_at = shape.k_at + HOPPER_STAGES * shape.k_bytes;
    shape.barriers_at = shape.v_at + HOPPER_STAGES * shape.v_bytes;
    shape.bytes = shape.barriers_at + 256 + 2048;
    raw = shape.k_bytes / 2 + shape.v_bytes / 2;
    shape.raw_stages = (HOPPER_SHARED_MEMORY - shape.bytes) / raw;
    if (shape.raw_stages > HOPPER_STAGES)
        shape.raw_stages = HOPPER_STAGES;
    shape.raw_k_at = shape.bytes;
    shape.raw_v_at = shape.raw_k_at + shape.raw_stages * (shape.k_bytes / 2);
    shape.raw_bytes = shape.bytes + shape.raw_stages * raw;
    return shape;
}

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
// Row r of a sequence is query r / group.

// A way from a row of an item to its query and head without a division.
struct hopper_rows {
    uint32_t group;       // query heads for one KV head
    uint32_t query, rest; // row 0 of the item is query `query`, head `rest` of the group
    uint32_t factor;      // 2^32 / group, rounded up; of group 1 not used
};

HOPPER_FUNCTION struct hopper_rows hopper_rows_of(uint32_t first_row, uint32_t group)
{
    struct hopper_rows rows = {group, first_row / group, first_row % group, 0};
    rows.factor = 0xffffffffu / group + 1;
    return rows;
}

// Exact for rows and groups below 2^15.
HOPPER_FUNCTION uint32_t hopper_query_of(struct hopper_rows rows, uint32_t row)
{
    uint32_t at = rows.rest + row;
    return rows.query + (rows.group == 1 ? at : (uint32_t)((uint64_t)at * rows.factor >> 32));
}

HOPPER_FUNCTION uint32_t hopper_head_of(struct hopper_rows rows, uint32_t row)
{
    return rows.rest + row - (hopper_query_of(rows, row) - rows.query) * rows.group;
}

struct hopper_keys {
    uint32_t first, end; // [first, end); 0 and 0: none
};

// The keys that a query at `position` among kv_len keys sees. `windowed`: also none before position
// - left and none behind position + right.
HOPPER_FUNCTION struct hopper_keys hopper_keys_of(int64_t position, uint32_t kv_len,
                                                  uint32_t causal, uint32_t windowed, uint32_t left,
                                                  uint32_t right)
{
    struct hopper_keys keys = {0, 0};
    int64_t first = 0, last = (int64_t)kv_len - 1;
    if (causal && position < last)
        last = position;
    if (windowed) {
        first = position > (int64_t)left ? position - (int64_t)left : 0;
        last = position + (int64_t)right < last ? position + (int64_t)right : last;
    }
    if (first <= last) {
        keys.first = (uint32_t)first;
        keys.end = (uint32_t)last + 1;
    }
    return keys;
}

// The rows of an item and the tiles of keys that it goes through, from the last one to the first.
struct hopper_span {
    uint32_t num_rows;       // that exist; those of idle tokens get zeros
    struct hopper_keys some; // that some row sees; no block without one of them is read
    uint32_t first, end;     // tiles [first, end); none if no row sees a key
    uint32_t low, high;      // every row sees all keys of tiles [low, high), and sees a key of tile
                             // `high`; none: low >= high
};

HOPPER_FUNCTION uint32_t hopper_num_rows(uint32_t first_row, uint32_t num_tokens, uint32_t group)
{
    uint32_t all = num_tokens * group - first_row;
    return all < HOPPER_ROWS ? all : (uint32_t)HOPPER_ROWS;
}

// From the keys that some row sees, and those that every row with queries sees.
HOPPER_FUNCTION struct hopper_span hopper_span_of(uint32_t num_rows, struct hopper_keys some,
                                                  struct hopper_keys every, uint32_t keys)
{
    struct hopper_span span = {num_rows, {0, 0}, 0, 0, 0, 0};
    if (some.first >= some.end)
        return span;
    span.some = some;
    span.first = some.first / keys;
    span.end = some.end / keys + (some.end % keys != 0);
    span.low = span.high = span.first;
    if (every.first < every.end) {
        span.low = every.first / keys + (every.first % keys != 0);
        span.high = (every.end - 1) / keys;
    }
    return span;
}

// The same for queries that stand one behind another at the end of the sequence, without a window:
// the first row sees the fewest keys, and the last query the most.
HOPPER_FUNCTION struct hopper_span hopper_span_by_rows(uint32_t first_row, uint32_t num_tokens,
                                                       uint32_t q_len, uint32_t kv_len,
                                                       uint32_t group, uint32_t causal,
                                                       uint32_t keys)
{
    uint32_t num_rows = hopper_num_rows(first_row, num_tokens, group), live = q_len * group;
    struct hopper_keys some = {0, 0}, every = {0, 0};
    if (live > first_row) {
        int64_t begin = (int64_t)kv_len - q_len;
        live = live - first_row < num_rows ? live - first_row : num_rows;
        every = hopper_keys_of(begin + first_row / group, kv_len, causal, 0, 0, 0);
        some = hopper_keys_of(begin + (first_row + live - 1) / group, kv_len, causal, 0, 0, 0);
    }
    return hopper_span_of(num_rows, some, every, keys);
}

// ---- where keys lie: coordinates in tensor maps ----
// A copy brings a box: one line of some keys. Its coordinates are element, key, and two that depend
// on the place; two 8-bit elements count as one. Each dimension's size is that of the address
// space, so nothing is cut off: what is copied is always part of the sequence's own blocks or rows.

struct hopper_place {
    uint32_t at[4];
};

HOPPER_FUNCTION uint32_t hopper_box_keys(uint32_t block_size, uint32_t keys)
{
    return block_size < keys ? block_size : keys;
}

// Column of the block table for box `box` of a tile. Boxes without a key that some row sees repeat
// the nearest block that has one: elsewhere the table may hold anything.
HOPPER_FUNCTION uint32_t hopper_box_part(uint32_t tile, uint32_t box, uint32_t block_size,
                                         struct hopper_keys some, uint32_t keys)
{
    uint32_t part = (tile * keys + box * hopper_box_keys(block_size, keys)) / block_size;
    uint32_t first = some.first / block_size, last = (some.end - 1) / block_size;
    return part < first ? first : part < last ? part : last;
}

// A warp finds the places of several tiles' boxes at once, from tile `top` down to
// `first`: its lane boxes * n + m finds box m of the nth. Lanes that have none repeat the last
// tile.
struct hopper_box {
    uint32_t tile, box;
};

HOPPER_FUNCTION struct hopper_box hopper_box_of_lane(uint32_t lane, uint32_t boxes, uint32_t top,
                                                     uint32_t first)
{
    uint32_t down = lane / boxes;
    struct hopper_box of = {down < top - first ? top - down : first, lane % boxes};
    return of;
}

// The first key of a tile's box in its block.
HOPPER_FUNCTION uint32_t hopper_key_in_block(uint32_t tile, uint32_t block_size, uint32_t keys)
{
    return block_size > keys ? tile * keys % block_size : 0;
}

// Bytes from a chunk's address in the pool to key 0 of a block. `which` is 0 for K and 1 for V.
HOPPER_FUNCTION uint64_t hopper_block_offset(uint32_t block, uint32_t chunk_shift,
                                             uint32_t block_size, uint32_t num_kv_heads,
                                             uint32_t head, uint32_t which,
                                             struct hopper_shape shape, uint32_t element_bytes)
{
    uint64_t k_row = shape.dim_k * element_bytes, v_row = shape.dim_v * element_bytes;
    uint64_t row = which ? v_row : k_row;
    uint64_t in_chunk = block & ((1u << chunk_shift) - 1);
    return in_chunk * num_kv_heads * block_size * (k_row + v_row) +
           (which ? num_kv_heads * block_size * k_row : 0) + (uint64_t)head * block_size * row;
}

// Pool: the third coordinate counts windows of 4 GiB.
HOPPER_FUNCTION struct hopper_place hopper_place_in_pool(uint64_t address)
{
    struct hopper_place place = {{(uint32_t)address >> 1, 0, (uint32_t)(address >> 32), 0}};
    return place;
}

// Elements of a line.
HOPPER_FUNCTION uint32_t hopper_line_elements(uint32_t element_bytes)
{
    return HOPPER_LINE * element_bytes / 2;
}

// Tensors: the others are head and block or, of contiguous tensors, head and sequence.
HOPPER_FUNCTION struct hopper_place hopper_place_in_tensor(uint32_t key, uint32_t head,
                                                           uint32_t outer)
{
    struct hopper_place place = {{0, key, head, outer}};
    return place;
}

// ---- tensor maps ----
// Each run of a group has some: of Q, K and V; with contiguous K and V two more, for boxes of one
// key.

enum { HOPPER_MAP_Q, HOPPER_MAP_K, HOPPER_MAP_V, HOPPER_MAP_ONE_K, HOPPER_MAP_ONE_V };

HOPPER_FUNCTION uint32_t hopper_maps_of_run(uint32_t is_rows)
{
    return is_rows ? HOPPER_MAP_ONE_V + 1 : HOPPER_MAP_V + 1;
}

// Whether one copy brings a line of all rows of Q: coordinates are element, head, token and, of a
// tensor with an outer stride, sequence.
HOPPER_FUNCTION uint32_t hopper_q_is_a_box(uint32_t num_rows, uint32_t group)
{
    return num_rows == HOPPER_ROWS && HOPPER_ROWS % group == 0;
}

// Fills a map: `map` is 128 bytes on a multiple of 64, strides are bytes from key to key and so on,
// and a box has box_keys times box_others rows of a line. Lines of 2-byte elements are swizzled.
// Copies do not look at elements, so it serves bf16, too.
HOPPER_FUNCTION void hopper_map(uint32_t map[HOPPER_MAP_WORDS], uint64_t base,
                                const uint64_t strides[3], uint32_t element_bytes,
                                uint32_t box_keys, uint32_t box_others)
{
    const uint32_t rank = 4, type_f16 = 6, swizzle = element_bytes == 2 ? 3 : 0;
    for (uint32_t i = 0; i < HOPPER_MAP_WORDS; i++)
        map[i] = 0;
    map[0] = (uint32_t)base;
    map[1] = (uint32_t)(base >> 32);
    map[2] = (rank - 1) << 4 | type_f16 << 7 | swizzle << 13;
    for (uint32_t i = 0; i < 3; i++)
        map[3 + i] = (uint32_t)((strides[i] ? strides[i] : 16) >> 4);
    for (uint32_t i = 0; i < rank; i++)
        map[8 + i] = 0x7fffffff;                               // sizes, less 1
    map[13] = (hopper_line_elements(element_bytes) - 1) << 24; // the box, less 1
    map[14] = (box_keys - 1) | (box_others - 1) << 8;
}

// The pool's map for rows of `dim` elements: from address 0, with windows that overlap.
HOPPER_FUNCTION void hopper_map_of_pool(uint32_t map[HOPPER_MAP_WORDS], uint32_t dim,
                                        uint32_t element_bytes, uint32_t box_keys)
{
    const uint64_t strides[3] = {dim * element_bytes, (uint64_t)1 << 32, 16};
    hopper_map(map, 0, strides, element_bytes, box_keys, 1);
}

// ---- shared memory ----

// Bytes from the begin of a tile of `rows` rows to 16-byte chunk `chunk` of a row: chunks of a line
// are exchanged within eight rows, as copies with a swizzle of 128 bytes leave them.
HOPPER_FUNCTION uint32_t hopper_swizzled(uint32_t row, uint32_t chunk, uint32_t rows)
{
    return (chunk >> 3) * rows * HOPPER_LINE_BYTES + row * HOPPER_LINE_BYTES +
           (((chunk & 7) ^ (row & 7)) << 4);
}

// The same for a raw tile, whose lines are not swizzled.
HOPPER_FUNCTION uint32_t hopper_raw_place(uint32_t row, uint32_t chunk, uint32_t rows)
{
    return ((chunk >> 2) * rows + row) * HOPPER_LINE + (chunk & 3) * 16;
}

#endif
