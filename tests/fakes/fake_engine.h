// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// fake_engine.h - engine.h without a GPU, in the hands of a test: it records what is submitted,
// finishes it when told to, fails what it is told to fail, and grows chunks on demand. In place of
// K and V a slot keeps one number, the first four bytes of the token's k row in the arena, so that
// a test can see who wrote where; copies carry it along, a gather puts it where k is to be.
// Whatever breaks engine.h's rules (a block without memory, a row outside its arena, an arena that
// ends under a submission) aborts with a sentence. fake_engine.c is the device, its memory and its
// submissions; fake_run.c what a run may and does.
//
// Threads: as engine.h says; the fake_engine_ functions belong to the dispatcher's thread.

#ifndef AULE_TESTS_FAKE_ENGINE_H
#define AULE_TESTS_FAKE_ENGINE_H

#include "engine/engine.h"

struct fake_run {
    struct engine_batch *batch;
    struct engine_arena *arena;
    struct engine_run run;
    void *arrays[5]; // copies; `run` points to them
    uint32_t wave, dispatch;
    enum status fail; // instead of OK, when it is finished; STATUS_OK at first
    const char *why;  // in a sentence; NULL = without one; static
    uint64_t own_ns;  // of the dispatch's time; 0 = as much as the others of it
};

struct fake_submission {
    uint64_t sequence;
    uint32_t num_zeroes, num_runs, num_waves, num_dispatches;
    struct engine_zero *zeroes;
    struct fake_run *runs;
    struct fake_submission *next;
};

struct fake_counts {
    uint32_t caches, batches, arenas; // alive
    uint32_t chunks;                  // with memory
    uint32_t unfinished, most_unfinished;
    uint32_t asked_chunks; // engine_cache_grow() calls so far
};

struct engine *fake_engine_create(
    void); // engine_create() without parameters; aborts without memory
void fake_engine_counts(const struct engine *engine, struct fake_counts *out);

// Chunks arrive at the next poll, unless held back; then one a call, in the order in which they
// were asked for.
void fake_engine_hold_chunks(struct engine *engine, bool hold);
bool fake_engine_give_chunk(struct engine *engine); // false: none is wanted
void fake_engine_refuse_chunks(struct engine *engine,
                               uint32_t count); // the next ones: no device memory
void fake_engine_limit_allocation(struct engine *engine, uint64_t bytes);

// Submissions are finished by hand, unless automatic: then at the next poll.
void fake_engine_automatic(struct engine *engine, bool automatic);
struct fake_submission *fake_engine_oldest(struct engine *engine); // unfinished; NULL = none
struct fake_submission *fake_engine_newest(struct engine *engine);
void fake_engine_slow(struct engine *engine,
                      uint64_t gpu_ns); // that each dispatch from now on takes; at first 1000
bool fake_engine_finish(struct engine *engine); // the oldest; false: none
void fake_engine_refuse_submit(struct engine *engine, enum status status); // the next one
void fake_engine_lose(struct engine *engine, const char *why);

// engine_run_check() refuses so many splits or more.
void fake_engine_limit_splits(struct engine *engine, uint32_t splits);

// Lets it pass for a larger one than it is; the test sees to it that nothing beyond is read.
void fake_engine_widen_arena(struct engine_arena *arena, uint64_t size);

// The number in a slot: what the last finished write left there, 0 = zeroed. And what fills a chunk
// on arrival stays 0.
int32_t fake_engine_slot(const struct engine_cache *cache, uint32_t layer, int32_t block,
                         uint32_t slot);

// Allocates for the fake itself; a test that makes malloc fail points it past that.
extern void *(*fake_engine_alloc)(size_t count, size_t size);

#endif
