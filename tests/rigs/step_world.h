// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// step_world.h - helpers for tests of steps: two workers of one user, which hold blocks. Asserts
// with check; one test a process.

#ifndef AULE_TESTS_STEP_WORLD_H
#define AULE_TESTS_STEP_WORLD_H

#include "core_world.h"

extern struct world world;
extern struct worker a, b;
extern int32_t blocks[24], blocks_b[8]; // leased
extern int32_t tokens[64];              // 1, 2, ...

// The fixture. The second function also finishes work in flight and counts all of core anew.
void open_world(void);
void close_all(void);

#endif
