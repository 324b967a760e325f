// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// core_model.h - a simple model of which session holds which block of the caches: arrays, linear
// searches, and no state except counts. compare() checks that core agrees. Asserts with check; one
// test a process.

#ifndef AULE_TESTS_CORE_MODEL_H
#define AULE_TESTS_CORE_MODEL_H

#include "core_world.h"

enum {
    WORKERS = 6,
    CACHES = 2,
    TEXTS = 3,
    DEPTH = 4,
    BATCHES = 128,
    IDS = 32,
    QUOTA = 14,
    MAX_BLOCKS = 24,
    MAX_TICKETS = 6, // of a session, and offers
    MAX_BATCHES = 3,
    MAX_CLAIMED = 10, // blocks
};

// The key of a chain: salt << 16 | a digit of 1..3 for each block, the first one in the lowest four
// bits.
struct text {
    bool used;
    bool waits; // for a claim's blocks; until then it has the first num_hit only, and is not used
    int cache;
    uint32_t key, depth, num_hit;
    int32_t blocks[DEPTH];
};

struct model_batch {
    bool used, registered, dead, ran;
    uint64_t id;
    int worker, cache;
    uint32_t key, depth, outstanding;
    uint32_t num_hit; // blocks that it does not write: the first ones
    uint32_t first;   // block in which its queries begin
    int32_t blocks[DEPTH];
};

struct model_run {
    int batch;
    uint32_t layer;
    uint64_t ticket;
    bool dropped; // it is in flight behind a run that was dropped, so it counts as failed
};

struct model_block {
    uint32_t holds[WORKERS], refs[WORKERS], dead_refs, pending, node;
    uint64_t writer; // the session that may write it, also if it is gone; 0 = none may
    uint32_t offers; // with a giver, that name it
    bool sealed, written[WORLD_LAYERS];
};

struct model_worker {
    struct worker real;
    bool open; // else a new session may use it once `real.gone`
    uint32_t salt, num_runs, num_done;
    uint32_t num_back; // of the runs, the first, which came back from the engine and are queued
                       // again, while later ones are still there
    struct text texts[TEXTS];
    struct model_run runs[MAX_TICKETS]; // not finished, oldest first
    struct {
        uint64_t ticket;
        enum status status;
    } done[MAX_TICKETS];
    uint64_t opened[CACHES]; // 0 = not open
};

extern struct world world;
extern struct model_worker workers[WORKERS];
extern struct model_batch batches[BATCHES];
extern struct model_block model[CACHES][IDS];
extern uint64_t cache_ids[CACHES]; // 0 = no such cache
extern uint64_t random_state;
extern uint64_t num_hits, num_exchanged, num_failed, num_evicted, num_quarantined, num_refused,
    num_unwritten;

uint32_t roll(uint32_t sides); // 0 .. sides - 1

uint32_t prefix_key(uint32_t key, uint32_t depth); // key of the first `depth` blocks of a chain
int32_t tag(int cache, uint32_t key,
            uint32_t slot); // the number that a writer of exactly this chain puts into a slot
void text_tokens(uint32_t key, uint32_t depth, int32_t *tokens);

int find_node(int cache, uint32_t key); // the block that is published with this key; -1 = none
bool is_visible(int cache, uint32_t key);
// Counts the visible blocks of the text from block `from` on. *fresh: of these, those new to the
// worker's quota.
uint32_t count_visible(int w, const struct text *text, uint32_t from, uint32_t *fresh);
// Core has given the worker block `i` of the text: it must have what this chain's writers wrote.
void take_hit(int w, struct text *text, uint32_t i, int32_t id);
struct text *free_text(int w); // NULL: all are used
struct text *some_text(int w); // NULL: the one that was drawn is not used
struct text draw_text(int w);  // a chain of the worker's salt
void release(int w, int cache, const int32_t *ids, uint32_t count);
// Leases the blocks of the text that it lacks. False: there are too few; nothing has changed.
bool lease_rest(int w, struct text *text);
bool in_use(const struct model_block *block);
uint32_t distinct(int w); // blocks that the worker holds or its batches refer to
void batch_release(struct model_batch *batch); // frees it if nothing refers to it
void run_over(int w, const struct model_run *run, bool ok);

void sync_evictions(int cache); // removes blocks that core evicted
void compare(void);             // compares all of core with the model

#endif
