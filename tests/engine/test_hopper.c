// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_hopper.c - the native kernels without a GPU: their index arithmetic, run on the host by the
// header that the kernels include (shaders/hopper/index.h), what they serve, and what a process
// knows of an earlier one's tests. Copies are emulated by the tensor map's own words.

#include "engine/kernels/hopper_states.h"
#include "engine/kernels/variant.h"
#include "rigs/check_main.h"
#include "rigs/dice.h"
#include "shaders/hopper/index.h"

#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

static struct dice dice;

// ---- work units ----

START_TEST(every_item_and_head_is_one_unit)
{
    enum { ITEMS = 7, HEADS = 5 };
    bool seen[HEADS][ITEMS] = {{false}};
    for (uint32_t unit = 0; unit < ITEMS * HEADS; unit++) {
        struct hopper_unit of = hopper_unit_of(unit, ITEMS);
        ck_assert_uint_lt(of.head, HEADS);
        ck_assert(!seen[of.head][of.item]);
        seen[of.head][of.item] = true;
    }
}
END_TEST

// ---- rows and keys ----

// A sequence whose rows are looked at, and what its queries see.
struct sight {
    uint32_t q_len, kv_len, group;
    bool causal, windowed;
    uint32_t left, right;
    const int32_t *positions; // of the queries; NULL = at the end of the sequence
};

static int64_t position_of(const struct sight *sight, uint32_t query)
{
    return sight->positions ? sight->positions[query]
                            : (int64_t)sight->kv_len - sight->q_len + query;
}

// By the definition: does query `query` see key `key`?
static bool sees(const struct sight *sight, uint32_t query, uint32_t key)
{
    int64_t position = position_of(sight, query);
    return query < sight->q_len && key < sight->kv_len && (!sight->causal || key <= position) &&
           (!sight->windowed || (key >= position - sight->left && key <= position + sight->right));
}

static struct hopper_keys keys_of(const struct sight *sight, uint32_t query)
{
    struct hopper_keys none = {0, 0};
    if (query >= sight->q_len)
        return none;
    return hopper_keys_of(position_of(sight, query), sight->kv_len, sight->causal, sight->windowed,
                          sight->left, sight->right);
}

// The span as the kernel finds it for rows in any order.
static struct hopper_span span_of_rows(const struct sight *sight, uint32_t first_row,
                                       uint32_t num_rows, uint32_t keys)
{
    struct hopper_keys some = {UINT32_MAX, 0}, every = {0, UINT32_MAX};
    for (uint32_t row = first_row; row < first_row + num_rows; row++) {
        uint32_t query = row / sight->group;
        struct hopper_keys of = keys_of(sight, query);
        if (of.first < of.end) {
            some.first = of.first < some.first ? of.first : some.first;
            some.end = of.end > some.end ? of.end : some.end;
        }
        if (query < sight->q_len) {
            every.first = of.first > every.first ? of.first : every.first;
            every.end = of.end < every.end ? of.end : every.end;
        }
    }
    return hopper_span_of(num_rows, some, every, keys);
}

// Whether all rows with queries see all keys of a tile; *some: whether one of them sees one.
static bool all_see(const struct sight *sight, uint32_t first_row, uint32_t num_rows, uint32_t tile,
                    uint32_t keys, bool *some)
{
    bool all = true;
    *some = false;
    for (uint32_t row = first_row; row < first_row + num_rows; row++)
        for (uint32_t key = tile * keys; key < (tile + 1) * keys; key++) {
            bool seen = sees(sight, row / sight->group, key);
            *some = *some || seen;
            all = all && (seen || row / sight->group >= sight->q_len);
        }
    return all;
}

static bool keys_are_right(const struct sight *sight, uint32_t first_row, uint32_t num_rows)
{
    bool right = true;
    for (uint32_t row = first_row; row < first_row + num_rows; row += sight->group) {
        uint32_t query = row / sight->group;
        struct hopper_keys of = keys_of(sight, query);
        for (uint32_t key = 0; key < sight->kv_len; key++)
            right = right && (key >= of.first && key < of.end) == sees(sight, query, key);
    }
    return right;
}

// Compares a span with the definition, for each row, tile and key of the item.
static void check_span(const struct sight *sight, uint32_t first_row, uint32_t tokens,
                       uint32_t keys)
{
    uint32_t num_rows = hopper_num_rows(first_row, tokens, sight->group),
             all = tokens * sight->group;
    ck_assert_uint_eq(num_rows, all - first_row < HOPPER_ROWS ? all - first_row : HOPPER_ROWS);
    struct hopper_span span = span_of_rows(sight, first_row, num_rows, keys);
    if (!sight->windowed && !sight->positions) {
        struct hopper_span same = hopper_span_by_rows(
            first_row, tokens, sight->q_len, sight->kv_len, sight->group, sight->causal, keys);
        ck_assert_mem_eq(&same, &span, sizeof span);
    }
    ck_assert(keys_are_right(sight, first_row, num_rows));
    for (uint32_t tile = 0; tile <= sight->kv_len / keys; tile++) {
        bool some, whole = all_see(sight, first_row, num_rows, tile, keys, &some);
        if (some)
            ck_assert(tile >= span.first && tile < span.end);
        if (tile >= span.low && tile < span.high)
            ck_assert(whole);
    }
    if (span.low < span.high) { // each row has its largest score of a masked tile first
        bool some;
        ck_assert_uint_lt(span.high, span.end);
        all_see(sight, first_row, 1, span.high, keys, &some);
        ck_assert(some);
    }
}

START_TEST(an_item_goes_through_the_tiles_that_its_rows_see)
{
    for (int i = 0; i < 100; i++) {
        struct sight sight = {.group = dice_between(&dice, 1, 64),
                              .q_len = dice_between(&dice, 1, 200),
                              .causal = dice_below(&dice, 4) > 0};
        uint32_t tokens = sight.q_len + dice_below(&dice, 3) * dice_below(&dice, 40);
        sight.kv_len = dice_below(&dice, 2) ? sight.q_len + dice_below(&dice, 700)
                                            : dice_below(&dice, 2 * sight.q_len);
        uint32_t items = (tokens * sight.group + HOPPER_ROWS - 1) / HOPPER_ROWS;
        check_span(&sight, dice_below(&dice, items) * HOPPER_ROWS, tokens, _i ? 64 : 128);
    }
}
END_TEST

START_TEST(windows_and_positions_bound_the_tiles)
{
    int32_t positions[200];
    for (int i = 0; i < 100; i++) {
        struct sight sight = {.group = dice_between(&dice, 1, 16),
                              .q_len = dice_between(&dice, 1, 100),
                              .kv_len = dice_between(&dice, 1, 700),
                              .causal = dice_below(&dice, 2),
                              .windowed = dice_below(&dice, 3) > 0,
                              .left = dice_below(&dice, 3) ? dice_below(&dice, 500) : INT32_MAX,
                              .right = dice_below(&dice, 3) ? dice_below(&dice, 300) : INT32_MAX};
        for (uint32_t query = 0; query < sight.q_len; query++)
            positions[query] = (int32_t)dice_below(&dice, sight.kv_len + 100) - 50;
        sight.positions = dice_below(&dice, 2) ? positions : NULL;
        uint32_t items = (sight.q_len * sight.group + HOPPER_ROWS - 1) / HOPPER_ROWS;
        check_span(&sight, dice_below(&dice, items) * HOPPER_ROWS, sight.q_len, _i ? 64 : 128);
    }
}
END_TEST

START_TEST(the_largest_lengths_do_not_overflow)
{
    const uint32_t most = INT32_MAX;
    ck_assert_uint_eq(hopper_keys_of(most - 1, most, 1, 0, 0, 0).end, most);
    ck_assert_uint_eq(hopper_keys_of(0, most, 1, 0, 0, 0).end, 1);
    ck_assert_uint_eq(hopper_keys_of(0, 0, 1, 0, 0, 0).end, 0);
    ck_assert_uint_eq(hopper_keys_of(INT32_MIN, most, 0, 0, 0, 0).end, most);
    ck_assert_uint_eq(hopper_keys_of(INT32_MIN, most, 1, 0, 0, 0).end, 0);
    ck_assert_uint_eq(hopper_keys_of(INT32_MAX, most, 0, 1, most, most).end, most);
    ck_assert_uint_eq(hopper_keys_of(INT32_MAX, most, 0, 1, 0, most).end, 0);
    struct hopper_span span = hopper_span_by_rows(0, 32, 32, most, 4, 1, 128);
    ck_assert_uint_eq(span.end, 1u << 24);
    ck_assert_uint_eq(span.high, (1u << 24) - 1);
}
END_TEST

// ---- copies ----

// What a copy of a box does, by the words of its map: finds the bytes of each line in memory, and
// puts them where the swizzle of 128 bytes puts them.
struct copied {
    uint64_t from; // of 16 bytes; 0: zeros
};
static struct copied shared[128 * 1024 / 16];

static void copy_box(const uint32_t map[HOPPER_MAP_WORDS], uint32_t to, struct hopper_place place)
{
    uint64_t base = map[0] | (uint64_t)map[1] << 32;
    uint32_t line_elements = (map[13] >> 24) + 1;
    uint32_t lines = (map[14] & 0xff) + 1, others = (map[14] >> 8 & 0xff) + 1;
    bool inside = map[14] >> 16 == 0;
    uint32_t line_bytes = line_elements * 2;
    bool swizzled = (map[2] >> 13 & 3) == 3;                               // by 128 bytes
    ck_assert_uint_eq((map[2] >> 4 & 7) + 1, 4);                           // dimensions
    ck_assert_uint_eq(line_bytes, HOPPER_LINE_BYTES / (swizzled ? 1 : 2)); // 2 bytes, or 1
    for (uint32_t line = 0; line < lines * others; line++)
        for (uint32_t chunk = 0; chunk < line_bytes / 16; chunk++) {
            const uint32_t at[4] = {place.at[0] + 8 * chunk, place.at[1] + line % lines,
                                    place.at[2] + line / lines, place.at[3]};
            uint64_t from = base + at[0] * UINT64_C(2);
            for (int i = 1; i < 4; i++)
                from += at[i] * ((uint64_t)map[2 + i] << 4);
            for (int i = 0; i < 4; i++)
                inside = inside && at[i] <= map[8 + i];
            uint32_t put = to + line * line_bytes + chunk * 16;
            put ^= swizzled ? (put >> 7 & 7) << 4 : 0;
            shared[put / 16].from = from;
        }
    ck_assert(inside);
}

// Copies Q of an item as the kernel does: a box for each line.
static void copy_queries(const uint32_t (*maps)[HOPPER_MAP_WORDS], uint32_t dim,
                         struct hopper_place place)
{
    memset(shared, 0, sizeof shared);
    for (uint32_t line = 0; line < dim / HOPPER_LINE; line++) {
        struct hopper_place at = place;
        at.at[0] = line * HOPPER_LINE;
        copy_box(maps[HOPPER_MAP_Q], line * HOPPER_ROWS * HOPPER_LINE_BYTES, at);
    }
}

// What a tile is copied from.
struct source {
    struct hopper_shape shape;
    uint32_t size; // bytes of an element
    uint32_t place, which, heads, head, seq;
    uint32_t block_size, kv_len, chunk_shift;
    struct hopper_keys some; // keys that are seen; other blocks are not read
    const uint32_t *table;
    const uint64_t *chunks;
    struct gpu_run run;
    uint32_t start; // contiguous tensors: row of key 0
};

static uint32_t dim_of(const struct source *source)
{
    return source->which ? source->shape.dim_v : source->shape.dim_k;
}

// Where a tile's box begins, as the kernel finds it.
static struct hopper_place place_of(const struct source *source, uint32_t tile, uint32_t box)
{
    uint32_t keys = source->shape.keys;
    if (source->place == AULE_PLACE_ROWS)
        return hopper_place_in_tensor(source->start + tile * keys, source->head, source->seq);
    uint32_t block =
        source->table[hopper_box_part(tile, box, source->block_size, source->some, keys)];
    uint32_t key = hopper_key_in_block(tile, source->block_size, keys);
    if (source->place == AULE_PLACE_BLOCKS)
        return hopper_place_in_tensor(key, source->head, block);
    return hopper_place_in_pool(source->chunks[block >> source->chunk_shift] +
                                hopper_block_offset(block, source->chunk_shift, source->block_size,
                                                    source->heads, source->head, source->which,
                                                    source->shape, source->size) +
                                (uint64_t)key * dim_of(source) * source->size);
}

// Where 16 bytes of a key lie in a tile, raw ones in a raw tile.
static uint32_t place_in_tile(const struct source *source, uint32_t key, uint32_t chunk)
{
    uint32_t keys = source->shape.keys;
    if (source->size == 1)
        return hopper_raw_place(key, chunk, keys);
    return hopper_swizzled(key, chunk, keys);
}

// Where a chunk of a key lies. In the pool, by DESIGN: [block][K, V][head][key][dim].
static uint64_t address_of(const struct source *source, uint32_t key, uint32_t chunk)
{
    const struct gpu_run *run = &source->run;
    uint64_t base = source->which ? run->values : run->keys;
    uint64_t outer = source->which ? run->values_outer : run->keys_outer;
    uint64_t token = source->which ? run->values_token_stride : run->keys_token_stride;
    uint64_t head = source->which ? run->values_head_stride : run->keys_head_stride;
    base += head * 16 * source->head + chunk * 16;
    if (source->place == AULE_PLACE_ROWS)
        return base + outer * source->seq + (source->start + key) * token * 16;
    uint32_t block = source->table[key / source->block_size], row = key % source->block_size;
    if (source->place == AULE_PLACE_BLOCKS)
        return base + outer * block + row * token * 16;
    uint64_t rows = (uint64_t)source->heads * source->block_size * source->size;
    uint64_t k = rows * source->shape.dim_k, v = rows * source->shape.dim_v;
    return source->chunks[block >> source->chunk_shift] +
           block % (1u << source->chunk_shift) * (k + v) + (source->which ? k : 0) +
           ((uint64_t)source->head * source->block_size + row) * dim_of(source) * source->size +
           chunk * 16;
}

// Copies a tile of K or V as the kernel does, by the maps that the host writes.
static void copy_tile(const struct source *source, const uint32_t (*maps)[HOPPER_MAP_WORDS],
                      uint32_t tile)
{
    uint32_t keys = source->shape.keys, lines = dim_of(source) / HOPPER_LINE;
    uint32_t line_bytes = HOPPER_LINE * source->size;
    bool is_rows = source->place == AULE_PLACE_ROWS;
    uint32_t box_keys = is_rows ? keys : hopper_box_keys(source->block_size, keys);
    bool tail = is_rows && (tile + 1) * keys > source->kv_len;
    memset(shared, 0, sizeof shared);
    for (uint32_t lane = 0; !tail && lane < lines * keys / box_keys; lane++) {
        uint32_t line = lane % lines, box = lane / lines;
        struct hopper_place place = place_of(source, tile, box);
        place.at[0] += line * hopper_line_elements(source->size);
        copy_box(maps[HOPPER_MAP_K + source->which], (line * keys + box * box_keys) * line_bytes,
                 place);
    }
    for (uint32_t i = 0; tail && i < keys * lines; i++) {
        uint32_t line = i % lines, key = i / lines, of = tile * keys + key;
        of = of < source->kv_len ? of : source->kv_len - 1;
        struct hopper_place place =
            hopper_place_in_tensor(source->start + of, source->head, source->seq);
        for (uint32_t chunk = 0; chunk < 4 && source->size == 1; chunk++) // by loads
            shared[place_in_tile(source, key, 4 * line + chunk) / 16].from =
                address_of(source, of, 4 * line + chunk);
        if (source->size == 1)
            continue;
        place.at[0] = line * HOPPER_LINE;
        copy_box(maps[HOPPER_MAP_ONE_K + source->which], (line * keys + key) * HOPPER_LINE_BYTES,
                 place);
    }
}

static void check_tile(const struct source *source, const uint32_t (*maps)[HOPPER_MAP_WORDS],
                       uint32_t tile)
{
    uint32_t wrong = 0;
    copy_tile(source, maps, tile);
    for (uint32_t row = 0; row < source->shape.keys; row++)
        for (uint32_t chunk = 0; chunk < dim_of(source) * source->size / 16; chunk++) {
            uint64_t from = shared[place_in_tile(source, row, chunk) / 16].from;
            uint32_t key = tile * source->shape.keys + row;
            if (key >= source->some.first && key < source->some.end)
                wrong += from != address_of(source, key, chunk);
            else if (source->place != AULE_PLACE_ROWS) // of a block that is seen
                wrong += from == 0 || from >= UINT64_C(0x800000000000);
            else if (key >= source->kv_len) // nothing behind the sequence is read
                wrong += from != address_of(source, source->kv_len - 1, chunk);
        }
    ck_assert_uint_eq(wrong, 0);
}

enum { BLOCKS = 64, CHUNK_SHIFT = 3, MOST_EXTRAS = 4096 };

static const struct {
    uint32_t dim_k, dim_v;
} dims[] = {{64, 64}, {128, 128}, {192, 128}, {256, 256}};

static void draw_source(struct source *source, uint32_t place, uint32_t table[BLOCKS])
{
    uint32_t of = dice_below(&dice, 4), size = dice_between(&dice, 1, 2);
    uint32_t k = dims[of].dim_k * size / 16, v = dims[of].dim_v * size / 16;
    uint32_t heads = dice_between(&dice, 1, 9), block = HOPPER_LEAST_BLOCK << dice_below(&dice, 5);
    bool outer = dice_below(&dice, 2);
    *source = (struct source){
        .shape = hopper_shape_of(dims[of].dim_k, dims[of].dim_v),
        .size = size,
        .place = place,
        .which = dice_below(&dice, 2),
        .heads = heads,
        .head = dice_below(&dice, heads),
        .block_size = block,
        .kv_len = dice_between(&dice, 1, BLOCKS * block),
        .chunk_shift = CHUNK_SHIFT,
        .table = table,
        .run = {.keys = UINT64_C(0x7f0012345670),
                .values = UINT64_C(0x7f1098765430),
                .keys_token_stride = k * heads + dice_below(&dice, 3),
                .keys_head_stride = k,
                .values_token_stride = v,
                .values_head_stride = v * 20000,
                .keys_outer = UINT64_C(1) << 32,
                .values_outer = UINT64_C(0x300000010)},
    };
    if (place == AULE_PLACE_ROWS && !outer)
        source->run.keys_outer = source->run.values_outer = 0;
    if (place == AULE_PLACE_ROWS) {
        source->seq = outer ? dice_below(&dice, 100) : 0;
        source->start = outer ? 0 : dice_below(&dice, 5000);
    }
    for (uint32_t i = 0; i < BLOCKS; i++)
        table[i] = dice_below(&dice, BLOCKS);
    source->some.end = dice_between(&dice, 1, source->kv_len);
    source->some.first = dice_below(&dice, source->some.end);
    for (uint32_t i = 0; i < BLOCKS; i++)
        if (i < source->some.first / block || i > (source->some.end - 1) / block)
            table[i] = UINT32_MAX; // what nobody sees may be anything
}

static struct geometry geometry_of(const struct source *source)
{
    return (struct geometry){.spec = {
                                 [AULE_SPEC_HEAD_DIM_K] = source->shape.dim_k,
                                 [AULE_SPEC_HEAD_DIM_V] = source->shape.dim_v,
                                 [AULE_SPEC_NUM_KV_HEADS] = source->heads,
                                 [AULE_SPEC_BLOCK_SIZE] = source->block_size,
                                 [AULE_SPEC_K_DTYPE] = source->size == 1 ? DTYPE_INT8 : DTYPE_F16,
                                 [AULE_SPEC_PLACE] = source->place,
                             }};
}

START_TEST(a_tile_brings_the_keys_of_its_sequence)
{
    static const uint32_t places[] = {AULE_PLACE_POOL, AULE_PLACE_BLOCKS, AULE_PLACE_ROWS};
    static uint32_t extras[MOST_EXTRAS];
    uint32_t table[BLOCKS];
    // One chunk lies across the border of two windows of 4 GiB.
    uint64_t chunks[BLOCKS >> CHUNK_SHIFT];
    for (uint32_t i = 0; i < BLOCKS >> CHUNK_SHIFT; i++)
        chunks[i] = UINT64_C(0x7f1200000000) + i * UINT64_C(0x40000000) - (i == 4 ? 0x1310 : 0);
    for (int round = 0; round < 60; round++) {
        struct source source;
        draw_source(&source, places[_i], table);
        source.chunks = chunks;
        struct geometry geometry = geometry_of(&source);
        struct gpu_run runs[3] = {
            {.num_heads = source.heads}, {.num_heads = source.heads}, {.num_heads = source.heads}};
        uint32_t number = dice_below(&dice, 3);
        source.run.num_heads = source.heads * dice_between(&dice, 1, 9);
        runs[number] = source.run;
        hopper_put(extras, &geometry, runs, 3);
        const uint32_t(*maps)[HOPPER_MAP_WORDS] = (const void *)(extras + 32);
        maps += number * hopper_maps_of_run(places[_i] == AULE_PLACE_ROWS);
        uint32_t keys = source.shape.keys, last = (source.some.end - 1) / keys;
        check_tile(&source, maps, dice_between(&dice, source.some.first / keys, last));
        check_tile(&source, maps, last);
    }
}
END_TEST

// As bring_tiles() of the kernel goes through the tiles of a unit.
START_TEST(a_warp_knows_the_places_of_all_boxes_of_a_unit)
{
    enum { LANES = 32 };
    for (int round = 0; round < 200; round++) {
        uint32_t boxes = 1u << dice_below(&dice, 4), first = dice_below(&dice, 50), wrong = 0;
        uint32_t tile = first + dice_between(&dice, 1, 100), top = tile - 1, from = 0;
        while (tile-- > first) {
            if (from >= LANES) {
                top = tile;
                from = 0;
            }
            for (uint32_t box = 0; box < boxes; box++) {
                struct hopper_box of = hopper_box_of_lane((from + box) % LANES, boxes, top, first);
                wrong += of.tile != tile || of.box != box;
            }
            from += boxes;
        }
        for (uint32_t lane = 0; lane < LANES; lane++)
            wrong += hopper_box_of_lane(lane, boxes, top, first).tile < first;
        ck_assert_uint_eq(wrong, 0);
    }
}
END_TEST

START_TEST(a_row_leads_to_its_query_and_head_without_a_division)
{
    bool right = true;
    for (int i = 0; i < 3000; i++) {
        uint32_t group = dice_between(&dice, 1, i % 2 ? 70 : 1000);
        uint32_t first_row = dice_below(&dice, 1u << 24) * HOPPER_ROWS;
        struct hopper_rows rows = hopper_rows_of(first_row, group);
        for (uint32_t row = 0; row < HOPPER_ROWS; row++)
            right = right && hopper_query_of(rows, row) == (first_row + row) / group &&
                    hopper_head_of(rows, row) == (first_row + row) % group;
    }
    ck_assert(right);
}
END_TEST

// Q [token][head][dim], or [head][token][dim], and with an outer stride [sequence] before it.
START_TEST(a_whole_item_brings_the_rows_of_its_queries)
{
    static uint32_t extras[MOST_EXTRAS];
    for (int round = 0; round < 50; round++) {
        uint32_t group = 1u << dice_below(&dice, 8), kv_heads = dice_between(&dice, 1, 5);
        uint32_t dim = dims[dice_below(&dice, 4)].dim_k, heads = group * kv_heads;
        bool outer = dice_below(&dice, 2), token_first = dice_below(&dice, 2);
        struct geometry geometry = {.spec = {[AULE_SPEC_HEAD_DIM_K] = dim,
                                             [AULE_SPEC_HEAD_DIM_V] = dim == 192 ? 128 : dim,
                                             [AULE_SPEC_NUM_KV_HEADS] = kv_heads,
                                             [AULE_SPEC_K_DTYPE] = DTYPE_F16,
                                             [AULE_SPEC_BLOCK_SIZE] = 16}};
        struct gpu_run run = {.q = UINT64_C(0x7f0000001230),
                              .num_heads = heads,
                              .q_token_stride = token_first ? heads * dim / 8 : dim / 8,
                              .q_head_stride = token_first ? dim / 8 : 5000 * dim / 8,
                              .q_outer = outer ? UINT64_C(0x20000010) : 0};
        uint32_t first_row = dice_below(&dice, 20) * HOPPER_ROWS, token = dice_below(&dice, 1000);
        uint32_t seq = dice_below(&dice, 30), head = dice_below(&dice, kv_heads), wrong = 0;
        struct hopper_rows rows = hopper_rows_of(first_row, group);
        ck_assert(hopper_q_is_a_box(HOPPER_ROWS, group));
        hopper_put(extras, &geometry, &run, 1);
        copy_queries((const void *)(extras + 32), dim,
                     (struct hopper_place){
                         {0, head * group, (outer ? 0 : token) + rows.query, outer ? seq : 0}});
        for (uint32_t row = 0; row < HOPPER_ROWS; row++)
            for (uint32_t chunk = 0; chunk < dim / 8; chunk++) {
                uint64_t query = (first_row + row) / group;
                uint64_t from = run.q + (head * group + row % group) * run.q_head_stride * 16 +
                                (outer ? seq * run.q_outer + query * run.q_token_stride * 16
                                       : (token + query) * run.q_token_stride * 16) +
                                chunk * 16;
                wrong += shared[hopper_swizzled(row, chunk, HOPPER_ROWS) / 16].from != from;
            }
        ck_assert_uint_eq(wrong, 0);
    }
}
END_TEST

START_TEST(eight_rows_of_a_swizzled_column_use_all_banks)
{
    for (uint32_t chunk = 0; chunk < 32; chunk++)
        for (uint32_t row = 0; row < HOPPER_ROWS; row += 8) {
            uint32_t banks = 0; // of 16 bytes
            for (uint32_t i = 0; i < 8; i++)
                banks |= 1u << (hopper_swizzled(row + i, chunk, HOPPER_ROWS) / 16 % 8);
            ck_assert_uint_eq(banks, 0xff);
        }
}
END_TEST

START_TEST(every_shape_fits_a_multiprocessor)
{
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
        struct hopper_shape shape = hopper_shape_of(dims[i].dim_k, dims[i].dim_v);
        ck_assert_uint_le(shape.raw_bytes, HOPPER_SHARED_MEMORY);
        ck_assert_uint_le(shape.bytes, shape.raw_k_at);
        ck_assert_uint_eq(shape.raw_k_at % 128, 0); // a copy's alignment
        ck_assert_uint_eq(shape.raw_v_at % 128, 0);
        ck_assert(dims[i].dim_k == 192 ? shape.raw_stages == 0 : shape.raw_stages > 0);
        ck_assert_uint_eq(shape.k_at % 1024, 0); // a swizzle's pattern
        ck_assert_uint_eq(shape.k_bytes % 1024, 0);
        ck_assert_uint_eq(shape.v_bytes % 1024, 0);
    }
}
END_TEST

// ---- what it serves ----

static struct geometry served(void)
{
    return (struct geometry){.spec = {
                                 [AULE_SPEC_HEAD_DIM_K] = 128,
                                 [AULE_SPEC_HEAD_DIM_V] = 128,
                                 [AULE_SPEC_NUM_KV_HEADS] = 8,
                                 [AULE_SPEC_BLOCK_SIZE] = 32,
                                 [AULE_SPEC_K_DTYPE] = DTYPE_F16,
                                 [AULE_SPEC_V_DTYPE] = DTYPE_F16,
                                 [AULE_SPEC_IO_DTYPE] = DTYPE_F16,
                                 [AULE_SPEC_PLACE] = AULE_PLACE_POOL,
                                 [AULE_SPEC_FEATURES] = AULE_FEATURE_LSE,
                             }};
}

START_TEST(what_it_does_not_know_goes_to_other_kernels)
{
    static const struct {
        uint32_t spec, value;
    } others[] = {
        {AULE_SPEC_HEAD_DIM_K, 64},
        {AULE_SPEC_HEAD_DIM_K, 96},
        {AULE_SPEC_HEAD_DIM_V, 256},
        {AULE_SPEC_BLOCK_SIZE, 8},
        {AULE_SPEC_BLOCK_SIZE, 512},
        {AULE_SPEC_K_DTYPE, DTYPE_FP8_E4M3},
        {AULE_SPEC_V_DTYPE, DTYPE_INT8},
        {AULE_SPEC_V_DTYPE, DTYPE_BF16},
        {AULE_SPEC_IO_DTYPE, DTYPE_F32},
        {AULE_SPEC_V_IN_K, 1},
        {AULE_SPEC_SCALE_MODE, AULE_SCALE_TENSOR_MODE},
        {AULE_SPEC_FEATURES, AULE_FEATURE_MASK},
        {AULE_SPEC_FEATURES, AULE_FEATURE_ROPE | AULE_FEATURE_LSE},
    };
    struct geometry geometry = served();
    ck_assert(hopper_serves(&geometry));
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        geometry = served();
        geometry.spec[others[i].spec] = others[i].value;
        ck_assert_msg(!hopper_serves(&geometry), "entry %zu", i);
    }
}
END_TEST

START_TEST(eight_bits_are_served_in_any_pair_of_types_but_not_by_scales_of_tokens)
{
    static const uint32_t types[] = {DTYPE_FP8_E4M3, DTYPE_FP8_E5M2, DTYPE_INT8};
    for (uint32_t i = 0; i < 9; i++) {
        struct geometry geometry = served();
        geometry.spec[AULE_SPEC_K_DTYPE] = types[i / 3];
        geometry.spec[AULE_SPEC_V_DTYPE] = types[i % 3];
        ck_assert(hopper_serves(&geometry));
        geometry.spec[AULE_SPEC_SCALE_MODE] = AULE_SCALE_TENSOR_MODE;
        ck_assert(hopper_serves(&geometry));
        geometry.spec[AULE_SPEC_HEAD_DIM_K] = 192; // shared memory has no room
        ck_assert(!hopper_serves(&geometry));
        geometry.spec[AULE_SPEC_HEAD_DIM_K] = 128;
        geometry.spec[AULE_SPEC_SCALE_MODE] = AULE_SCALE_TOKEN_HEAD_MODE;
        ck_assert(!hopper_serves(&geometry));
    }
}
END_TEST

START_TEST(each_kernel_is_found_by_its_own_geometry)
{
    for (uint32_t i = 0; i < HOPPER_CODES; i++) {
        struct geometry geometry = hopper_geometry(i);
        ck_assert_uint_eq(hopper_code(&geometry), i);
        geometry.spec[AULE_SPEC_BLOCK_SIZE] = 32;
        ck_assert(hopper_serves(&geometry));
        geometry.spec[AULE_SPEC_FEATURES] |=
            AULE_FEATURE_WINDOW | AULE_FEATURE_SINKS | AULE_FEATURE_POSITIONS | AULE_FEATURE_LSE;
        ck_assert_uint_eq(hopper_code(&geometry), i);
        ck_assert(hopper_serves(&geometry));
#ifdef AULE_HAVE_HOPPER
        const struct native_code *code = hopper_code_at(i);
        ck_assert(code->ptx < code->end);
        ck_assert_uint_eq(code->end[-1], 0);
        ck_assert_ptr_nonnull(strstr((const char *)code->ptx, ".entry attention_hopper("));
#endif
    }
}
END_TEST

START_TEST(strides_that_a_map_cannot_hold_go_to_other_kernels)
{
    const struct wire_tensor good = {
        .token_stride = 1024, .head_stride = 256, .outer_stride = 65536};
    struct engine_run run = {.num_heads = 8, .q = good, .keys = good, .values = good};
    ck_assert(hopper_takes(&run, ENGINE_ROWS, 4));
    run.values.outer_stride = UINT64_C(1) << 36;
    ck_assert(!hopper_takes(&run, ENGINE_ROWS, 4));
    ck_assert(hopper_takes(&run, ENGINE_POOL, 4));
    run.values = good;
    run.keys.token_stride = 0;
    ck_assert(!hopper_takes(&run, ENGINE_BLOCKS, 4));
    run.keys = good;
    run.keys.head_stride = 0;
    ck_assert(!hopper_takes(&run, ENGINE_BLOCKS, 4));
    ck_assert(hopper_takes(&run, ENGINE_BLOCKS, 1));
    run.q.token_stride = 0;
    ck_assert(!hopper_takes(&run, ENGINE_POOL, 4));
}
END_TEST

#if defined AULE_HAVE_HOPPER && defined AULE_HAVE_MATRIX
static const char *kernel_for(const struct geometry *geometry, uint64_t rows)
{
    const struct variant *variant = variant_at(0);
    ck_assert_str_eq(variant->name, "hopper");
    uint32_t serving = variant_serving(variant, geometry);
    return variant->kernels[variant_kernel(variant, serving, rows, 8192)]->shader.name;
}

START_TEST(prompts_go_to_the_native_kernel_and_the_rest_to_shaders)
{
    struct geometry geometry = served();
    ck_assert_str_eq(kernel_for(&geometry, 4096), "attention_hopper");
    ck_assert_str_eq(kernel_for(&geometry, 4), "attention_decode_matrix");
    geometry.spec[AULE_SPEC_FEATURES] |= AULE_FEATURE_ROPE;
    ck_assert_str_eq(kernel_for(&geometry, 4096), "attention_prefill_matrix");
    geometry = served();
    geometry.spec[AULE_SPEC_K_DTYPE] = geometry.spec[AULE_SPEC_V_DTYPE] = DTYPE_BF16;
    geometry.spec[AULE_SPEC_IO_DTYPE] = DTYPE_BF16;
    ck_assert_str_eq(kernel_for(&geometry, 4096), "attention_hopper");
}
END_TEST
#endif

START_TEST(a_device_that_lacks_something_hears_what)
{
    struct adapter adapter = {.natives = {.failure = ""}};
    char text[256];
    hopper_missing(&adapter, text, sizeof text);
    ck_assert_str_ne(text, "");
#ifdef AULE_HAVE_HOPPER
    ck_assert_ptr_nonnull(strstr(text, "VK_NVX_binary_import"));
    adapter.natives.extension = true;
    hopper_missing(&adapter, text, sizeof text);
    ck_assert_ptr_nonnull(strstr(text, "a queue family for compute only"));
    adapter.natives.family = true;
    hopper_missing(&adapter, text, sizeof text);
    ck_assert_ptr_nonnull(strstr(text, "another variant was named"));
    adapter.natives.taken = true;
    hopper_missing(&adapter, text, sizeof text);
    ck_assert_str_eq(text, "");
    strcpy(adapter.natives.failure, "the driver refuses kernel x");
    hopper_missing(&adapter, text, sizeof text);
    ck_assert_ptr_nonnull(strstr(text, "the driver refuses kernel x"));
#endif
}
END_TEST

// ---- the file of a kernel whose test never ended ----

enum { MARKED = 3 }; // its number
static char folder[] = "/tmp/aule-hopper-XXXXXX", path[64], marked_path[160];

// Leaves the file of a kernel's test by `driver`, and opens the states as the next process does.
static void open_states(struct hopper_states *states, struct device *device, const char *driver)
{
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/pipelines", folder);
    snprintf(marked_path, sizeof marked_path, "%s.trying-%s", path, hopper_code_at(MARKED)->name);
    const int fd = open(marked_path, O_WRONLY | O_CREAT, 0600);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(write(fd, driver, strlen(driver)), (ssize_t)strlen(driver));
    ck_assert_int_eq(close(fd), 0);
    strcpy(device->adapter.info.driver, "driver 2");
    hopper_states_init(states, device, NULL, path);
}

static void remove_files(void)
{
    ck_assert_int_eq(unlink(marked_path), 0);
    ck_assert_int_eq(rmdir(folder), 0);
}

START_TEST(a_kernel_whose_test_never_ended_is_not_used_again)
{
    struct device device = {.handle = VK_NULL_HANDLE};
    struct hopper_states states = {.path = NULL};
    char text[256];
    open_states(&states, &device, "driver 2");
    for (uint32_t i = 0; i < HOPPER_CODES; i++)
        ck_assert_int_eq((int)states.states[i],
                         (int)(i == MARKED ? NATIVE_REFUSED : NATIVE_UNTRIED));
    hopper_states_refusals(&states, text, sizeof text);
    ck_assert_ptr_nonnull(strstr(text, hopper_code_at(MARKED)->name));
    ck_assert_ptr_nonnull(strstr(text, "*.trying-*"));
    remove_files();
}
END_TEST

START_TEST(another_driver_tries_the_kernel_again)
{
    struct device device = {.handle = VK_NULL_HANDLE};
    struct hopper_states states = {.path = NULL};
    char text[256];
    open_states(&states, &device, "driver 1");
    hopper_states_refusals(&states, text, sizeof text);
    ck_assert_str_eq(text, "");
    remove_files();
}
END_TEST

START_TEST(a_kernel_in_whose_test_the_device_was_lost_once_is_tried_again)
{
    struct device device = {.handle = VK_NULL_HANDLE};
    struct hopper_states states = {.path = NULL};
    open_states(&states, &device, "driver 2\nlost");
    ck_assert_int_eq((int)states.states[MARKED], NATIVE_UNTRIED);
    remove_files();
}
END_TEST

START_TEST(a_test_that_another_process_runs_now_is_no_hang)
{
    struct device device = {.handle = VK_NULL_HANDLE};
    struct hopper_states states = {.path = NULL}, after = {.path = NULL};
    open_states(&states, &device, "driver 2");
    ck_assert_int_eq((int)states.states[MARKED], NATIVE_REFUSED);
    const int fd = open(marked_path, O_RDWR);
    ck_assert_int_eq(flock(fd, LOCK_EX), 0);
    hopper_states_init(&after, &device, NULL, path);
    ck_assert_int_eq((int)after.states[MARKED], NATIVE_UNTRIED);
    ck_assert_int_eq(close(fd), 0);
    remove_files();
}
END_TEST

// ---- extras ----

START_TEST(a_group_has_extras_of_its_own)
{
    struct geometry geometry = served();
    static const struct {
        uint32_t place, maps;
    } places[] = {{AULE_PLACE_POOL, 3 * 5}, {AULE_PLACE_BLOCKS, 3 * 5}, {AULE_PLACE_ROWS, 5 * 5}};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        uint64_t first, second;
        geometry.spec[AULE_SPEC_PLACE] = places[i].place;
        uint64_t end = hopper_measure(1000, &geometry, 5, 3, &first);
        ck_assert_uint_eq(first % 128, 0); // a tensor map's alignment is 64
        ck_assert_uint_ge(first, 1000);
        ck_assert_uint_eq(end - first, 128 + places[i].maps * 128 + 3 * 8 * AULE_TICKET_NOTES);
        hopper_measure(end, &geometry, 1, 1, &second);
        ck_assert_uint_ge(second, end);
    }
}
END_TEST

START_TEST(a_launch_has_no_more_blocks_than_units)
{
    struct geometry geometry = served();
    const uint32_t heads = geometry.spec[AULE_SPEC_NUM_KV_HEADS];
    ck_assert_uint_eq(hopper_blocks(&geometry, 3, 132), 3 * heads);
    ck_assert_uint_eq(hopper_blocks(&geometry, 1000, 132), 132);
    ck_assert_uint_eq(hopper_blocks(&geometry, UINT32_MAX, 132), 132);
}
END_TEST

int main(void)
{
    dice.state = check_draw("hopper");
    Suite *suite = suite_create("hopper");
    TCase *indices = tcase_create("indices");
    tcase_add_test(indices, every_item_and_head_is_one_unit);
    tcase_add_loop_test(indices, an_item_goes_through_the_tiles_that_its_rows_see, 0, 2);
    tcase_add_loop_test(indices, windows_and_positions_bound_the_tiles, 0, 2);
    tcase_add_test(indices, the_largest_lengths_do_not_overflow);
    tcase_add_loop_test(indices, a_tile_brings_the_keys_of_its_sequence, 0, 3);
    tcase_add_test(indices, a_warp_knows_the_places_of_all_boxes_of_a_unit);
    tcase_add_test(indices, a_row_leads_to_its_query_and_head_without_a_division);
    tcase_add_test(indices, a_whole_item_brings_the_rows_of_its_queries);
    tcase_add_test(indices, eight_rows_of_a_swizzled_column_use_all_banks);
    tcase_add_test(indices, every_shape_fits_a_multiprocessor);
    suite_add_tcase(suite, indices);
    TCase *table = tcase_create("table");
    tcase_add_test(table, what_it_does_not_know_goes_to_other_kernels);
    tcase_add_test(table, eight_bits_are_served_in_any_pair_of_types_but_not_by_scales_of_tokens);
    tcase_add_test(table, each_kernel_is_found_by_its_own_geometry);
    tcase_add_test(table, strides_that_a_map_cannot_hold_go_to_other_kernels);
#if defined AULE_HAVE_HOPPER && defined AULE_HAVE_MATRIX
    tcase_add_test(table, prompts_go_to_the_native_kernel_and_the_rest_to_shaders);
#endif
    tcase_add_test(table, a_device_that_lacks_something_hears_what);
    tcase_add_test(table, a_group_has_extras_of_its_own);
    tcase_add_test(table, a_launch_has_no_more_blocks_than_units);
    suite_add_tcase(suite, table);
    TCase *marks = tcase_create("marks");
    tcase_add_test(marks, a_kernel_whose_test_never_ended_is_not_used_again);
    tcase_add_test(marks, another_driver_tries_the_kernel_again);
    tcase_add_test(marks, a_kernel_in_whose_test_the_device_was_lost_once_is_tried_again);
    tcase_add_test(marks, a_test_that_another_process_runs_now_is_no_hang);
    suite_add_tcase(suite, marks);
    return check_main(suite);
}
