// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// scheduler_world.h - what tests of runs and tickets have in common: three workers with a batch
// each, and a GPU that is busy or finishes when told. Asserts with check; one test a process.

#ifndef AULE_TESTS_SCHEDULER_WORLD_H
#define AULE_TESTS_SCHEDULER_WORLD_H

#include "core_world.h"

extern struct world world;
extern struct worker a, b, c;              // c is of another user
extern int32_t blocks[3][8];               // of each
extern int32_t tokens[64];                 // 1, 2, ...
extern uint64_t batch_a, batch_b, batch_c; // 8 new tokens of 8: 64 tokens attended a run

// How long core may look for the end of a submission, which takes so long by finish_one().
enum { LOOK_NS = 50000, SUBMISSION_NS = 1000000 };

// The fixtures: with open_three() core forecasts nothing. The last one also counts all of core
// anew.
void open_three(void);
void open_three_forecast(void);
void close_all(void);

// Queues a run of the worker's batch; its ticket.
uint64_t run(struct worker *worker, uint32_t layer);
// What reaping the ticket gives; one that is done is reaped.
enum status ask(struct worker *worker, uint64_t ticket);
// The oldest submission in flight, if there is one, ends after SUBMISSION_NS; then core's step.
bool finish_one(void);
// Occupies both places of the GPU with runs of c; the fixture's next submission then has all that
// was queued meanwhile.
void occupy(void);
// A batch without writes that attends q_len * seq_len tokens: many queries over the same few
// blocks.
uint64_t make_reader(struct worker *worker, const int32_t *ids, int32_t q_len, int32_t seq_len);

#endif
