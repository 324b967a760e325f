// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// daemon_step.c - see daemon_step.h.

#include "daemon_step.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

struct wire_request cache_request(const char *name)
{
    return (struct wire_request){.command = WIRE_COMMAND_CACHE_OPEN,
                                 .cache_open = {.name = name,
                                                .num_layers = 1,
                                                .num_kv_heads = 1,
                                                .head_dim_k = DIM,
                                                .head_dim_v = DIM,
                                                .k_dtype = DTYPE_F32,
                                                .v_dtype = DTYPE_F32,
                                                .block_size = BLOCK}};
}

uint64_t open_cache(struct raw_client *raw, const char *name)
{
    const struct wire_request request = cache_request(name);
    struct wire_reply reply;
    raw_call(raw, &request, &reply);
    ck_assert_msg(reply.status == STATUS_OK, "CacheOpen: %s", reply.message);
    return reply.cache_open.cache;
}

int lease_status(struct raw_client *raw, uint64_t cache, uint32_t count, int timeout_ms,
                 int32_t *blocks)
{
    const struct wire_request request = {.command = WIRE_COMMAND_BLOCKS_LEASE,
                                         .blocks_lease = {cache, count, timeout_ms}};
    struct wire_reply reply;
    raw_call(raw, &request, &reply);
    if (reply.status == STATUS_OK) {
        ck_assert_uint_eq(reply.blocks_lease.blocks.count, count);
        memcpy(blocks, reply.blocks_lease.blocks.data, count * sizeof *blocks);
    } else {
        ck_assert_uint_gt(strlen(reply.message), 10);
    }
    return reply.status;
}

void lease(struct raw_client *raw, uint64_t cache, uint32_t count, int32_t *blocks)
{
    ck_assert_int_eq(lease_status(raw, cache, count, 100000, blocks), STATUS_OK);
}

void release(struct raw_client *raw, uint64_t cache, const int32_t *blocks, uint32_t count)
{
    raw_expect(raw,
               &(struct wire_request){.command = WIRE_COMMAND_BLOCKS_RELEASE,
                                      .blocks_release = {cache, {blocks, count}}},
               STATUS_OK);
}

float *floats_at(struct raw_client *raw, size_t offset)
{
    return (float *)(void *)(raw_arena(raw) + offset);
}

struct wire_request fill_request(uint64_t cache, const int32_t *block, const int64_t *slots)
{
    static const int32_t cu_seqlens_q[2] = {0, BLOCK}, seq_lens_kv[1] = {BLOCK};
    return (struct wire_request){.command = WIRE_COMMAND_BATCH_CREATE,
                                 .batch_create = {.cache = cache,
                                                  .num_seqs = 1,
                                                  .max_blocks = 1,
                                                  .cu_seqlens_q = {cu_seqlens_q, 2},
                                                  .seq_lens_kv = {seq_lens_kv, 1},
                                                  .block_table = {block, 1},
                                                  .slot_mapping = {slots, slots ? BLOCK : 0}}};
}

void slots_of(int32_t block, int64_t slots[BLOCK])
{
    for (int i = 0; i < BLOCK; i++)
        slots[i] = (int64_t)block * BLOCK + i;
}

uint64_t create_batch(struct raw_client *raw, const struct wire_request *request)
{
    struct wire_reply reply;
    raw_call(raw, request, &reply);
    ck_assert_msg(reply.status == STATUS_OK, "BatchCreate: %s", reply.message);
    ck_assert_uint_eq(reply.batch_create.num_tokens, BLOCK);
    return reply.batch_create.batch;
}

struct wire_request run_request(uint64_t batch, int timeout_ms)
{
    const struct wire_tensor tensor = {.dtype = DTYPE_F32, .token_stride = ROW, .head_stride = ROW};
    struct wire_request request = {.command = WIRE_COMMAND_RUN,
                                   .run.entry = {.batch = batch,
                                                 .num_heads = 1,
                                                 .q = tensor,
                                                 .k = tensor,
                                                 .v = tensor,
                                                 .out = tensor,
                                                 .window_left = -1,
                                                 .window_right = -1,
                                                 .flags = WIRE_RUN_CAUSAL},
                                   .run.timeout_ms = timeout_ms};
    request.run.entry.q.offset = Q_AT;
    request.run.entry.k.offset = K_AT;
    request.run.entry.v.offset = V_AT;
    request.run.entry.out.offset = OUT_AT;
    return request;
}

uint64_t submit(struct raw_client *raw, uint64_t batch)
{
    const struct wire_request request = run_request(batch, 100000);
    struct wire_reply reply;
    raw_call(raw, &request, &reply);
    ck_assert_msg(reply.status == STATUS_OK, "Run: %s", reply.message);
    return reply.run.ticket;
}

void wait_done(struct raw_client *raw, uint64_t ticket)
{
    const struct wire_request request = {.command = WIRE_COMMAND_WAIT, .wait = {ticket, 100000}};
    struct wire_reply reply;
    raw_call(raw, &request, &reply);
    ck_assert_msg(reply.status == STATUS_OK, "Wait: %s", reply.message);
    ck_assert_int_eq(reply.wait.run_status, STATUS_OK);
    ck_assert_uint_ge(reply.wait.num_runs, 1);
    ck_assert_uint_ge(reply.wait.num_sessions, 1);
}

void store(struct raw_client *raw, uint64_t cache, const int32_t *blocks, uint32_t count)
{
    int64_t *slots = calloc(count, BLOCK * sizeof(*slots));
    struct wire_reply reply;
    ck_assert_ptr_nonnull(slots);
    for (uint32_t i = 0; i < count; i++)
        slots_of(blocks[i], slots + (size_t)i * BLOCK);
    const struct wire_request create = {
        .command = WIRE_COMMAND_BATCH_CREATE,
        .batch_create = {.cache = cache, .slot_mapping = {slots, count * BLOCK}}};
    raw_call(raw, &create, &reply);
    ck_assert_msg(reply.status == STATUS_OK, "BatchCreate: %s", reply.message);
    const uint64_t batch = reply.batch_create.batch;
    struct wire_request run = run_request(batch, 100000);
    run.run.entry.kind = WIRE_RUN_WRITE;
    run.run.entry.k.offset = run.run.entry.v.offset = 0;
    raw_call(raw, &run, &reply);
    ck_assert_msg(reply.status == STATUS_OK, "Run: %s", reply.message);
    wait_done(raw, reply.run.ticket);
    raw_expect(
        raw,
        &(struct wire_request){.command = WIRE_COMMAND_BATCH_DESTROY, .batch_destroy = {batch}},
        STATUS_OK);
    free(slots);
}

void put_step(struct raw_client *raw, float value)
{
    for (int i = 0; i < BLOCK * DIM; i++) {
        floats_at(raw, Q_AT)[i] = 0.25f * (float)(i % 5);
        floats_at(raw, K_AT)[i] = 0.5f * (float)(i % 3);
        floats_at(raw, V_AT)[i] = value;
        floats_at(raw, OUT_AT)[i] = -77;
    }
}

void check_out(struct raw_client *raw, float value)
{
    for (int i = 0; i < BLOCK * DIM; i++)
        ck_assert_float_eq_tol(floats_at(raw, OUT_AT)[i], value,
                               1e-5f * (value < 0 ? -value : value));
    for (int i = BLOCK * DIM; i < BLOCK * DIM + 16; i++)
        ck_assert_float_eq(floats_at(raw, OUT_AT)[i],
                           0); // the arena was zeroed, and no run writes beyond the tensor
}

int32_t do_step(struct raw_client *raw, uint64_t cache, float value)
{
    int32_t block;
    int64_t slots[BLOCK];
    lease(raw, cache, 1, &block);
    slots_of(block, slots);
    const struct wire_request request = fill_request(cache, &block, slots);
    uint64_t batch = create_batch(raw, &request);
    put_step(raw, value);
    wait_done(raw, submit(raw, batch));
    check_out(raw, value);
    raw_expect(
        raw,
        &(struct wire_request){.command = WIRE_COMMAND_BATCH_DESTROY, .batch_destroy = {batch}},
        STATUS_OK);
    return block;
}
