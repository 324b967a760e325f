// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// core_world.c - see core_world.h.

#include "core_world.h"

#include "core/audit/audit.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void session_gone(void *context, void *owner)
{
    struct world *world = context;
    struct worker *worker = owner;
    ck_assert(!worker->gone);
    worker->gone = true;
    world->gone++;
    engine_arena_destroy(worker->arena);
    worker->arena = NULL;
    free(worker->memory);
    worker->memory = NULL;
}

static void keep_warning(void *context, int level, const char *format, const char *text)
{
    struct world *world = context;
    (void)format;
    if (level <= 1)
        snprintf(world->last_warning, sizeof(world->last_warning), "%s", text);
}

#define DEFAULT(field, value) p.field = p.field ? p.field : (value)

void world_open(struct world *world, const struct core_params *params)
{
    struct core_params p = params ? *params : (struct core_params){0};
    *world = (struct world){.engine = p.engine ? p.engine : fake_engine_create()};
    p.engine = world->engine;
    p.session_gone = session_gone;
    p.log = keep_warning;
    p.context = world;
    DEFAULT(pool_limit_bytes, 1 << 30);
    DEFAULT(max_blocks, 64);
    DEFAULT(max_sessions, 16);
    DEFAULT(max_caches, 4);
    DEFAULT(max_batches, 64);
    DEFAULT(max_tickets, 64);
    DEFAULT(max_claimed, 4096);
    DEFAULT(piece_blocks, 5);
    ck_assert_status(core_create(&p, &world->core, &error), STATUS_OK);
}

void world_close(struct world *world)
{
    struct fake_counts counts;
    core_destroy(world->core);
    fake_engine_counts(world->engine, &counts);
    ck_assert_uint_eq(counts.caches, 0);
    ck_assert_uint_eq(counts.batches, 0);
    ck_assert_uint_eq(counts.arenas, 0);
    engine_destroy(world->engine);
}

bool world_step(struct world *world)
{
    return core_step(world->core, world->now_ns);
}

void world_check(struct world *world)
{
    struct error error = {0};
    ck_assert_msg(core_check(world->core, &error), "%s", error.text);
}

void world_finish_all(struct world *world)
{
    world_step(world);
    while (!core_idle(world->core)) {
        ck_assert(fake_engine_finish(world->engine));
        world_step(world);
    }
    world_check(world);
}

struct core_cache_identity world_identity(const char *name)
{
    return (struct core_cache_identity){
        .name = name,
        .num_layers = WORLD_LAYERS,
        .kv =
            {
                .num_kv_heads = 1,
                .head_dim_k = 8,
                .head_dim_v = 8,
                .k_dtype = DTYPE_F16,
                .v_dtype = DTYPE_F16,
                .block_size = WORLD_BLOCK,
            },
    };
}

uint64_t worker_open_cache(struct worker *worker, const char *name)
{
    struct core_cache_identity identity = world_identity(name);
    struct core_cache_info info;
    ck_assert_status(core_cache_open(worker->session, &identity, &info, &error), STATUS_OK);
    return info.cache;
}

void worker_open(struct worker *worker, struct world *world, uint32_t uid, const char *tenant)
{
    worker_join(worker, world, uid, NULL, tenant);
}

void worker_join(struct worker *worker, struct world *world, uint32_t uid, const char *group,
                 const char *tenant)
{
    *worker = (struct worker){
        .world = world, .memory = calloc(1, WORLD_ARENA), .id = ++world->last_session};
    ck_assert_ptr_nonnull(worker->memory);
    ck_assert_status(
        engine_arena_create(world->engine, worker->memory, WORLD_ARENA, &worker->arena, &error),
        STATUS_OK);
    const struct core_session_params params = {
        .id = worker->id,
        .uid = uid,
        .group = group,
        .tenant = tenant,
        .name = "worker",
        .arena = worker->arena,
        .arena_size = WORLD_ARENA,
        .owner = worker,
        .wait = &worker->wait,
    };
    ck_assert_status(core_session_open(world->core, &params, &worker->session, &error), STATUS_OK);
    worker->cache = worker_open_cache(worker, "kv");
}

void worker_close(struct worker *worker, bool died)
{
    core_session_close(worker->session, died);
    worker->session = NULL;
}

struct core_counts worker_counts(struct worker *worker)
{
    struct core_counts counts;
    ck_assert_status(core_cache_counts(worker->session, worker->cache, &counts, &error), STATUS_OK);
    return counts;
}

enum status worker_try_lease(struct worker *worker, uint32_t count, int32_t *blocks,
                             struct error *error)
{
    for (;;) {
        bool growing;
        enum status status =
            core_blocks_lease(worker->session, NULL, worker->cache, count, blocks, &growing, error);
        if (status != STATUS_NO_BLOCKS || !growing)
            return status;
        ck_assert(world_step(worker->world)); // the fake engine's chunks arrive at the next poll
    }
}

void worker_lease(struct worker *worker, uint32_t count, int32_t *blocks)
{
    ck_assert_status(worker_try_lease(worker, count, blocks, &error), STATUS_OK);
}

void worker_release(struct worker *worker, const int32_t *blocks, uint32_t count)
{
    ck_assert_status(core_blocks_release(worker->session, worker->cache, blocks, count, &error),
                     STATUS_OK);
}

struct core_batch_params sequences_over(uint64_t cache, uint32_t num_seqs,
                                        const int32_t *cu_seqlens_q, const int32_t *seq_lens_kv,
                                        const int32_t *block_table, uint32_t max_blocks)
{
    return (struct core_batch_params){
        .cache = cache,
        .num_seqs = num_seqs,
        .max_blocks = max_blocks,
        .cu_seqlens_q = cu_seqlens_q,
        .num_cu_seqlens_q = num_seqs + 1,
        .seq_lens_kv = seq_lens_kv,
        .num_seq_lens_kv = num_seqs,
        .block_table = block_table,
        .num_block_table = (uint64_t)num_seqs * max_blocks,
    };
}

uint64_t worker_create(struct worker *worker, const struct core_batch_params *params)
{
    uint64_t batch = 0;
    uint32_t num_tokens;
    ck_assert_status(world_create(worker->session, params, &batch, &num_tokens, &error), STATUS_OK);
    return batch;
}

uint64_t worker_batch(struct worker *worker, const int32_t *blocks, uint32_t num_tokens,
                      uint32_t num_new)
{
    const int32_t cu_seqlens_q[] = {0, (int32_t)num_new}, seq_lens_kv[] = {(int32_t)num_tokens};
    uint32_t max_blocks = (num_tokens + WORLD_BLOCK - 1) / WORLD_BLOCK, num_made;
    int64_t *slots = calloc(num_new + 1, sizeof(*slots));
    uint64_t batch;
    ck_assert_ptr_nonnull(slots);
    for (uint32_t i = 0; i < num_new; i++) {
        uint32_t position = num_tokens - num_new + i;
        slots[i] = (int64_t)blocks[position / WORLD_BLOCK] * WORLD_BLOCK + position % WORLD_BLOCK;
    }
    struct core_batch_params params =
        sequences_over(worker->cache, 1, cu_seqlens_q, seq_lens_kv, blocks, max_blocks);
    params.slot_mapping = slots;
    params.num_slot_mapping = num_new;
    ck_assert_status(world_create(worker->session, &params, &batch, &num_made, &error), STATUS_OK);
    ck_assert_uint_eq(num_made, num_new);
    free(slots);
    return batch;
}

// Four dense tensors of 16-byte rows, one after the other, from a ring that is large enough for all
// tickets in flight.
struct core_run_params worker_run_params(struct worker *worker, uint64_t batch, uint32_t layer,
                                         uint32_t num_new, const int32_t *tokens)
{
    uint64_t size = (uint64_t)num_new * 16;
    ck_assert_uint_le(size * 4, WORLD_ARENA);
    if (worker->cursor + 4 * size > WORLD_ARENA)
        worker->cursor = 0;
    uint64_t at = worker->cursor;
    worker->cursor += 4 * size;
    struct wire_tensor tensors[4];
    for (uint64_t i = 0; i < 4; i++)
        tensors[i] = (struct wire_tensor){
            .dtype = DTYPE_F16, .offset = at + i * size, .token_stride = 16, .head_stride = 16};
    for (uint32_t t = 0; tokens && t < num_new; t++)
        memcpy(worker->memory + tensors[1].offset + (size_t)t * 16, &tokens[t], sizeof(*tokens));
    return (struct core_run_params){
        .entry =
            {
                .batch = batch,
                .layer = layer,
                .num_heads = 1,
                .q = tensors[0],
                .k = tensors[1],
                .v = tensors[2],
                .out = tensors[3],
                .window_left = -1,
                .window_right = -1,
                .flags = WIRE_RUN_CAUSAL,
            },
    };
}

uint64_t worker_queue(struct worker *worker, const struct core_run_params *params)
{
    uint64_t ticket = 0;
    ck_assert_status(core_run(worker->session, params, &ticket, &error), STATUS_OK);
    return ticket;
}

uint64_t worker_run(struct worker *worker, uint64_t batch, uint32_t layer, uint32_t num_new,
                    const int32_t *tokens)
{
    struct core_run_params params = worker_run_params(worker, batch, layer, num_new, tokens);
    return worker_queue(worker, &params);
}

struct core_ticket_result worker_result(struct worker *worker, uint64_t ticket)
{
    struct core_ticket_result result;
    ck_assert_status(core_ticket_reap(worker->session, ticket, &result, &error), STATUS_OK);
    return result;
}

void worker_reap(struct worker *worker, uint64_t ticket, enum status expected)
{
    ck_assert_int_eq((int)worker_result(worker, ticket).status, (int)expected);
}

void worker_write_async(struct worker *worker, const int32_t *blocks, const int32_t *tokens,
                        uint32_t num_tokens, uint64_t *last)
{
    uint64_t batch = worker_batch(worker, blocks, num_tokens, num_tokens);
    for (uint32_t layer = 0; layer < WORLD_LAYERS; layer++)
        *last = worker_run(worker, batch, layer, num_tokens, tokens);
    ck_assert_status(core_batch_destroy(worker->session, batch, &error), STATUS_OK);
}

void worker_write(struct worker *worker, const int32_t *blocks, const int32_t *tokens,
                  uint32_t num_tokens)
{
    uint64_t last;
    worker_write_async(worker, blocks, tokens, num_tokens, &last);
    world_finish_all(worker->world);
    for (uint64_t ticket = last + 1 - WORLD_LAYERS; ticket <= last; ticket++)
        worker_reap(worker, ticket, STATUS_OK);
}

void worker_fill(struct worker *worker, const int32_t *blocks, uint32_t count)
{
    const uint32_t num_slots = count * WORLD_BLOCK;
    int64_t *slots = calloc(num_slots, sizeof(*slots));
    uint64_t tickets[WORLD_LAYERS];
    ck_assert_ptr_nonnull(slots);
    for (uint32_t i = 0; i < num_slots; i++)
        slots[i] = (int64_t)blocks[i / WORLD_BLOCK] * WORLD_BLOCK + i % WORLD_BLOCK;
    uint64_t batch = worker_create(
        worker, &(struct core_batch_params){
                    .cache = worker->cache, .slot_mapping = slots, .num_slot_mapping = num_slots});
    for (uint32_t layer = 0; layer < WORLD_LAYERS; layer++) {
        struct core_run_params params = worker_run_params(worker, batch, layer, num_slots, NULL);
        params.entry.kind = ENGINE_WRITE;
        tickets[layer] = worker_queue(worker, &params);
    }
    ck_assert_status(core_batch_destroy(worker->session, batch, &error), STATUS_OK);
    world_finish_all(worker->world);
    for (uint32_t layer = 0; layer < WORLD_LAYERS; layer++)
        worker_reap(worker, tickets[layer], STATUS_OK);
    free(slots);
}

uint32_t worker_lookup(struct worker *worker, const int32_t *tokens, uint32_t num_tokens,
                       int32_t *blocks)
{
    const struct core_prefix prefix = {.tokens = tokens, .num_tokens = num_tokens};
    uint32_t count;
    ck_assert_status(
        core_prefix_lookup(worker->session, worker->cache, &prefix, 0, blocks, &count, &error),
        STATUS_OK);
    return count;
}

enum status worker_try_publish(struct worker *worker, const int32_t *tokens, uint32_t num_tokens,
                               int32_t *blocks, uint32_t *existing, struct error *error)
{
    const struct core_prefix prefix = {.tokens = tokens, .num_tokens = num_tokens};
    return core_prefix_publish(worker->session, worker->cache, &prefix, blocks,
                               num_tokens / WORLD_BLOCK, existing, error);
}

uint32_t worker_publish(struct worker *worker, const int32_t *tokens, uint32_t num_tokens,
                        int32_t *blocks)
{
    uint32_t existing;
    ck_assert_status(worker_try_publish(worker, tokens, num_tokens, blocks, &existing, &error),
                     STATUS_OK);
    return existing;
}

struct core_block_view worker_block(struct worker *worker, int32_t block)
{
    struct core_block_view view;
    core_block_at(worker->world->core, worker->cache, (uint32_t)block, &view);
    return view;
}

void count_tokens(int32_t *tokens, uint32_t count, int32_t first)
{
    for (uint32_t i = 0; i < count; i++)
        tokens[i] = first + (int32_t)i;
}

// ---- batches by another thread ----

struct filling {
    struct core_draft *draft;
    const struct core_batch_params *params;
    const struct core_advance *next;
    struct error *error;
    enum status status;
};

static void *fill(void *context)
{
    struct filling *f = context;
    f->status = f->next ? core_draft_fill_next(f->draft, f->next, f->error)
                        : core_draft_fill(f->draft, f->params, f->error);
    return NULL;
}

enum status world_fill(struct core_draft *draft, const struct core_batch_params *params,
                       const struct core_advance *next, struct error *error)
{
    struct filling filling = {draft, params, next, error, STATUS_OK};
    pthread_t thread;
    ck_assert_int_eq(pthread_create(&thread, NULL, fill, &filling), 0);
    pthread_join(thread, NULL);
    if (filling.status != STATUS_OK)
        core_draft_discard(draft);
    return filling.status;
}

static enum status end(struct core_draft *draft, uint64_t *batch, uint32_t *num_tokens,
                       struct error *error)
{
    const enum status status = core_draft_end(draft, batch, num_tokens, error);
    core_draft_discard(draft);
    return status;
}

static void expect_same(enum status status, enum status other, const struct error *error,
                        const struct error *another)
{
    ck_assert_msg(status == other, "%s, and by another thread %s: %s", status_name((int)status),
                  status_name((int)other), another->text);
    if (status != STATUS_OK && error && another->status != STATUS_OK)
        ck_assert_str_eq(error->text, another->text);
}

enum status world_create(struct core_session *session, const struct core_batch_params *params,
                         uint64_t *batch, uint32_t *num_tokens, struct error *error)
{
    struct error another = {0};
    struct core_draft *draft;
    enum status other = core_batch_begin(session, params, &draft, &another);
    if (other == STATUS_OK)
        other = world_fill(draft, params, NULL, &another);
    if (other == STATUS_OK)
        other = end(draft, batch, num_tokens, &another);
    if (other == STATUS_OK)
        ck_assert_int_eq((int)core_batch_destroy(session, *batch, &another), STATUS_OK);
    const enum status status = core_batch_create(session, params, batch, num_tokens, error);
    expect_same(status, other, error, &another);
    return status;
}

enum status world_advance(struct core_session *session, const struct core_advance *advance,
                          struct error *error)
{
    static uint32_t calls;
    struct error another = {0};
    struct core_draft *draft;
    uint64_t batch;
    uint32_t num_tokens;
    if (calls++ % 2)
        return core_batch_advance(session, advance, error);
    enum status other = core_advance_begin(session, advance, &draft, &another);
    if (other == STATUS_OK)
        other = world_fill(draft, NULL, advance, &another);
    if (other == STATUS_OK)
        other = end(draft, &batch, &num_tokens, &another);
    if (other == STATUS_OK)
        return other;
    const enum status status = core_batch_advance(session, advance, error);
    expect_same(status, other, error, &another);
    return status;
}
