// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// tier.h - a place outside the GPU that keeps blocks. A tier is a backend, which moves bytes by
// a table of calls, and the bookkeeping of its jobs (tier.c), which all backends share: deadlines,
// abandoned jobs, the answers on their way back, and the counts. Knows no GPU, session or cache.
//
// A job goes this way. The caller makes it, fills it and starts it. The backend works on it and
// calls tier_job_end(), once, when nothing that it started can touch the job's memory any more. The
// caller is told by tier_poll().
//
// A job has two deadlines. At `deadline_ns` the backend gives up what it has not got: those blocks
// end with STORED_TIMEOUT, and the job ends. A backend that cannot stop a transfer lets it go on.
// At `abandon_ns` the caller is told that the job has failed, TIER_ABANDONED. The job's memory is
// then in quarantine: the caller must neither use nor free it before TIER_QUIET, which comes when
// the backend ends the job. An end that comes too late never turns the failure into a success.
//
// Threads: one thread, the dispatcher, makes all calls of tier_*(), except those that say another
// thread. The backend's own threads do the work.

#ifndef AULE_TIER_TIER_H
#define AULE_TIER_TIER_H

#include "schema/status.h"
#include "stored.h"

struct tier;
struct tier_backend;

// What a backend is opened with, besides its URL.
struct tier_opening {
    uint32_t deadline_ms; // of one operation: a server that moves no byte for so long has failed
    // Tells an operator a sentence. NULL: nobody. Any thread. It must not call the tier.
    void (*say)(void *context, const char *sentence);
};

// Where a block is, as far as the tier knows. UNKNOWN: only a look-up can tell.
enum tier_answer { TIER_UNKNOWN, TIER_MISS, TIER_ON_GPU, TIER_THERE, TIER_PENDING };

enum tier_kind { TIER_LOOKUP, TIER_STORE, TIER_LOAD, TIER_DELETE, TIER_NUM_KINDS };

struct tier_block {
    struct stored_chain chain;
    // The block's bytes, space.block_bytes long: part p begins at stored_part_offset(p). STORE
    // reads them, LOAD writes them. A tier that lends memory (tier_ops.lends) sets `data` itself
    // in a LOAD, and the caller gives it back by tier_ops.give_back(). Not used by others.
    uint8_t *data;
    enum tier_answer answer;   // LOOKUP: MISS or THERE, by the backend
    enum stored_reason reason; // by the backend; OK: it is loaded, stored, deleted or was found
    uint64_t tag;              // the caller's
};

// The tenant whose blocks a STORE brings, and its limits. A tier that shares its room among tenants
// never drops the last `floor` blocks of a tenant for another one's, and keeps at most `cap` of
// them. 0: no such limit.
struct tier_share {
    uint64_t tenant; // the same number for the same tenant, also later; 0 = nobody's
    uint64_t floor, cap;
};

struct tier_job {
    // The caller fills these before tier_start(). From then on the job and its blocks are the
    // tier's, until tier_poll() gives the job back.
    enum tier_kind kind;
    struct stored_space space;
    int64_t deadline_ns, abandon_ns; // of clock_now_ns(); the second one is not the earlier one
    struct tier_share share;         // STORE
    void *owner;                     // the caller's
    uint32_t num_blocks;
    struct tier_block *blocks; // [num_blocks]; in the job's own allocation

    // tier.c sets these.
    uint64_t id; // from 1
    struct tier *tier;
    struct tier_job *next, *prev; // in the lists of tier.c
    int64_t started_ns;
    bool abandoned;
    // The backend's own words, while it works on the job.
    void *work;
    uint64_t number;
    // Where tier_job_end() goes, and what strikes each part that a load has read; NULL = nothing.
    // The backend `fault` sets both.
    void (*end)(struct tier_job *job);
    void (*strike)(struct tier_job *job, uint32_t block, uint32_t part, void *payload,
                   uint64_t *payload_bytes);
};

// The gauges and counts that only the backend knows.
struct tier_state {
    uint64_t bytes, limit_bytes; // kept now, and at most; 0 = unknown, or no limit of its own
    uint64_t blocks;             // kept now; 0 = unknown
    uint64_t evicted;            // blocks that it dropped to make room
    uint64_t connects;           // connections made, the first ones included
    uint64_t breaks;             // times that the breaker opened
    bool broken;                 // the breaker is open
    char note[160];              // one more sentence for an operator; "" = none
};

// The table of calls. `start` functions, `probe` and `state` run on the dispatcher, so they must
// not block. A job may end inside its start function.
struct tier_ops {
    const char *name; // "host", "redis", "files", "fault"
    bool lends;       // LOAD gives memory of the tier's own; else it fills the caller's
    // Starts a job of this kind. NULL: this tier does not do it; the job ends with ABSENT.
    void (*lookup)(struct tier_backend *backend, struct tier_job *job);
    void (*store)(struct tier_backend *backend, struct tier_job *job);
    void (*load)(struct tier_backend *backend, struct tier_job *job);
    void (*erase)(struct tier_backend *backend, struct tier_job *job);
    // Answers at once, without asking a server. MISS: the block is surely not there, or the breaker
    // is open. A backend without this function answers UNKNOWN.
    enum tier_answer (*probe)(struct tier_backend *backend, const struct stored_space *space,
                              const struct stored_chain *chain);
    // The caller does not need the memory that a LOAD lent. Only with `lends`.
    void (*give_back)(struct tier_backend *backend, uint8_t *data);
    void (*state)(struct tier_backend *backend, struct tier_state *out);
    // Tells all threads to end, and returns at once. close() tells them, too. NULL: there are none.
    void (*stop)(struct tier_backend *backend);
    // Ends all jobs, threads and connections, and frees the backend. Waits until `deadline_ns` for
    // transfers that cannot be stopped. False: one goes on, so the backend and the memory of its
    // jobs stay until the process ends.
    bool (*close)(struct tier_backend *backend, int64_t deadline_ns);
};

// ---- for the backend ----

// The job is over, and nothing touches its memory any more. Its blocks have their reasons and
// answers. Any thread.
void tier_job_end(struct tier_job *job);
// The same, with `reason` for all blocks that are still ABSENT. tier_start() makes all blocks
// ABSENT and MISS, so a backend sets only what succeeded, and what failed in a way of its own.
void tier_job_fail(struct tier_job *job, enum stored_reason reason);
// Call this for each part that a LOAD has read to its place, `payload_bytes` long. It is the only
// check of what a store gives: STORED_OK means that the header and the checksum match. Any thread.
enum stored_reason tier_part_check(struct tier_job *job, uint32_t block, uint32_t part,
                                   const struct stored_header *header, uint64_t payload_bytes);

// ---- for the caller ----

// Takes over the backend, also on failure.
enum status tier_create(const struct tier_ops *ops, struct tier_backend *backend, struct tier **out,
                        struct error *error);
// Ends and frees all jobs; no event follows. Takes NULL. False: see tier_ops.close.
bool tier_close(struct tier *tier, int64_t deadline_ns);
// Closes `count` tiers, of which some may be NULL. It tells all of them to end before it waits for
// one. Those that have ended become NULL. False: one has not.
bool tiers_close(struct tier **tiers, uint32_t count, int64_t deadline_ns);
const struct tier_ops *tier_ops(const struct tier *tier);
struct tier_backend *tier_backend(struct tier *tier);
// An eventfd, readable when tier_poll() has an event by a backend's thread. tier_poll() resets it.
int tier_fd(const struct tier *tier);

// NULL: no memory. The caller fills the job and each block's chain, data and tag.
struct tier_job *tier_job_create(enum tier_kind kind, uint32_t num_blocks);
void tier_job_destroy(struct tier_job *job); // not started, or given back; takes NULL
void tier_start(struct tier *tier, struct tier_job *job);

// DONE: the job ended; blocks have answers and reasons; the job is the caller's again. ABANDONED:
// it has failed, and only `owner` and `id` may be read; the job stays the tier's. QUIET: an
// abandoned job has ended; it is the caller's again, and so is its memory, whose contents are
// undefined. Each job ends with DONE, or with ABANDONED and then QUIET.
enum tier_event_kind { TIER_DONE, TIER_ABANDONED, TIER_QUIET };
struct tier_event {
    enum tier_event_kind kind;
    struct tier_job *job;
};
bool tier_poll(struct tier *tier, int64_t now_ns, struct tier_event *event);
// When tier_poll() must be called even if no event comes: a job is abandoned then.
int64_t tier_wake_ns(const struct tier *tier);
bool tier_has_news(const struct tier *tier);          // any thread, at the cost of one atomic load
uint32_t tier_num_jobs(const struct tier *tier);      // started, and not given back
uint32_t tier_num_abandoned(const struct tier *tier); // of these

enum tier_answer tier_probe(struct tier *tier, const struct stored_space *space,
                            const struct stored_chain *chain);
// The same for a look-up: THERE counts as a hit, MISS as a miss. After UNKNOWN, a LOOKUP's answer
// counts instead.
enum tier_answer tier_look(struct tier *tier, const struct stored_space *space,
                           const struct stored_chain *chain);

// Counted by tier.c, in blocks where nothing else is said.
struct tier_counts {
    // A hit is a block that a look-up asked for and the tier had; a miss is one that it lacked. An
    // answer that failed is neither, and a load does not count again.
    uint64_t hits, misses;
    uint64_t loaded, stored; // blocks
    uint64_t loaded_bytes, stored_bytes;
    uint64_t load_ns, store_ns;          // from start to end of the jobs that moved these bytes
    uint64_t failed[STORED_NUM_REASONS]; // blocks, by reason; OK and ABSENT stay 0
};
void tier_counts(const struct tier *tier, struct tier_counts *out);
void tier_state(struct tier *tier, struct tier_state *out);

#endif
