// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_client_fake_attention.c - which commands contiguous attention sends, in which order and with
// which values, on either path. Each test is a process with a fake daemon in it.

#include "attention/attention_journal.h"

#include <pthread.h>
#include <stdio.h>

static void expect_tensor(const struct wire_tensor *seen, const struct aule_tensor *given)
{
    ck_assert_uint_eq(seen->dtype, given->dtype);
    ck_assert_uint_eq(seen->offset, given->offset);
    ck_assert_uint_eq(seen->token_stride, given->token_stride);
    ck_assert_uint_eq(seen->head_stride, given->head_stride);
    ck_assert_uint_eq(seen->outer_stride, given->outer_stride);
}

static void expect_numbers(const int32_t *seen, const int32_t *wanted, int count)
{
    for (int i = 0; i < count; i++)
        ck_assert_int_eq(seen[i], wanted[i]);
}

// ---- the contiguous path ----

START_TEST(the_contiguous_way_is_one_local_batch_and_one_run)
{
    static const int32_t q_lens[SEQS] = {3, 1};
    static const uint8_t mask[30];
    struct journal journal = {.commands = 0};
    struct aule_session *session = open_journal(&journal, 0);
    struct aule_attention_params params = attention(AULE_PATH_AUTO);
    struct aule_ticket ticket;
    params.q_lens = q_lens;
    params.mask = mask;
    params.mask_size = sizeof mask;
    ok(aule_attention_submit(session, &params, 17, &ticket));
    expect_words(&journal, "local attend end ");
    ck_assert_int_eq(ticket.path, AULE_PATH_CONTIGUOUS);
    ck_assert_int_eq(ticket.fallback, AULE_OK);
    ck_assert_uint_eq(ticket.before, 0);
    const struct wire_batch_create *batch = &journal.attend;
    ck_assert_uint_eq(batch->cache, 0);
    ck_assert_uint_eq(batch->layout.num_kv_heads, KV_HEADS);
    ck_assert_uint_eq(batch->layout.head_dim_k, DIM);
    ck_assert_uint_eq(batch->layout.head_dim_v, DIM_V);
    ck_assert_uint_eq(batch->layout.k_dtype, AULE_F16);
    ck_assert_uint_eq(batch->layout.v_dtype, AULE_F16);
    ck_assert_uint_eq(batch->layout.block_size, 0);
    ck_assert_uint_eq(batch->max_blocks, 0);
    ck_assert_uint_eq(batch->mask.count, sizeof mask);
    ck_assert_uint_eq(batch->slot_mapping.count + batch->positions.count + batch->kv_starts.count,
                      0);
    expect_numbers(journal.cu, (const int32_t[]){0, 3, 6}, 3);
    expect_numbers(journal.lens, kv_lens, 2);
    expect_numbers(journal.q_lens, q_lens, 2);
    expect_tensor(&journal.run.q, &params.run.q);
    expect_tensor(&journal.run.keys, &params.run.k);
    expect_tensor(&journal.run.values, &params.run.v);
    expect_tensor(&journal.run.out, &params.run.out);
    ck_assert_uint_eq(journal.run.k.dtype, 0);
    ck_assert_uint_eq(journal.run.v.dtype, 0);
    ck_assert_uint_eq(journal.run.layer, 0);
    ck_assert_uint_eq(journal.run.flags, WIRE_RUN_CAUSAL);
    ck_assert_float_eq(journal.run.scale, 0.25f);
    ok(aule_ticket_wait(session, ticket, 0, NULL));
    expect_words(&journal, "local attend end wait:1 ");
    aule_session_close(session);
}
END_TEST

START_TEST(rows_of_tensors_without_an_outer_stride_follow_one_another)
{
    struct journal journal = {.commands = 0};
    struct aule_session *session = open_journal(&journal, 0);
    struct aule_attention_params params = attention(AULE_PATH_CONTIGUOUS);
    params.run.v.outer_stride = 0;
    params.kv_lens = NULL;
    ok(aule_attention(session, &params, 0, NULL, NULL));
    expect_words(&journal, "local attend end wait:1 ");
    expect_numbers(journal.starts, (const int32_t[]){0, KV_LEN}, 2);
    expect_numbers(journal.lens, (const int32_t[]){KV_LEN, KV_LEN}, 2);
    aule_session_close(session);
}
END_TEST

// ---- the paged path ----

START_TEST(the_paged_way_leases_imports_attends_and_gives_back)
{
    struct journal journal = {.commands = 0};
    struct aule_session *session = open_journal(&journal, 0);
    struct aule_attention_params params = attention(AULE_PATH_PAGED);
    struct aule_ticket ticket;
    ok(aule_attention_submit(session, &params, 17, &ticket));
    expect_words(&journal, "open lease:4 import write end batch attend end release:4 ");
    ck_assert_int_eq(ticket.path, AULE_PATH_PAGED);
    ck_assert_uint_eq(ticket.before, 1);
    ck_assert_str_eq(journal.cache, "aule_attention f16, 2 heads of 16 and 32");
    ck_assert_uint_eq(journal.identity.num_layers, 1);
    ck_assert_uint_eq(journal.identity.k_dtype, AULE_F16);
    ck_assert_uint_eq(journal.identity.v_dtype, AULE_F16);
    ck_assert_uint_eq(journal.identity.block_size, BLOCK);
    ck_assert_uint_eq(journal.import.cache, 7);
    ck_assert_uint_eq(journal.import.num_seqs, SEQS);
    ck_assert_uint_eq(journal.import.block_table.count, 0);
    expect_numbers(journal.import_cu, (const int32_t[]){0, KV_LEN, 2 * KV_LEN}, 3);
    for (int s = 0; s < SEQS; s++)
        for (int j = 0; j < KV_LEN; j++) // the lease returned 0, 1, 2, 3
            ck_assert_int_eq(journal.slots[s * KV_LEN + j],
                             j < kv_lens[s] ? s * 2 * BLOCK + j : -1);
    expect_tensor(&journal.write.k, &params.run.k);
    expect_tensor(&journal.write.v, &params.run.v);
    ck_assert_uint_eq(journal.write.num_heads, KV_HEADS);
    ck_assert_uint_eq(journal.write.batch, 9);
    ck_assert_uint_eq(journal.write.rope_dim, 0);
    ck_assert(!journal.attend.has_layout);
    ck_assert_uint_eq(journal.attend.cache, 7);
    ck_assert_uint_eq(journal.attend.max_blocks, 2);
    expect_numbers(journal.table, (const int32_t[]){0, 1, 2, 3}, 4);
    expect_numbers(journal.lens, kv_lens, 2);
    expect_tensor(&journal.run.q, &params.run.q);
    expect_tensor(&journal.run.out, &params.run.out);
    ck_assert_uint_eq(journal.run.batch, 10);
    ck_assert_uint_eq(journal.run.k.dtype + journal.run.v.dtype + journal.run.keys.dtype +
                          journal.run.values.dtype,
                      0);
    forget(&journal);
    ok(aule_ticket_wait(session, ticket, 0, NULL));
    expect_words(&journal, "wait:2 wait:1 ");
    forget(&journal);
    ok(aule_attention(session, &params, 0, NULL, &ticket)); // its cache is open already
    expect_words(&journal, "lease:4 import write end batch attend end release:4 wait:4 wait:3 ");
    ck_assert_int_eq(ticket.path, AULE_PATH_PAGED);
    aule_session_close(session);
}
END_TEST

START_TEST(a_shorter_sequence_has_no_block_in_the_rest_of_its_row)
{
    static const int32_t lens[SEQS] = {0, 33};
    struct journal journal = {.commands = 0};
    struct aule_session *session = open_journal(&journal, 0);
    struct aule_attention_params params = attention(AULE_PATH_PAGED);
    params.kv_lens = lens;
    ok(aule_attention(session, &params, 0, NULL, NULL));
    expect_words(&journal,
                 "open lease:2 import write end batch attend end release:2 wait:2 wait:1 ");
    expect_numbers(journal.table, (const int32_t[]){-1, -1, 0, 1}, 4);
    ck_assert_int_eq(journal.slots[0], -1);
    ck_assert_int_eq(journal.slots[KV_LEN + 32], BLOCK);
    forget(&journal);
    params.kv_lens = (const int32_t[]){0, 0}; // nothing to lease or to copy
    ok(aule_attention(session, &params, 0, NULL, NULL));
    expect_words(&journal, "batch attend end wait:3 ");
    aule_session_close(session);
}
END_TEST

START_TEST(each_shape_has_one_cache_until_the_session_ends)
{
    struct journal journal = {.commands = 0};
    struct aule_session *session = open_journal(&journal, 0);
    struct aule_attention_params params = attention(AULE_PATH_PAGED);
    ok(aule_attention(session, &params, 0, NULL, NULL));
    params.run.q.dtype = params.run.k.dtype = params.run.v.dtype = params.run.out.dtype = AULE_BF16;
    ok(aule_attention(session, &params, 0, NULL, NULL));
    ck_assert_str_eq(journal.cache, "aule_attention bf16, 2 heads of 16 and 32");
    params.head_dim_v = 0;
    ok(aule_attention(session, &params, 0, NULL, NULL));
    ck_assert_str_eq(journal.cache, "aule_attention bf16, 2 heads of 16 and 16");
    for (int i = 0; i < 3; i++)
        ok(aule_attention(session, &params, 0, NULL, NULL));
    ck_assert_uint_eq(atomic_load(&fake.seen[WIRE_COMMAND_CACHE_OPEN]), 3);
    ok(aule_session_reconnect(session));
    ok(aule_attention(session, &params, 0, NULL, NULL));
    ck_assert_uint_eq(atomic_load(&fake.seen[WIRE_COMMAND_CACHE_OPEN]), 4);
    ck_assert_uint_eq(atomic_load(&fake.seen[WIRE_COMMAND_CACHE_CLOSE]), 0);
    aule_session_close(session);
}
END_TEST

START_TEST(where_another_cache_has_the_name_the_session_has_one_of_its_own)
{
    struct journal journal = {.fail_at = 1, .fail_with = STATUS_MISMATCH};
    struct aule_session *session = open_journal(&journal, 0);
    struct aule_attention_params params = attention(AULE_PATH_PAGED);
    struct aule_session_info info;
    char name[128];
    ok(aule_session_info(session, &info));
    snprintf(name, sizeof name, "aule_attention f16, 2 heads of 16 and 32, session %llu of %llx",
             (unsigned long long)info.session, (unsigned long long)info.epoch);
    for (int i = 0; i < 2; i++)
        ok(aule_attention_submit(session, &params, 0, NULL));
    expect_words(&journal, "open open lease:4 import write! end batch attend! end release:4 "
                           "lease:4 import write! end batch attend! end release:4 ");
    ck_assert_str_eq(journal.cache, name);
    aule_session_close(session);
}
END_TEST

// ---- threads ----

enum { NUM_THREADS = 4, CALLS_A_THREAD = 50 };

static void *attend_often(void *context)
{
    struct aule_session *session = context;
    const struct aule_attention_params params = attention(AULE_PATH_PAGED);
    for (int i = 0; i < CALLS_A_THREAD; i++)
        ok(aule_attention(session, &params, -1, NULL, NULL));
    return NULL;
}

START_TEST(threads_share_the_cache_of_a_shape)
{
    pthread_t threads[NUM_THREADS];
    fake_start(&fake, path, NULL, NULL);
    struct aule_session *session = open_session(0);
    for (int i = 0; i < NUM_THREADS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, attend_often, session), 0);
    for (int i = 0; i < NUM_THREADS; i++)
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
    // Caches that several threads opened at the same time were closed again.
    ck_assert_uint_eq(atomic_load(&fake.seen[WIRE_COMMAND_CACHE_OPEN]),
                      atomic_load(&fake.seen[WIRE_COMMAND_CACHE_CLOSE]) + 1);
    ck_assert_uint_eq(atomic_load(&fake.seen[WIRE_COMMAND_BLOCKS_LEASE]),
                      NUM_THREADS * CALLS_A_THREAD);
    ck_assert_uint_eq(atomic_load(&fake.seen[WIRE_COMMAND_BLOCKS_RELEASE]),
                      NUM_THREADS * CALLS_A_THREAD);
    ck_assert_uint_eq(atomic_load(&fake.seen[WIRE_COMMAND_BATCH_DESTROY]),
                      atomic_load(&fake.seen[WIRE_COMMAND_BATCH_CREATE]));
    aule_session_close(session);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client_fake_attention");
    add(suite, "contiguous",
        (const struct entry[]){
            {the_contiguous_way_is_one_local_batch_and_one_run, 0},
            {rows_of_tensors_without_an_outer_stride_follow_one_another, 0},
            {NULL, 0},
        });
    add(suite, "paged",
        (const struct entry[]){
            {the_paged_way_leases_imports_attends_and_gives_back, 0},
            {a_shorter_sequence_has_no_block_in_the_rest_of_its_row, 0},
            {each_shape_has_one_cache_until_the_session_ends, 0},
            {where_another_cache_has_the_name_the_session_has_one_of_its_own, 0},
            {NULL, 0},
        });
    add(suite, "threads",
        (const struct entry[]){
            {threads_share_the_cache_of_a_shape, 0},
            {NULL, 0},
        });
    return check_main(suite);
}
