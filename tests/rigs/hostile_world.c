// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// hostile_world.c - see hostile_world.h.

#include "hostile_world.h"

const int32_t token_cu_seqlens_q[2] = {0, 1}, token_seq_lens_kv[1] = {1};

struct wire_request token_request(uint64_t cache, const int32_t *block, const int64_t *slot)
{
    return (struct wire_request){.command = WIRE_COMMAND_BATCH_CREATE,
                                 .batch_create = {.cache = cache,
                                                  .num_seqs = 1,
                                                  .max_blocks = 1,
                                                  .cu_seqlens_q = {token_cu_seqlens_q, 2},
                                                  .seq_lens_kv = {token_seq_lens_kv, 1},
                                                  .block_table = {block, 1},
                                                  .slot_mapping = {slot, 1}}};
}

uint64_t create_token_batch(struct raw_client *raw, uint64_t cache)
{
    static int32_t block;
    static int64_t slot;
    lease(raw, cache, 1, &block);
    slot = (int64_t)block * BLOCK;
    struct wire_reply reply;
    const struct wire_request create = token_request(cache, &block, &slot);
    raw_call(raw, &create, &reply);
    ck_assert_msg(reply.status == STATUS_OK, "BatchCreate: %s", reply.message);
    return reply.batch_create.batch;
}

struct wire_request token_run(uint64_t batch)
{
    const struct wire_tensor tensor = {.dtype = DTYPE_F32, .token_stride = 32, .head_stride = 32};
    struct wire_request request = {.command = WIRE_COMMAND_RUN,
                                   .run.entry = {.batch = batch,
                                                 .num_heads = 1,
                                                 .q = tensor,
                                                 .k = tensor,
                                                 .v = tensor,
                                                 .out = tensor,
                                                 .window_left = -1,
                                                 .window_right = -1}};
    request.run.entry.v.offset = 4096;
    request.run.entry.out.offset = 8192;
    return request;
}

void check_served(void)
{
    struct raw_client *raw = raw_session(daemon_.socket, ARENA);
    struct wire_reply reply;
    const struct wire_request run = token_run(create_token_batch(raw, open_cache(raw, "shared")));
    float *v = (float *)(void *)(raw_arena(raw) + 4096),
          *out = (float *)(void *)(raw_arena(raw) + 8192);
    for (int i = 0; i < 8; i++)
        v[i] = (float)i - 3.5f;
    raw_call(raw, &run, &reply);
    ck_assert_msg(reply.status == STATUS_OK, "Run: %s", reply.message);
    const struct wire_request wait = {.command = WIRE_COMMAND_WAIT,
                                      .wait = {reply.run.ticket, 60000}};
    raw_call(raw, &wait, &reply);
    ck_assert_msg(reply.status == STATUS_OK, "Wait: %s", reply.message);
    ck_assert_int_eq(reply.wait.run_status, STATUS_OK);
    for (int i = 0; i < 8; i++)
        ck_assert_float_eq_tol(out[i], v[i], 1e-5f);
    raw_close(raw);
}
