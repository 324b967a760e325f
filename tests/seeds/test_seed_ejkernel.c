// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_seed_ejkernel.c - page_attention() of ejkernel: query [num_seqs, heads, dim], key and value
// caches [num_blocks, kv_heads, block_size, dim], block tables [[3, 7, 0], [1, 5, 0]] padded with
// 0, context lengths [32, 24]; and each of its options that has a meaning here.
// (pages_per_compute_block, megacore_mode and inline_seq_dim schedule TPUs and change no result.)

#include "rigs/seed_world.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    NUM_SEQS = 2,
    BLOCK = 16,
    COLUMNS = 3,
    NUM_BLOCKS = 8,
    OUT_SIZE = NUM_SEQS * SEED_HEADS * SEED_DIM
};
static const int32_t cu_q[] = {0, 1, 2}, context_lens[] = {32, 24};
static const int32_t block_tables[NUM_SEQS * COLUMNS] = {3, 7, 0, 1, 5, 0};
#define SEED_MASK_VALUE (-2.381976426469702e38f) // the default of the seed

// ---- the call ----

struct pages {
    struct aule_session *session;
    struct seed_blocks caches;
    struct seed_step step;
    struct aule_batch_params params;
    struct aule_run_params run;
};

static void open_pages(struct pages *pages, const int32_t *lens, const int32_t *tables,
                       uint32_t columns, uint32_t num_blocks)
{
    *pages = (struct pages){.session = seed_open(0)};
    pages->caches = (struct seed_blocks){.session = pages->session,
                                         .dtype = AULE_F32,
                                         .num_blocks = num_blocks,
                                         .block_size = BLOCK,
                                         .heads_first = true};
    seed_blocks_open(&pages->caches);
    for (int32_t s = 0; s < NUM_SEQS; s++)
        seed_blocks_put(&pages->caches, tables + (size_t)s * columns, s, 0, lens[s]);
    pages->step = (struct seed_step){.session = pages->session,
                                     .dtype = AULE_F32,
                                     .num_seqs = NUM_SEQS,
                                     .cu_q = cu_q,
                                     .lens = lens};
    seed_step_open(&pages->step);
    pages->params = seed_step_batch(&pages->step);
    pages->params.max_blocks = columns;
    pages->params.block_table = tables;
    pages->run = seed_step_run(&pages->step);
    pages->run.keys = pages->caches.keys;
    pages->run.values = pages->caches.values;
}

// The example's tensors. Blocks that its tables do not use are NaN, including all of block 0.
static void open_example(struct pages *pages)
{
    open_pages(pages, context_lens, block_tables, COLUMNS, NUM_BLOCKS);
}

static struct aule_batch *create_batch(const struct pages *pages)
{
    const struct aule_kv_layout layout = seed_blocks_layout(&pages->caches);
    struct aule_batch *batch = NULL;
    ok(aule_batch_create_local(pages->session, &layout, &pages->params, &batch));
    return batch;
}

static void page_attention(struct pages *pages, const char *name)
{
    seed_step_finish(&pages->step, create_batch(pages), &pages->run);
    seed_step_expect(&pages->step, NULL, &pages->run, name);
}

static void keep_out(const struct pages *pages, float *out)
{
    memcpy(out, seed_step_out(&pages->step, 0), OUT_SIZE * sizeof *out);
}

static void expect_same(const struct pages *pages, const float *out)
{
    ck_assert_mem_eq(seed_step_out(&pages->step, 0), out, OUT_SIZE * sizeof *out);
}

// ---- the example ----

START_TEST(page_attention_over_tables_padded_with_0_reads_32_and_24_keys)
{
    struct pages pages;
    open_example(&pages);
    page_attention(&pages, "the example");
    pages.run.causal = false; // a single query at the end sees every key with and without causal
    page_attention(&pages, "not causal");
    aule_session_close(pages.session);
}
END_TEST

// "Others may hold anything": the padding of a table is never read.
START_TEST(what_pads_a_table_is_neither_read_nor_checked)
{
    static const int32_t tables[NUM_SEQS * COLUMNS] = {3, 7, INT32_MAX, 1, 5, INT32_MIN};
    struct pages pages;
    float out[OUT_SIZE];
    open_example(&pages);
    page_attention(&pages, "padded with 0");
    keep_out(&pages, out);
    pages.params.block_table = tables;
    page_attention(&pages, "padded with anything");
    expect_same(&pages, out);
    aule_session_close(pages.session);
}
END_TEST

START_TEST(a_table_entry_beyond_the_caches_is_refused_with_its_value)
{
    static const int32_t tables[NUM_SEQS * COLUMNS] = {3, NUM_BLOCKS, 0, 1, 5, 0};
    struct pages pages;
    struct aule_batch *batch = NULL;
    open_example(&pages);
    const struct aule_kv_layout layout = seed_blocks_layout(&pages.caches);
    pages.params.block_table = tables;
    expect(aule_batch_create_local(pages.session, &layout, &pages.params, &batch),
           AULE_OUT_OF_RANGE, "block_table[0][1] = 8");
    ck_assert_ptr_null(batch);
    aule_session_close(pages.session);
}
END_TEST

// The same caches, imported into the pool as they are: other blocks, the same bits.
START_TEST(pages_imported_into_the_pool_give_the_same_bits)
{
    struct pages pages;
    int32_t ids[NUM_BLOCKS], tables[NUM_SEQS * COLUMNS];
    int64_t slots[NUM_BLOCKS * BLOCK];
    float out[OUT_SIZE];
    struct aule_batch *batch = NULL;
    open_example(&pages);
    page_attention(&pages, "in the arena");
    keep_out(&pages, out);
    struct aule_cache *cache = seed_cache(pages.session, AULE_F32, BLOCK);
    ok(aule_blocks_lease(cache, NUM_BLOCKS, SEED_WAIT_MS, ids));
    for (int i = 0; i < NUM_BLOCKS * BLOCK; i++)
        slots[i] = (int64_t)ids[NUM_BLOCKS - 1 - i / BLOCK] * BLOCK + i % BLOCK;
    const struct aule_kv_import import = {.num_rows = NUM_BLOCKS * BLOCK,
                                          .outer_rows = BLOCK,
                                          .slot_mapping = slots,
                                          .k = pages.caches.keys,
                                          .v = pages.caches.values};
    ok(aule_kv_import(cache, &import, SEED_WAIT_MS, NULL));
    for (int i = 0; i < NUM_SEQS * COLUMNS; i++)
        tables[i] = ids[NUM_BLOCKS - 1 - block_tables[i]];
    pages.params.block_table = tables;
    pages.run.keys = pages.run.values = (struct aule_tensor){.memory = 0};
    ok(aule_batch_create(cache, &pages.params, &batch));
    seed_step_finish(&pages.step, batch, &pages.run);
    expect_same(&pages, out);
    ok(aule_blocks_release(cache, NUM_BLOCKS, ids));
    seed_expect_all_free(cache);
    aule_cache_close(cache);
    aule_session_close(pages.session);
}
END_TEST

// ---- its options ----

START_TEST(attn_scale_is_the_factor_and_by_default_one_over_the_root_of_head_dim)
{
    struct pages pages;
    float out[OUT_SIZE];
    open_example(&pages);
    page_attention(&pages, "by default");
    keep_out(&pages, out);
    pages.run.scale = 1 / sqrtf(SEED_DIM);
    page_attention(&pages, "the default, said");
    expect_same(&pages, out);
    pages.run.scale = 0.5f;
    page_attention(&pages, "0.5");
    aule_session_close(pages.session);
}
END_TEST

START_TEST(max_context_len_is_a_bound_and_one_too_small_is_refused)
{
    struct pages pages;
    struct aule_batch *batch = NULL;
    float out[OUT_SIZE];
    open_example(&pages);
    page_attention(&pages, "no bound");
    keep_out(&pages, out);
    pages.params.max_context_len = 32;
    page_attention(&pages, "32");
    expect_same(&pages, out);
    pages.params.max_context_len = 8192;
    page_attention(&pages, "8192");
    expect_same(&pages, out);
    pages.params.max_context_len = 31;
    const struct aule_kv_layout layout = seed_blocks_layout(&pages.caches);
    enum aule_status status =
        aule_batch_create_local(pages.session, &layout, &pages.params, &batch);
    ck_assert_int_ne((int)status, AULE_OK);
    expect(status, status, "seq_lens_kv[0] = 32");
    expect(status, status, "max_context_len");
    ck_assert_ptr_null(batch);
    aule_session_close(pages.session);
}
END_TEST

// attn_logits_soft_cap=50.0, where scores exceed it: a scale of 6 makes scores of some hundreds.
START_TEST(a_soft_cap_of_50_bounds_the_logits)
{
    struct pages pages;
    float capped[OUT_SIZE];
    open_example(&pages);
    pages.run.logits_soft_cap = 50;
    page_attention(&pages, "50");
    pages.run.scale = 6;
    page_attention(&pages, "50, and large scores");
    keep_out(&pages, capped);
    pages.run.logits_soft_cap = 0;
    page_attention(&pages, "no cap");
    ck_assert_mem_ne(seed_step_out(&pages.step, 0), capped, sizeof capped);
    aule_session_close(pages.session);
}
END_TEST

START_TEST(mask_values_that_exclude_are_accepted_and_others_refused_by_name)
{
    static const float fine[] = {SEED_MASK_VALUE, -INFINITY, -1e30f, -FLT_MAX};
    static const float wrong[] = {-1, -1e29f, 1, INFINITY, NAN};
    struct pages pages;
    float out[OUT_SIZE];
    open_example(&pages);
    page_attention(&pages, "by default");
    keep_out(&pages, out);
    for (size_t i = 0; i < sizeof fine / sizeof *fine; i++) {
        pages.run.mask_value = fine[i];
        page_attention(&pages, "excluded");
        expect_same(&pages, out);
    }
    struct aule_batch *batch = create_batch(&pages);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        pages.run.mask_value = wrong[i];
        expect(aule_run(batch, &pages.run, SEED_WAIT_MS, NULL), AULE_INVALID, "mask_value");
    }
    aule_batch_destroy(batch);
    aule_session_close(pages.session);
}
END_TEST

// ---- num_splits: 0 by rule, 1 none, 4 as asked; short contexts cannot be split ----

START_TEST(num_splits_of_a_short_context_change_nothing)
{
    struct pages pages;
    float out[OUT_SIZE];
    open_example(&pages);
    page_attention(&pages, "by rule");
    keep_out(&pages, out);
    pages.params.max_context_len = 8192;
    for (uint32_t splits = 1; splits <= 4; splits++) {
        pages.run.num_splits = splits;
        page_attention(&pages, "of 32 and 24 keys");
        expect_same(&pages, out);
    }
    aule_session_close(pages.session);
}
END_TEST

enum { LONG_COLUMNS = 64, LONG_BLOCKS = 2 * LONG_COLUMNS };

START_TEST(four_splits_of_a_long_context_are_the_oracles_and_the_same_each_time)
{
    static const int32_t lens[] = {LONG_COLUMNS * BLOCK, 600};
    static int32_t tables[NUM_SEQS * LONG_COLUMNS];
    struct pages pages;
    float out[OUT_SIZE];
    for (int32_t i = 0; i < NUM_SEQS * LONG_COLUMNS; i++)
        tables[i] = (i * 37 + 11) % LONG_BLOCKS; // each once
    open_pages(&pages, lens, tables, LONG_COLUMNS, LONG_BLOCKS);
    pages.params.max_context_len = 8192;
    pages.run.num_splits = 4;
    page_attention(&pages, "4 splits");
    keep_out(&pages, out);
    page_attention(&pages, "4 splits again");
    expect_same(&pages, out);
    for (uint32_t splits = 0; splits < 4; splits++) {
        pages.run.num_splits = splits;
        page_attention(&pages, "0 to 3 splits");
    }
    aule_session_close(pages.session);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("seed, ejkernel page_attention");
    seed_add(suite, "page attention", seed_setup,
             (const TTest *const[]){
                 page_attention_over_tables_padded_with_0_reads_32_and_24_keys,
                 what_pads_a_table_is_neither_read_nor_checked,
                 a_table_entry_beyond_the_caches_is_refused_with_its_value,
                 pages_imported_into_the_pool_give_the_same_bits,
                 attn_scale_is_the_factor_and_by_default_one_over_the_root_of_head_dim,
                 max_context_len_is_a_bound_and_one_too_small_is_refused,
                 a_soft_cap_of_50_bounds_the_logits,
                 mask_values_that_exclude_are_accepted_and_others_refused_by_name,
                 num_splits_of_a_short_context_change_nothing,
                 four_splits_of_a_long_context_are_the_oracles_and_the_same_each_time, NULL});
    return check_main(suite);
}
