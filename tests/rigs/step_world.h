// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// step_world.h - what tests of steps have in common: two workers of one user, which hold blocks.
// Asserts with check; one test a process.

#ifndef AULE_TESTS_STEP_WORLD_H
#define AULE_TESTS_STEP_WORLD_H

#include "core_world.h"

extern struct world world;
extern struct worker a, b;
extern int32_t blocks[24], blocks_b[8]; // leased
extern int32_t tokens[64];              // 1, 2, ...

// The fixture: the second also finishes what is under way and counts all of core anew.
void open_world(void);
void close_all(void);

#endif
