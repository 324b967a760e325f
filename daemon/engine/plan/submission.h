// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// submission.h - one submission on its way: the caller's copy, the dispatches that it becomes, its
// results. Made by the caller's thread; then the submitter's, the completer's, and the caller's
// again: one after the other, so no lock.

#ifndef AULE_ENGINE_SUBMISSION_H
#define AULE_ENGINE_SUBMISSION_H

#include "engine/memory/batch.h"
#include "engine/state/event.h"
#include "shaders/layout.h"

#define NO_GROUP UINT32_MAX

// Runs of one wave that share their pipelines, over gpu_runs[first .. first + num_runs), those that
// write K and V first. In its wave the group has up to three dispatches: `write` (K/V write or
// copies), `read` (attention, gather, or a caller's merge), and behind all of these `merge` over
// what splits left, for which the runs with splits stand once more in gpu_runs[first_split ..
// first_split + num_split_runs), or `redo` over what `read` noted for a second pass.
struct group {
    enum engine_kind kind;
    struct geometry geometry;            // attention: with its kernel
    VkPipeline write, read, merge, redo; // VK_NULL_HANDLE: there is no such dispatch
    uint32_t first, num_runs, num_writers;
    uint32_t first_split, num_split_runs;
    uint32_t num_items;    // of all runs
    uint32_t num_tokens;   // of those that write; of the gather, rows; of a caller's merge, tokens
    uint32_t num_merges;   // for `merge` to do
    uint32_t num_doubtful; // of num_items, for `redo` to do at most
    uint32_t num_placed, num_split_placed; // runs that have their place in gpu_runs
    uint32_t first_range, num_ranges;      // copies
    uint32_t run;                          // a caller's merge: the one
    uint64_t redo_at;                      // in the slot's metadata: struct gpu_redo
    uint64_t partial_bytes;                // of all runs with splits
    uint64_t partials_at;                  // in the slot's scratch memory
    bool scratch_anew; // it uses memory that earlier groups of the wave have: after they are merged
    // Of attention: the group that computes what sequences of this one share, and leaves it where
    // this one would have; 0 = none.
    uint32_t helper;
    bool helps;      // it is one of these: recorded beside the group that it helps
    double bytes;    // that its runs move, about (clocks.c)
    double part, ns; // of its wave's time, from 0 to 1; and what that came to
};

// What a run has in one group.
struct share {
    uint32_t group; // NO_GROUP: nothing
    bool writes;    // the run's K and V are this group's to write
    struct work work;
    double bytes; // of the group's
};

// What the plan makes of one run.
struct planned {
    struct share shares[MOST_KERNELS]; // attention: one for each kernel of the variant; else the
                                       // first is all there is
    uint64_t partials, counters;       // of the share that another one helps, once it is placed
    uint64_t extras_at;                // in the slot's metadata: what it points to
};

struct sample;

struct submission {
    struct event_node node; // of ENGINE_EVENT_DONE
    struct sample *sample;  // it measures, and only the tuner, which waits for it, is told; NULL =
                            // it is a caller's
    bool alone; // nothing that its sequences share is computed together: there was no memory for a
                // pipeline of that
    struct engine *engine;
    uint64_t sequence;
    struct engine_zero *zeroes; // [num_zeroes]
    struct engine_run *runs;    // [num_runs]; their arrays lie in `kept`
    char *kept;
    uint32_t *wave_ends; // [num_waves]
    uint32_t num_zeroes, num_runs, num_waves;
    struct engine_run_result *results; // [num_runs]

    // The plan; room for the most that it can take is there from the start.
    struct group *groups;     // [num_groups <= shares of all runs], wave by wave
    uint32_t *wave_groups;    // [num_waves + 1]: groups [w] to [w + 1] are wave w's
    struct planned *planned;  // [num_runs]
    struct gpu_run *gpu_runs; // [num_gpu_runs <= 2 * shares of all runs]
    struct gpu_range *ranges; // [num_ranges], the zeroes first
    uint32_t num_groups, num_gpu_runs, num_ranges, num_zero_ranges;
    uint64_t scratch_bytes;           // that it needs for partial results
    uint64_t ranges_at, upload_bytes; // in the slot's metadata: gpu_runs, ranges, extras

    struct slot *slot; // NULL: the GPU has nothing of it
    bool sent;         // the GPU has it
    int64_t sent_ns;   // since when
    int64_t queued_ns; // since when the submitter may have it
    uint64_t shape;    // equal for submissions that take about as long
    struct submission *prev, *next;
};

// A copy of what the caller wants done, with room for its plan; NULL without memory. Caller's
// thread.
struct submission *submission_create(struct engine *engine, const struct engine_submission *params);
uint64_t submission_count_ranges(
    const struct engine_submission *params);         // blocks and layers that it zeroes or copies
void submission_free(struct submission *submission); // takes NULL and a half-built one
void submission_fail(struct submission *submission, uint32_t run,
                     const struct error *error); // what its result says

#endif
