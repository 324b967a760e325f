// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// fake_engine.h - engine.h without a GPU, controlled by a test: it records submissions, finishes or
// fails them when told, and grows chunks on demand. Instead of K and V, a slot has one number: the
// first four bytes of the token's k row in the arena. So a test can see which run wrote where.
// Copies copy the number, and a gather writes it to k. A violation of engine.h's rules (a block
// without memory, a row outside its arena, an arena that ends during a submission) aborts with a
// sentence. fake_engine.c is the device, its memory and its submissions; fake_run.c is what a run
// may do and does. Threads: as engine.h says. The fake_engine_ functions belong to the dispatcher's
// thread.

#ifndef AULE_TESTS_FAKE_ENGINE_H
#define AULE_TESTS_FAKE_ENGINE_H

#include "engine/engine.h"

struct fake_run {
    struct engine_batch *batch;
    struct engine_arena *arena;
    struct engine_run run;
    void *arrays[5]; // copies; `run` points to them
    uint32_t wave, dispatch;
    enum status fail; // the status when it is finished; STATUS_OK by default
    const char *why;  // the error's text; NULL = none; static
    uint64_t own_ns;  // its part of the dispatch's time; 0 = the same as the other runs
};

struct fake_submission {
    uint64_t sequence;
    uint64_t after; // of a haul
    uint32_t num_zeroes, num_runs, num_waves, num_dispatches;
    struct engine_zero *zeroes;
    struct fake_run *runs;
    struct fake_submission *next;
};

struct fake_counts {
    uint32_t caches, batches, arenas; // alive
    uint32_t chunks;                  // with memory
    uint32_t unfinished, most_unfinished;
    uint32_t asked_chunks; // calls of engine_cache_grow()
};

struct engine *fake_engine_create(
    void); // engine_create() without parameters; aborts if there is no memory
void fake_engine_counts(const struct engine *engine, struct fake_counts *out);

// Chunks arrive at the next poll. If they are held back, each call gives one, in the order of the
// requests.
void fake_engine_hold_chunks(struct engine *engine, bool hold);
bool fake_engine_give_chunk(struct engine *engine); // false: none was requested
void fake_engine_refuse_chunks(struct engine *engine,
                               uint32_t count); // the next ones fail: no device memory
// The next calls of engine_cache_grow() find no host memory.
void fake_engine_fail_to_ask(struct engine *engine, uint32_t count);
void fake_engine_limit_allocation(struct engine *engine, uint64_t bytes);

// A test finishes each submission. If `automatic`, submissions are finished at the next poll.
void fake_engine_automatic(struct engine *engine, bool automatic);
struct fake_submission *fake_engine_oldest(struct engine *engine); // not finished; NULL = none
struct fake_submission *fake_engine_newest(struct engine *engine);
void fake_engine_slow(struct engine *engine,
                      uint64_t gpu_ns); // time of each dispatch from now on; 1000 by default
bool fake_engine_finish(struct engine *engine); // finishes the oldest one; false: there is none
// From now on runs of this line are put off when they are finished, with all later ones of the
// line, until the compile ends and the line is resumed.
void fake_engine_put_off(struct engine *engine, uint64_t line);
void fake_engine_compiled(struct engine *engine);              // every compile has ended
uint32_t fake_engine_num_put_off(const struct engine *engine); // lines that wait for a compile
bool fake_engine_is_put_off(const struct engine *engine, uint64_t line);
// From now on there are hauls, or none. Call it before the core is made. They begin when their turn
// comes: fake_engine_finish() ends the oldest submission, or else the oldest haul.
void fake_engine_have_hauls(struct engine *engine, bool have);
struct fake_submission *fake_engine_oldest_haul(struct engine *engine); // one run; NULL = none
// Ends this haul, whichever it is; NULL: the oldest one. False: there is none, or it has not begun.
bool fake_engine_finish_haul(struct engine *engine, struct fake_submission *haul);
void fake_engine_refuse_submit(struct engine *engine, enum status status); // the next one fails
void fake_engine_lose(struct engine *engine, const char *why);

// engine_run_check() refuses this many splits or more.
void fake_engine_limit_splits(struct engine *engine, uint32_t splits);

// Reports a larger size than the memory has. The test must not read beyond it.
void fake_engine_widen_arena(struct engine_arena *arena, uint64_t size);

// What a process that imports the memory of an exported arena sees.
uint8_t *fake_engine_arena_memory(struct engine_arena *arena);

// The number in a slot: what the last finished write left there, 0 = zeroed or never written.
int32_t fake_engine_slot(const struct engine_cache *cache, uint32_t layer, int32_t block,
                         uint32_t slot);

// The allocator of the fake itself. A test whose malloc fails sets one that does not.
extern void *(*fake_engine_alloc)(size_t count, size_t size);

#endif
