// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_client_wire.c - the messages of runs, other work and large metadata. Each test is a process
// with a fake daemon in it.

#include "rigs/client_world.h"

#include <math.h>
#include <string.h>

// ---- messages of runs ----

// A run as the daemon sees it when the command arrives.
struct seen_run {
    struct wire_run run;
    float slopes[3], sinks[3];
    double frequencies[2];
};

static enum fake_action keep_run(struct fake_daemon *daemon, const struct wire_request *request,
                                 struct wire_reply *reply)
{
    struct seen_run *seen = daemon->context;
    (void)reply;
    if (request->command != WIRE_COMMAND_RUN)
        return FAKE_ANSWER;
    seen->run = request->run;
    if (request->run.entry.slopes.count == 3)
        memcpy(seen->slopes, fake_arena(daemon) + request->run.entry.slopes.offset,
               sizeof seen->slopes);
    if (request->run.entry.sinks.count == 3)
        memcpy(seen->sinks, fake_arena(daemon) + request->run.entry.sinks.offset,
               sizeof seen->sinks);
    if (request->run.entry.rope_frequencies.count == 2)
        memcpy(seen->frequencies, fake_arena(daemon) + request->run.entry.rope_frequencies.offset,
               sizeof seen->frequencies);
    return FAKE_ANSWER;
}

START_TEST(every_parameter_of_a_run_reaches_the_daemon)
{
    static const float slopes[3] = {1, 2, 3}, sinks[3] = {-4, 5, -INFINITY};
    static const double frequencies[2] = {1, 0.01};
    struct seen_run kept = {.slopes = {0}};
    const struct wire_run_entry *seen = &kept.run.entry;
    fake_start(&fake, path, keep_run, &kept);
    struct aule_session *session = open_session(0);
    struct aule_cache *cache = open_cache(session);
    struct aule_batch *batch = create_batch(cache);
    const struct aule_run_params plain = {
        .layer = 2,
        .num_heads = 3,
        .q = {.dtype = AULE_F16, .offset = 256, .token_stride = 384, .head_stride = 128},
        .scale = 0.5f};
    ck_assert_int_eq(aule_run_submit(batch, &plain, 17, NULL), AULE_OK);
    ck_assert_uint_eq(seen->batch, 9);
    ck_assert_uint_eq(seen->layer, 2);
    ck_assert_uint_eq(seen->q.token_stride, 384);
    ck_assert_uint_eq(seen->flags, WIRE_RUN_DETACHED);
    ck_assert_int_eq(seen->window_left, -1);
    ck_assert_int_eq(seen->window_right, -1);
    ck_assert_uint_eq(seen->slopes.count, 0);
    ck_assert_int_eq(kept.run.timeout_ms, 17);
    ck_assert_float_eq(seen->scale, 0.5f);
    struct aule_ticket ticket;
    const struct aule_run_params rich = {
        .num_heads = 3,
        .causal = true,
        .window = {.enabled = true, .left = 7, .right = 0},
        .logits_soft_cap = 30,
        .mask_value = -5,
        .alibi_slopes = slopes,
        .sinks = sinks,
        .lse = {.dtype = AULE_F32, .offset = 512},
        .num_splits = 6,
        .rope = {.dim = 4, .theta = 500, .interleaved = true, .frequencies = frequencies},
        .k_scale = 0.5f,
        .v_scale = 2,
        .out = {.dtype = AULE_F16, .outer_stride = 48},
        .keys = {.dtype = AULE_INT8, .offset = 1024, .outer_stride = 64},
        .values = {.dtype = AULE_FP8_E4M3, .offset = 2048, .outer_stride = 80},
    };
    ck_assert_int_eq(aule_run_submit(batch, &rich, 0, &ticket), AULE_OK);
    ck_assert_uint_eq(seen->kind, WIRE_RUN_ATTEND);
    ck_assert_uint_eq(seen->flags, WIRE_RUN_CAUSAL | WIRE_RUN_ROPE_INTERLEAVED);
    ck_assert_uint_eq(seen->rope_dim, 4);
    ck_assert_float_eq(seen->rope_theta, 500);
    ck_assert_mem_eq(kept.frequencies, frequencies, sizeof frequencies);
    ck_assert_float_eq(seen->k_scale, 0.5f);
    ck_assert_float_eq(seen->v_scale, 2);
    ck_assert_uint_eq(seen->out.outer_stride, 48);
    ck_assert_uint_eq(seen->keys.dtype, AULE_INT8);
    ck_assert_uint_eq(seen->keys.outer_stride, 64);
    ck_assert_uint_eq(seen->values.offset, 2048);
    ck_assert_uint_eq(seen->values.outer_stride, 80);
    ck_assert_int_eq(seen->window_left, 7);
    ck_assert_int_eq(seen->window_right, 0);
    ck_assert_float_eq(seen->logits_soft_cap, 30);
    ck_assert_float_eq(seen->mask_value, -5);
    ck_assert_uint_eq(seen->slopes.count, 3);
    ck_assert_uint_eq(seen->sinks.count, 3);
    ck_assert_uint_eq(seen->lse.dtype, AULE_F32);
    ck_assert_uint_eq(seen->num_splits, 6);
    ck_assert_mem_eq(kept.slopes, slopes, sizeof slopes);
    ck_assert_mem_eq(kept.sinks, sinks, sizeof sinks);
    expect_empty_arena(session);
    void *most;
    ck_assert_int_eq(aule_arena_alloc(session, FAKE_ARENA, &most, NULL), AULE_OK);
    unsigned seen_before = atomic_load(&fake.seen[WIRE_COMMAND_RUN]);
    expect(aule_run_submit(batch, &rich, 0, &ticket), AULE_NO_MEMORY,
           "slopes, sinks, frequencies and scales: 48 bytes have no room");
    ck_assert_uint_eq(atomic_load(&fake.seen[WIRE_COMMAND_RUN]), seen_before);
    ck_assert_int_eq(aule_run_submit(batch, &plain, 0, NULL),
                     AULE_OK); // without arrays it needs no room
    aule_arena_free(session, most);
    aule_batch_destroy(batch);
    aule_cache_close(cache);
    aule_session_close(session);
}
END_TEST

// ---- large metadata ----

enum { MANY_SEQS = 300, MANY_BLOCKS = 1000, MANY_TOKENS = 300000 };

static enum fake_action check_spans(struct fake_daemon *daemon, const struct wire_request *request,
                                    struct wire_reply *reply)
{
    const uint8_t *arena = fake_arena(daemon);
    bool *right = daemon->context;
    switch (request->command) {
    case WIRE_COMMAND_BATCH_CREATE: {
        const struct wire_batch_create *batch = &request->batch_create;
        *right = batch->block_table.count == 0 &&
                 batch->block_table_span.count == MANY_SEQS * MANY_BLOCKS &&
                 batch->cu_seqlens_q_span.count == MANY_SEQS + 1 &&
                 batch->seq_lens_kv_span.count == MANY_SEQS &&
                 batch->slot_mapping_span.count == MANY_SEQS && batch->positions_span.count == 0;
        const int32_t *table =
            (const int32_t *)(const void *)(arena + batch->block_table_span.offset);
        for (int32_t i = 0; *right && i < MANY_SEQS * MANY_BLOCKS; i++)
            *right = table[i] == i * 3;
        const int64_t *slots =
            (const int64_t *)(const void *)(arena + batch->slot_mapping_span.offset);
        for (int32_t i = 0; *right && i < MANY_SEQS; i++)
            *right = slots[i] == i * 7;
        break;
    }
    case WIRE_COMMAND_PREFIX_PUBLISH: {
        const struct wire_prefix_publish *publish = &request->prefix_publish;
        const int32_t *tokens = (const int32_t *)(const void *)(arena + publish->token_span.offset);
        *right = publish->token_span.count == MANY_TOKENS && publish->tokens.count == 0 &&
                 publish->blocks.count == MANY_TOKENS / 8;
        for (int32_t i = 0; *right && i < MANY_TOKENS; i++)
            *right = tokens[i] == i;
        reply->answer = WIRE_ANSWER_PREFIX_PUBLISH;
        reply->prefix_publish.blocks =
            (struct wire_ints){.data = daemon->blocks, .count = MANY_TOKENS / 8};
        break;
    }
    default: break;
    }
    return FAKE_ANSWER;
}

START_TEST(metadata_larger_than_a_message_travels_through_the_arena)
{
    static int32_t cu[MANY_SEQS + 1], lens[MANY_SEQS], table[MANY_SEQS * MANY_BLOCKS];
    static int64_t slots[MANY_SEQS];
    bool right = false;
    struct aule_batch *batch = NULL;
    void *most;
    for (int32_t i = 0; i < MANY_SEQS; i++) {
        cu[i + 1] = i + 1;
        slots[i] = i * 7;
    }
    for (int32_t i = 0; i < MANY_SEQS * MANY_BLOCKS; i++)
        table[i] = i * 3;
    const struct aule_batch_params params = {.num_seqs = MANY_SEQS,
                                             .max_blocks = MANY_BLOCKS,
                                             .cu_seqlens_q = cu,
                                             .seq_lens_kv = lens,
                                             .block_table = table,
                                             .slot_mapping = slots};
    fake_start(&fake, path, check_spans, &right);
    struct aule_session *session = open_session(0);
    struct aule_cache *cache = open_cache(session);
    ck_assert_int_eq(aule_batch_create(cache, &params, &batch), AULE_OK);
    ck_assert(right);
    aule_batch_destroy(batch);
    expect_empty_arena(session);
    ck_assert_int_eq(aule_arena_alloc(session, FAKE_ARENA - 1000000, &most, NULL), AULE_OK);
    expect(aule_batch_create(cache, &params, &batch), AULE_NO_MEMORY,
           "metadata too large for a message: 1204816 bytes");
    ck_assert_ptr_null(batch);
    aule_arena_free(session, most);
    aule_cache_close(cache);
    aule_session_close(session);
}
END_TEST

START_TEST(a_prompt_larger_than_a_message_travels_through_the_arena)
{
    static int32_t tokens[MANY_TOKENS], blocks[MANY_TOKENS / 8];
    bool right = false;
    const struct aule_prefix prefix = {.tokens = tokens, .num_tokens = MANY_TOKENS};
    for (int32_t i = 0; i < MANY_TOKENS; i++)
        tokens[i] = i;
    fake_start(&fake, path, check_spans, &right);
    struct aule_session *session = open_session(0);
    struct aule_cache *cache = open_cache(session);
    ck_assert_int_eq(aule_blocks_lease(cache, MANY_TOKENS / 8, 0, blocks), AULE_OK);
    ck_assert_int_eq(aule_prefix_publish(cache, &prefix, blocks, NULL), AULE_OK);
    ck_assert(right);
    expect_empty_arena(session);
    aule_cache_close(cache);
    aule_session_close(session);
}
END_TEST

START_TEST(a_list_of_blocks_larger_than_a_message_is_refused)
{
    enum { TOO_MANY = 300000 };
    static int32_t blocks[TOO_MANY];
    fake_start(&fake, path, NULL, NULL);
    struct aule_session *session = open_session(0);
    struct aule_cache *cache = open_cache(session);
    expect(aule_blocks_lease(cache, TOO_MANY, 0, blocks), AULE_LIMIT, "300000 blocks");
    expect(aule_blocks_release(cache, TOO_MANY, blocks), AULE_LIMIT, "1048576 bytes");
    ck_assert_uint_eq(atomic_load(&fake.seen[WIRE_COMMAND_BLOCKS_LEASE]), 0);
    aule_cache_close(cache);
    aule_session_close(session);
}
END_TEST

static const int32_t rising[] = {0, 2}, negative[] = {0, -3}, one[] = {1};

static const struct {
    struct aule_batch_params params;
    const char *words;
} batch_cases[] = {
    {{.num_seqs = 1}, "cu_seqlens_q is NULL"},
    {{.num_seqs = 1, .cu_seqlens_q = negative, .seq_lens_kv = one}, "cu_seqlens_q[1] = -3"},
    {{.num_seqs = 1, .cu_seqlens_q = rising}, "seq_lens_kv is NULL"},
    {{.num_seqs = 1, .max_blocks = 6, .cu_seqlens_q = rising, .seq_lens_kv = one}, "[1, 6]"},
    {{.num_seqs = 1, .cu_seqlens_q = rising, .seq_lens_kv = one, .mask = one}, "mask_size 0"},
    {{.num_seqs = 1, .cu_seqlens_q = rising, .seq_lens_kv = one, .mask_size = 11}, "mask_size 11"},
};
enum { NUM_BATCH_CASES = sizeof batch_cases / sizeof *batch_cases };

START_TEST(arrays_that_are_missing_are_named)
{
    struct aule_batch *batch = NULL;
    fake_start(&fake, path, NULL, NULL);
    struct aule_session *session = open_session(0);
    struct aule_cache *cache = open_cache(session);
    expect(aule_batch_create(cache, &batch_cases[_i].params, &batch), AULE_INVALID,
           batch_cases[_i].words);
    ck_assert_uint_eq(atomic_load(&fake.seen[WIRE_COMMAND_BATCH_CREATE]), 0);
    aule_cache_close(cache);
    aule_session_close(session);
}
END_TEST

// ---- other work ----

// The last command of each kind, and the contents of its vectors.
struct seen_work {
    struct wire_batch_create batch;
    int32_t ints[3][8]; // q_lens, token_rows, kv_starts; cu_seqlens_q of an import; from and to of
                        // a copy
    int64_t slots[8];
    struct wire_blocks_copy copy;
    struct wire_merge merge;
    struct wire_tensor parts[2][3]; // outs, lses
    struct wire_run run;
};

static void keep_ints(int32_t *to, const struct wire_ints *from)
{
    ck_assert_uint_le(from->count, 8);
    if (from->count > 0)
        memcpy(to, from->data, from->count * sizeof *to);
}

static enum fake_action keep_work(struct fake_daemon *daemon, const struct wire_request *request,
                                  struct wire_reply *reply)
{
    struct seen_work *seen = daemon->context;
    (void)reply;
    switch (request->command) {
    case WIRE_COMMAND_BATCH_CREATE: {
        const struct wire_batch_create *batch = &request->batch_create;
        seen->batch = *batch;
        keep_ints(seen->ints[0], batch->q_lens.count ? &batch->q_lens : &batch->cu_seqlens_q);
        keep_ints(seen->ints[1], &batch->token_rows);
        keep_ints(seen->ints[2], &batch->kv_starts);
        ck_assert_uint_le(batch->slot_mapping.count, 8);
        if (batch->slot_mapping.count > 0)
            memcpy(seen->slots, batch->slot_mapping.data,
                   batch->slot_mapping.count * sizeof *seen->slots);
        break;
    }
    case WIRE_COMMAND_BLOCKS_COPY:
        seen->copy = request->blocks_copy;
        keep_ints(seen->ints[0], &request->blocks_copy.from);
        keep_ints(seen->ints[1], &request->blocks_copy.to);
        break;
    case WIRE_COMMAND_MERGE:
        seen->merge = request->merge;
        ck_assert_uint_eq(request->merge.outs.count, 3);
        ck_assert_uint_eq(request->merge.lses.count, 3);
        memcpy(seen->parts[0], request->merge.outs.data, sizeof seen->parts[0]);
        memcpy(seen->parts[1], request->merge.lses.data, sizeof seen->parts[1]);
        break;
    case WIRE_COMMAND_RUN: seen->run = request->run; break;
    default: break;
    }
    return FAKE_ANSWER;
}

START_TEST(every_array_of_a_batch_reaches_the_daemon)
{
    static const int32_t cu[] = {0, 2, 3}, lens[] = {5, 6}, q_lens[] = {1, 0}, rows[] = {2, 0, 1},
                         starts[] = {7, 8};
    struct seen_work seen = {.run = {.timeout_ms = 0}};
    struct aule_batch *batch = NULL;
    const struct aule_kv_layout layout = {.num_kv_heads = 3,
                                          .head_dim = 576,
                                          .head_dim_v = 512,
                                          .v_is_k_prefix = true,
                                          .k_dtype = AULE_INT8,
                                          .scale_mode = AULE_SCALE_PER_TENSOR,
                                          .block_size = 16,
                                          .num_blocks = 99};
    const struct aule_batch_params params = {.num_seqs = 2,
                                             .cu_seqlens_q = cu,
                                             .seq_lens_kv = lens,
                                             .max_context_len = 40,
                                             .max_seqlen_q = 20,
                                             .q_lens = q_lens,
                                             .token_rows = rows,
                                             .kv_starts = starts};
    fake_start(&fake, path, keep_work, &seen);
    struct aule_session *session = open_session(0);
    ck_assert_int_eq(aule_batch_create_local(session, &layout, &params, &batch), AULE_OK);
    ck_assert(seen.batch.has_layout);
    ck_assert_uint_eq(seen.batch.cache, 0);
    ck_assert_uint_eq(seen.batch.layout.num_kv_heads, 3);
    ck_assert_uint_eq(seen.batch.layout.head_dim_k, 576);
    ck_assert_uint_eq(seen.batch.layout.head_dim_v, 512);
    ck_assert(seen.batch.layout.v_is_k_prefix);
    ck_assert_uint_eq(seen.batch.layout.k_dtype, AULE_INT8);
    ck_assert_uint_eq(seen.batch.layout.v_dtype, AULE_F16);
    ck_assert_uint_eq(seen.batch.layout.scale_mode, AULE_SCALE_PER_TENSOR);
    ck_assert_uint_eq(seen.batch.layout.block_size, 16);
    ck_assert_uint_eq(seen.batch.layout.num_blocks, 99);
    ck_assert_uint_eq(seen.batch.max_context_len, 40);
    ck_assert_uint_eq(seen.batch.max_seqlen_q, 20);
    ck_assert_uint_eq(seen.batch.q_lens.count, 2);
    ck_assert_uint_eq(seen.batch.token_rows.count, 3);
    ck_assert_uint_eq(seen.batch.kv_starts.count, 2);
    ck_assert_mem_eq(seen.ints[0], q_lens, sizeof q_lens);
    ck_assert_mem_eq(seen.ints[1], rows, sizeof rows);
    ck_assert_mem_eq(seen.ints[2], starts, sizeof starts);
    // it has blocks, though not in the pool
    ck_assert_int_eq(submit_one(batch).path, AULE_PATH_PAGED);
    aule_batch_destroy(batch);
    const struct aule_kv_layout rows_only = {.num_kv_heads = 1, .head_dim = 64};
    ck_assert_int_eq(aule_batch_create_local(session, &rows_only, &params, &batch), AULE_OK);
    ck_assert_uint_eq(seen.batch.layout.head_dim_v, 64);
    ck_assert_int_eq(submit_one(batch).path, AULE_PATH_CONTIGUOUS);
    aule_batch_destroy(batch);
    aule_session_close(session);
}
END_TEST

START_TEST(a_form_whose_positions_repeat_makes_no_batch_without_a_mask)
{
    static const int32_t ids[] = {0, 0}, positions[] = {4, 4}, table[] = {0}, len = 6;
    static const uint8_t mask[2] = {0x1f, 0x08};
    struct seen_work seen = {.run = {.timeout_ms = 0}};
    struct aule_metadata metadata;
    struct aule_batch *batch = NULL;
    const struct aule_token_form form = {.num_tokens = 2,
                                         .num_seqs = 1,
                                         .seq_ids = ids,
                                         .positions = positions,
                                         .block_table = table,
                                         .max_blocks = 1,
                                         .seq_lens_kv = &len,
                                         .repeats = true};
    fake_start(&fake, path, keep_work, &seen);
    struct aule_session *session = open_session(0);
    struct aule_cache *cache = open_cache(session);
    ck_assert_int_eq(aule_metadata_tokens(&form, &metadata), AULE_OK);
    expect(aule_batch_create(cache, &metadata.params, &batch), AULE_INVALID,
           "mask is NULL, but mask_size 2");
    metadata.params.mask = mask;
    ck_assert_int_eq(aule_batch_create(cache, &metadata.params, &batch), AULE_OK);
    ck_assert_uint_eq(seen.batch.mask.count, 2);
    ck_assert_uint_eq(seen.batch.positions.count, 2);
    aule_metadata_finish(&metadata);
    aule_batch_destroy(batch);
    aule_cache_close(cache);
    aule_session_close(session);
}
END_TEST

START_TEST(blocks_are_copied_and_zeroed_by_one_command_each)
{
    static const int32_t from[] = {3, 4}, to[] = {7, 9}, none[] = {-1, -1}, wrong[] = {3, -1};
    struct seen_work seen = {.run = {.timeout_ms = 0}};
    struct aule_ticket ticket;
    fake_start(&fake, path, keep_work, &seen);
    struct aule_session *session = open_session(0);
    struct aule_cache *cache = open_cache(session);
    ck_assert_int_eq(aule_blocks_copy(cache, 2, from, to, 19, &ticket), AULE_OK);
    ck_assert_uint_eq(seen.copy.cache, 7);
    ck_assert_uint_eq(seen.copy.flags, 0);
    ck_assert_int_eq(seen.copy.timeout_ms, 19);
    ck_assert_mem_eq(seen.ints[0], from, sizeof from);
    ck_assert_mem_eq(seen.ints[1], to, sizeof to);
    ck_assert_int_eq(ticket.path, AULE_PATH_AUTO);
    ck_assert_int_eq(aule_ticket_wait(session, ticket, 0, NULL), AULE_OK);
    ck_assert_int_eq(aule_blocks_zero(cache, 2, to, 0, NULL), AULE_OK);
    ck_assert_uint_eq(seen.copy.flags, WIRE_RUN_DETACHED);
    ck_assert_mem_eq(seen.ints[0], none, sizeof none);
    ck_assert_mem_eq(seen.ints[1], to, sizeof to);
    unsigned before = atomic_load(&fake.seen[WIRE_COMMAND_BLOCKS_COPY]);
    expect(aule_blocks_copy(cache, 2, wrong, to, 0, NULL), AULE_OUT_OF_RANGE,
           "from[1] = -1 is no block");
    expect(aule_blocks_zero(cache, 200000, to, 0, NULL), AULE_LIMIT, "400000 blocks");
    expect(aule_blocks_zero(cache, 2, to, -3, NULL), AULE_INVALID, "timeout_ms = -3");
    ck_assert_uint_eq(atomic_load(&fake.seen[WIRE_COMMAND_BLOCKS_COPY]), before);
    aule_cache_close(cache);
    aule_session_close(session);
}
END_TEST

START_TEST(every_parameter_of_a_merge_reaches_the_daemon)
{
    static const struct aule_tensor outs[3] = {{.dtype = AULE_F16, .offset = 16},
                                               {.dtype = AULE_F16, .offset = 32},
                                               {.dtype = AULE_F16, .offset = 48}};
    static const struct aule_tensor lses[3] = {{.dtype = AULE_F32, .offset = 160},
                                               {.dtype = AULE_F32, .offset = 320},
                                               {.dtype = AULE_F32, .offset = 480}};
    struct seen_work seen = {.run = {.timeout_ms = 0}};
    struct aule_merge_params params = {.num_parts = 3,
                                       .num_tokens = 4,
                                       .num_heads = 5,
                                       .head_dim = 8,
                                       .outs = outs,
                                       .lses = lses,
                                       .out = {.dtype = AULE_F16, .offset = 4096},
                                       .lse = {.dtype = AULE_F32, .offset = 8192}};
    struct aule_ticket ticket;
    fake_start(&fake, path, keep_work, &seen);
    struct aule_session *session = open_session(0);
    ck_assert_int_eq(aule_merge_submit(session, &params, 23, &ticket), AULE_OK);
    ck_assert_uint_eq(seen.merge.num_tokens, 4);
    ck_assert_uint_eq(seen.merge.num_heads, 5);
    ck_assert_uint_eq(seen.merge.head_dim, 8);
    ck_assert_uint_eq(seen.merge.out.offset, 4096);
    ck_assert_uint_eq(seen.merge.lse.offset, 8192);
    ck_assert_int_eq(seen.merge.timeout_ms, 23);
    ck_assert_uint_eq(seen.merge.flags, 0);
    for (int n = 0; n < 3; n++) {
        ck_assert_uint_eq(seen.parts[0][n].offset, outs[n].offset);
        ck_assert_uint_eq(seen.parts[1][n].offset, lses[n].offset);
    }
    ck_assert_int_eq(aule_ticket_wait(session, ticket, 0, NULL), AULE_OK);
    params.num_parts = 0;
    expect(aule_merge_submit(session, &params, 0, NULL), AULE_INVALID, "num_parts = 0");
    params.num_parts = 1u << 20;
    expect(aule_merge_submit(session, &params, 0, NULL), AULE_LIMIT, "a merge of 1048576 parts");
    params.num_parts = 3;
    params.lses = NULL;
    expect(aule_merge_submit(session, &params, 0, NULL), AULE_INVALID,
           "lses is NULL, but num_parts is 3");
    aule_session_close(session);
}
END_TEST

START_TEST(an_import_is_a_batch_that_is_only_written_through)
{
    static const int64_t slots[] = {64, 65, -1, 7, 8};
    struct seen_work seen = {.run = {.timeout_ms = 0}};
    struct aule_kv_import params = {.layer = 2,
                                    .num_rows = 5,
                                    .slot_mapping = slots,
                                    .k = {.dtype = AULE_F32, .offset = 16, .token_stride = 256},
                                    .v = {.dtype = AULE_F32, .offset = 32},
                                    .k_scale = 3,
                                    .v_scale = 4};
    struct aule_ticket ticket;
    fake_start(&fake, path, keep_work, &seen);
    struct aule_session *session = open_session(0);
    struct aule_cache *cache = open_cache(session);
    ck_assert_int_eq(aule_kv_import(cache, &params, 29, &ticket), AULE_OK);
    ck_assert_uint_eq(seen.batch.num_seqs, 1);
    ck_assert_uint_eq(seen.batch.seq_lens_kv.count, 0);
    ck_assert_mem_eq(seen.ints[0], ((const int32_t[]){0, 5}), 8);
    ck_assert_mem_eq(seen.slots, slots, sizeof slots);
    ck_assert_uint_eq(seen.run.entry.kind, WIRE_RUN_WRITE);
    ck_assert_uint_eq(seen.run.entry.layer, 2);
    ck_assert_uint_eq(seen.run.entry.k.token_stride, 256);
    ck_assert_uint_eq(seen.run.entry.v.offset, 32);
    ck_assert_float_eq(seen.run.entry.k_scale, 3);
    ck_assert_float_eq(seen.run.entry.v_scale, 4);
    ck_assert_int_eq(seen.run.timeout_ms, 29);
    ck_assert_uint_eq(atomic_load(&fake.seen[WIRE_COMMAND_BATCH_DESTROY]), 1);
    params.k.outer_stride = 1024;
    expect(aule_kv_import(cache, &params, 0, NULL), AULE_INVALID,
           "k.outer_stride = 1024, but outer_rows is 0");
    params.outer_rows = 2;
    ck_assert_int_eq(aule_kv_import(cache, &params, 0, NULL), AULE_OK);
    ck_assert_uint_eq(seen.batch.num_seqs, 3);
    ck_assert_mem_eq(seen.ints[0], ((const int32_t[]){0, 2, 4, 5}), 16);
    ck_assert_uint_eq(seen.run.entry.k.outer_stride, 1024);
    ck_assert_uint_eq(seen.run.entry.flags, WIRE_RUN_DETACHED);
    params.slot_mapping = NULL;
    expect(aule_kv_import(cache, &params, 0, NULL), AULE_INVALID,
           "slot_mapping is NULL, but num_rows is 5");
    params.num_rows = 0;
    expect(aule_kv_import(cache, &params, 0, NULL), AULE_INVALID,
           "num_rows = 0: there is nothing to import");
    params.num_rows = 1u << 31;
    expect(aule_kv_import(cache, &params, 0, NULL), AULE_OUT_OF_RANGE, "num_rows = 2147483648");
    aule_cache_close(cache);
    aule_session_close(session);
}
END_TEST

START_TEST(a_gather_is_a_run_of_its_batch)
{
    struct seen_work seen = {.run = {.timeout_ms = 0}};
    const struct aule_kv_gather params = {.layer = 1,
                                          .k = {.dtype = AULE_BF16, .offset = 16},
                                          .v = {.dtype = AULE_BF16, .offset = 32},
                                          .k_scale = 5,
                                          .v_scale = 6,
                                          .keys = {.dtype = AULE_INT8, .offset = 48}};
    struct aule_ticket ticket;
    fake_start(&fake, path, keep_work, &seen);
    struct aule_session *session = open_session(0);
    struct aule_cache *cache = open_cache(session);
    struct aule_batch *batch = create_batch(cache);
    ck_assert_int_eq(aule_kv_gather(batch, &params, 31, &ticket), AULE_OK);
    ck_assert_uint_eq(seen.run.entry.kind, WIRE_RUN_GATHER);
    ck_assert_uint_eq(seen.run.entry.batch, 9);
    ck_assert_uint_eq(seen.run.entry.layer, 1);
    ck_assert_uint_eq(seen.run.entry.k.offset, 16);
    ck_assert_uint_eq(seen.run.entry.v.offset, 32);
    ck_assert_uint_eq(seen.run.entry.keys.offset, 48);
    ck_assert_float_eq(seen.run.entry.k_scale, 5);
    ck_assert_float_eq(seen.run.entry.v_scale, 6);
    ck_assert_int_eq(ticket.path, AULE_PATH_AUTO);
    ck_assert_int_eq(aule_ticket_wait(session, ticket, 0, NULL), AULE_OK);
    aule_batch_destroy(batch);
    aule_cache_close(cache);
    aule_session_close(session);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client_wire");
    add(suite, "the wire",
        (const struct entry[]){
            {every_parameter_of_a_run_reaches_the_daemon, 0},
            {metadata_larger_than_a_message_travels_through_the_arena, 0},
            {a_prompt_larger_than_a_message_travels_through_the_arena, 0},
            {a_list_of_blocks_larger_than_a_message_is_refused, 0},
            {arrays_that_are_missing_are_named, NUM_BATCH_CASES},
            {NULL, 0},
        });
    add(suite, "other work",
        (const struct entry[]){
            {every_array_of_a_batch_reaches_the_daemon, 0},
            {a_form_whose_positions_repeat_makes_no_batch_without_a_mask, 0},
            {blocks_are_copied_and_zeroed_by_one_command_each, 0},
            {every_parameter_of_a_merge_reaches_the_daemon, 0},
            {an_import_is_a_batch_that_is_only_written_through, 0},
            {a_gather_is_a_run_of_its_batch, 0},
            {NULL, 0},
        });
    return check_main(suite);
}
