// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// session.h - struct core_session: one worker's salt, arena, hold tables, batches, tickets and
// place in the scheduler. It outlives core_session_close() until its last GPU work has passed.
// Each file of core uses its own fields and leaves the others alone; core/session.c has the life of
// a session. Dispatcher thread only.

#ifndef AULE_CORE_POOL_SESSION_H
#define AULE_CORE_POOL_SESSION_H

#include "core/core.h"
#include "core/turns/habit.h"
#include "core/turns/heap.h"

struct core_draft;
struct ledger;
struct offer;
struct offers;
struct pool;
struct turns;

struct core_session {
    struct core_session *prev, *next; // core->sessions, or core->leaving once closed
    struct core *core;
    struct ledger *ledger; // this one and the next three are parts of `core`
    struct pool *pool;
    struct offers *offers;
    struct turns *turns;
    uint64_t id;                       // core_session_params.id
    char *name;                        // for logs; owned
    struct salt *salt;                 // referenced
    struct engine_arena *arena;        // the server's; NULL = none
    uint64_t arena_size;               // bytes
    struct engine_arena *device_arena; // likewise
    uint64_t device_arena_size;
    void *owner;            // for session_gone()
    struct core_wait *wait; // the server's, named after ends of runs and tickets; NULL = none
    bool closed;            // core_session_close() was called
    bool guest;             // core_session_params.guest
    bool errand;            // core's own: no worker has it, and session_gone() is not told
    // After an attached session has died: tables whose blocks the kernels of its process may still
    // use. They end when the process is proven dead and a fence behind that has passed.
    uint32_t num_haunted;
    bool proven;    // the process is dead; a fence is due or in flight
    uint64_t fence; // sequence of the fence's submission; 0 = it is not submitted

    // Blocks and batches.
    struct hold_table *tables; // by cache id
    struct batch *batches;     // by id; destroyed ones are not here
    struct core_draft *drafts; // a list of those that another thread fills; they keep the session
    struct core_session *tenant_prev, *tenant_next; // salt->tenant->sessions
    struct core_wait *waits;                        // a list; the caller's
    uint32_t num_waiting;                           // of `waits`, leases, claims and takes
    bool moves;            // counted in tenant->num_moving: it has blocks and does not wait
    uint64_t quota_blocks; // most that num_blocks may become; 0 = no limit
    uint64_t num_blocks;   // blocks that it holds or names, in all tables: the quota counts them
    uint64_t num_claimed;  // blocks of its claims' chains, in all tables: --max-claimed-blocks
    struct offer *given, *taken;   // lists of its offers that have not ended
    uint32_t num_given, num_taken; // in the two lists
    // Bytes that --max-batch-memory limits: batches that the engine has, also destroyed ones with
    // runs, the arrays of runs, and the offers that it has given or taken. session_charge() counts
    // them.
    uint64_t batch_memory;
    uint64_t memory; // bytes that --max-host-memory limits: batch_memory, claims, and what the
                     // caller keeps

    // Runs.
    struct run *runs;       // accepted and not delivered, in the order of their tickets
    struct run *queued;     // the first of `runs` with layers that are not submitted; NULL = none
    struct run *tickets;    // by ticket: not reaped, not detached
    uint64_t last_ticket;   // the last one given; 0 = none
    uint32_t num_unreaped;  // runs in `tickets`, and detached runs that are not done
    uint32_t num_in_flight; // links (layers of runs) in submissions that have not ended

    // The scheduler's.
    struct heap_node
        ready;           // in its tenant's `ready` while runs are queued, unless they are put off
    bool put_off;        // its first queued run waits for a compile: engine_line_resume()
    uint64_t served;     // weight of its picked links, in tokens of virtual time; turns.h
    uint64_t submission; // scheduler.submissions when a link of it was last picked
    uint64_t expected;   // number of the last ended submission that served it; 0 = none, or it
                         // has queued a run since then
    struct habit habit;  // when its next run is expected, and what that reads
    int64_t held_ns;     // its first queued run was first held back then; 0 = it was not
    bool is_away;        // it is in turns->away
    struct core_session *away_prev, *away_next;
    bool hauls;      // an errand: its runs are hauls, because the engine has these
    bool is_hauling; // it is in turns->hauling
    struct core_session *haul_prev, *haul_next;
    uint32_t wave;       // its latest wave in the submission that is being built; beside.h
    struct run *beside;  // scratch: its runs in that wave, linked by run->beside
    uint32_t num_beside; // scratch: their number
    uint64_t stamp;      // scratch: counted already, if it is the count's own stamp

    // Totals since it was opened.
    uint64_t runs_done;       // runs that succeeded
    uint64_t tokens_attended; // by these runs
    uint64_t gpu_ns;          // GPU time of its layers of runs
    uint64_t lookup_tokens;   // tokens in prefix look-ups
    uint64_t hit_tokens;      // of these, tokens that were found
};

// OK, or DEVICE_LOST.
enum status session_usable(const struct core_session *session, struct error *error);
// LIMIT if the session would exceed --max-batch-memory by keeping `bytes` more, or as
// tenant_check_memory(). `what` names them in the error.
enum status session_check_batch_memory(const struct core_session *session, uint64_t bytes,
                                       const char *what, struct error *error);

// Enters a wait of this kind into the session's list, zeroed otherwise.
void session_begin_wait(struct core_session *session, struct core_wait *wait,
                        enum core_wait_kind kind, uint64_t cache);
void session_end_wait(struct core_wait *wait); // its kind has forgotten it already
// The session has closed the cache: its waits there are named, so that they fail.
void session_wake(struct core_session *session, uint64_t cache);

// Counts bytes for --max-batch-memory and for the total, or no more.
void session_charge(struct core_session *session, uint64_t bytes);
void session_discharge(struct core_session *session, uint64_t bytes);
// Counts bytes for the total alone; `bytes` may be minus what was counted.
void session_count_memory(struct core_session *session, uint64_t bytes);

#endif
