// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_opaque.c - caches of opaque blocks: their identity, the bytes that go in and out under keys,
// and what no opaque block can do. Also publications behind blocks that the caller does not name.

#include "core/pool/cache.h"
#include "core/state.h"
#include "rigs/check_main.h"
#include "rigs/ownership_world.h"

#include <string.h>

enum { BYTES = 64, KEY = WORLD_BLOCK };

static struct core_cache_identity opaque(const char *name)
{
    return (struct core_cache_identity){.name = name,
                                        .kv = {.block_size = KEY, .block_bytes = BYTES}};
}

static void open_opaque(struct worker *worker)
{
    const struct core_cache_identity identity = opaque("pages");
    struct core_cache_info info;
    ck_assert_status(core_cache_open(worker->session, &identity, &info, &error), STATUS_OK);
    ck_assert_uint_eq(info.block_bytes, BYTES);
    worker->cache = info.cache;
}

static void open_two_opaque(void)
{
    open_two();
    open_opaque(&a);
    open_opaque(&b);
}

static void move(struct worker *worker, bool out, const int32_t *ids, uint32_t count)
{
    const struct core_move_params params = {
        .cache = worker->cache, .out = out, .blocks = ids, .count = count};
    uint64_t ticket;
    ck_assert_status(core_blocks_move(worker->session, &params, &ticket, &error), STATUS_OK);
    world_finish_all(&world);
    worker_reap(worker, ticket, STATUS_OK);
}

// Leases and fills `count` blocks, in which the fake engine keeps the first bytes.
static void import(struct worker *worker, uint32_t count, int32_t *ids)
{
    worker_lease(worker, count, ids);
    for (uint32_t i = 0; i < count; i++)
        memset(worker->memory + (size_t)i * BYTES, (int)i + 1, BYTES);
    move(worker, false, ids, count);
}

static struct core_cache_view view(void)
{
    struct core_cache_view out;
    ck_assert(core_cache_view(world.core, a.cache, &out));
    return out;
}

// ---- identity ----

START_TEST(pages_go_in_under_keys_and_another_session_gets_the_same_bytes)
{
    import(&a, 3, blocks);
    worker_publish(&a, tokens, 3 * KEY, blocks);
    worker_release(&a, blocks, 3);
    ck_assert_uint_eq(worker_lookup(&b, tokens, 3 * KEY, found), 3);
    memset(b.memory, 0, 3 * BYTES);
    move(&b, true, found, 3);
    for (uint32_t i = 0; i < 3; i++)
        ck_assert_uint_eq(b.memory[(size_t)i * BYTES], i + 1);
    ck_assert_uint_eq(view().num_layers, 0);
    ck_assert_uint_eq(view().kv.num_kv_heads, 0);
}
END_TEST

START_TEST(numbers_that_opaque_blocks_do_not_have_are_refused)
{
    struct core_cache_info info;
#define REFUSED(field, value, text)                                                                \
    do {                                                                                           \
        struct core_cache_identity identity = opaque("other");                                     \
        identity.field = value;                                                                    \
        ck_assert_refused(core_cache_open(a.session, &identity, &info, &error), STATUS_INVALID,    \
                          text);                                                                   \
    } while (0)
    REFUSED(num_layers, 2, "num_layers is 2 and block_bytes 64");
    REFUSED(kv.num_kv_heads, 4, "num_kv_heads is 4");
    REFUSED(kv.head_dim_k, 8, "head_dim_k is 8");
    REFUSED(kv.head_dim_v, 8, "head_dim_v is 8");
    REFUSED(kv.v_is_k_prefix, true, "v_is_k_prefix is 1");
    REFUSED(kv.k_dtype, DTYPE_F16, "k_dtype is");
    REFUSED(kv.v_dtype, DTYPE_F16, "v_dtype is");
    REFUSED(kv.scale_mode, SCALE_PER_TENSOR, "scale_mode is 1");
    REFUSED(kv.block_bytes, 24, "block_bytes 24");
#undef REFUSED
}
END_TEST

START_TEST(another_size_of_block_is_another_identity)
{
    struct core_cache_info info;
    struct core_cache_identity identity = opaque("pages");
    identity.kv.block_bytes = 128;
    ck_assert_refused(core_cache_open(a.session, &identity, &info, &error), STATUS_MISMATCH,
                      "block_bytes 64, not 128");
    identity = world_identity("pages"); // the first number that differs says the most
    ck_assert_refused(core_cache_open(a.session, &identity, &info, &error), STATUS_MISMATCH,
                      "block_bytes 64, not 0");
}
END_TEST

static const uint8_t *name_in_tiers(const struct worker *worker)
{
    struct cache *cache;
    ck_assert_status(cache_find(&world.core->pool, worker->cache, &cache, &error), STATUS_OK);
    return cache->name_in_tiers;
}

// Another user may give the name to a cache of another size.
START_TEST(tiers_tell_blocks_of_other_sizes_apart)
{
    struct core_cache_identity large = opaque("pages");
    struct core_cache_info info;
    large.kv.block_bytes = 2 * BYTES;
    worker_open(&c, &world, 2, "");
    ck_assert_status(core_cache_open(c.session, &large, &info, &error), STATUS_OK);
    c.cache = info.cache;
    ck_assert_mem_eq(name_in_tiers(&a), name_in_tiers(&b), STORED_ID_BYTES);
    ck_assert_mem_ne(name_in_tiers(&a), name_in_tiers(&c), STORED_ID_BYTES);
}
END_TEST

START_TEST(no_batch_is_made_over_opaque_blocks)
{
    const int32_t cu[] = {0, 1}, lens[] = {1};
    uint64_t batch;
    uint32_t count;
    worker_lease(&a, 1, blocks);
    const struct core_batch_params params = sequences_over(a.cache, 1, cu, lens, blocks, 1);
    ck_assert_refused(world_create(a.session, &params, &batch, &count, &error), STATUS_UNSUPPORTED,
                      "cache \"pages\" has opaque blocks (block_bytes 64)");
}
END_TEST

// ---- behind blocks that are not named ----

START_TEST(a_tail_is_published_behind_blocks_that_the_session_does_not_hold)
{
    import(&a, 2, blocks);
    worker_publish(&a, tokens, 2 * KEY, blocks);
    worker_release(&a, blocks, 2);
    int32_t tail[] = {-1, -1, 0, 0};
    import(&b, 2, tail + 2);
    const int32_t given[] = {tail[2], tail[3]};
    ck_assert_uint_eq(worker_publish(&b, tokens, 4 * KEY, tail), 0);
    ck_assert_int_eq(tail[0], -1);
    ck_assert_int_eq(tail[1], -1);
    ck_assert_mem_eq(tail + 2, given, sizeof given);
    ck_assert_uint_eq(b.session->num_blocks, 2); // no hold of the others
    ck_assert_uint_eq(worker_lookup(&a, tokens, 4 * KEY, found), 4);
    ck_assert_mem_eq(found, blocks, 2 * sizeof *found);
    ck_assert_mem_eq(found + 2, given, sizeof given);
    int32_t none[] = {-1, -1}; // publishes nothing, and says whether they are there
    ck_assert_uint_eq(worker_publish(&b, tokens, 2 * KEY, none), 0);
}
END_TEST

START_TEST(without_the_blocks_before_it_no_tail_is_published_and_nothing_is_sealed)
{
    uint32_t existing;
    import(&a, 2, blocks);
    worker_publish(&a, tokens, 2 * KEY, blocks);
    worker_release(&a, blocks, 2);
    int32_t all[64], tail[] = {-1, -1, 0};
    worker_lease(&a, 64, all); // evicts both
    worker_release(&a, all, 64);
    import(&b, 1, tail + 2);
    ck_assert_refused(worker_try_publish(&b, tokens, 3 * KEY, tail, &existing, &error),
                      STATUS_NOT_FOUND, "blocks[0] = -1, but no block is published");
    ck_assert_state(tail[2], CORE_LEASED);
    import(&a, 1, blocks);
    worker_publish(&a, tokens, KEY, blocks);
    ck_assert_refused(worker_try_publish(&b, tokens, 3 * KEY, tail, &existing, &error),
                      STATUS_NOT_FOUND, "blocks[1] = -1");
    ck_assert_state(tail[2], CORE_LEASED);
    int32_t gap[] = {tail[2], -1};
    ck_assert_refused(worker_try_publish(&b, tokens, 2 * KEY, gap, &existing, &error),
                      STATUS_OUT_OF_RANGE, "blocks[1] = -1");
    ck_assert_uint_eq(view().published, 1);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("opaque");
    check_case(suite, "opaque", open_two_opaque, close_all,
               (const TTest *const[]){
                   pages_go_in_under_keys_and_another_session_gets_the_same_bytes,
                   numbers_that_opaque_blocks_do_not_have_are_refused,
                   another_size_of_block_is_another_identity,
                   tiers_tell_blocks_of_other_sizes_apart, no_batch_is_made_over_opaque_blocks,
                   a_tail_is_published_behind_blocks_that_the_session_does_not_hold,
                   without_the_blocks_before_it_no_tail_is_published_and_nothing_is_sealed, NULL},
               1);
    return check_main(suite);
}
