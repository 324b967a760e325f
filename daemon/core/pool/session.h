// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// session.h - struct core_session: one worker's salt, arena, hold tables, batches, tickets and
// turn. It outlives core_session_close() until its last GPU work has passed. A file of core that
// keeps something of a session has a struct for it below, and leaves the others alone;
// core/session_life.c has the life of a session. Dispatcher thread only.

#ifndef AULE_CORE_POOL_SESSION_H
#define AULE_CORE_POOL_SESSION_H

#include "base/container_of.h"
#include "core/core.h"
#include "core/turns/turns.h"

struct core_draft;
struct ledger;
struct offer;
struct offers;
struct pool;
struct run;

// attached.c, session_life.c: after an attached session has died.
struct session_haunting {
    // Tables whose blocks the kernels of its process may still use. They end when the process is
    // proven dead and a fence behind that has passed.
    uint32_t num_tables;
    bool proven;    // the process is dead; a fence is due or in flight
    uint64_t fence; // sequence of the fence's submission; 0 = it is not submitted
};

// session.c: what waits.
struct session_waits {
    struct core_wait *list; // the caller's
    uint32_t num_waiting;   // of these, leases, claims and takes
    bool moves; // it has blocks and waits for nothing, so it may release some; in num_moving
};

// offer.c: its offers that have not ended.
struct session_offers {
    struct offer *given, *taken;   // lists
    uint32_t num_given, num_taken; // in the two lists
};

// session.c: bytes that it keeps.
struct session_memory {
    // For --max-batch-memory: batches that the engine has, also destroyed ones with runs, the
    // arrays of runs, and the offers that it has given or taken. session_charge() counts them.
    uint64_t batches;
    uint64_t all; // for --max-host-memory: `batches`, claims, and what the caller keeps
};

// runs/run.c.
struct session_runs {
    struct run *list;       // accepted and not delivered, in the order of their tickets
    struct run *queued;     // the first of them with layers that are not submitted; NULL = none
    struct run *tickets;    // by ticket: not reaped, not detached
    uint64_t last_ticket;   // the last one given; 0 = none
    uint32_t num_unreaped;  // runs in `tickets`, and detached runs that are not done
    uint32_t num_in_flight; // links (layers of runs) in submissions that have not ended
    bool put_off;           // the first queued one waits for a compile: engine_line_resume()
};

// runs/beside.c: the submission that is being built.
struct session_wave {
    uint32_t number;   // the session's latest wave in it
    struct run *runs;  // its runs in that wave, linked by run->beside
    uint32_t num_runs; // their number
};

// Since it was opened.
struct session_totals {
    uint64_t runs_done;       // runs that succeeded
    uint64_t tokens_attended; // by these runs
    uint64_t gpu_ns;          // GPU time of its layers of runs
    uint64_t lookup_tokens;   // tokens in prefix look-ups
    uint64_t hit_tokens;      // of these, tokens that were found
};

struct core_session {
    struct core_session *prev, *next; // core->sessions, or core->leaving once closed
    struct core *core;
    struct ledger *ledger; // this one and the next two are parts of `core`
    struct pool *pool;
    struct offers *all_offers;
    uint64_t id;                                    // core_session_params.id
    char *name;                                     // for logs; owned
    struct salt *salt;                              // referenced
    struct core_session *tenant_prev, *tenant_next; // salt->tenant->sessions
    struct engine_arena *arena;                     // the server's; NULL = none
    uint64_t arena_size;                            // bytes
    struct engine_arena *device_arena;              // likewise
    uint64_t device_arena_size;
    void *owner;            // for session_gone()
    struct core_wait *wait; // the server's, named after ends of runs and tickets; NULL = none
    bool closed;            // core_session_close() was called
    bool guest;             // core_session_params.guest
    bool errand;            // core's own: no worker has it, and session_gone() is not told

    struct hold_table *tables; // by cache id
    uint64_t quota_blocks;     // most that num_blocks may become; 0 = no limit
    uint64_t num_blocks;       // that it holds or names, in all tables: the quota counts them
    uint64_t num_claimed;      // of its claims' chains, in all tables: --max-claimed-blocks
    struct batch *batches;     // by id; destroyed ones are not here
    struct core_draft *drafts; // a list of those that another thread fills; they keep the session

    struct session_haunting haunting;
    struct session_waits waits;
    struct session_offers offers;
    struct session_memory memory;
    struct session_runs runs;
    struct session_wave wave;
    struct session_totals totals;
    struct turn turn;        // turns/turns.h
    uint64_t last_picked_in; // scheduler.submissions when a link of it was last picked
    uint64_t stamp;          // scratch: counted already, if it is the count's own stamp
};

static inline struct core_session *session_of_turn(const struct turn *turn)
{
    return turn ? container_of(turn, struct core_session, turn) : NULL;
}

// turns_next() of sessions.
static inline struct core_session *session_ready_behind(const struct turns *turns,
                                                        const struct core_session *session)
{
    return session_of_turn(turns_next(turns, session ? &session->turn : NULL));
}

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
