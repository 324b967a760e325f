// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// ownership_world.h - what tests of who holds which block have in common: two workers of one
// tenant, which hold nothing yet, place for a third, and arrays of ids and tokens. Asserts with
// check; one test a process.

#ifndef AULE_TESTS_OWNERSHIP_WORLD_H
#define AULE_TESTS_OWNERSHIP_WORLD_H

#include "core_world.h"

extern struct world world;
extern struct worker a, b, c; // c is the test's to open
extern int32_t blocks[256], found[256];
extern int32_t tokens[2048]; // 1000, 1001, ...

// The fixture: the second also counts all of core anew.
void open_two(void);
void close_all(void);

#define ck_assert_state(block, expected)                                                           \
    ck_assert_int_eq((int)worker_block(&b, (block)).state, (int)(expected))

#endif
