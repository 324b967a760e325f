// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// step_world.c - see step_world.h.

#include "step_world.h"

struct world world;
struct worker a, b;
int32_t blocks[24], blocks_b[8], tokens[64];

void open_world(void)
{
    world_open(&world, &(struct core_params){.max_run_work = 1 << 24});
    worker_open(&a, &world, 1, "");
    worker_open(&b, &world, 1, "");
    worker_lease(&a, 24, blocks);
    worker_lease(&b, 8, blocks_b);
    count_tokens(tokens, 64, 1);
}

void close_all(void)
{
    world_finish_all(&world);
    world_check(&world);
    world_close(&world);
}
