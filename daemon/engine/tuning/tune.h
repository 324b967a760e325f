// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// tune.h - the table of measurements: which of a kernel's candidates (kernel.h) a kind of dispatch
// gets. All candidates give the same bits. Where nothing was measured, or tuning is off, the
// kernel's own rule chooses. Knows neither the GPU nor files. Any thread: one lock, which is held
// for a short time only.

#ifndef AULE_ENGINE_TUNE_H
#define AULE_ENGINE_TUNE_H

#include "engine/kernels/geometry.h"

#include <pthread.h>

// A kind of dispatch. Its last three numbers are rounded down to powers of two: tune_size().
struct tune_key {
    uint64_t shader;               // tune_store.h, kernel_hash()
    uint32_t spec[SPEC_CONSTANTS]; // AULE_SPEC_LOCAL_SIZE: 0
    uint32_t num_workgroups;       // of the dispatch
    uint32_t num_keys;             // of a sequence, on average
    uint32_t num_splits;           // that the run asks for; 0 = by the kernel's rule
};
uint32_t tune_size(uint64_t number, uint32_t most); // 1 .. most

struct tune_entry {
    struct tune_key key;
    char kernel[64];
    enum engine_tune_state state;
    uint32_t local_size;      // the choice; 0 = none yet
    uint32_t rule_local_size; // of the kernel's rule for such a dispatch
    uint64_t gpu_ns, rule_gpu_ns;
    uint32_t num_candidates, num_samples;
    bool ours; // the variant in use has the kernel; others' entries only stay in the file
};

struct tune_row;
struct tune {
    pthread_mutex_t lock;
    pthread_cond_t changed; // something waits, is unsaved, or `stopping`
    bool lock_made, changed_made;
    bool enabled, stopping;
    bool unsaved; // the file is behind
    bool cleared; // since the last save
    bool failed;  // the last write of the file failed; the next measurement or tune_stop() retries
    bool full;    // an entry was refused because the table is full
    uint32_t max_entries;    // kinds beyond keep to their kernels' rules
    struct tune_row *by_key; // uthash
    struct tune_row **rows;  // [HASH_COUNT(by_key) <= capacity], in the order of arrival
    uint32_t capacity;
    struct tune_row *spare; // uthash: entries of the file beyond max_entries, which only go back
                            // into it
};

enum status tune_init(struct tune *tune, bool enabled, uint32_t max_entries, struct error *error);
void tune_finish(struct tune *tune); // takes a zeroed one

// The local size; 0 = the rule's.
uint32_t tune_choice(struct tune *tune, const struct tune_key *key);
// Whether tune_want() would take it, if there is room.
bool tune_lacks(struct tune *tune, const struct tune_key *key);
// There was such a dispatch. An unknown kind is to be measured, if there is room. `entry` has all
// but state and results.
void tune_want(struct tune *tune, const struct tune_entry *entry);
// Adds an entry of the file. A full table keeps it aside for the next write of the file. UNUSED:
// the table has this key already, or there is no memory.
enum tune_added { TUNE_ADDED, TUNE_SPARE, TUNE_UNUSED };
enum tune_added tune_add(struct tune *tune, const struct tune_entry *entry);

// For the thread that measures: waits for something to do. False: the thread is to end.
struct tune_task {
    bool measure, save;
    bool clear;              // with `save`: tune_clear() was called, so the file goes in any case
    struct tune_entry entry; // to measure
};
bool tune_wait(struct tune *tune, struct tune_task *task);
// The result of task.entry. If the entry was cleared meanwhile, the result is dropped.
void tune_done(struct tune *tune, const struct tune_entry *entry);
// Whether the entry still waits to be measured.
bool tune_goes_on(struct tune *tune, const struct tune_key *key);
void tune_stop(struct tune *tune); // ends tune_wait() for good

void tune_enable(struct tune *tune, bool enabled);
void tune_renew(struct tune *tune); // measures all of ours again; until then the old choices hold
void tune_clear(struct tune *tune);

// Entry `index` in the order of arrival. False: there is none.
bool tune_at(struct tune *tune, uint32_t index, struct tune_entry *out);
// What the file shall have: all entries, then the spare ones. Malloc'd; NULL without memory.
struct tune_entry *tune_copy(struct tune *tune, uint32_t *count);
void tune_not_saved(struct tune *tune); // the file could not be written
struct tune_counts {
    bool enabled, full;
    uint32_t num_entries, num_waiting;
};
struct tune_counts tune_count(struct tune *tune);

#endif
