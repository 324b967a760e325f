// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// session.h - one worker inside core: its salt, arena, hold tables, batches, tickets and place in
// the scheduler. Outlives core_session_close() until its last GPU work has passed.

#ifndef AULE_CORE_POOL_SESSION_H
#define AULE_CORE_POOL_SESSION_H

#include "base/hash.h"
#include "core/core.h"
#include "heap.h"

struct ledger;
struct pool;
struct turns;

struct core_session {
    struct core_session *prev, *next; // core->sessions, or core->leaving once closed
    struct core *core;                // the next ones are its parts
    struct ledger *ledger;
    struct pool *pool;
    struct turns *turns;
    uint64_t id;
    char *name; // owned
    struct salt *salt;
    struct engine_arena *arena; // the server's; NULL = none
    uint64_t arena_size;
    void *owner;
    bool closed;

    struct hold_table *tables; // by cache
    struct batch *batches;     // by id, those not destroyed
    uint64_t num_blocks;       // of all tables
    uint64_t kept_bytes; // of the batches that the engine has, destroyed ones with runs too, and of
                         // its runs' arrays

    struct run *runs;    // accepted and not delivered, in the order of their tickets
    struct run *queued;  // the first of them that is not submitted; NULL = none
    struct run *tickets; // by number: every run that can be waited for
    uint64_t last_ticket;
    uint32_t num_unreaped; // accepted and not reaped, the detached ones until they are done
    uint32_t num_in_flight;

    struct heap_node ready; // in turns->ready while runs are queued
    uint64_t served;        // tokens attended for it, in the scheduler's virtual time
    uint64_t submission;    // the last one that a run of it went into
    uint64_t expected;      // back, since this submission of the engine's has ended; 0 = not
    uint32_t wave;      // where there its next run goes, if it may lie beside those of this wave
    struct run *beside; // scratch: these
    uint32_t num_beside;
    uint64_t stamp; // scratch: counted already

    uint64_t runs_done, tokens_attended, gpu_ns, lookup_tokens, hit_tokens;
};

enum status session_usable(const struct core_session *session,
                           struct error *error); // DEVICE_LOST or OK
// LIMIT if it keeps too much with `bytes` more, of `what`, under --max-batch-memory.
enum status session_check_kept(const struct core_session *session, uint64_t bytes, const char *what,
                               struct error *error);

#endif
