// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_core_memory.c - every allocation of core fails once, in a scenario that needs all of them:
// the call returns NO_MEMORY, nothing has changed, and the same call succeeds afterwards. The
// linker wraps malloc, calloc, aligned_alloc, realloc, strdup and pages_map(); the fake engine
// bypasses the wrappers.

#include "core/pool/session.h"
#include "fakes/failing_memory.h"
#include "rigs/check_main.h"
#include "rigs/core_world.h"

#include <string.h>

static struct world world;
static struct worker worker;
static int32_t blocks[64], more[64], tokens[512];
static uint64_t batch, local, ticket;

// Each step is one call of core that may allocate. It returns the call's status.
static enum status open_session(struct error *error)
{
    const struct core_session_params params = {
        .id = 1,
        .uid = 1,
        .tenant = "tenant",
        .name = "worker",
        .arena = worker.arena,
        .arena_size = WORLD_ARENA,
        .owner = &worker,
    };
    return core_session_open(world.core, &params, &worker.session, error);
}

static enum status open_cache(struct error *error)
{
    struct core_cache_identity identity = world_identity("kv");
    struct core_cache_info info = {0};
    enum status status = core_cache_open(worker.session, &identity, &info, error);
    worker.cache = info.cache;
    return status;
}

static enum status lease_blocks(uint32_t count, int32_t *ids, struct error *error)
{
    for (;;) {
        bool growing;
        enum status status =
            core_blocks_lease(worker.session, NULL, worker.cache, count, ids, &growing, error);
        if (!growing || !world_step(&world))
            return status;
    }
}

static enum status lease(struct error *error)
{
    return lease_blocks(40, blocks, error);
}

static enum status lease_more(struct error *error)
{
    return lease_blocks(20, more, error);
}

static int64_t all_slots[320];

// 40 blocks in 3 chunks: enough for all arrays of a batch to grow.
static enum status create_batch(struct error *error)
{
    const int32_t cu[] = {0, 320}, lens[] = {320};
    uint32_t made;
    for (uint32_t i = 0; i < 320; i++)
        all_slots[i] = (int64_t)blocks[i / 8] * 8 + i % 8;
    struct core_batch_params params = sequences_over(worker.cache, 1, cu, lens, blocks, 40);
    params.slot_mapping = all_slots;
    params.num_slot_mapping = 320;
    return core_batch_create(worker.session, &params, &batch, &made, error);
}

// The same slots, and one more block that queries see.
static enum status advance(struct error *error)
{
    const int32_t lens[] = {320};
    const struct core_entry entry = {0, 39, more[0]};
    const struct core_advance params = {.batch = batch,
                                        .seq_lens_kv = lens,
                                        .num_seq_lens_kv = 1,
                                        .entries = &entry,
                                        .num_entries = 1,
                                        .slot_mapping = all_slots,
                                        .num_slot_mapping = 320};
    return core_batch_advance(worker.session, &params, error);
}

static enum status run(uint32_t layer, struct error *error)
{
    const struct wire_tensor rows = {.dtype = DTYPE_F16, .token_stride = 16, .head_stride = 16};
    struct core_run_params params = {.entry = {.batch = batch,
                                               .layer = layer,
                                               .num_heads = 1,
                                               .q = rows,
                                               .k = rows,
                                               .v = rows,
                                               .out = rows,
                                               .window_left = -1,
                                               .window_right = -1}};
    params.entry.out.offset = 8192;
    return core_run(worker.session, &params, &ticket, error);
}

static enum status run_first(struct error *error)
{
    return run(0, error);
}

static enum status run_second(struct error *error)
{
    return run(1, error);
}

// Two blocks of the session itself, and tokens in reverse order.
static enum status create_local(struct error *error)
{
    static const int32_t cu[] = {0, 2}, lens[] = {9}, table[] = {1, 0}, rows[] = {1, 0};
    static const int64_t slots[] = {0, -1};
    const struct core_layout layout = {.kv = world_identity("").kv, .num_blocks = 2};
    uint32_t made;
    struct core_batch_params params = sequences_over(0, 1, cu, lens, table, 2);
    params.layout = &layout;
    params.slot_mapping = slots;
    params.num_slot_mapping = 2;
    params.token_rows = rows;
    params.num_token_rows = 2;
    return core_batch_create(worker.session, &params, &local, &made, error);
}

static enum status run_local(struct error *error)
{
    const struct wire_tensor rows = {.dtype = DTYPE_F16, .token_stride = 16, .head_stride = 16};
    const double frequencies[] = {1.0};
    struct core_run_params params = {.entry = {.batch = local,
                                               .num_heads = 1,
                                               .q = rows,
                                               .k = rows,
                                               .v = rows,
                                               .out = rows,
                                               .keys = rows,
                                               .values = rows,
                                               .rope_dim = 2,
                                               .window_left = -1,
                                               .window_right = -1},
                                     .frequencies = frequencies};
    params.entry.out.offset = 8192;
    params.entry.keys.offset = 16384;
    params.entry.values.offset = 32768;
    params.entry.keys.outer_stride = params.entry.values.outer_stride = 128;
    return core_run(worker.session, &params, &ticket, error);
}

static enum status copy_blocks(struct error *error)
{
    return core_blocks_copy(worker.session, worker.cache, blocks, more, 20, false, &ticket, error);
}

static enum status merge(struct error *error)
{
    const struct wire_tensor rows = {.dtype = DTYPE_F16, .token_stride = 16, .head_stride = 16};
    const struct engine_part part = {
        .out = rows, .lse = {.dtype = DTYPE_F32, .offset = 8192, .token_stride = 16}};
    struct core_merge_params params = {.num_tokens = 4,
                                       .num_heads = 1,
                                       .head_dim = 8,
                                       .parts = &part,
                                       .num_parts = 1,
                                       .out = rows};
    params.out.offset = 4096;
    return core_merge(worker.session, &params, &ticket, error);
}

static enum status publish(struct error *error)
{
    uint32_t existing;
    return worker_try_publish(&worker, tokens, 320, blocks, &existing, error);
}

// Nothing is published yet.
static enum status claim(struct error *error)
{
    const struct core_prefix prefix = {.tokens = tokens, .num_tokens = 320};
    struct core_claim out;
    enum status status =
        core_prefix_claim(worker.session, worker.cache, &prefix, 0, more + 20, &out, error);
    bool whole = status == STATUS_OK ? out.claim != 0 : worker.session->num_claimed == 0;
    return whole ? status : STATUS_INTERNAL;
}

static enum status lookup(struct error *error)
{
    const struct core_prefix prefix = {.tokens = tokens, .num_tokens = 320};
    uint32_t count = 0;
    enum status status =
        core_prefix_lookup(worker.session, worker.cache, &prefix, 0, more + 20, &count, error);
    return count == (status == STATUS_OK ? 40 : 0) ? status : STATUS_INTERNAL;
}

// Forty blocks that are written, and the ids of their tokens.
static enum status offer(struct error *error)
{
    const struct core_offer_params params = {.cache = worker.cache,
                                             .name = "all",
                                             .blocks = blocks,
                                             .num_blocks = 40,
                                             .num_stored = 320,
                                             .num_tokens = 320,
                                             .tokens = tokens,
                                             .num_known = 320,
                                             .expires_ns = 1};
    return core_offer_make(worker.session, &params, error);
}

static const struct {
    enum status (*call)(struct error *error);
    bool finish; // let the GPU work afterwards
} steps[] = {
    {open_session, false}, {open_cache, false}, {lease, false},        {lease_more, false},
    {create_batch, false}, {run_first, false},  {run_second, false},   {copy_blocks, false},
    {advance, false},      {run_second, false}, {create_local, false}, {run_local, false},
    {merge, true},         {claim, false},      {publish, false},      {lookup, false},
    {offer, false},
};
enum { NUM_STEPS = sizeof(steps) / sizeof(*steps) };

static void prepare(void)
{
    fake_engine_alloc = __real_calloc;
    world_open(&world, NULL);
    worker = (struct worker){.world = &world, .memory = calloc(1, WORLD_ARENA), .id = 1};
    ck_assert_ptr_nonnull(worker.memory);
    ck_assert_status(
        engine_arena_create(world.engine, worker.memory, WORLD_ARENA, &worker.arena, &error),
        STATUS_OK);
    count_tokens(tokens, 512, 1);
}

// Fails the n-th allocation of step `at`, n = 1, 2, ... until the step has no n-th one. Returns how
// many it has.
static uint64_t sweep(size_t at)
{
    for (uint64_t n = 1;; n++) {
        struct error error = {0};
        atomic_store(&failing_count, 0);
        failing_countdown = n;
        enum status status = steps[at].call(&error);
        failing_countdown = 0;
        world_check(&world);
        if (atomic_load(&failing_count) == 0) {
            ck_assert_msg(status == STATUS_OK, "step %zu: %s", at, error.text);
            return n - 1;
        }
        ck_assert_msg(status == STATUS_NO_MEMORY, "step %zu, allocation %llu: %s", at,
                      (unsigned long long)n, status_name((int)status));
        ck_assert_int_eq((int)error.status, (int)STATUS_NO_MEMORY);
    }
}

START_TEST(every_failed_allocation_is_told_and_harms_nothing)
{
    uint64_t allocations = 0;
    prepare();
    for (size_t at = 0; at < NUM_STEPS; at++) {
        uint64_t had = sweep(at);
        ck_assert_uint_gt(had, 0);
        allocations += had;
        if (steps[at].finish)
            world_finish_all(&world);
    }
    ck_assert_uint_gt(allocations, 60);
    world_close(&world);
}
END_TEST

START_TEST(without_memory_no_core_is_created)
{
    struct core *core = NULL;
    const struct core_params params = {
        .engine = fake_engine_create(),
        .max_sessions = 1,
        .max_caches = 1,
        .max_batches = 1,
        .max_tickets = 4,
    };
    struct error error = {0};
    failing_countdown = 1;
    enum status status = core_create(&params, &core, &error);
    failing_countdown = 0;
    ck_assert_int_eq((int)status, (int)STATUS_NO_MEMORY);
    ck_assert_ptr_null(core);
    engine_destroy(params.engine);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("core memory");
    TCase *tcase = tcase_create("failing allocations");
    tcase_add_test(tcase, every_failed_allocation_is_told_and_harms_nothing);
    tcase_add_test(tcase, without_memory_no_core_is_created);
    suite_add_tcase(suite, tcase);
    return check_main(suite);
}
