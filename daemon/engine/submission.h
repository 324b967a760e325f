// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// submission.h - one submission on its way: the caller's copy, the dispatches that it becomes, its results.
// Made by the caller's thread; then the submitter's, the completer's, and the caller's again: one after the other, so no lock.

#ifndef AULE_ENGINE_SUBMISSION_H
#define AULE_ENGINE_SUBMISSION_H

#include "layout.h"
#include "state.h"

#define NO_GROUP UINT32_MAX

// Runs of one wave that share a pipeline: at most one K/V write, then one attention dispatch, over
// gpu_runs[first .. first + num_runs), those that write first.
struct group {
    struct geometry geometry;
    VkPipeline attention, write; // write: VK_NULL_HANDLE if no run writes
    uint32_t first, num_runs, num_writers;
    uint32_t num_items;  // of all runs
    uint32_t num_tokens; // of those that write
    uint32_t num_placed; // runs that have their place in gpu_runs
    uint64_t gpu_ns;
};

// What the plan makes of one run.
struct planned {
    uint32_t group; // NO_GROUP: no tokens, or the run failed
    uint32_t num_items;
    uint64_t items; // address of its work list
};

struct submission {
    struct event_node node; // of ENGINE_EVENT_DONE
    struct engine *engine;
    uint64_t sequence;
    struct engine_zero *zeroes; // [num_zeroes]
    struct engine_run *runs;    // [num_runs]; their slopes and sinks point into `floats`
    float *floats;              // [num_floats]
    uint32_t *wave_ends;        // [num_waves]
    uint32_t num_zeroes, num_runs, num_waves;
    uint64_t num_floats;
    struct engine_run_result *results; // [num_runs]

    // The plan; room for the most that it can take is there from the start.
    struct group *groups;     // [num_groups <= num_runs], wave by wave
    uint32_t *wave_groups;    // [num_waves + 1]: groups [w] to [w + 1] are wave w's
    struct planned *planned;  // [num_runs]
    struct gpu_run *gpu_runs; // [num_gpu_runs <= num_runs]
    struct gpu_range *ranges; // [num_ranges]
    uint32_t num_groups, num_gpu_runs, num_ranges;

    struct slot *slot; // NULL: the GPU has nothing of it
    bool sent;         // the GPU has it
    struct submission *prev, *next;
};

void submission_free(struct submission *submission); // takes NULL and a half-built one

// plan.c: from runs to groups. A run that cannot be done gets its status in `results` and no group. Submitter only.
void plan_build(struct submission *submission);

// slot.c: what a submission needs on the GPU.
enum status slot_init(struct engine *engine, struct slot *slot, struct error *error);
void slot_finish(struct engine *engine, struct slot *slot); // takes a zeroed and a half-built one
// Room for `size` bytes of metadata and for so many timestamps. The slot is the caller's.
enum status slot_reserve(struct engine *engine, struct slot *slot, uint64_t size, uint32_t num_queries,
                         struct error *error);

// record.c: the commands of a planned submission into its slot; afterwards, the GPU's clocks.
enum status record(struct submission *submission, struct error *error);
void record_clocks(struct submission *submission);

// staging.c: the rows of every mirrored arena. In waits until the arenas' earlier submissions are staged out; false: the
// device was lost meanwhile.
bool stage_in(struct submission *submission);
void stage_out(const struct submission *submission);

#endif
