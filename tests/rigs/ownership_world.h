// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// ownership_world.h - helpers for tests of block ownership: two workers of one tenant that hold
// nothing yet, room for a third, and arrays of ids and tokens. Asserts with check; one test a
// process.

#ifndef AULE_TESTS_OWNERSHIP_WORLD_H
#define AULE_TESTS_OWNERSHIP_WORLD_H

#include "core_world.h"

extern struct world world;
extern struct worker a, b, c; // the test opens c
extern int32_t blocks[256], found[256];
extern int32_t tokens[2048]; // 1000, 1001, ...

// The fixture. The second function also counts all of core anew.
void open_two(void);
void close_all(void);

#define ck_assert_state(block, expected)                                                           \
    ck_assert_int_eq((int)worker_block(&b, (block)).state, (int)(expected))

#endif
