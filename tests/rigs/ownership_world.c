// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// ownership_world.c - see ownership_world.h.

#include "ownership_world.h"

struct world world;
struct worker a, b, c;
int32_t blocks[256], found[256], tokens[2048];

void open_two(void)
{
    world_open(&world, NULL);
    worker_open(&a, &world, 1, "");
    worker_open(&b, &world, 1, "");
    count_tokens(tokens, 2048, 1000);
}

void close_all(void)
{
    world_check(&world);
    world_close(&world);
}
