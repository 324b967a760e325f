// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// attention_rig.h - a real engine with one arena, for tests: runs batches of a case and holds what
// came out against the oracle and every byte around it against what was there before. Fails the
// running check test with the values; to be used after check's fork only.

#ifndef AULE_ATTENTION_RIG_H
#define AULE_ATTENTION_RIG_H

#include "attention_batch.h"

#include <semaphore.h>

enum { RIG_MAX_RUNS = 8, RIG_MAX_PARTS = 16, RIG_DEADLINE_S = 240 };

struct rig {
    struct engine *engine;
    struct engine_arena *arena;
    struct attention_image
        image;         // the arena's bytes; `used` counts what the present case has laid out
    uint8_t *expected; // as large: what the arena must hold afterwards
    const char *about; // what a wrong row's message begins with; NULL: nothing
    uint32_t slices;   // runs are cut into so many, each a submission of its own; 0: none is cut
    bool no_doubt;     // rows must be within rig_bound(), whatever the oracle doubts
    sem_t news;
};

// AULE_VARIANT names the attention shader to use. Without validation, and it says so, if the layer
// knows too little for that one.
void rig_open(struct rig *rig, bool force_staging, bool validation);
void rig_close(struct rig *rig); // fails the test if the validation layer said anything

bool rig_has_kernels(
    const struct rig *rig); // the variant is a list of several, of which each sequence goes to one

// One submission, waited for. results[num_runs] are copied; every run must have succeeded.
void rig_submit(struct rig *rig, const struct engine_submission *submission,
                struct engine_run_result *results);

// A cache with the case's geometry, all its chunks there, and in the case's layer every block as it
// is before the run. NULL for a case whose K and V lie in the arena.
struct engine_cache *rig_cache_open(struct rig *rig, const struct attention_case *problem);
// Every block of the case's layer (or of the image's block tensors, without a cache) must be as
// `blocks` says, bit for bit; the other layers still zero.
void rig_blocks_check(struct rig *rig, struct engine_cache *cache,
                      const struct attention_case *problem, uint8_t *const *blocks);
// K that was turned as it was written becomes what the case has after the run, if it is close
// enough.
void rig_blocks_adopt(struct rig *rig, struct engine_cache *cache, struct attention_case *problem);

// Poison the arena and forget what was laid out in it.
void rig_arena_clear(struct rig *rig);
// Lays a batch out in the arena; to be ended by attention_batch_finish().
void rig_batch_init(struct rig *rig, struct attention_batch *batch,
                    const struct attention_case *problem, uint32_t set, const uint32_t *order,
                    uint32_t num_seqs, const struct attention_form *form, struct dice *dice);
// Runs the batches as one wave and returns what each run reports. Nothing but their outputs, and
// block tensors where they write, may have changed in the arena.
void rig_run(struct rig *rig, struct engine_cache *cache, const struct attention_batch *batches,
             uint32_t num_batches, struct engine_run_result *results);
// The same in waves, as struct engine_submission counts them.
void rig_run_waves(struct rig *rig, struct engine_cache *cache,
                   const struct attention_batch *batches, const uint32_t *wave_ends,
                   uint32_t num_waves, struct engine_run_result *results);
// Every row of the batch's output against the oracle. Returns the worst error, relative to its
// row's largest magnitude, of those within rig_bound(); what is beyond it must be within the
// oracle's doubt of that row. A number that is NaN in float64 must be NaN. One that the dtype
// cannot hold must be infinite or NaN, or within the bound.
double rig_check(struct rig *rig, const struct attention_batch *batch);

// The bound of that error for an output of this dtype.
double rig_bound(enum dtype dtype);

// True if a device is there that the engine can use with the variant that AULE_VARIANT asks for; a
// variant that does not exist is for the tests to fail with. Asked in a child process, so that
// check can fork afterwards.
bool rig_device_present(void);

#endif
