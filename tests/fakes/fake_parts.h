// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// fake_parts.h - what fake_engine.c and fake_run.c share. Tests include fake_engine.h.

#ifndef AULE_TESTS_FAKE_PARTS_H
#define AULE_TESTS_FAKE_PARTS_H

#include "fake_engine.h"

#include <stdatomic.h>

enum growth_state { NOT_GROWN, GROWTH_WANTED, GROWN };

struct fake_chunk {
    enum growth_state state;
    int32_t *slots; // [num_layers, chunk_blocks, block_size]
};

struct engine_cache {
    struct engine *engine;
    struct engine_cache *next;
    struct engine_cache_params params;
    struct fake_chunk *chunks; // [num_chunks]
    uint32_t num_chunks;
};

struct engine_arena {
    struct engine *engine;
    uint8_t *base;
    uint64_t size;
    int exported; // a memfd of its memory, mapped at `base`; owned; -1 = the memory is the caller's
};

struct engine_batch {
    struct engine *engine;
    struct engine_cache *cache; // NULL: K and V are in the arena
    enum engine_place place;
    struct engine_kv kv;
    uint32_t refs, num_seqs, max_blocks, num_tokens;
    int32_t *cu_seqlens_q, *seq_lens_kv, *block_table; // NULL: not given
    int64_t *slot_mapping;
    int32_t *positions, *q_lens, *token_rows, *kv_starts;
    uint8_t *mask;
    uint64_t table; // on a real device, steps with the same table share it; here each has a copy
};

struct fake_growth {
    struct fake_growth *next;
    struct engine_cache *cache; // NULL: it was destroyed
    uint32_t chunk;
    bool ready;
};

struct fake_event {
    struct fake_event *next;
    struct engine_event event;
    struct engine_run_result *results;
};

enum { FAKE_LINES = 8 };
struct fake_line {
    uint64_t number; // 0 = none
    bool compiled;
};

struct engine {
    struct engine_params params;
    struct fake_line lines[FAKE_LINES];
    struct engine_device device;
    struct engine_cache *caches;
    struct fake_submission *submissions; // not finished, oldest first
    struct fake_growth *growths;
    struct fake_event *events, *shown; // shown: the one that the last poll returned
    struct fake_submission *hauls;     // likewise; `sequence` is the haul's number
    uint64_t haul_number;              // of the last haul
    bool has_hauls;
    uint64_t sequence, gpu_ns; // the last sequence; time of a dispatch
    bool hold_chunks, automatic;
    uint32_t unasked_chunks; // so many calls of engine_cache_grow() find no memory
    uint32_t limit_splits;
    atomic_bool lost; // engine_arena_destroy() reads it on any thread
    uint32_t refuse_chunks, most_unfinished, asked_chunks, batches;
    enum status refuse_submit;
    atomic_uint arenas;
};

__attribute__((format(printf, 1, 2), noreturn)) void fake_broken(const char *format, ...);
void *fake_make(size_t count, size_t size); // zeroed; aborts if there is no memory
void *fake_copy(const void *data, size_t count, size_t size);
// The numbers of a block's slots from `slot` on. NULL: the block has no memory.
int32_t *fake_slot_at(const struct engine_cache *cache, uint32_t layer, int64_t block,
                      uint32_t slot);

// Checks all that a real engine would trust, and copies the arrays.
void fake_run_init(struct fake_run *run, const struct engine_run *from);
void fake_run_finish(struct fake_run *run);
void fake_run_do(
    const struct fake_run *run); // writes, copies, gathers; attention itself changes nothing
bool fake_run_shares_dispatch(const struct fake_run *a, const struct fake_run *b);
const struct engine_cache *fake_run_cache(const struct fake_run *run); // NULL: it uses none

#endif
