// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// core.h - who holds which block, which prefix is cached, whose run is next. Plain C above
// engine.h. Knows no Vulkan, no socket, no lock and no clock: the caller passes the time. Thread:
// dispatcher, where a declaration has no other tag.
//
// No call waits, except core_destroy(). A call that cannot be served yet returns NO_BLOCKS, BUSY or
// TIMEOUT. The caller keeps the command, and calls again when core_next_ready() names it: waits.h.
// Every call first checks its arguments against the session's own holds and arena. A call that
// fails has changed nothing, and *error says why, with the values.
// At every moment, for each cache: free + leased + held + cached + quarantined = total.

#ifndef AULE_CORE_H
#define AULE_CORE_H

#include "engine/engine.h"
#include "metrics.h"
#include "tier/tier.h"
#include "waits.h"

struct core;
struct core_session;

// What a tenant may have, in blocks. Pinned blocks count as held.
struct core_limits {
    uint64_t blocks; // leased and held ones; 0 = no limit
    uint64_t cached; // ones that may be evicted; 0 = no limit
    uint64_t floor;  // of the latter: for others' leases none of the last `floor` is evicted
};
// A group of users whose sessions share prefixes and limits.
struct core_group {
    const char *name;
    struct core_limits limits;
};

enum { CORE_MAX_TIERS = 4 };
// Places outside the GPU that keep blocks. All pointers are lent and outlive core.
struct core_tiers {
    struct tier *host;          // of host_ops, or a tier that wraps it; NULL = there are no tiers
    struct tier_backend *area;  // the backend of host_ops itself
    uint8_t *base;              // of its memory, which is also that of
    struct engine_arena *arena; //   an imported arena
    struct tier *more[CORE_MAX_TIERS]; // [num_more], asked in this order after `host`
    uint32_t num_more;
    const void *key; // of the salts' names; machines that share a tier have the same one
    uint32_t key_size;
    int64_t deadline_ns;  // how long an operation of a tier may take
    int64_t abandon_ns;   // after this time it is not waited for
    uint32_t max_errands; // loads and stores at once
    // Bytes of a load's first window, and of one store; at least one block. 0: FIRST_WINDOW in
    // errand_load.c, STORE_BYTES in errand_store.c. For tests.
    uint64_t first_window, store_bytes;
};

struct core_params {
    struct engine *engine;     // lent; outlives core
    uint64_t pool_limit_bytes; // --memory-fraction times the device's budget
    uint64_t max_blocks;       // --max-blocks of all caches; 0 = only bytes limit the pool
    uint32_t spare_blocks;     // --spare-blocks: free ones that an open cache has ahead of need;
                               //   0 = caches grow when a lease needs it
    uint32_t export_pool;      // --export-pool: blocks of each cache, made at once, a power of two;
                               //   0 = caches grow
    uint32_t max_sessions;     // --max-sessions
    uint32_t max_caches;       // --max-caches
    uint32_t max_batches;      // --max-batches: live batches of a session
    uint32_t max_tickets;      // --max-tickets: unreaped tickets of a session; offers that it has
                               //   made, and as many that it has taken, and that have not ended
    uint64_t quota_blocks;     // --session-blocks: leased and held blocks of a session;
                               //   0 = no limit
    struct core_limits tenant_limits; // --tenant "*": of each tenant that is not a group
    double tenant_pinned;      // --tenant-pinned: part of the pool for a tenant's pinned blocks;
                               //   0 = no limit
    int64_t tenant_timeout_ns; // --tenant-timeout: a tenant without sessions keeps floor and pins
                               //   for so long; 0 = for ever
    const struct core_group *groups; // [num_groups]; --tenant
    uint32_t num_groups;
    uint64_t max_batch_memory; // --max-batch-memory: metadata of a session's batches and arrays
                               //   of its runs; 0 = no limit
    uint64_t max_memory;       // --max-host-memory: bytes that core and the caller keep for all
                               //   sessions: what max_batch_memory limits, claims, and
                               //   core_memory_count(); 0 = no limit
    double tenant_share;       // --tenant-share, see core_tenant_part(): of max_memory and of
                               //   max_caches
    uint64_t max_claimed;      // --max-claimed-blocks: of the chains of a session's claims
    int64_t claim_timeout_ns;  // --claim-timeout: a claim without progress for so long loses its
                               //   turn; 0 = never
    uint32_t piece_blocks;     // see core_pieces_next(); 0: CORE_PIECE. For tests
    uint64_t slice_ns; // GPU time that a slice of a run should take; 0: by the device. For tests
    uint64_t max_run_work; // --max-run-work: multiply-adds of one run, and of all runs of
                           //   one submission; 0 = no limit
    uint64_t hash_seed;    // random and secret: clients choose the keys of the prefix index
    // Called once a session, when its last GPU work has passed: its arena may be destroyed and
    // unmapped. `owner` is that of the session's params. Runs inside core_step() or
    // core_session_close().
    void (*session_gone)(void *context, void *owner);
    struct core_tiers tiers;
    int64_t look_ns; // how long the caller polls for the end of one submission,
                     //   see core_wake_ns(); up to 3 times as long after runs
                     //   have waited (delay.h). 0 = the caller never polls, and
                     //   runs never wait for other sessions
    void (*log)(void *context, int level, const char *format, const char *text); // as engine.h's
    // Frees large memory of malloc(), perhaps on another thread. NULL: free() does. Thread:
    // dispatcher.
    void (*free_later)(void *context, void *memory);
    void *context; // passed to session_gone(), log() and free_later()
};

enum status core_create(const struct core_params *params, struct core **out, struct error *error);
// Closes the sessions that are still open and waits for the GPU. Takes NULL.
void core_destroy(struct core *core);

// Call this in every turn of the dispatcher's loop. It takes the engine's events, finishes runs,
// submits ready ones, and may call session_gone(). True: something came free or finished since the
// last call, so ask core_next_ready(). `now_ns` is the time of any clock that never goes back.
// While the GPU is busy, new runs wait for the sessions that it just served, so that they share the
// next submission. After a loss of the device core_device_status() is STATUS_DEVICE_LOST.
bool core_step(struct core *core, int64_t now_ns);
// When core_step() must be called again even if no event comes; the last core_step() computed it.
// A time that has passed: the GPU is about to finish, so call core_step() in a loop and do not
// sleep. FOREVER: call it only after an event.
int64_t core_wake_ns(const struct core *core);
// Reports a sleep of the caller, which ended at `now_ns`. `until_ns`: the deadline that ended it;
// FOREVER: something else ended it. `woken`: an event of the engine ended it.
void core_slept(struct core *core, int64_t until_ns, int64_t now_ns, bool woken);
enum status core_device_status(const struct core *core);
bool core_idle(const struct core *core);            // nothing queued, nothing in flight
bool core_waits_for_tiers(const struct core *core); // all of it are loads and stores of tiers
void core_stop_tiers(struct core *core);            // begins no store and no load any more

// ---- calls in pieces ----

// A call over many blocks that is made in pieces of at most core_piece_blocks() blocks, so that
// others are served between two of them. Call core_pieces_next() until it fails or *more is false,
// with the same `error` each time. Meanwhile the caller makes no other call of the session than
// core_session_close(); what the pieces have taken so far is the session's, and ends with it.
// Always call core_pieces_discard() last; it only frees memory.
struct core_pieces;
enum status core_pieces_next(struct core_pieces *pieces, bool *more, struct error *error);
void core_pieces_discard(struct core_pieces *pieces);
uint32_t core_piece_blocks(const struct core *core);

// ---- sessions ----

struct core_session_params {
    uint64_t id;                // told to the client; never used twice in the daemon's life
    uint32_t uid;               // the peer's user
    const char *group;          // of params.groups: the session's tenant; NULL = `uid` is
    const char *tenant;         // a name of the client's; "" = none; copied. Sessions of a tenant
                                //   share prefixes if these names are equal
    const char *name;           // for logs; copied
    bool guest;                 // neither root nor the daemon's user: it is told nothing of others
    struct engine_arena *arena; // lent until session_gone(); NULL = a session without an arena
    uint64_t arena_size;        // bytes
    struct engine_arena *device_arena; // memory kind 1 of tensors, likewise; NULL = none
    uint64_t device_arena_size;        // bytes
    void *owner;                       // passed to session_gone()
    // Named by core_next_ready() when a run of the session has ended or a ticket has come free. It
    // lies still until the session closes. NULL = none.
    struct core_wait *wait;
};
enum status core_session_open(struct core *core, const struct core_session_params *params,
                              struct core_session **out, struct error *error);
// Ends every hold, batch and queued run of the session. The caller must not use the session again.
// Its arena stays in use until session_gone(). `died`: blocks that runs in flight use are
// quarantined until these runs have ended. True: the session died attached, and its blocks are
// quarantined until its process is proven dead: call core_session_proven_dead() then. Else
// session_gone() may have been called.
bool core_session_close(struct core_session *session, bool died);
// The process of a closed session has ended. Its blocks become free when a submission that comes
// behind this call has passed.
void core_session_proven_dead(struct core_session *session);

// Host memory that the caller keeps for the session, such as a command that waits. It counts for
// max_memory. LIMIT: `bytes` more would exceed that, or the tenant's part; `what` names them.
enum status core_memory_check(const struct core_session *session, uint64_t bytes, const char *what,
                              struct error *error);
void core_memory_count(struct core_session *session, int64_t by); // none is left at its close

// ---- caches ----

enum { CORE_MAX_FINGERPRINT = 64, CORE_MAX_LAYERS = 1024 }; // bytes; layers of a cache or a run

struct core_cache_identity {
    const char *name;
    uint32_t num_layers; // 1 to CORE_MAX_LAYERS: copying or zeroing a block takes one
                         //   range of memory for each layer; with opaque blocks 0
    struct engine_kv kv;
    const uint8_t *fingerprint;
    uint32_t fingerprint_size; // bytes, at most CORE_MAX_FINGERPRINT
};
struct core_cache_info {
    uint64_t cache;
    uint32_t chunk_blocks;
    uint64_t block_bytes;
};

// Opens the cache of this name, or creates it. Names are a tenant's own, but tenants share a cache
// of one name and identity. A session may open a cache several times; each open needs its own
// close. MISMATCH names the first field that differs, with both values: another session of the
// tenant has the cache open, or the tenant has blocks in it. LIMIT names --max-caches, or
// --tenant-share.
enum status core_cache_open(struct core_session *session,
                            const struct core_cache_identity *identity, struct core_cache_info *out,
                            struct error *error);
// A session's last close of a cache gives back all its blocks and batches of that cache.
enum status core_cache_close(struct core_session *session, uint64_t cache, struct error *error);

// Ends a cache that no session has open; its cached blocks are lost. BUSY: a session has it open,
// or work that uses it is not done.
enum status core_cache_drop(struct core *core, uint64_t cache, struct error *error);

struct core_counts {
    uint64_t total, free, leased, held, cached, quarantined; // blocks
    uint64_t limit;     // blocks that this cache could have if no other cache had any
    uint64_t available; // free + cached + blocks that the pool could still add to it
    uint64_t block_bytes;
};
// 0: the session does not have this cache open.
uint32_t core_cache_block_size(const struct core_session *session, uint64_t cache);
// A guest's counts are those of its tenant. Its free blocks are those that the tenant could get.
enum status core_cache_counts(struct core_session *session, uint64_t cache, struct core_counts *out,
                              struct error *error);

// ---- blocks ----

// Leases `count` blocks; their contents are undefined. All or nothing. `wait`: of a lease that
// waits; NULL: it is a new one.
// NO_BLOCKS: too few are free now, or a lease that waits goes first; *error names that lease if it
// is of the same tenant. *growing: a chunk is being made that the cache may get, so ask again soon.
// QUOTA: the session must release blocks first. LIMIT: the pool can never have `count` blocks.
// Inside a tenant leases go in the order of their arrival. Among tenants, the one that would have
// more blocks waits; of equal ones, the newer one. Leases that wait in other caches or only for
// growth do not count if enough blocks of `cache` are free.
enum status core_blocks_lease(struct core_session *session, const struct core_wait *wait,
                              uint64_t cache, uint32_t count, int32_t *blocks, bool *growing,
                              struct error *error);
// A block that the session holds twice needs two releases. All or nothing: NOT_HELD names the first
// block that the session does not hold.
enum status core_blocks_release(struct core_session *session, uint64_t cache, const int32_t *blocks,
                                uint32_t count, struct error *error);

// The same in pieces; `blocks` is lent until the last one. The first piece checks all of them.
enum status core_release_begin(struct core_session *session, uint64_t cache, const int32_t *blocks,
                               uint32_t count, struct core_pieces **out, struct error *error);

// ---- attached sessions: their own kernels use the blocks in place ----

struct core_attachment {
    struct engine_cache *cache; // exported; lent while the session has it open
    uint32_t num_blocks;        // ids run from 0
};
// From now on the session's process may have the cache's memory. Blocks that the session leases are
// not zeroed, and those that it releases stay its own until it reports that its kernels have
// passed. Once is enough. UNSUPPORTED: the pool is not exported. BUSY: the memory is not made yet;
// ask again after core_step() has returned true. NO_MEMORY: the device gave none.
enum status core_cache_attach(struct core_session *session, uint64_t cache,
                              struct core_attachment *out, struct error *error);
// Call this before core_cache_attach(), once for each command. If the device had no memory for the
// cache, it is asked again.
void core_cache_want_memory(struct core_session *session, uint64_t cache);
// False: the session has no such cache open, or is not attached to it.
bool core_cache_attached(const struct core_session *session, uint64_t cache,
                         struct core_attachment *out);

#define CORE_PASSED_ALL UINT64_MAX
struct core_report {
    uint64_t cache;
    const int64_t *slots; // [num_slots] that kernels have written; below 0: none
    uint64_t num_slots;
    uint32_t first_layer, num_layers; // num_layers 0: all from first_layer on
    uint64_t passed; // a mark of an earlier report, 0, or CORE_PASSED_ALL: all that was released
};
// Slots count as written, as if a run had done it, and what was released up to the mark `passed` is
// let go. *mark divides the releases before this call from later ones. INVALID: the session is not
// attached, or there was no such mark. OUT_OF_RANGE, NOT_HELD, SEALED: a slot that the session may
// not write.
enum status core_cache_report(struct core_session *session, const struct core_report *report,
                              uint64_t *mark, struct error *error);
// The same with all slots of `blocks` in all layers; sealed blocks are left as they are.
enum status core_blocks_report(struct core_session *session, const struct core_report *report,
                               const int32_t *blocks, uint32_t count, uint64_t *mark,
                               struct error *error);

// ---- prefixes ----

struct core_prefix {
    const int32_t *tokens; // [num_tokens]
    uint32_t num_tokens;
    const uint8_t *extra_key; // a LoRA adapter, an image's hash, ...; NULL = none
    uint32_t extra_key_size;  // bytes
    // Only for publishing.
    bool has_parent; // the tokens are those behind the block `parent`
    int32_t parent;
    bool releases; // a block that an existing one replaces loses a hold of the session
};
// Finds the longest chain of visible blocks for the first min(num_tokens, max_tokens) tokens, and
// holds each of them for the session. A block is visible when it is published and all writes to it
// have ended. max_tokens 0 = all tokens. `blocks` has room for num_tokens / block_size ids.
enum status core_prefix_lookup(struct core_session *session, uint64_t cache,
                               const struct core_prefix *prefix, uint32_t max_tokens,
                               int32_t *blocks, uint32_t *num_blocks, struct error *error);

// Whether to load blocks that a tier has. AUTO: if loading them is estimated to take less time than
// computing them. Both are learnt; what is not known yet is tried.
enum core_load { CORE_LOAD_AUTO, CORE_LOAD_ALWAYS, CORE_LOAD_NEVER, CORE_NUM_LOADS };
// Begins to load the blocks of a prompt that are not on the GPU and that a tier has, or may have,
// up to the first one that none has. They are claimed as if an older session computed them: a claim
// that follows gets them as promised ones. A load that fails ends its claim, so that the next claim
// computes the blocks. Returns how many blocks may come; 0 also when memory or a quota is short.
// *id is the load that brings the first missing block, also if an earlier call began it; 0: none.
uint32_t core_prefix_load(struct core_session *session, uint64_t cache,
                          const struct core_prefix *prefix, uint32_t max_tokens,
                          enum core_load load, uint64_t *id);
// False: the load has ended; a look-up finds what it brought.
bool core_load_runs(const struct core *core, uint64_t id);

// What a look-up has claimed. Blocks are counted from the start of the prompt.
struct core_claim {
    uint64_t claim;        // id; 0: nothing is claimed, because nothing is missing
    uint32_t num_found;    // the first blocks, which the session has got so far
    uint32_t num_promised; // blocks behind these that come without the claim's help: an older claim
                           //   computes them, or they are published and not visible yet
};
// core_prefix_lookup() that also claims the full blocks that are missing. The session should
// compute those behind the promised ones; other claims wait for them. A claim ends when its session
// has published or got all of its blocks, when it is released, and with the session or its last
// close of the cache. Then the next oldest claim of each block inherits it, as it does when a claim
// made no progress for claim_timeout_ns. A wait cannot deadlock: claims wait only for those before
// them in one order. LIMIT names --max-claimed-blocks; nothing is held then.
enum status core_prefix_claim(struct core_session *session, uint64_t cache,
                              const struct core_prefix *prefix, uint32_t max_tokens,
                              int32_t *blocks, struct core_claim *out, struct error *error);
// Either of the two in pieces; `claims`: core_prefix_claim(). The prefix and `blocks` are lent
// until the last piece, which fills *result. A call that fails takes back in pieces what it has
// held. An attached session with a quota finds its blocks in one piece.
enum status core_lookup_begin(struct core_session *session, uint64_t cache,
                              const struct core_prefix *prefix, uint32_t max_tokens, bool claims,
                              int32_t *blocks, struct core_claim *result, struct core_pieces **out,
                              struct error *error);
// Holds the blocks that have become visible since, and says how the claim stands. TIMEOUT: no
// block did, and the next one is promised. NOT_FOUND: the claim has ended. `blocks` has room for
// core_claim_missing() ids.
enum status core_claim_take(struct core_session *session, uint64_t cache, uint64_t claim,
                            int32_t *blocks, uint32_t *num_blocks, struct core_claim *out,
                            struct error *error);
uint32_t core_claim_missing(struct core_session *session, uint64_t cache, uint64_t claim);
// True: core_claim_take() would return TIMEOUT. Ask this before a retry: it looks at one block.
bool core_claim_waits(struct core_session *session, uint64_t cache, uint64_t claim);
// Gives up the claim of the blocks from num_blocks on. Ids of ended claims are no error.
enum status core_claim_release(struct core_session *session, uint64_t cache, uint64_t claim,
                               uint32_t num_blocks, struct error *error);

// PREFERRED: evicted after all normal blocks of the tenant. PINNED: not evicted; counts as held for
// the tenant until it is kept otherwise, the cache is dropped, or tenant_timeout_ns has passed
// since the tenant's last session. QUOTA names tenant_pinned.
enum core_keep { CORE_KEEP_NORMAL, CORE_KEEP_PREFERRED, CORE_KEEP_PINNED, CORE_NUM_KEEPS };
// Keeps the cached part of a prefix, *num_tokens long (0: nothing is cached). A block is kept as
// the strictest keep among the prefixes that it is part of.
enum status core_prefix_keep(struct core_session *session, uint64_t cache,
                             const struct core_prefix *prefix, enum core_keep keep,
                             uint32_t *num_tokens, struct error *error);
struct core_unpinned {
    uint32_t num_prefixes;
    uint64_t num_blocks; // cached ones that may be evicted again
};
// Unpins, for an operator, all prefixes that `block` is part of, or all of the cache if it is -1.
// Their blocks may be evicted again. NOT_FOUND: no such cache, or the block is in no pinned prefix.
enum status core_prefix_unpin(struct core *core, uint64_t cache, int32_t block,
                              struct core_unpinned *out, struct error *error);
// Seals blocks[0 .. num_tokens / block_size) and publishes them under their tokens. Where the index
// already has a visible block, blocks[i] becomes that block, held for the session, and
// *num_existing counts it; the caller may then release the block that it gave, unless
// prefix->releases did so. NOT_FOUND: the parent is not in the index.
enum status core_prefix_publish(struct core_session *session, uint64_t cache,
                                const struct core_prefix *prefix, int32_t *blocks,
                                uint32_t num_blocks, uint32_t *num_existing, struct error *error);

// The same in pieces; the prefix and `blocks` are lent until the last one. Replaced blocks stay
// held until the last piece. A quota may lack room for both, so a session with one publishes in a
// single piece. The first piece checks all blocks. If a later one fails (a run of
// the session has failed meanwhile, a block is published under other tokens, NO_MEMORY), the
// session holds what it held before, and `blocks` is as it was; the pieces before stay published.
enum status core_publish_begin(struct core_session *session, uint64_t cache,
                               const struct core_prefix *prefix, int32_t *blocks,
                               uint32_t num_blocks, uint32_t *num_existing,
                               struct core_pieces **out, struct error *error);

// ---- offers: a sequence goes to another session; pool/offer.h draws the states ----

struct core_offer_params {
    uint64_t cache;
    const char *name;      // 1 to 255 bytes; unique among the offers of this salt and cache; copied
    const int32_t *blocks; // [num_blocks] the session holds each; each occurs once; copied
    uint32_t num_blocks;
    const uint8_t *keep;      // [num_blocks] not 0: the session keeps its holds on this block, else
                              // one hold of it ends; NULL = all 0
    uint32_t num_stored;      // tokens whose K and V are in the blocks, or will be by queued runs
    uint32_t num_computed;    // of these; told to the taker, as the next five are
    uint32_t num_tokens;      // at least num_stored
    const int32_t *tokens;    // [num_known] ids of the first tokens; copied
    uint32_t num_known;       // at most num_tokens
    const uint8_t *extra_key; // [extra_key_size] bytes; copied
    uint32_t extra_key_size;
    bool publish;
    int64_t expires_ns; // of the caller's clock; FOREVER = never
};
// Offers the blocks. From now on nobody may write them. UNWRITTEN: no run writes some slot of the
// first num_stored. BUSY: a live batch that has not run yet writes a block. INVALID also: there is
// an offer of this name. LIMIT: --max-tickets, or
// --max-batch-memory for the arrays.
enum status core_offer_make(struct core_session *session, const struct core_offer_params *params,
                            struct error *error);

// What a session may do with a block of an offer.
enum core_access {
    CORE_ACCESS_READ, // it may not write it; not sealed
    CORE_ACCESS_SEALED,
    CORE_ACCESS_WRITE, // the block is leased to it
};
// Lent until the offer ends.
struct core_offer {
    uint64_t id;
    const int32_t *blocks; // [num_blocks]
    const int32_t *tokens; // [num_known]
    const uint8_t *extra_key;
    uint32_t num_blocks, num_known, extra_key_size;
    uint32_t num_stored, num_computed, num_tokens;
    bool publish;
};
// Takes the offer of this name, and holds its blocks for the session. The giver may take it, too.
// `wait`: of a take that waits; NULL: it is a new one. Takes of one name go in the order of their
// arrival.
// NOT_FOUND: there is none. BUSY: a session has taken it, another take waits and goes first, or
// writes of its blocks have not ended.
// A take uses no new block, so it never queues behind leases, nor leases behind takes. UNWRITTEN:
// such a write failed; only the giver may take it now. QUOTA. LIMIT: --max-tickets, or
// --max-batch-memory for what the offer has copied, which the taker keeps until it settles.
enum status core_offer_take(struct core_session *session, const struct core_wait *wait,
                            uint64_t cache, const char *name, const struct core_offer **out,
                            struct error *error);
// An offer that the session has taken and neither accepted nor given back; else NOT_FOUND.
enum status core_offer_find(const struct core_session *session, uint64_t offer,
                            const struct core_offer **out, struct error *error);
// What the session may do with block `index` now.
enum core_access core_offer_access(const struct core_session *session,
                                   const struct core_offer *offer, uint32_t index);
// `accept`: leases the blocks to the session, unless they are sealed or held twice, and ends the
// offer. access[i] tells what the session may do with block i; it has room for all of them. False:
// gives the offer back; the caller releases its holds itself, and access stays as it is.
enum status core_offer_settle(struct core_session *session, uint64_t offer, bool accept,
                              uint8_t *access, struct error *error);

// ---- batches and runs ----

// The shape of K and V that lie in the session's own arena.
struct core_layout {
    struct engine_kv kv; // block_size 0: contiguous
    uint32_t num_blocks; // ids that the block tensors have
};
// Below, num_tokens is cu_seqlens_q[num_seqs]. Without sequences it is num_slot_mapping.
// Laid out by hand: an array and its length share a line.
// clang-format off
struct core_batch_params {
    uint64_t cache;                   // 0: K and V lie in the arena, and `layout` is given
    const struct core_layout *layout;
    uint32_t num_seqs, max_blocks;
    const int32_t *cu_seqlens_q;    uint32_t num_cu_seqlens_q;    // num_seqs + 1
    const int32_t *seq_lens_kv;     uint32_t num_seq_lens_kv;     // num_seqs; 0: only ENGINE_WRITE
                                                                  //   runs may use the batch
    const int32_t *block_table;     uint64_t num_block_table;     // num_seqs * max_blocks
    const int64_t *slot_mapping;    uint32_t num_slot_mapping;    // 0 (no writes) or num_tokens
    const int32_t *positions;       uint32_t num_positions;       // 0 or num_tokens; none negative
    const uint8_t *mask;            uint64_t mask_bytes;          // 0 or the sum over sequences
                                                                  //   of ceil(rows * seq_len / 8)
                                                                  //   with rows of cu_seqlens_q
    const int32_t *q_lens;          uint32_t num_q_lens;          // 0 or num_seqs
    const int32_t *token_rows;      uint32_t num_token_rows;      // 0 or num_tokens; a permutation
    const int32_t *kv_starts;       uint32_t num_kv_starts;       // 0 or num_seqs; only contiguous
    uint32_t max_context_len;         // 0 = not given; else no seq_len of this call may exceed it;
                                      //   later steps may
    uint32_t max_seqlen_q;            // 0 = not given; else no q_len may exceed it
    uint64_t beside;                  // 0 = none; else a batch of the session: this one is another
                                      //   form of the same step and may write its slots
};
enum status core_batch_create(struct core_session *session, const struct core_batch_params *params,
                              uint64_t *batch, uint32_t *num_tokens, struct error *error);
enum status core_batch_destroy(struct core_session *session, uint64_t batch, struct error *error);

// The same in three parts, for large arrays. core_batch_begin() reads their lengths and the scalars
// alone. Then core_draft_fill() (Thread: any) takes the arrays, which stay the caller's until the
// draft ends, and the same lengths and scalars otherwise. Then the dispatcher calls
// core_draft_end(), if the session has not been closed and filling succeeded. Always call
// core_draft_discard() last. A session closed meanwhile ends only then.
// From the begin to the end the caller makes no other call that advances or destroys a batch of the
// session, or releases a block of it.
struct core_draft;
enum status core_batch_begin(struct core_session *session, const struct core_batch_params *sizes,
                             struct core_draft **out, struct error *error);
enum status core_draft_fill(struct core_draft *draft, const struct core_batch_params *params,
                            struct error *error);
enum status core_draft_end(struct core_draft *draft, uint64_t *batch, uint32_t *num_tokens,
                           struct error *error);
void core_draft_discard(struct core_draft *draft);

// What changes from one step of a batch to the next. Everything else stays: the sequences, their
// rows, q_lens, token_rows, kv_starts, and where and how K and V lie.
struct core_entry { uint32_t seq, column; int32_t block; };   // block_table[seq][column] = block
struct core_advance {
    uint64_t batch;
    const int32_t *seq_lens_kv;     uint32_t num_seq_lens_kv;     // num_seqs; 0: each grows by its
                                                                  //   number of queries
    const struct core_entry *entries; uint32_t num_entries;       // set in this order: the last
                                                                  //   one for a place counts
    const int64_t *slot_mapping;    uint32_t num_slot_mapping;    // num_tokens if the batch has
                                                                  //   slots, else 0
    const int32_t *positions;       uint32_t num_positions;       // num_tokens; 0: each grows as
                                                                  //   its sequence does
};
// Advances the batch to its next step under the same id. Queued runs keep the step before and its
// blocks. Only what changes is checked, by the rules of core_batch_create(). On failure the batch
// is as it was. INVALID also: the batch has a mask, or no keys.
enum status core_batch_advance(struct core_session *session, const struct core_advance *advance,
                               struct error *error);
// True: core_batch_advance() with these arrays would copy or read about `bytes` bytes or more, for
// example because runs can still read an entry that changes. It can be made by
// core_advance_begin(), too.
bool core_advance_is_large(struct core_session *session, const struct core_advance *advance,
                           uint64_t bytes);
// As core_batch_begin() and core_draft_fill().
enum status core_advance_begin(struct core_session *session, const struct core_advance *sizes,
                               struct core_draft **out, struct error *error);
enum status core_draft_fill_next(struct core_draft *draft, const struct core_advance *advance,
                                 struct error *error);

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
// clang-format on
uint32_t core_run_layers(const struct core_run_params *params); // at least 1
// How many slopes or sinks the run must give. The values of layer i + 1 begin `stride` bytes behind
// those of layer i.
uint64_t core_run_heads(const struct core_run_params *params, uint64_t stride);
// Each array of the struct core_run_params *params, with its length: X(array, length).
#define CORE_RUN_ARRAYS(X, params)                                                                 \
    X((params)->frequencies, (params)->entry.rope_dim / 2)                                         \
    X((params)->slopes, core_run_heads(params, (params)->layers.slopes))                           \
    X((params)->sinks, core_run_heads(params, (params)->layers.sinks))                             \
    X((params)->k_scales, core_run_layers(params))                                                 \
    X((params)->v_scales, core_run_layers(params))
// Queues one run. A run of several layers is done when all layers are, and fails with the first
// layer that fails. Each layer is scheduled and charged like a run of its own.
// UNWRITTEN: the run would read a key that no accepted work has written (runs/reads.h).
// BUSY: max_tickets tickets are unreaped. LIMIT: one layer is more work than max_run_work (weight.h
// has the formula), partial results exceed --max-scratch, or arrays exceed max_batch_memory.
// A run's arrays count until it is reaped, those of a detached run until it is done.
// Copies and merges follow the same rules.
enum status core_run(struct core_session *session, const struct core_run_params *params,
                     uint64_t *ticket, struct error *error);

// Queues copies of all layers of blocks from[i] to to[i]; from[i] -1 zeroes to[i]. The session
// holds all of these blocks. Those of `to` are leased to it and not sealed, occur once, and do not
// occur in `from`. A slot of to[i] then counts as written if the same slot of from[i] does.
enum status core_blocks_copy(struct core_session *session, uint64_t cache, const int32_t *from,
                             const int32_t *to, uint32_t count, bool detached, uint64_t *ticket,
                             struct error *error);

struct core_move_params {
    uint64_t cache;
    bool out;              // from the blocks to the arena; else the reverse
    const int32_t *blocks; // [count]; none occurs twice
    uint32_t count;
    uint64_t offset; // of the session's arena, which is imported: where the first block's bytes
                     //   begin; the others' follow. A multiple of 16
    bool detached;
};
// Queues a copy of whole blocks, as their bytes are, between the cache and the session's arena. In:
// the blocks are leased to the session and not sealed, and all their slots count as written then.
// Out: the session holds them, and all their slots are written.
enum status core_blocks_move(struct core_session *session, const struct core_move_params *params,
                             uint64_t *ticket, struct error *error);

struct core_merge_params {
    uint32_t num_tokens, num_heads, head_dim;
    const struct engine_part *parts; // [num_parts], copied
    uint32_t num_parts;
    struct wire_tensor out, lse; // lse.dtype 0 = not wanted
    bool lse_base2;              // the parts' and the result's LSE; else natural logarithms
    bool detached;
};
// Queues a merge: one attention result from partial results over disjoint keys, weighted by their
// LSE. Each part has the shape of `out` and `lse`.
enum status core_merge(struct core_session *session, const struct core_merge_params *params,
                       uint64_t *ticket, struct error *error);

// True if the session has no free ticket, so that any new run would return BUSY. Ask this before a
// retry: it is one comparison, and a retry checks the whole command.
bool core_session_waits(const struct core_session *session);

struct core_ticket_result {
    enum status status;    // of the run
    uint64_t gpu_ns;       // GPU time of its dispatches; 0: no timestamps
    uint32_t num_runs;     // runs that shared its dispatch; with several layers, the most
    uint32_t num_sessions; // sessions that shared it; likewise
};
// All tickets up to this one have ended; tickets end in order.
uint64_t core_tickets_ended(const struct core_session *session);
// OK: the run is over, *out has its result and the ticket is gone; if the run failed, *error says
// why. TIMEOUT: the run is not over. NOT_FOUND: no such ticket, or it was reaped before.
enum status core_ticket_reap(struct core_session *session, uint64_t ticket,
                             struct core_ticket_result *out, struct error *error);

// ---- looking inside ----

// The array of all metrics, [NUM_METRICS] by enum metric, with core's gauges brought up to date.
// The server counts its own metrics in the same array.
uint64_t *core_metrics(struct core *core);

struct core_session_counts {
    uint64_t blocks_held;  // blocks that it holds or that its batches name, each counted once
    uint64_t quota_blocks; // --session-blocks; 0 = no limit
    uint32_t batches, tickets_unreaped;
    // Totals since it was opened.
    uint64_t runs_done, tokens_attended, gpu_ns, lookup_tokens, hit_tokens;
};
void core_session_counts(const struct core_session *session, struct core_session_counts *out);

// Changes a session's limit on leased and held blocks; 0 = none. What it has beyond it stays.
void core_session_limit(struct core_session *session, uint64_t blocks);

struct core_tenant_view {
    uint64_t tenant;   // id
    const char *label; // "uid:1000", or the group's name; lent until the next call
    struct core_limits limits;
    uint32_t sessions;             // that are open
    uint64_t used, pinned, cached; // blocks; `used` includes `pinned`, whoever holds these
    uint64_t used_bytes, cached_bytes;
    uint64_t evicted, refused_no_blocks, refused_quota; // since the tenant appeared
};
// --tenant-share: the most that a group of --tenant may have of `total` while other tenants have
// `others` of it. It is `share` of what these leave, at least 1; a share of 0 or 1 is all. Users
// without a group, who are the daemon's user and root, have no such limit. Thread: any.
uint64_t core_tenant_part(double share, uint64_t total, uint64_t others);
uint32_t core_num_tenants(const struct core *core);
// Tenant `index`, in the order in which they appeared; false: there is none. A call for the next
// index after the last call's costs the same for any number of tenants.
bool core_tenant_at(struct core *core, uint32_t index, struct core_tenant_view *out);
// Changes a tenant's limits. What it uses beyond them stays, and what it has cached beyond them is
// evicted. NOT_FOUND: there is no such tenant. INVALID: the floor exceeds `cached`.
enum status core_tenant_limit(struct core *core, uint64_t tenant, const struct core_limits *limits,
                              struct error *error);
// Counts a request of the session that is refused for good, with NO_BLOCKS or QUOTA.
void core_count_refusal(struct core_session *session, enum status status);

struct core_cache_view {
    uint64_t cache;   // id
    const char *name; // lent until the next call that can end a cache
    uint32_t num_layers;
    struct engine_kv kv;
    uint32_t chunk_blocks, num_chunks, open_sessions;
    struct core_counts counts;
    uint64_t published;         // blocks in the prefix index that look-ups can find
    uint64_t pending;           // blocks in the index whose writes have not ended
    const uint8_t *fingerprint; // lent as `name` is
    uint32_t fingerprint_size;  // bytes
};
uint32_t core_num_caches(const struct core *core);
// Cache `index` in order of creation; false: there is none.
bool core_cache_at(const struct core *core, uint32_t index, struct core_cache_view *out);
// The cache with the id `cache`; false: there is none.
bool core_cache_view(const struct core *core, uint64_t cache, struct core_cache_view *out);

// ABSENT: the block's chunk has no memory.
enum core_block_kind {
    CORE_FREE,
    CORE_LEASED,
    CORE_HELD,
    CORE_CACHED,
    CORE_QUARANTINED,
    CORE_ABSENT
};
struct core_block_view {
    int32_t block; // id
    enum core_block_kind state;
    uint32_t holders;    // sessions
    uint32_t batch_refs; // times that sessions' batches and copies reference it
    uint64_t writer;     // session that leased it; 0 = free, sealed or offered
    uint64_t last_use;   // on the pool's use counter
    int32_t depth;       // in its prefix chain, from 0; -1 = not published
};
// *num_ids: block ids run from 0 to num_ids - 1. Ids of a chunk without memory are CORE_ABSENT.
enum status core_cache_find(const struct core *core, uint64_t cache, uint32_t *num_ids,
                            struct error *error);
void core_block_at(const struct core *core, uint64_t cache, uint32_t block,
                   struct core_block_view *out);
struct core_prefix_view {
    uint64_t tree;            // id; trees differ by tenant or by extra key
    const char *tenant;       // its label and the client-given name; lent, as the next one, until
                              //   a call changes anything
    const int32_t *tokens;    // [num_tokens] of this block; lent
    uint32_t num_tokens;      // the cache's block size
    const uint8_t *extra_key; // lent
    uint32_t extra_key_size;  // bytes
    int32_t block, parent;    // parent -1: it begins the prefix
    uint32_t depth;           // blocks before it
    enum core_block_kind state;
    enum core_keep keep; // the strictest among the prefixes that it is part of
    uint32_t holders;    // sessions
    bool visible;        // look-ups find it
    uint64_t hits;       // look-ups that found it
    uint64_t age_ns;     // since it was published
};
// False: the block is not published, or there is no such block or cache.
bool core_prefix_at(const struct core *core, uint64_t cache, uint32_t block,
                    struct core_prefix_view *out);
// For fault injection: the engine's object of this cache. NULL: there is no such cache.
struct engine_cache *core_engine_cache(struct core *core, uint64_t cache);

#endif
