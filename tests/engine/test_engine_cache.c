// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_engine_cache.c - memory for blocks: what is refused, growing, shrinking, reading and writing
// a block.

#include "rigs/engine_world.h"

#include <malloc.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

// `good` with one value changed, and the error of the check.
struct refusal {
    enum status status;
    const char *sentence;
    enum engine_place place;
    struct engine_kv kv;
};

#define KV(...)                                                                                    \
    {                                                                                              \
        .num_kv_heads = 4, .head_dim_k = 64, .head_dim_v = 64, .block_size = BLOCK,                \
        .k_dtype = DTYPE_F16, .v_dtype = DTYPE_F16, __VA_ARGS__                                    \
    }
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Woverride-init"
static const struct refusal refusals[] = {
    {STATUS_UNSUPPORTED, "head_dim_k 12", ENGINE_POOL, KV(.head_dim_k = 12)},
    {STATUS_UNSUPPORTED, "head_dim_k 0", ENGINE_POOL, KV(.head_dim_k = 0)},
    {STATUS_UNSUPPORTED, "head_dim_k 584", ENGINE_POOL, KV(.head_dim_k = 584)},
    {STATUS_UNSUPPORTED, "head_dim_v 520", ENGINE_POOL, KV(.head_dim_v = 520)},
    {STATUS_INVALID, "head_dim_v 72 is more than head_dim_k 64", ENGINE_POOL,
     KV(.head_dim_v = 72, .v_is_k_prefix = true)},
    {STATUS_INVALID, "V dtype bf16 is not K's, f16", ENGINE_POOL,
     KV(.v_dtype = DTYPE_BF16, .v_is_k_prefix = true)},
    {STATUS_UNSUPPORTED, "block_size 4", ENGINE_POOL, KV(.block_size = 4)},
    {STATUS_UNSUPPORTED, "block_size 512", ENGINE_POOL, KV(.block_size = 512)},
    {STATUS_UNSUPPORTED, "block_size 24", ENGINE_BLOCKS, KV(.block_size = 24)},
    {STATUS_INVALID, "block_size 8: contiguous", ENGINE_ROWS, KV(.block_size = 8)},
    {STATUS_UNSUPPORTED, "K dtype unknown (77)", ENGINE_POOL, KV(.k_dtype = (enum dtype)77)},
    {STATUS_UNSUPPORTED, "V dtype unknown (0)", ENGINE_POOL, KV(.v_dtype = (enum dtype)0)},
    {STATUS_UNSUPPORTED, "num_kv_heads 0", ENGINE_POOL, KV(.num_kv_heads = 0)},
    {STATUS_INVALID, "only 8-bit dtypes are scaled, not K f16 and V f16", ENGINE_POOL,
     KV(.scale_mode = SCALE_PER_TENSOR)},
    {STATUS_UNSUPPORTED, "scale mode 3", ENGINE_POOL,
     KV(.k_dtype = DTYPE_INT8, .scale_mode = (enum scale_mode)3)},
    {STATUS_UNSUPPORTED, "scales per token and head", ENGINE_BLOCKS,
     KV(.k_dtype = DTYPE_INT8, .scale_mode = SCALE_PER_TOKEN_HEAD)},
    {STATUS_OK, "", ENGINE_POOL, KV(.head_dim_k = 576, .head_dim_v = 512, .v_is_k_prefix = true)},
    {STATUS_OK, "", ENGINE_POOL, KV(.head_dim_v = 512)},
    {STATUS_OK, "", ENGINE_POOL, KV(.k_dtype = DTYPE_BF16, .v_dtype = DTYPE_FP8_E5M2)},
    {STATUS_OK, "", ENGINE_POOL, KV(.v_dtype = DTYPE_FP8_E4M3, .scale_mode = SCALE_PER_TOKEN_HEAD)},
    {STATUS_OK, "", ENGINE_BLOCKS, KV(.k_dtype = DTYPE_INT8, .scale_mode = SCALE_PER_TENSOR)},
    {STATUS_OK, "", ENGINE_ROWS, KV(.block_size = 0)},
};
#pragma GCC diagnostic pop

START_TEST(kv_check_names_what_has_no_shader_and_what_contradicts)
{
    for (size_t i = 0; i < sizeof refusals / sizeof *refusals; i++) {
        const struct refusal *refusal = &refusals[i];
        struct error error = {0};
        ck_assert_msg(engine_kv_check(engine, refusal->place, &refusal->kv, &error) ==
                          refusal->status,
                      "%zu: %s", i, error.text);
        ck_assert_msg(strstr(error.text, refusal->sentence) != NULL, "'%s' is not in: %s",
                      refusal->sentence, error.text);
        if (refusal->place != ENGINE_POOL)
            continue;
        struct engine_cache_params params = {.num_layers = 1, .chunk_blocks = 1, .kv = refusal->kv};
        ck_assert_int_eq(engine_cache_check(engine, &params, &error), refusal->status);
    }
}
END_TEST

START_TEST(cache_check_names_what_the_device_cannot_hold)
{
    struct engine_cache_params good = shape(2, 4, 64, DTYPE_F16);
    struct {
        struct engine_cache_params params;
        enum status status;
        const char *value;
    } cases[] = {
        {good, STATUS_INVALID, "chunk_blocks 6"},
        {good, STATUS_INVALID, "num_layers is 0"},
        {good, STATUS_UNSUPPORTED, "1073741824 blocks"},
        {good, STATUS_UNSUPPORTED, "head_dim_k 12"},
    };
    cases[0].params.chunk_blocks = 6;
    cases[1].params.num_layers = 0;
    cases[2].params.chunk_blocks = 1u << 30;
    cases[3].params.kv.head_dim_k = 12;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct error error = {0};
        struct engine_cache *cache = NULL;
        ck_assert_int_eq(engine_cache_check(engine, &cases[i].params, &error), cases[i].status);
        ck_assert_msg(strstr(error.text, cases[i].value) != NULL, "'%s' is not in: %s",
                      cases[i].value, error.text);
        ck_assert_int_eq(engine_cache_create(engine, &cases[i].params, &cache, &error),
                         cases[i].status);
        ck_assert_ptr_null(cache);
    }
    ck_assert_int_eq(engine_cache_check(engine, &good, NULL), STATUS_OK);
}
END_TEST

START_TEST(block_bytes_count_k_v_and_scales_of_every_layer)
{
    struct engine_cache_params params = shape(3, 4, 64, DTYPE_F16);
    params.kv.v_dtype = DTYPE_F32;
    ck_assert_uint_eq(engine_layer_block_bytes(&params), 4 * BLOCK * 64 * (2 + 4));
    ck_assert_uint_eq(engine_block_bytes(&params), 3 * 4 * BLOCK * 64 * (2 + 4));
    params.kv.v_dtype = DTYPE_INT8;
    params.kv.scale_mode = SCALE_PER_TENSOR;
    ck_assert_uint_eq(engine_layer_block_bytes(&params), 4 * BLOCK * 64 * (2 + 1));
    params.kv.scale_mode = SCALE_PER_TOKEN_HEAD;
    ck_assert_uint_eq(engine_layer_block_bytes(&params), 4 * BLOCK * (64 * (2 + 1) + 2 * 4));
    params.kv = (struct engine_kv){.num_kv_heads = 1,
                                   .head_dim_k = 576,
                                   .head_dim_v = 512,
                                   .block_size = 64,
                                   .k_dtype = DTYPE_FP8_E4M3,
                                   .v_dtype = DTYPE_FP8_E4M3,
                                   .v_is_k_prefix = true};
    ck_assert_uint_eq(engine_layer_block_bytes(&params), 64 * 576);
    params.kv.scale_mode = SCALE_PER_TOKEN_HEAD;
    ck_assert_uint_eq(engine_layer_block_bytes(&params), 64 * (576 + 4));
}
END_TEST

START_TEST(new_chunk_is_zero_and_keeps_what_is_written)
{
    struct engine_cache *cache = open_cache(shape(3, 2, 16, DTYPE_F16));
    unsigned char bytes[2 * BLOCK * 16 * 2 * 2];
    ck_assert_uint_eq(engine_layer_block_bytes(&cache->params), sizeof bytes);
    mallopt(M_PERTURB, 0x5a); // otherwise fresh memory of a software device would be zero by chance
    grow_chunk(cache, 0);
    for (uint32_t layer = 0; layer < 3; layer++)
        for (int32_t block = 0; block < 4; block++)
            expect_block(cache, layer, block, zero_block);
    write_pattern(cache, 1, 2, bytes);
    for (uint32_t layer = 0; layer < 3; layer++)
        for (int32_t block = 0; block < 4; block++)
            expect_block(cache, layer, block,
                         layer == 1 && block == 2 ? (char *)bytes : zero_block);
    engine_cache_destroy(cache);
}
END_TEST

START_TEST(growing_moves_no_block_whatever_the_order)
{
    struct engine_cache *cache = plain_cache();
    unsigned char first[512], last[512];
    write_pattern(cache, 1, 3, first);
    uint64_t address = cache_block_address(cache, 1, 3);
    grow_chunk(cache, 9); // more chunks than the first table holds
    grow_chunk(cache, 3);
    write_pattern(cache, 0, 9 * 4 + 1, last);
    expect_block(cache, 1, 3, first);
    expect_block(cache, 0, 9 * 4 + 1, last);
    expect_block(cache, 1, 3 * 4, zero_block);
    ck_assert_uint_eq(cache_block_address(cache, 1, 3), address);
    engine_cache_destroy(cache);
}
END_TEST

START_TEST(chunk_is_split_by_whole_layers_where_the_device_allows_no_more)
{
    struct engine_cache_params params = shape(5, 4, 64, DTYPE_F32);
    params.chunk_blocks = 64;
    uint64_t layer_bytes = engine_layer_block_bytes(&params) * params.chunk_blocks;
    engine->device.adapter.info.max_allocation_bytes =
        2 * layer_bytes + 100; // two layers and a bit more
    struct engine_cache *cache = open_cache(params);
    grow_chunk(cache, 0);
    size_t size = engine_layer_block_bytes(&params);
    unsigned char *bytes = malloc(5 * size);
    for (uint32_t layer = 0; layer < 5; layer++)
        write_pattern(cache, layer, 63, bytes + layer * size);
    for (uint32_t layer = 0; layer < 5; layer++) {
        expect_block(cache, layer, 63, bytes + layer * size);
        expect_block(cache, layer, 62, zero_block);
    }
    ck_assert_uint_eq(cache_block_address(cache, 1, 0) - cache_block_address(cache, 0, 0),
                      layer_bytes);
    ck_assert_uint_eq(cache_block_address(cache, 3, 0) - cache_block_address(cache, 2, 0),
                      layer_bytes);
    free(bytes);
    engine_cache_destroy(cache);
}
END_TEST

START_TEST(chunk_given_back_is_gone_and_returns_zeroed)
{
    struct engine_cache *cache = plain_cache();
    unsigned char bytes[512], untouched[512] = {1};
    grow_chunk(cache, 1);
    write_pattern(cache, 0, 5, bytes);
    engine_cache_shrink(cache, 1);
    ck_assert_int_eq(engine_block_read(cache, 0, 5, untouched), STATUS_OUT_OF_RANGE);
    ck_assert_int_eq(engine_block_write(cache, 0, 5, bytes), STATUS_OUT_OF_RANGE);
    ck_assert_uint_eq(untouched[0], 1);
    grow_chunk(cache, 1);
    expect_block(cache, 0, 5, zero_block);
    engine_cache_destroy(cache);
}
END_TEST

START_TEST(chunk_given_back_leaves_no_address_in_the_table)
{
    struct engine_cache *cache = plain_cache();
    grow_chunk(cache, 1);
    const uint64_t *table = cache->table.mapped;
    ck_assert_uint_ne(table[0], 0);
    engine_cache_shrink(cache, 0);
    grow_chunk(cache, 5); // another table, and a read beyond the end of the chunk
    table = cache->table.mapped;
    ck_assert_uint_eq(table[0], 0);
    ck_assert_uint_eq(table[1], 0);
    ck_assert_uint_ne(table[2], 0);
    engine_cache_shrink(cache, 1);
    grow_chunk(cache, 2);
    ck_assert_uint_eq(table[2], 0);
    ck_assert_uint_eq(table[3], 0);
    ck_assert_uint_ne(table[4], 0);
    engine_cache_destroy(cache);
}
END_TEST

START_TEST(block_that_shaders_cannot_count_is_refused)
{
    struct engine_cache_params params = shape(1, 8192, 256, DTYPE_F32);
    struct error error = {0};
    params.kv.block_size = 256;
    params.chunk_blocks = 1;
    engine->device.adapter.info.max_allocation_bytes = UINT64_C(1) << 40;
    ck_assert_int_eq(engine_cache_check(engine, &params, &error), STATUS_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(error.text, "4294967296 bytes"));
    params.kv.num_kv_heads--;
    ck_assert_int_eq(engine_cache_check(engine, &params, NULL), STATUS_OK);
}
END_TEST

START_TEST(block_of_no_chunk_or_layer_is_out_of_range)
{
    struct engine_cache *cache = plain_cache();
    char bytes[512] = {0};
    ck_assert_int_eq(engine_block_read(cache, 0, -1, bytes), STATUS_OUT_OF_RANGE);
    ck_assert_int_eq(engine_block_read(cache, 0, 4, bytes), STATUS_OUT_OF_RANGE);
    ck_assert_int_eq(engine_block_read(cache, 2, 0, bytes), STATUS_OUT_OF_RANGE);
    ck_assert_int_eq(engine_block_write(cache, 0, 1 << 30, bytes), STATUS_OUT_OF_RANGE);
    engine_cache_destroy(cache);
}
END_TEST

START_TEST(chunk_that_is_there_is_not_grown_again)
{
    struct engine_cache *cache = plain_cache();
    unsigned char bytes[512];
    write_pattern(cache, 0, 1, bytes);
    engine_cache_grow(cache, 0);
    struct engine_event event = expect_event(ENGINE_EVENT_CHUNK);
    ck_assert_int_eq(event.error.status, STATUS_INVALID);
    expect_block(cache, 0, 1, bytes);
    engine_cache_destroy(cache);
}
END_TEST

// Address space that this process may still allocate.
static void leave_room(uint64_t bytes)
{
    unsigned long long pages = 0;
    FILE *file = fopen("/proc/self/statm", "r");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fscanf(file, "%llu", &pages), 1);
    fclose(file);
    rlim_t limit = pages * (rlim_t)sysconf(_SC_PAGESIZE) + bytes;
    ck_assert_int_eq(setrlimit(RLIMIT_AS, &(struct rlimit){limit, limit}), 0);
}

START_TEST(growth_without_memory_is_told_and_harms_nothing)
{
    if (!engine_device(engine)->software)
        return; // only a device that allocates from this process can run out of memory here
    struct engine_cache *cache = plain_cache();
    struct engine_cache_params params = shape(1, 1, 256, DTYPE_F32);
    params.chunk_blocks = 32768; // 512 MiB
    struct engine_cache *large = open_cache(params);
    unsigned char bytes[512];
    write_pattern(cache, 0, 1, bytes);
    leave_room(UINT64_C(128) << 20);
    engine_cache_grow(large, 0);
    struct engine_event event = expect_event(ENGINE_EVENT_CHUNK);
    ck_assert_ptr_eq(event.cache, large);
    ck_assert_int_eq(event.error.status, STATUS_NO_MEMORY);
    ck_assert_msg(strstr(event.error.text, "536870912") != NULL, "no bytes in: %s",
                  event.error.text);
    expect_block(cache, 0, 1, bytes);
    grow_chunk(cache, 1);
    engine_cache_destroy(large);
    engine_cache_destroy(cache);
}
END_TEST

START_TEST(destroyed_cache_is_heard_of_no_more)
{
    struct engine_cache *cache = open_cache(shape(2, 1, 8, DTYPE_F32));
    for (uint32_t chunk = 0; chunk < 20; chunk++)
        engine_cache_grow(cache, chunk);
    AWAIT(DEADLINE_S, atomic_load(&wakes) > 0);
    engine_cache_destroy(cache); // some chunks exist and were not reported yet, others are being
                                 // made
    struct engine_cache *other = plain_cache(); // its event is the next one
    engine_cache_destroy(other);
    struct engine_event event;
    ck_assert(!engine_poll(engine, &event));
}
END_TEST

START_TEST(memory_of_caches_comes_back)
{
    uint64_t before = atomic_load(&engine->device.pool_bytes);
    struct engine_cache *cache = open_cache(shape(2, 4, 64, DTYPE_F32));
    grow_chunk(cache, 0);
    uint64_t chunk_bytes = engine_block_bytes(&cache->params) * 4;
    ck_assert_uint_ge(atomic_load(&engine->device.pool_bytes), before + chunk_bytes);
    engine_cache_destroy(cache);
    // A slab of metadata is kept for reuse.
    AWAIT(DEADLINE_S, atomic_load(&engine->device.pool_bytes) <= before + (1 << 20));
}
END_TEST

void add_cache_tests(Suite *suite)
{
    TCase *tcase = tcase_create("caches");
    tcase_add_checked_fixture(tcase, setup_import, teardown);
    tcase_add_test(tcase, kv_check_names_what_has_no_shader_and_what_contradicts);
    tcase_add_test(tcase, cache_check_names_what_the_device_cannot_hold);
    tcase_add_test(tcase, block_bytes_count_k_v_and_scales_of_every_layer);
    tcase_add_test(tcase, new_chunk_is_zero_and_keeps_what_is_written);
    tcase_add_test(tcase, growing_moves_no_block_whatever_the_order);
    tcase_add_test(tcase, chunk_is_split_by_whole_layers_where_the_device_allows_no_more);
    tcase_add_test(tcase, chunk_given_back_is_gone_and_returns_zeroed);
    tcase_add_test(tcase, chunk_given_back_leaves_no_address_in_the_table);
    tcase_add_test(tcase, block_that_shaders_cannot_count_is_refused);
    tcase_add_test(tcase, block_of_no_chunk_or_layer_is_out_of_range);
    tcase_add_test(tcase, chunk_that_is_there_is_not_grown_again);
    tcase_add_test(tcase, growth_without_memory_is_told_and_harms_nothing);
    tcase_add_test(tcase, destroyed_cache_is_heard_of_no_more);
    tcase_add_test(tcase, memory_of_caches_comes_back);
    suite_add_tcase(suite, tcase);
}
