// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_hopper.c - the native kernels without a GPU: their index arithmetic, run on the host by the
// header that the kernels include (shaders/hopper/index.h), and what they serve. Copies are
// emulated by the tensor map's own words.

#include "engine/kernels/hopper.h"
#include "engine/kernels/variant.h"
#include "rigs/check_main.h"
#include "rigs/dice.h"
#include "shaders/hopper/index.h"

#include <string.h>

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

// By the definition: does query `query` see key `key`?
static bool sees(uint32_t query, uint32_t key, uint32_t q_len, uint32_t kv_len, bool causal)
{
    return query < q_len && key < kv_len &&
           (!causal || (int64_t)key <= (int64_t)kv_len - q_len + query);
}

// Compares a span with a count over all rows and keys of the item.
static void check_span(uint32_t first_row, uint32_t tokens, uint32_t q_len, uint32_t kv_len,
                       uint32_t group, bool causal)
{
    struct hopper_span span =
        hopper_span_of(first_row, tokens, q_len, kv_len, group, (uint32_t)causal);
    uint32_t end = 0, all_see = UINT32_MAX;
    for (uint32_t row = first_row; row < first_row + HOPPER_ROWS && row < tokens * group; row++) {
        uint32_t query = row / group, seen = 0;
        while (seen < kv_len && sees(query, seen, q_len, kv_len, causal))
            seen++;
        ck_assert_uint_eq(hopper_seen(query, q_len, kv_len, causal), seen);
        end = seen > end ? seen : end;
        if (query < q_len && seen < all_see)
            all_see = seen;
    }
    ck_assert_uint_eq(span.tiles, (end + HOPPER_KEYS - 1) / HOPPER_KEYS);
    ck_assert_uint_eq(span.num_rows, tokens * group - first_row < HOPPER_ROWS
                                         ? tokens * group - first_row
                                         : HOPPER_ROWS);
    if (span.tiles == 0)
        return;
    // Tiles before the masked ones are seen whole, and a row's last key is in a masked one.
    ck_assert_uint_lt(span.masked, span.tiles);
    ck_assert_uint_le(span.masked * HOPPER_KEYS, all_see);
    ck_assert(all_see == 0 || (span.masked + 1) * HOPPER_KEYS >= all_see);
}

START_TEST(an_item_goes_through_the_tiles_that_its_rows_see)
{
    for (int i = 0; i < 2000; i++) {
        uint32_t group = dice_between(&dice, 1, 64), q_len = dice_between(&dice, 1, 200);
        uint32_t tokens = q_len + dice_below(&dice, 3) * dice_below(&dice, 40);
        uint32_t kv_len =
            dice_below(&dice, 2) ? q_len + dice_below(&dice, 700) : dice_below(&dice, 2 * q_len);
        uint32_t items = (tokens * group + HOPPER_ROWS - 1) / HOPPER_ROWS;
        check_span(dice_below(&dice, items) * HOPPER_ROWS, tokens, q_len, kv_len, group,
                   dice_below(&dice, 4) > 0);
    }
}
END_TEST

START_TEST(the_largest_lengths_do_not_overflow)
{
    const uint32_t most = INT32_MAX;
    ck_assert_uint_eq(hopper_seen(0, 1, most, 1), most);
    ck_assert_uint_eq(hopper_seen(most - 1, most, most, 1), most);
    ck_assert_uint_eq(hopper_seen(0, most, most, 1), 1);
    ck_assert_uint_eq(hopper_seen(0, most, 0, 1), 0);
    struct hopper_span span = hopper_span_of(0, 32, 32, most, 4, 1);
    ck_assert_uint_eq(span.tiles, 1u << 24);
    ck_assert_uint_eq(span.masked, (1u << 24) - 1);
}
END_TEST

// ---- copies ----

// What a copy of a box does, by the words of its map: finds the bytes of each line in memory, and
// puts them where the swizzle of 128 bytes puts them.
struct copied {
    uint64_t from; // of 16 bytes; 0: zeros
};
static struct copied shared[HOPPER_TILE_BYTES / 16];

static void copy_box(const uint32_t map[HOPPER_MAP_WORDS], uint32_t to, uint32_t x, uint32_t y,
                     uint32_t z)
{
    uint64_t base = map[0] | (uint64_t)map[1] << 32;
    uint64_t strides[2] = {(uint64_t)map[3] << 4, (uint64_t)map[4] << 4};
    uint32_t line_elements = (map[13] >> 24) + 1, lines = (map[14] & 0xff) + 1;
    ck_assert_uint_eq((map[2] >> 4 & 7) + 1, 3);             // dimensions
    ck_assert_uint_eq(line_elements * 2, HOPPER_LINE_BYTES); // of two bytes
    ck_assert_uint_eq(map[2] >> 13 & 3, 3);                  // swizzle of 128 bytes
    for (uint32_t line = 0; line < lines; line++)
        for (uint32_t chunk = 0; chunk < 8; chunk++) {
            bool inside = x + 8 * chunk <= map[8] && y + line <= map[9] && z <= map[10];
            uint32_t at = to + line * HOPPER_LINE_BYTES + chunk * 16;
            at ^= (at >> 7 & 7) << 4;
            shared[at / 16].from =
                inside ? base + z * strides[1] + (y + line) * strides[0] + (x + 8 * chunk) * 2 : 0;
        }
}

// Copies a tile of K or V as the kernel does.
static void copy_tile(uint32_t tile, uint32_t block_size, uint32_t kv_len, uint32_t heads,
                      uint32_t head, uint32_t which, const uint32_t *table, const uint64_t *chunks,
                      uint32_t chunk_shift)
{
    uint32_t box_keys = hopper_box_keys(block_size), map[HOPPER_MAP_WORDS];
    hopper_map(map, (uint32_t)HOPPER_LEAST_BLOCK << hopper_map_number(block_size));
    memset(shared, 0, sizeof shared);
    for (uint32_t lane = 0; lane < 2 * HOPPER_KEYS / box_keys; lane++) {
        uint32_t half = lane & 1, box = lane >> 1;
        uint32_t block = table[hopper_box_part(tile, box, block_size, kv_len)];
        struct hopper_place place = hopper_place_of(
            chunks[block >> chunk_shift] +
            hopper_box_offset(block, chunk_shift, tile, block_size, heads, head, which));
        copy_box(map, half * HOPPER_HALF_BYTES + box * box_keys * HOPPER_LINE_BYTES,
                 half * HOPPER_HALF, place.row, place.window);
    }
}

// Where chunk `part` of a key lies in the pool, by DESIGN: [block][K, V][head][key][dim].
static uint64_t pool_address(uint32_t key, uint32_t part, uint32_t block_size, uint32_t heads,
                             uint32_t head, uint32_t which, const uint32_t *table,
                             const uint64_t *chunks, uint32_t chunk_shift)
{
    uint32_t block = table[key / block_size], in_chunk = block % (1u << chunk_shift);
    uint64_t row =
        ((uint64_t)(in_chunk * 2 + which) * heads + head) * block_size + key % block_size;
    return chunks[block >> chunk_shift] + row * HOPPER_ROW_BYTES + part * 16;
}

START_TEST(a_tile_brings_the_keys_of_its_blocks)
{
    enum { BLOCKS = 64, CHUNK_SHIFT = 3 };
    uint32_t block_size = (uint32_t)HOPPER_LEAST_BLOCK << _i, table[BLOCKS];
    // One chunk lies across the border of two windows of 4 GiB.
    uint64_t chunks[BLOCKS >> CHUNK_SHIFT];
    for (uint32_t i = 0; i < BLOCKS >> CHUNK_SHIFT; i++)
        chunks[i] = UINT64_C(0x7f1200000000) + i * UINT64_C(0x40000000) - (i == 4 ? 0x1300 : 0);
    for (int round = 0; round < 50; round++) {
        uint32_t heads = dice_between(&dice, 1, 9), head = dice_below(&dice, heads);
        uint32_t kv_len = dice_between(&dice, 1, BLOCKS * block_size), which = round & 1;
        uint32_t tile = dice_below(&dice, (kv_len + HOPPER_KEYS - 1) / HOPPER_KEYS);
        for (uint32_t i = 0; i < BLOCKS; i++)
            table[i] = dice_below(&dice, BLOCKS);
        for (uint32_t i = (kv_len - 1) / block_size + 1; i < BLOCKS; i++)
            table[i] = UINT32_MAX; // behind the last key there may be anything
        copy_tile(tile, block_size, kv_len, heads, head, which, table, chunks, CHUNK_SHIFT);
        for (uint32_t row = 0; row < HOPPER_KEYS; row++)
            for (uint32_t part = 0; part < 16; part++) {
                uint64_t from = shared[hopper_swizzled(row, part) / 16].from;
                uint32_t key = tile * HOPPER_KEYS + row;
                ck_assert_uint_ne(from, 0);
                if (key < kv_len)
                    ck_assert_uint_eq(from, pool_address(key, part, block_size, heads, head, which,
                                                         table, chunks, CHUNK_SHIFT));
            }
    }
}
END_TEST

START_TEST(eight_rows_of_a_swizzled_column_use_all_banks)
{
    for (uint32_t chunk = 0; chunk < 16; chunk++)
        for (uint32_t row = 0; row < HOPPER_ROWS; row += 8) {
            uint32_t banks = 0; // of 16 bytes
            for (uint32_t i = 0; i < 8; i++)
                banks |= 1u << (hopper_swizzled(row + i, chunk) / 16 % 8);
            ck_assert_uint_eq(banks, 0xff);
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
        {AULE_SPEC_HEAD_DIM_V, 256},
        {AULE_SPEC_BLOCK_SIZE, 8},
        {AULE_SPEC_BLOCK_SIZE, 512},
        {AULE_SPEC_K_DTYPE, DTYPE_FP8_E4M3},
        {AULE_SPEC_V_DTYPE, DTYPE_BF16},
        {AULE_SPEC_IO_DTYPE, DTYPE_F32},
        {AULE_SPEC_PLACE, AULE_PLACE_BLOCKS},
        {AULE_SPEC_PLACE, AULE_PLACE_ROWS},
        {AULE_SPEC_V_IN_K, 1},
        {AULE_SPEC_SCALE_MODE, AULE_SCALE_TENSOR_MODE},
        {AULE_SPEC_FEATURES, AULE_FEATURE_WINDOW},
        {AULE_SPEC_FEATURES, AULE_FEATURE_SINKS | AULE_FEATURE_LSE},
        {AULE_SPEC_FEATURES, AULE_FEATURE_ROPE},
    };
    struct geometry geometry = served();
    ck_assert(hopper_serves(&geometry, DTYPE_F16));
    ck_assert(!hopper_serves(&geometry, DTYPE_BF16));
    for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
        geometry = served();
        geometry.spec[others[i].spec] = others[i].value;
        ck_assert_msg(!hopper_serves(&geometry, DTYPE_F16), "entry %zu", i);
    }
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
    ck_assert_str_eq(kernel_for(&geometry, 4096), "attention_hopper_f16");
    ck_assert_str_eq(kernel_for(&geometry, 4), "attention_decode_matrix");
    geometry.spec[AULE_SPEC_FEATURES] |= AULE_FEATURE_SINKS;
    ck_assert_str_eq(kernel_for(&geometry, 4096), "attention_prefill_matrix");
    geometry = served();
    geometry.spec[AULE_SPEC_K_DTYPE] = geometry.spec[AULE_SPEC_V_DTYPE] = DTYPE_BF16;
    geometry.spec[AULE_SPEC_IO_DTYPE] = DTYPE_BF16;
    ck_assert_str_eq(kernel_for(&geometry, 4096), "attention_hopper_bf16");
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
    ck_assert_str_eq(text, "");
    strcpy(adapter.natives.failure, "the driver refuses kernel x");
    hopper_missing(&adapter, text, sizeof text);
    ck_assert_ptr_nonnull(strstr(text, "the driver refuses kernel x"));
#endif
}
END_TEST

// ---- extras ----

START_TEST(a_group_has_extras_of_its_own)
{
    uint64_t first, second, end = hopper_measure(1000, 3, 8, &first);
    ck_assert_uint_eq(first % 128, 0); // a tensor map's alignment is 64
    ck_assert_uint_ge(first, 1000);
    ck_assert_uint_eq(end - first, HOPPER_NUM_MAPS * 128 + sizeof(struct gpu_tickets) +
                                       3 * 8 * AULE_TICKET_NOTES);
    end = hopper_measure(end, 1, 1, &second);
    ck_assert_uint_ge(second, first);
    uint32_t words[HOPPER_NUM_MAPS * HOPPER_MAP_WORDS + sizeof(struct gpu_tickets) / 4];
    memset(words, 0xff, sizeof words);
    hopper_put(words);
    for (uint32_t i = 0; i < HOPPER_NUM_MAPS; i++)
        ck_assert_uint_eq(words[i * HOPPER_MAP_WORDS + 14], (16u << i) - 1);
    for (uint32_t i = 0; i < sizeof(struct gpu_tickets) / 4; i++)
        ck_assert_uint_eq(words[HOPPER_NUM_MAPS * HOPPER_MAP_WORDS + i], 0);
}
END_TEST

int main(void)
{
    dice.state = check_draw("hopper");
    Suite *suite = suite_create("hopper");
    TCase *indices = tcase_create("indices");
    tcase_add_test(indices, every_item_and_head_is_one_unit);
    tcase_add_test(indices, an_item_goes_through_the_tiles_that_its_rows_see);
    tcase_add_test(indices, the_largest_lengths_do_not_overflow);
    tcase_add_loop_test(indices, a_tile_brings_the_keys_of_its_blocks, 0, 5);
    tcase_add_test(indices, eight_rows_of_a_swizzled_column_use_all_banks);
    suite_add_tcase(suite, indices);
    TCase *table = tcase_create("table");
    tcase_add_test(table, what_it_does_not_know_goes_to_other_kernels);
#if defined AULE_HAVE_HOPPER && defined AULE_HAVE_MATRIX
    tcase_add_test(table, prompts_go_to_the_native_kernel_and_the_rest_to_shaders);
#endif
    tcase_add_test(table, a_device_that_lacks_something_hears_what);
    tcase_add_test(table, a_group_has_extras_of_its_own);
    suite_add_tcase(suite, table);
    return check_main(suite);
}
