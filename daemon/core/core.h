// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// core.h - who holds which block, which prefix is cached, whose run is next. Plain C over engine.h:
// no Vulkan, no sockets, no clock (it is told the time), no thread. One thread, the dispatcher,
// makes every call; so there is no lock.
//
// Nothing here waits. A call that cannot be served yet says so (NO_BLOCKS, BUSY, TIMEOUT) and
// changes nothing; the caller parks the command and asks again after core_step() has returned true.
// Every call checks its arguments against the session's own holds and arena before anything
// changes; on failure nothing has changed and *error says why, with the values. At every moment
// free + leased + held + cached + quarantined = total, for each cache.

// Laid out by hand, one thought a line.
// clang-format off
#ifndef AULE_CORE_H
#define AULE_CORE_H

#include "engine/engine.h"
#include "metrics.h"

struct core;
struct core_session;

struct core_params {
    struct engine *engine;
    uint64_t pool_limit_bytes;    // --memory-fraction of the device's budget
    uint64_t max_blocks;          // --max-blocks, over all caches; 0 = bytes alone limit
    uint32_t max_sessions;        // --max-sessions
    uint32_t max_caches;          // --max-caches
    uint32_t max_batches;         // --max-batches, live, a session
    uint32_t max_tickets;         // --max-tickets, unreaped, a session
    uint64_t quota_blocks;        // --session-blocks: leased and held blocks a session; 0 = no limit
    uint64_t max_kept_bytes;      // --max-batch-memory: metadata of a session's batches and arrays of its runs; 0 = no limit
    uint64_t max_run_work;        // --max-run-work: multiply-adds of one run, and of the runs of one submission; 0 = no limit
    uint64_t hash_seed;           // of the prefix index, whose keys clients choose: random, told to nobody
    // The session's last GPU work has passed: its arena may be destroyed and unmapped. Called from core_step() or
    // core_session_close(), once a session, with the params' `owner`.
    void (*session_gone)(void *context, void *owner);
    // How long the caller may look for the end of one submission (core_wake_ns()). 0 = never; then no run is kept back either.
    int64_t look_ns;
    void (*log)(void *context, int level, const char *text);   // levels as in engine.h; NULL = silent
    void *context;
};

enum status core_create(const struct core_params *params, struct core **out, struct error *error);
void core_destroy(struct core *core);   // every session is closed; takes NULL

// Take the engine's news, finish runs, submit what is ready. True if something came free or finished since the last
// call, so that parked commands should be tried again. STATUS_DEVICE_LOST shows in core_device_status().
// `now_ns` is the time of any clock that never goes back. While the GPU is busy, new runs wait for the
// sessions that it just served, so that they share the next submission.
bool core_step(struct core *core, int64_t now_ns);
// When to call core_step() again although nothing has happened; its last call decided that. If the
// time has come, call it over and over: the GPU is about to finish. FOREVER: only when something has
// happened.
int64_t core_wake_ns(const struct core *core);
// Tells core of a sleep of the caller: it should have ended at `until_ns` and ended at `now_ns`.
// `until_ns` FOREVER: something else ended it. `woken`: that was the engine's news.
void core_slept(struct core *core, int64_t until_ns, int64_t now_ns, bool woken);
enum status core_device_status(const struct core *core);
bool core_idle(const struct core *core);   // nothing queued, nothing in flight

// ---- sessions ----

struct core_session_params {
    uint64_t id;                  // told to the client; unique in the daemon's life
    uint32_t uid;                 // of the peer; part of the salt
    const char *tenant;           // part of the salt; "" = none
    const char *name;             // for logs
    struct engine_arena *arena;   // NULL = a session without an arena
    uint64_t arena_size;
    void *owner;                  // given back to session_gone()
};
enum status core_session_open(struct core *core, const struct core_session_params *params, struct core_session **out,
                              struct error *error);
// Ends every hold, batch and queued run. `died`: blocks with GPU work in flight are quarantined until it has passed.
// The session must not be used again; its arena stays in use until session_gone().
void core_session_close(struct core_session *session, bool died);

// ---- caches ----

enum { CORE_MAX_FINGERPRINT = 64, CORE_MAX_LAYERS = 1024 };   // layers of a cache, and of one run

struct core_cache_identity {
    const char *name;
    uint32_t num_layers;          // 1 to CORE_MAX_LAYERS: a block that is copied or zeroed is a range of memory a layer
    struct engine_kv kv;
    const uint8_t *fingerprint;
    uint32_t fingerprint_size;    // bytes, at most CORE_MAX_FINGERPRINT
};
struct core_cache_info { uint64_t cache; uint32_t chunk_blocks; uint64_t block_bytes; };

// Opens or creates. MISMATCH names the first field that differs, with both values. LIMIT names --max-caches.
// One session may open one cache several times; each open wants a close.
enum status core_cache_open(struct core_session *session, const struct core_cache_identity *identity,
                            struct core_cache_info *out, struct error *error);
// The last close of a session gives back all its blocks and batches of that cache.
enum status core_cache_close(struct core_session *session, uint64_t cache, struct error *error);

// Ends a cache that no session has open, with the blocks that are cached in it. BUSY: one has it open, or its work is not done.
enum status core_cache_drop(struct core *core, uint64_t cache, struct error *error);

struct core_counts {
    uint64_t total, free, leased, held, cached, quarantined;
    uint64_t limit;               // blocks this cache could have if it had the pool alone
    uint64_t available;           // free + cached + what the pool may still grow by for this cache
    uint64_t block_bytes;
};
uint32_t core_cache_block_size(const struct core_session *session, uint64_t cache);   // 0: it has no such cache open
enum status core_cache_counts(struct core_session *session, uint64_t cache, struct core_counts *out, struct error *error);

// ---- blocks ----

// NO_BLOCKS: not now; *growing tells that a chunk is on its way, so that asking again soon will do. QUOTA: never, as things are.
// LIMIT: `count` exceeds what the pool can ever hold.
enum status core_blocks_lease(struct core_session *session, uint64_t cache, uint32_t count, int32_t *blocks, bool *growing,
                              struct error *error);
// A block that the session holds twice wants two releases. All or nothing: NOT_HELD names the first offender.
enum status core_blocks_release(struct core_session *session, uint64_t cache, const int32_t *blocks, uint32_t count,
                                struct error *error);

// ---- prefixes ----

struct core_prefix {
    const int32_t *tokens;
    uint32_t num_tokens;
    const uint8_t *extra_key;     // LoRA, image hash, ...; NULL = none
    uint32_t extra_key_size;
};
// Longest visible chain of full blocks over the first min(num_tokens, max_tokens) tokens; each is held for the session.
// `blocks` has room for num_tokens / block_size ids. max_tokens 0 = no bound of its own.
enum status core_prefix_lookup(struct core_session *session, uint64_t cache, const struct core_prefix *prefix,
                               uint32_t max_tokens, int32_t *blocks, uint32_t *num_blocks, struct error *error);
// Seals blocks[0 .. num_tokens / block_size) under their tokens. Where the chain exists already, blocks[i] becomes the
// existing block, held for the session (the caller may release the one it gave); *num_existing counts those.
enum status core_prefix_publish(struct core_session *session, uint64_t cache, const struct core_prefix *prefix,
                                int32_t *blocks, uint32_t num_blocks, uint32_t *num_existing, struct error *error);

// ---- batches and runs ----

// How K and V lie in the session's own arena.
struct core_layout {
    struct engine_kv kv;              // block_size 0: contiguous
    uint32_t num_blocks;              // of the block tensors
};
struct core_batch_params {
    uint64_t cache;                   // 0: `layout` is given
    const struct core_layout *layout;
    uint32_t num_seqs, max_blocks;
    const int32_t *cu_seqlens_q;      uint32_t num_cu_seqlens_q;    // must be num_seqs + 1
    const int32_t *seq_lens_kv;       uint32_t num_seq_lens_kv;     // must be num_seqs; 0: a batch that is only written through
    const int32_t *block_table;       uint64_t num_block_table;     // must be num_seqs * max_blocks
    const int64_t *slot_mapping;      uint32_t num_slot_mapping;    // 0 (write nothing) or the number of tokens
    const int32_t *positions;         uint32_t num_positions;       // 0 or the number of tokens; none negative
    const uint8_t *mask;              uint64_t mask_bytes;          // 0 or the sum over sequences of ceil(rows * seq_len / 8), rows those of cu_seqlens_q
    const int32_t *q_lens;            uint32_t num_q_lens;          // 0 or num_seqs
    const int32_t *token_rows;        uint32_t num_token_rows;      // 0 or the number of tokens, then a permutation
    const int32_t *kv_starts;         uint32_t num_kv_starts;       // 0 or num_seqs; only with a contiguous layout
    uint32_t max_context_len;         // 0 = not given; else no seq_len may exceed it in that call; later steps may
    uint32_t max_seqlen_q;            // 0 = not given; else no q_len may exceed it
};
enum status core_batch_create(struct core_session *session, const struct core_batch_params *params, uint64_t *batch,
                              uint32_t *num_tokens, struct error *error);
enum status core_batch_destroy(struct core_session *session, uint64_t batch, struct error *error);

// The next step of a batch, by what changes; number of sequences, rows of each, q_lens, token_rows, kv_starts, place and shape stay.
struct core_entry { uint32_t seq, column; int32_t block; };
struct core_advance {
    uint64_t batch;
    const int32_t *seq_lens_kv;       uint32_t num_seq_lens_kv;     // 0: each grows by its number of queries; else num_seqs
    const struct core_entry *entries; uint32_t num_entries;         // of the block table, in this order: of two for one place the last counts
    const int64_t *slot_mapping;      uint32_t num_slot_mapping;    // the number of tokens if the batch has slots, else 0
    const int32_t *positions;         uint32_t num_positions;       // 0: each grows as its sequence does; else the number of tokens, if it has any
};
// The batch is the next step's, under its number; what core_batch_create() would refuse is refused, and the batch is as it was. Runs that are
// queued keep what it was, with its references. What does not change is not looked at again. INVALID: it has a mask, or no keys.
enum status core_batch_advance(struct core_session *session, const struct core_advance *advance, struct error *error);

// A run as the client sent it; schema/aule.fbs says what the fields of these structs mean. Core
// reads no Span: the arrays that spans name are here.
struct core_run_params {
    struct wire_run_entry entry;
    struct wire_layers layers;    // with num_layers 0 or 1 all else is unused
    struct wire_run_options options;
    const float *slopes, *sinks;  // [core_run_heads()], copied; NULL = none
    const double *frequencies;    // [rope_dim / 2], copied; NULL = none
    // [core_run_layers()], copied: each layer's instead of k_scale and v_scale, 0 = 1; NULL = none
    const float *k_scales, *v_scales;
};
uint32_t core_run_layers(const struct core_run_params *params);   // at least 1
// Slopes or sinks that it must have, where those of a layer lie `stride` bytes behind those of the layer before.
uint64_t core_run_heads(const struct core_run_params *params, uint64_t stride);
// Queues one run. With several layers it is done when all are, failed with the first that fails, and each layer is scheduled as a run
// would be: the limit on work is for one layer, each pays its tokens. BUSY: max_tickets unreaped already. LIMIT: more work than max_run_work, which stands for seconds on the GPU,
// those of one sequence whose keys are not cut among them (weight.h); partial results beyond --max-scratch; arrays beyond max_kept_bytes, for which a run counts until it is reaped, a detached one
// until it is done. Copies and merges likewise.
enum status core_run(struct core_session *session, const struct core_run_params *params, uint64_t *ticket, struct error *error);

// Queues the copying of blocks from[i] to to[i], or their zeroing (from[i] -1), all layers. The session holds all of them; those of
// `to` are leased to it, not sealed, in there once, and not in `from`. What of from[i] counts as written then counts of to[i].
enum status core_blocks_copy(struct core_session *session, uint64_t cache, const int32_t *from, const int32_t *to, uint32_t count,
                             bool detached, uint64_t *ticket, struct error *error);

struct core_merge_params {
    uint32_t num_tokens, num_heads, head_dim;
    const struct engine_part *parts;       // [num_parts], copied
    uint32_t num_parts;
    struct wire_tensor out, lse;         // lse.dtype 0 = not wanted
    bool detached;
};
enum status core_merge(struct core_session *session, const struct core_merge_params *params, uint64_t *ticket, struct error *error);

// All of its tickets are unreaped, so that whatever it queues now is BUSY at best: asking costs nothing, and trying a whole check.
bool core_session_waits(const struct core_session *session);

struct core_ticket_result {
    enum status status;           // of the run
    uint64_t gpu_ns;              // of its dispatches
    uint32_t num_runs;            // that shared one of them, with several layers at most
    uint32_t num_sessions;
};
// OK: done, *out filled, the ticket is gone; of a run that failed *error says why. TIMEOUT: not done yet. NOT_FOUND: never given, or reaped already.
enum status core_ticket_reap(struct core_session *session, uint64_t ticket, struct core_ticket_result *out, struct error *error);

// ---- looking inside ----

// All metrics, [NUM_METRICS] by enum metric, with core's gauges of this moment. The server counts its own in the same array.
uint64_t *core_metrics(struct core *core);

struct core_session_counts {
    uint64_t blocks_held, quota_blocks;   // a block held twice counts once
    uint32_t batches, tickets_unreaped;
    uint64_t runs_done, tokens_attended, gpu_ns, lookup_tokens, hit_tokens;
};
void core_session_counts(const struct core_session *session, struct core_session_counts *out);

struct core_cache_view {
    uint64_t cache;
    const char *name;             // valid until the next call that can end a cache
    uint32_t num_layers;
    struct engine_kv kv;
    uint32_t chunk_blocks, num_chunks, open_sessions;
    struct core_counts counts;
    uint64_t published, pending;
    const uint8_t *fingerprint;   // as long valid
    uint32_t fingerprint_size;
};
uint32_t core_num_caches(const struct core *core);
bool core_cache_at(const struct core *core, uint32_t index, struct core_cache_view *out);   // in order of creation
bool core_cache_view(const struct core *core, uint64_t cache, struct core_cache_view *out); // false: there is none

enum core_block_kind { CORE_FREE, CORE_LEASED, CORE_HELD, CORE_CACHED, CORE_QUARANTINED, CORE_ABSENT };
struct core_block_view {
    int32_t block;
    enum core_block_kind state;
    uint32_t holders, batch_refs;
    uint64_t writer;              // session id, if leased
    uint64_t last_use;            // the pool's use counter
    int32_t depth;                // in its prefix chain, from 0; -1 = not published
};
// Block ids run from 0 to core_cache_num_ids() - 1; those of a chunk given back are CORE_ABSENT.
enum status core_cache_find(const struct core *core, uint64_t cache, uint32_t *num_ids, struct error *error);
void core_block_at(const struct core *core, uint64_t cache, uint32_t block, struct core_block_view *out);
// For fault injection: the engine's cache behind `cache`, NULL if there is none.
struct engine_cache *core_engine_cache(struct core *core, uint64_t cache);

#endif
