// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// state.h - struct engine: what memory, tuning, plan, flow and trial share. It holds by value only
// what lower rooms define. Its threads:
//   submitter  takes submissions from `waiting`, stages in, records, gives them to the GPU, moves
//   them to `flying`; completer  waits for the head of `flying`, stages out, reads the clocks,
//   posts the event; maker      runs jobs: new chunks, and the end of what the GPU may still read,
//   once `completed` has come far enough; tuner      measures; to the others it is a caller.
// One lock guards what they share. No Vulkan call is made under it, and no client memory touched:
// both may take long or fail.

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

// One runs, one waits behind it, one is staged and recorded meanwhile.
enum { ENGINE_SLOTS = 3 };

// What one submission on the GPU needs for itself; reused. Touched by the submitter, then by the
// completer.
struct slot {
    bool busy; // engine->lock
    VkCommandPool pool;
    VkCommandBuffer commands;
    VkQueryPool queries;
    uint32_t num_queries; // capacity
    struct piece piece;   // what describe.c writes
    uint64_t piece_size;
    struct buffer scratch; // partial results of splits; .size 0 = none yet
    struct piece counters; // for shaders that merge splits themselves: all 0 while no shader runs
    uint64_t counters_size;
};

struct job;
struct submission;
struct tuning;
struct tuner;

struct engine {
    struct device device;
    struct slabs slabs;
    struct transfer transfer;
    struct pipelines pipelines;
    struct slot slots[ENGINE_SLOTS];
    uint64_t max_scratch_bytes; // of one slot
    bool no_cascade;
    bool helpers_refused; // there is no pipeline for what sequences share: it is read for each of
                          // them; submitter only
    struct piece nothing; // all zeroes: where the arrays lead that a run lacks
    struct rope_memory rope;     // submitter only
    struct tuning *tuning;       // owned
    struct tuner *tuner;         // owned
    struct forecast_watch watch; // completer only, but for look_ns
    VkSemaphore timeline;        // reaches n when submission n has passed
    void (*wake)(void *context);
    void *context;
    atomic_bool has_news; // for engine_poll(): set by who has posted, before he wakes; cleared
                          // under the lock

    pthread_mutex_t lock;   // guards all below
    pthread_cond_t changed; // anything below changed, but for what is submitted; monotonic clock
    pthread_cond_t more;    // for the submitter alone: a submission, a free slot, or the end
    bool lock_made, changed_made, more_made;
    bool stopping;       // the submitter ends when `waiting` is empty
    bool submitter_gone; // the completer ends when `flying` is empty
    bool completer_gone; // the maker ends when no job can run
    bool maker_gone;
    bool tuner_gone;
    bool lost, lost_told;
    uint64_t last_sequence; // given out
    atomic_uint num_queued; // submissions; changes behind each of them, once the lock is free
    atomic_uint num_flown;  // those that the submitter passed on; likewise
    atomic_bool
        looking; // the completer looks at the GPU: an end is near; becomes true under the lock
    uint64_t completed; // all up to this one are done
    struct submission *waiting, *flying;
    struct event_node *events;
    struct event_node lost_event;
    struct job *jobs;
    uint64_t freed_after; // the submission for which what was last given back of a cache waits
    struct engine_cache *caches; // live ones; engine_destroy() ends what its caller left
    struct engine_batch *batches;
    struct engine_arena *arenas;
    struct event_node *polled; // handed out by the last engine_poll(); caller's thread only

    pthread_t submitter, completer, maker;
    bool submitter_runs, completer_runs, maker_runs;
};

#endif
