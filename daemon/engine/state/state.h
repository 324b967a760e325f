// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// state.h - struct engine: what memory, plan and flow share. It holds by value only
// what lower rooms define. Its threads:
//
// - submitter: takes a submission from `waiting`, plans, stages in, records, gives it to the GPU
//   and appends it to `flying`.
// - completer: waits for the head of `flying`, stages out, reads the clocks and posts the event.
// - maker: runs jobs. A job makes a chunk, or frees an object when `completed` has reached it.
// - carriers: one for each stream of hauls; see flow/carrier.h.
// - compiler: compiles the pipelines that the submitter asks for; see
//   kernels/compiler.h, which has its own lock. No thread holds both locks.
//
// One lock guards what they share. No thread makes a Vulkan call or touches client memory while it
// holds the lock, because both may take long or fail.

#ifndef AULE_ENGINE_STATE_H
#define AULE_ENGINE_STATE_H

#include "base/clock.h"
#include "base/forecast.h"
#include "engine/kernels/pipeline.h"
#include "engine/kernels/rope.h"
#include "engine/vulkan/device.h"
#include "engine/vulkan/slab.h"
#include "engine/vulkan/transfer.h"
#include "event.h"

// One submission runs on the GPU, one waits behind it, and one is being staged and recorded.
enum { ENGINE_SLOTS = 3 };

// The objects of one submission while it is on the GPU. Slots are reused. The submitter uses a slot
// first, then the completer.
struct slot {
    bool busy; // guard: engine->lock
    VkCommandPool pool;
    VkCommandBuffer commands;
    VkQueryPool queries;
    uint32_t num_queries;   // capacity
    struct piece piece;     // gpu_runs, ranges and extras; encode.c writes it
    uint64_t piece_size;    // bytes
    struct buffer scratch;  // partial results of split-KV; .size 0 = none yet
    struct piece counters;  // for kernels that merge splits themselves; all 0 while no shader runs
    uint64_t counters_size; // bytes
};

struct job;
struct carriers;
struct joint;
struct submission;

struct engine {
    struct device device;
    struct slabs slabs;
    struct transfer transfer;
    struct pipelines pipelines;
    struct slot slots[ENGINE_SLOTS];
    uint64_t max_scratch_bytes; // bytes for partial results, in each slot
    atomic_ullong kept_bytes;   // of partial results between slices, of all batches; any thread
    bool no_cascade, all_cascades;
    bool helpers_refused; // compiling a cascade kernel failed: shared keys are read once for each
                          // sequence; submitter only
    struct piece nothing; // all zeros; the address of an array that a run lacks
    struct rope_memory rope;     // submitter only
    struct joint *joints;        // submitter only; most recently used first; owned
    struct carriers *carriers;   // owned; NULL: the device has no streams for hauls
    struct forecast_watch watch; // completer only; look_ns is constant
    void (*wake)(void *context);
    void *context;
    atomic_bool has_news; // engine_poll() may have an event: set after posting, before `wake`;
                          // cleared under the lock

    pthread_mutex_t lock;   // guards everything below
    pthread_cond_t more;    // wakes the submitter: a submission, a free slot, or the end
    pthread_cond_t chores;  // wakes the maker: see maker_wake()
    pthread_cond_t changed; // any other change below; monotonic clock
    bool lock_made, changed_made, more_made, chores_made;
    bool stopping;       // the submitter ends when `waiting` is empty
    bool submitter_gone; // the completer ends when `flying` is empty
    bool completer_gone; // the maker ends when no job can run
    bool maker_gone;
    bool compiler_gone;
    bool lost, lost_told;
    uint64_t last_sequence;   // of the newest submission
    atomic_uint num_queued;   // submissions queued so far; raised after the lock is released
    atomic_uint num_flown;    // submissions that the submitter has passed on; raised likewise
    atomic_uint num_expected; // calls of engine_expect()
    unsigned heard;           // as many of them when the last submission was taken, or when the
                              // submitter last polled because of one; submitter only
    int64_t patience_ns;      // so long may the submitter poll because of them until a submission
                              // comes; submitter only
    // The completer polls the GPU, because an end is near. Becomes true under the lock.
    atomic_bool looking;
    uint64_t completed;     // this submission and all before it are done
    uint32_t num_with_runs; // submissions that have runs and are not done
    int64_t runs_ended_ns;  // when the last of these was done; CLOCK_MONOTONIC
    struct submission *waiting, *flying;
    struct event_node *events;
    struct event_node lost_event, compiled_event;
    bool compiled; // compiled_event is due
    struct job *jobs;
    uint64_t jobs_due;    // no job is ready before `completed` reaches it
    uint64_t freed_after; // submission after which the memory that caches last gave back is free
    struct engine_cache *caches; // live ones; engine_destroy() frees those that are left
    struct engine_batch *batches;
    uint64_t num_batches; // made so far
    struct engine_arena *arenas;
    struct event_node *polled; // returned by the last engine_poll(); caller's thread only

    pthread_t submitter, completer, maker, compiler;
    bool submitter_runs, completer_runs, maker_runs, compiler_runs;
};

#endif
