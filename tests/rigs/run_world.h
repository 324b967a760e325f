// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// run_world.h - helpers for tests of runs of each kind: one worker with eight blocks, batches of
// two sequences over the cache, over blocks and over rows of its arena, and runs of them. Asserts
// with check; one test a process.

#ifndef AULE_TESTS_RUN_WORLD_H
#define AULE_TESTS_RUN_WORLD_H

#include "core_world.h"

enum { AT_Q = 0, AT_K = 4096, AT_V = 8192, AT_OUT = 16384, AT_KEYS = 32768, AT_VALUES = 65536 };

extern struct world world;
extern struct worker a;
extern int32_t blocks[8], tokens[64]; // leased; 1, 2, ...

// The fixture.
void open_one(void);
void close_one(void);

struct wire_tensor tensor(uint64_t offset, uint64_t outer_stride);
struct core_run_params run_of(uint64_t batch,
                              enum engine_kind kind); // q, k, v and out at their places
struct core_run_params over_blocks(uint64_t batch,
                                   enum engine_kind kind); // the same with K and V in the arena
uint64_t create(const struct core_batch_params *params);
struct core_layout layout_of(uint32_t block_size); // 0 = contiguous
// Two sequences, 3 new tokens of 10 and 2 new of 4, over the blocks {6, 2} and {4} of 8 tokens; and
// the same over contiguous rows.
uint64_t local_blocks(const struct core_layout *layout, bool writes);
uint64_t local_rows(const struct core_layout *layout, bool ragged);
// Five rows that are written into blocks[0]; one of them goes nowhere. `seqs` is 0, or 2 for outer
// strides.
uint64_t writer(uint32_t seqs);

#define REFUSED(params, change, status, text)                                                      \
    do {                                                                                           \
        struct core_run_params p = params;                                                         \
        uint64_t none_ = 0;                                                                        \
        change;                                                                                    \
        ck_assert_refused(core_run(a.session, &p, &none_, &error), status, text);                  \
        ck_assert_uint_eq(none_, 0);                                                               \
    } while (0)

#define ACCEPTED(params, change)                                                                   \
    do {                                                                                           \
        struct core_run_params p = params;                                                         \
        uint64_t ticket_ = 0;                                                                      \
        change;                                                                                    \
        ck_assert_status(core_run(a.session, &p, &ticket_, &error), STATUS_OK);                    \
        world_finish_all(&world);                                                                  \
        worker_reap(&a, ticket_, STATUS_OK);                                                       \
    } while (0)

// Writes to the worker's arena; put_numbers() writes one every 16 bytes.
int32_t number_at(uint64_t offset);
void put_numbers(uint64_t offset, uint32_t count, int32_t first);

#endif
