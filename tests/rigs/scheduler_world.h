// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// scheduler_world.h - helpers for tests of runs and tickets: three workers with a batch each, and a
// GPU that is busy or finishes when told. Asserts with check; one test a process.

#ifndef AULE_TESTS_SCHEDULER_WORLD_H
#define AULE_TESTS_SCHEDULER_WORLD_H

#include "core_world.h"

extern struct world world;
extern struct worker a, b, c;              // c belongs to another user
extern int32_t blocks[3][8];               // of each
extern int32_t tokens[64];                 // 1, 2, ...
extern uint64_t batch_a, batch_b, batch_c; // 8 new tokens of 8: a run attends 64 tokens

// LOOK_NS: how long core may poll for the end of a submission. SUBMISSION_NS: its time by
// finish_one().
enum { LOOK_NS = 50000, SUBMISSION_NS = 1000000 };

// The fixtures. With open_three() core makes no forecasts. The last function also counts all of
// core anew.
void open_three(void);
void open_three_forecast(void);
void close_all(void);

// Queues a run of the worker's batch. Returns its ticket.
uint64_t run(struct worker *worker, uint32_t layer);
// Returns the result of reaping the ticket. A ticket that is done is then gone.
enum status ask(struct worker *worker, uint64_t ticket);
// Ends the oldest submission in flight, if there is one, after SUBMISSION_NS; then core steps.
bool finish_one(void);
// Occupies both places of the GPU with runs of c. The fixture's next submission then has all runs
// that were queued meanwhile.
void occupy(void);
// A batch without writes that attends q_len * seq_len tokens: many queries over the same few
// blocks.
uint64_t make_reader(struct worker *worker, const int32_t *ids, int32_t q_len, int32_t seq_len);

#endif
