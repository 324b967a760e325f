// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// state.h - struct engine, which all its parts share, and its threads (tuning.h has another one, which only calls what callers do):
//   submitter  takes submissions from `waiting`, stages in, records, gives them to the GPU, moves them to `flying`;
//   completer  waits for the head of `flying`, stages out, reads the clocks, posts the event;
//   maker      runs jobs: new chunks, and the end of what the GPU may still read, once `completed` has come far enough.
// One lock guards what they share. No Vulkan call is made under it, and no client memory touched: both may take long or fail.

#ifndef AULE_ENGINE_STATE_H
#define AULE_ENGINE_STATE_H

#include "device.h"
#include "pace.h"
#include "pipeline.h"
#include "rope.h"
#include "slab.h"
#include "transfer.h"

#include <time.h>

// One runs, one waits behind it, one is staged and recorded meanwhile.
enum { ENGINE_SLOTS = 3 };

// What engine_poll() hands out next. The owner embeds it; `end` frees the owner once the caller is past it.
struct event_node {
    struct engine_event event;
    void (*end)(struct engine *engine, struct event_node *node);
    struct event_node *prev, *next;
};

// Work for the maker. The owner embeds it, so that queueing cannot fail.
struct job {
    uint64_t after;                                      // runs when this submission is done; 0 = at once
    void (*run)(struct engine *engine, struct job *job); // ends the job's memory
    struct job *prev, *next;
};

// What one submission on the GPU needs for itself; reused. Touched by the submitter, then by the completer.
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

struct submission;
struct tuning;

struct engine {
    struct device device;
    struct slabs slabs;
    struct transfer transfer;
    struct pipelines pipelines;
    struct slot slots[ENGINE_SLOTS];
    uint64_t max_scratch_bytes; // of one slot
    bool no_cascade;
    bool helpers_refused; // there is no pipeline for what sequences share: it is read for each of them; submitter only
    struct rope_memory rope; // submitter only
    struct tuning *tuning;   // owned
    struct pace pace;        // completer only, but for poll_ns
    VkSemaphore timeline;    // reaches n when submission n has passed
    void (*wake)(void *context);
    void *context;
    atomic_bool has_news; // for engine_poll(): set by who has posted, before he wakes; cleared under the lock

    pthread_mutex_t lock;   // guards all below
    pthread_cond_t changed; // anything below changed, but for what is submitted; monotonic clock
    pthread_cond_t more;    // for the submitter alone: a submission, a free slot, or the end
    bool lock_made, changed_made, more_made;
    bool stopping;       // the submitter ends when `waiting` is empty
    bool submitter_gone; // the completer ends when `flying` is empty
    bool completer_gone; // the maker ends when no job can run
    bool maker_gone;
    bool tuning_gone;
    bool lost, lost_told;
    uint64_t last_sequence; // given out
    atomic_uint num_queued; // submissions; changes behind each of them, once the lock is free
    atomic_uint num_flown;  // those that the submitter passed on; likewise
    atomic_bool looking;    // the completer looks at the GPU: an end is near; becomes true under the lock
    uint64_t completed;     // all up to this one are done
    struct submission *waiting, *flying;
    struct event_node *events;
    struct event_node lost_event;
    struct job *jobs;
    uint64_t freed_after;        // the submission for which what was last given back of a cache waits
    struct engine_cache *caches; // live ones; engine_destroy() ends what its caller left
    struct engine_batch *batches;
    struct engine_arena *arenas;
    struct event_node *polled; // handed out by the last engine_poll(); caller's thread only

    pthread_t submitter, completer, maker;
    bool submitter_runs, completer_runs, maker_runs;
};

// ---- event.c ----

enum status engine_locks_init(struct engine *engine, struct error *error);
void engine_locks_finish(struct engine *engine); // takes a zeroed one
// With the lock held; then, without it, engine_wake() is to be called.
void event_post(struct engine *engine, struct event_node *node);
void engine_wake(struct engine *engine); // there is something to poll
bool engine_lost(struct engine *engine);
uint64_t engine_now_ns(void); // of the monotonic clock
// With the lock held, which it lets go meanwhile: until *count changes, but no longer than pace.poll_ns after the completer has ceased to
// look. A thread that sleeps is told some twenty microseconds late, and who has just got what he waited for is likely to want more.
void engine_look_out(struct engine *engine, const atomic_uint *count);
// For pthread_cond_timedwait() on `changed`.
struct timespec deadline_in(int timeout_ms);
// Frees every event that nobody polled.
void events_finish(struct engine *engine);

// ---- maker.c ----

// `job->after` and `job->run` are set. With the lock held, or before any thread runs.
void job_post(struct engine *engine, struct job *job);
void *maker_thread(void *engine);
// Runs every job that is left, whatever it waits for: the threads are gone and the GPU rests.
void jobs_finish(struct engine *engine);

void *submitter_thread(void *engine); // submitter.c
void *completer_thread(void *engine); // completer.c

#endif
