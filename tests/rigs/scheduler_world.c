// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// scheduler_world.c - see scheduler_world.h.

#include "scheduler_world.h"

#include "core/scheduler.h"

#include <stdlib.h>

struct world world;
struct worker a, b, c;
int32_t blocks[3][8], tokens[64];
uint64_t batch_a, batch_b, batch_c;

static void open_with(int64_t look_ns)
{
    world_open(&world, &(struct core_params){.look_ns = look_ns});
    worker_open(&a, &world, 1, "");
    worker_open(&b, &world, 1, "");
    worker_open(&c, &world, 2, "x");
    count_tokens(tokens, 64, 1);
    worker_lease(&a, 8, blocks[0]);
    worker_lease(&b, 8, blocks[1]);
    worker_lease(&c, 8, blocks[2]);
    batch_a = worker_batch(&a, blocks[0], 8, 8);
    batch_b = worker_batch(&b, blocks[1], 8, 8);
    batch_c = worker_batch(&c, blocks[2], 8, 8);
}

void open_three(void)
{
    open_with(0);
}

void open_three_forecast(void)
{
    open_with(LOOK_NS);
}

void close_all(void)
{
    world_check(&world);
    world_close(&world);
}

uint64_t run(struct worker *worker, uint32_t layer)
{
    return worker_run(worker,
                      worker == &a   ? batch_a
                      : worker == &b ? batch_b
                                     : batch_c,
                      layer, 8, tokens);
}

enum status ask(struct worker *worker, uint64_t ticket)
{
    struct core_ticket_result result;
    return core_ticket_reap(worker->session, ticket, &result, NULL);
}

bool finish_one(void)
{
    world.now_ns += SUBMISSION_NS;
    bool finished = fake_engine_finish(world.engine);
    world_step(&world);
    return finished;
}

void occupy(void)
{
    for (int i = 0; i < SCHEDULER_MAX_IN_FLIGHT; i++) {
        struct core_run_params params = worker_run_params(&c, batch_c, 0, 8, tokens);
        uint64_t ticket;
        params.entry.flags |= WIRE_RUN_DETACHED;
        ck_assert_status(core_run(c.session, &params, &ticket, &error), STATUS_OK);
        world_step(&world);
    }
}

uint64_t make_reader(struct worker *worker, const int32_t *ids, int32_t q_len, int32_t seq_len)
{
    const int32_t cu[] = {0, q_len}, lens[] = {seq_len};
    uint32_t max_blocks = ((uint32_t)seq_len + 7) / 8;
    int32_t *table = calloc(max_blocks, sizeof(*table));
    ck_assert_ptr_nonnull(table);
    worker_fill(worker, ids, max_blocks < 8 ? max_blocks : 8);
    for (uint32_t i = 0; i < max_blocks; i++)
        table[i] = ids[i % 8]; // the same block may occur several times
    const struct core_batch_params params =
        sequences_over(worker->cache, 1, cu, lens, table, max_blocks);
    uint64_t batch = worker_create(worker, &params);
    free(table);
    return batch;
}
