// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// attention_suite.h - what the files of the attention suite share: the seed, and one case on a
// stage. Each file adds its tests to the one suite that test_attention.c runs.

#ifndef AULE_ATTENTION_SUITE_H
#define AULE_ATTENTION_SUITE_H

#include "attention_rig.h"

#include <check.h>

extern uint64_t attention_seed;

// Where AULE_VARIANT is matrix or matrix_f16, a shape that its kernels serve instead of one that
// few of them do: f16, or with matrix what is bf16 in q and out, heads of up to 256 dims, blocks of
// 16 and more; where it is matrix_shared f16; where it is hopper the same as for matrix, but heads
// of 128 dims unless K or V have 8 bits. What other shapes get there, other variants show. Not
// where matrices are emulated: a software device would take ten minutes instead of two.
void suite_shape_bend(struct attention_shape *shape);
// A case that follows from the seed, `kind` (one number a test) and `index`.
struct attention_case *suite_case(uint64_t index, uint64_t kind, const struct attention_wish *wish);
// Runs the case's sequences as one to three batches of one wave, in any form, and holds all of it
// against the oracle. Returns the worst error.
double suite_case_run(struct rig *rig, struct attention_case *problem, struct dice *dice);
void suite_wish_run(const struct attention_wish *wish, uint64_t kind, bool force_staging);

// A problem to be changed before it is run, all sequences in one batch in their order, rows one
// after the other. Not on top of writes.
struct stage {
    struct rig rig;
    struct attention_case *problem;
    struct engine_cache *cache;
    struct attention_batch batch;
};
void stage_set(struct stage *stage, uint64_t kind, const struct attention_wish *wish);
void stage_play(struct stage *stage); // opens the cache, lays the batch out, runs it
void stage_replay(
    struct stage *stage); // runs it once more, with what the batch and its parameters are now
void stage_clear(struct stage *stage);
const void *stage_row(const struct stage *stage, uint32_t token, uint32_t head);
float stage_lse(const struct stage *stage, uint32_t token, uint32_t head);

TCase *suite_part(Suite *suite, const char *name);
void suite_add_features(Suite *suite);
void suite_add_bits(Suite *suite);
void suite_add_splits(Suite *suite);
void suite_add_examples(Suite *suite);
void suite_add_edges(Suite *suite);

#endif
