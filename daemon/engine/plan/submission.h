// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// submission.h - one submission on its way: the caller's copy, the groups of dispatches that it
// becomes, its results. One thread at a time uses it, so it needs no lock: the caller, the
// submitter, the completer, and the caller again.

#ifndef AULE_ENGINE_SUBMISSION_H
#define AULE_ENGINE_SUBMISSION_H

#include "choice.h"
#include "engine/memory/batch.h"
#include "engine/state/event.h"
#include "shaders/layout.h"

#define NO_GROUP UINT32_MAX
#define NO_RUN   UINT32_MAX

// Runs of one wave that share their pipelines. They are gpu_runs[first, first + num_runs); those
// that write K and V come first. Runs of a decode appear a second time behind them, with their
// small items. So the large items of all runs come first: place_tails() in encode.c. A group has
// up to three dispatches in its wave: `write` (K/V writes or copies), `read` (attention, gather, or
// a caller's merge), and a third. The third is `merge`, which merges the results of splits, or
// `redo`, the second pass over items that `read` noted. For `merge` the runs with splits stand once
// more in gpu_runs[first_split, first_split + num_split_runs).
struct group {
    enum engine_kind kind;
    struct geometry geometry;            // attention: with the number of its kernel
    VkPipeline write, read, merge, redo; // VK_NULL_HANDLE: there is no such dispatch
    uint32_t first, num_runs, num_writers;
    uint32_t first_split, num_split_runs;
    uint32_t num_tails;    // runs that have large items and small ones
    uint32_t num_items;    // of all its runs
    uint32_t num_tokens;   // written; gathered rows; or tokens of a caller's merge
    uint32_t num_merges;   // tiles whose splits `merge` merges
    uint32_t num_doubtful; // of num_items, those that `read` may note for `redo`
    // Runs that encode.c has placed in gpu_runs.
    uint32_t num_placed, num_split_placed, num_tails_placed;
    uint32_t first_range, num_ranges; // ENGINE_COPY
    uint32_t run;                     // ENGINE_MERGE: its one run
    bool is_apart;                    // a slice of a write or a gather: no other run joins it
    uint64_t redo_at;                 // offset in the slot's piece: struct gpu_redo
    bool is_native;                   // `native` is launched instead of `read`
    const struct native *native;
    uint64_t native_at;     // offset in the slot's piece: hopper_measure()'s extras
    uint64_t partial_bytes; // of partial results, for all its runs
    uint64_t partials_at;   // offset in the slot's scratch memory
    // It uses memory of earlier groups in the wave, so it waits for their merges.
    bool scratch_anew;
    // Attention: the group of the cascade that computes shared parts and leaves the results where
    // this group would have left them; 0 = none.
    uint32_t helper;
    bool helps;      // it is such a cascade; recorded beside the group that it helps
    double bytes;    // an estimate of what its runs move; see clocks.c
    double part, ns; // its part of the wave's GPU time, 0 to 1, and the same in ns
};

// A run's work in one group.
struct share {
    uint32_t kernel; // attention: its number in the variant's list; other kinds: 0
    uint32_t group;
    bool writes; // the group writes the run's K and V
    struct work work;
    uint32_t place; // in gpu_runs
    double bytes;   // its part of the group's `bytes`
};

// The plan of one run.
struct planned {
    uint32_t num_shares;         // 0: it has nothing to do, or it failed
    uint64_t partials, counters; // shader addresses, of a share that has a cascade; set when it is
                                 // placed
    uint64_t extras_at;          // offset in the slot's piece of the arrays that the run points to
    // Attention: the lists of its company, of which it is run `number`, in the order of leader,
    // next, .. NULL = it shares no keys with other runs.
    const struct joint *joint;
    uint32_t number, leader, next; // next of the last one: NO_RUN
    // [num_shares]: attention has at most one for each kernel, in the order of the variant's list;
    // other kinds have one. Last, because most runs have one or two.
    struct share shares[MOST_KERNELS];
};

struct joint;

struct submission {
    struct event_node node; // the ENGINE_EVENT_DONE
    // No cascade in this submission: there was no memory for its pipeline.
    bool alone;
    bool apart;      // no companies in this submission: a run of one could not be planned with it
    bool in_company; // the wave that is being planned has a company
    bool native;     // a group is native: barriers name all stages
    struct choice_memo choice_memo;
    struct engine *engine;
    uint64_t sequence;
    struct engine_zero *zeroes; // [num_zeroes]
    struct engine_run *runs;    // [num_runs]; `kept` holds their arrays
    char *kept;                 // owned
    uint32_t *wave_ends;        // [num_waves]
    uint32_t num_zeroes, num_runs, num_waves;
    struct engine_run_result *results; // [num_runs]

    // The plan. submission_create() allocates for the largest one.
    struct group *groups;     // [num_groups <= shares of all runs], in the order of waves
    uint32_t *wave_groups;    // [num_waves + 1]: wave w has groups [w] up to [w + 1]
    struct planned *planned;  // [num_runs]
    struct gpu_run *gpu_runs; // [num_gpu_runs <= 3 * shares of all runs]
    struct gpu_range *ranges; // [num_ranges], the zeroes first
    uint32_t num_groups, num_gpu_runs, num_ranges, num_zero_ranges;
    uint64_t scratch_bytes;           // bytes of partial results
    uint64_t ranges_at, upload_bytes; // in the slot's piece: offset of `ranges`; bytes in all

    struct slot *slot; // NULL: nothing of it is on the GPU
    bool sent;         // the GPU has it
    int64_t sent_ns;   // when the GPU got it; CLOCK_MONOTONIC
    int64_t queued_ns; // when the submitter could take it; CLOCK_MONOTONIC
    uint64_t shape;    // a hash; submissions with equal hashes take about as long
    struct submission *prev, *next;
};

// Copies the caller's submission and allocates for its plan. NULL: no memory. Caller's thread.
struct submission *submission_create(struct engine *engine, const struct engine_submission *params);
// Ranges that it needs: one for each block and layer that it zeroes or copies.
uint64_t submission_count_ranges(const struct engine_submission *params);
void submission_free(struct submission *submission); // takes NULL and a half-built one
// Sets the run's result to `error`.
void submission_fail(struct submission *submission, uint32_t run, const struct error *error);

#endif
