/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The aule authors */

/*
 * aule.h - attention and a paged KV cache that several processes share through aule-daemon.
 *
 * The order of a program: open a session, open a cache, put q, k and v into the session's arena,
 * lease blocks, create a batch (one model step's metadata), run it once for each layer, read `out`
 * from the arena. examples: tests/client/readme_example.c, tools/worker.
 *
 * Shapes are written [outer, ..., inner]; the innermost dimension is contiguous. Tokens are
 * counted, sizes are bytes. Every function that can fail returns a status; aule_error() then has a
 * sentence with the offending values. Ownership: `open`/`create` give an object that
 * `close`/`destroy` end; both take NULL. Ending a session ends everything that it holds in the
 * daemon; the objects made from it must still be closed or destroyed, before or after. Threads: any
 * thread may call any function; objects that one thread ends must not be in use by another. Fork:
 * in a child, every call on an object opened before fork() returns AULE_FORKED, and closing frees
 * only memory. Such a child can open nothing of its own before exec(), because nng cannot be used
 * again: fork first, then open. The library never prints, never exits, installs no signal handler.
 */

/* Laid out by hand, one thought a line. */
/* clang-format off */
#ifndef AULE_AULE_H
#define AULE_AULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define AULE_API __attribute__((visibility("default")))
#else
#define AULE_API
#endif

/*
 * Struct sizes. A program runs with a newer library without being compiled again, although structs
 * grow: a newer version appends fields. The functions marked AULE_INLINE pass sizeof of the
 * program's structs to the library, in the function of the same name and _sized (sized.h).
 *   Newer library: it writes no byte behind the program's struct. Fields that the program does not
 *   have are 0, the default.
 *   Older library: it fills fields that it does not have with 0. A call that sets one returns
 *   AULE_UNSUPPORTED.
 * The soname carries the minor version until 1.0. The loader does not start a program whose version
 * is no longer served.
 *
 * To add a field, append it behind the struct's last byte, padding included, so that 0 means what
 * older programs meant. These structs are parts of others and never change: aule_tensor,
 * aule_ticket, aule_window, aule_rope, aule_table_entry. aule_run_params stays the last member of
 * aule_attention_params, aule_batch_params the first of two of aule_metadata.
 */
#ifdef AULE_BUILDS_0_1 /* in one file of the library: functions for programs of 0.1, without sizes */
#define AULE_INLINE AULE_API
#else
#define AULE_INLINE static inline
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define AULE_VERSION_MAJOR 0
#define AULE_VERSION_MINOR 2
#define AULE_VERSION_PATCH 0

/* The library's version, "0.2.0". */
AULE_API const char *aule_version(void);

/* ---- statuses ---- */

enum aule_status {
    AULE_OK = 0,              /* success */
    AULE_INVALID = 1,         /* an argument is out of its range */
    AULE_UNSUPPORTED = 2,     /* defined, but this build or device does not do it */
    AULE_DENIED = 3,          /* the caller may not do this */
    AULE_NO_MEMORY = 4,       /* out of host, shared or device memory */
    AULE_NO_BLOCKS = 5,       /* the pool has no free block */
    AULE_QUOTA = 6,           /* the session's own limit is reached */
    AULE_NOT_HELD = 7,        /* a block is not held by this session */
    AULE_SEALED = 8,          /* a block is sealed; sealed contents never change */
    AULE_UNWRITTEN = 9,       /* a block has slots that no run has written in every layer */
    AULE_DUPLICATE_SLOT = 10, /* a slot occurs twice in one batch */
    AULE_OUT_OF_RANGE = 11,   /* an id, a length or an offset points outside what it indexes */
    AULE_MISALIGNED = 12,     /* an offset or a stride is not aligned: multiples of 16 bytes, of an LSE tensor of 4 */
    AULE_MISMATCH = 13,       /* the object exists with another identity, shape or element type */
    AULE_NOT_FOUND = 14,      /* no such object */
    AULE_LIMIT = 15,          /* a limit is reached; the sentence names its option */
    AULE_BUSY = 16,           /* too many unreaped tickets */
    AULE_TIMEOUT = 17,        /* the deadline passed; nothing was cancelled */
    AULE_MALFORMED = 18,      /* a message was truncated, corrupt or oversized */
    AULE_VERSION = 19,        /* the protocol versions do not match */
    AULE_NO_SESSION = 20,     /* the connection has no such session */
    AULE_EPOCH = 21,          /* the handle belongs to an earlier life of the daemon */
    AULE_DAEMON_GONE = 22,    /* the daemon is gone or cannot be reached */
    AULE_DEVICE_LOST = 23,    /* the GPU stopped; reopen the session */
    AULE_FORKED = 24,         /* the parent had a session before fork(); this child can use none */
    AULE_STOPPING = 25,       /* the daemon is stopping and takes no new work */
    AULE_INTERNAL = 26        /* a defect in aule; please report it */
};

/* "NOT_HELD" and "a block is not held by this session"; "UNKNOWN" for any other value. Static strings. */
AULE_API const char *aule_status_name(enum aule_status status);
AULE_API const char *aule_status_text(enum aule_status status);

/* What the calling thread's last failing call had to say, with the values; "" if none failed. Valid until its next call. */
AULE_API const char *aule_error(void);

/* ---- element types ---- */

enum aule_dtype {
    AULE_F32 = 1,
    AULE_F16 = 2,
    AULE_BF16 = 3,
    AULE_FP8_E4M3 = 4,
    AULE_FP8_E5M2 = 5,
    AULE_INT8 = 6
};
AULE_API const char *aule_dtype_name(enum aule_dtype dtype); /* "f16"; "unknown" for any other value */
AULE_API size_t aule_dtype_size(enum aule_dtype dtype);      /* bytes; 0 for any other value */

/* ---- session: the connection to one daemon and its arena ---- */

struct aule_session;

struct aule_session_params {
    const char *socket;       /* path of the daemon's socket; NULL: $AULE_SOCKET, else the rule in docs/operating.md */
    const char *name;         /* shown by aule-ctl; NULL: the process's name */
    const char *tenant;       /* sessions share prefixes only inside one tenant (and one user id); NULL: "" */
    uint64_t arena_size;      /* bytes of shared memory for tensors; 0: 64 MiB */
    int timeout_ms;           /* for the whole handshake, and the grace for the daemon's answer to any later call, beside
                                 what that call itself waits for; 0: 10 s; -1: for ever */
    uint32_t paged_threshold; /* aule_attention() with a longest kv length above this takes the paged way; 0: 2048 */
    int ring_spin_us;         /* how long a waiting thread looks for its answer before it sleeps, in microseconds up to 1000000; 0:
                                 $AULE_RING_SPIN, else 50 where the process may use 3 cores or more, and no time on fewer; -1: no time.
                                 Only one thread of a session does so, and only in the ring lane */
};

/*
 * Runs and waits go to the daemon over rings in the session's shared memory where it offers them (the ring lane), all else as messages over
 * its socket; without rings, or where their doorbell beside the socket cannot be reached, everything goes as messages. It makes no
 * difference but in time: what finds the ring full goes as a message, too. $AULE_LANE forces one: nng is messages alone; with ring a
 * session that cannot have the ring lane is not opened (AULE_UNSUPPORTED: not offered, AULE_VERSION: rings of another version,
 * AULE_DAEMON_GONE: the doorbell, AULE_NO_MEMORY: no file descriptor is left), and the sentence says why. Any other value of it, or of
 * $AULE_RING_SPIN, is AULE_INVALID.
 */

/*
 * When the grace passes without an answer, the daemon may still do what it was asked, and nobody would know. So a call that
 * changes something there (all but aule_cache_state()) then ends the session, and the daemon takes back everything that the
 * session has: this call returns AULE_TIMEOUT and a sentence that says so, every later one that asks the daemon, and those
 * pending in other threads, AULE_DAEMON_GONE, until aule_session_reconnect(). A deadline that the daemon keeps itself (of a
 * lease, a submission, a wait) ends nothing.
 */

/*
 * Connects, shakes hands and maps the session's segment.
 * AULE_DAEMON_GONE: nobody listens at the path. AULE_DENIED: the daemon serves another user. AULE_VERSION: both versions
 * are in the sentence. AULE_LIMIT: --max-connections, --max-sessions or --max-arena. AULE_NO_MEMORY: /dev/shm is too small,
 * or this process has no file descriptor left. AULE_TIMEOUT: the daemon is there but the handshake was not over after timeout_ms.
 * AULE_INVALID: timeout_ms or the path. AULE_MISMATCH, AULE_MALFORMED: what answers is no daemon of this version.
 * AULE_STOPPING. AULE_FORKED: see above. On any status but AULE_OK *session is NULL.
 */
AULE_INLINE enum aule_status aule_session_open(const struct aule_session_params *params, struct aule_session **session);

/*
 * Ends the session and frees it. Pending calls of other threads return AULE_DAEMON_GONE before it returns. A daemon that is there but does
 * not answer is waited for at most ten seconds.
 */
AULE_API void aule_session_close(struct aule_session *session);

/*
 * After AULE_DAEMON_GONE: connect and shake hands anew, with the parameters of the open, timeout_ms among them. A session that
 * still lives is ended first, as by aule_session_close(), and pending calls of other threads return AULE_DAEMON_GONE. Caches, batches, tickets and arena
 * allocations of before are gone: their handles answer AULE_EPOCH from now on (close them), arena pointers are invalid.
 * The statuses of aule_session_open(): on any but AULE_OK and AULE_FORKED the session has no daemon and no arena, what asks
 * for one answers AULE_DAEMON_GONE, and another reconnect may be tried. The session is closed by aule_session_close() as ever.
 * Several threads may call it; each does a reconnect of its own, one after another.
 */
AULE_API enum aule_status aule_session_reconnect(struct aule_session *session);

struct aule_session_info {
    uint64_t session, epoch;
    uint64_t arena_size;      /* bytes */
    bool arena_imported;      /* the GPU uses the arena in place; else it is copied around each run */
    uint32_t max_tickets;     /* unreaped tickets */
    uint32_t max_batches;     /* live batches */
    uint64_t quota_blocks;    /* leased and held blocks; 0 = no limit of this session's own */
    uint64_t max_message;     /* bytes */
    uint32_t protocol_major, protocol_minor;
    char device_name[256];
    uint8_t device_uuid[16];
    uint32_t ring_entries;    /* requests that may be under way in the ring lane; 0: this session has none */
};
/*
 * What the handshake said, from this side's memory: the daemon is not asked, so that it also answers after the daemon has gone.
 * AULE_DAEMON_GONE: the last reconnect failed. AULE_FORKED. On any status but AULE_OK *info is untouched.
 */
AULE_INLINE enum aule_status aule_session_info(struct aule_session *session, struct aule_session_info *info);

/* ---- arena and tensors ---- */

/*
 * A view of elements in the arena, whose innermost dimension is contiguous. Offset and strides are bytes and multiples of 16,
 * so that a slice of a fused QKV tensor works; those of an LSE tensor are multiples of 4.
 * What the outer stride steps over depends on what the tensor is for:
 *   0                 [num_tokens, num_heads, head_dim], the tokens of all sequences one after the other: (t, h, d) lies at
 *                     offset + t * token_stride + h * head_stride + d * aule_dtype_size(dtype)
 *   of a sequence     [num_seqs, ...]: token i of sequence s lies at offset + s * outer_stride + i * token_stride + ...
 *   of a block        [num_blocks, ...]: token i of block b lies at offset + b * outer_stride + i * token_stride + ...
 * The caller owns the bytes; a run reads or writes them until its ticket is done.
 */
struct aule_tensor {
    uint32_t memory;          /* 0 = the session's arena */
    enum aule_dtype dtype;
    uint64_t offset;
    uint64_t token_stride, head_stride;
    uint32_t life;            /* of the session, counted from 1 by aule_tensor_create(); 0: made by hand, any life's */
    uint64_t outer_stride;    /* 0: there is no outer dimension */
};

/*
 * `size` bytes of the arena, aligned to 256 bytes; NULL in *data is never returned with AULE_OK. Contents are undefined.
 * *offset (may be NULL) is what a tensor's offset wants. Ends with aule_arena_free() or the session.
 * AULE_NO_MEMORY: the arena has no such gap; the sentence says how much is free.
 */
AULE_API enum aule_status aule_arena_alloc(struct aule_session *session, uint64_t size, void **data, uint64_t *offset);
/* Takes NULL. Never a pointer from before a reconnect: it may be the beginning of another allocation by now. */
AULE_API void aule_arena_free(struct aule_session *session, void *data);
AULE_API void *aule_arena_base(struct aule_session *session);            /* offset 0; NULL after AULE_DAEMON_GONE + reconnect failed */

/*
 * A dense [num_tokens, num_heads, head_dim] tensor in memory as of aule_arena_alloc(), its data, and its end.
 * A tensor from before a reconnect has no data (NULL; aule_error() says why), no run takes it (AULE_EPOCH), and destroying it
 * frees nothing, because its memory went with its arena. aule_tensor_destroy() ends what aule_tensor_create() gave and leaves
 * a tensor that was made by hand alone: its memory is its maker's. Takes NULL and a zeroed one.
 * AULE_INVALID, AULE_MISALIGNED, AULE_OUT_OF_RANGE: no such shape. AULE_NO_MEMORY: as aule_arena_alloc().
 */
AULE_API enum aule_status aule_tensor_create(struct aule_session *session, enum aule_dtype dtype, uint32_t num_tokens,
                                             uint32_t num_heads, uint32_t head_dim, struct aule_tensor *tensor);
AULE_API void *aule_tensor_data(struct aule_session *session, const struct aule_tensor *tensor);
AULE_API void aule_tensor_destroy(struct aule_session *session, struct aule_tensor *tensor);

/* ---- caches ---- */

struct aule_cache;

/*
 * What a stored element of fp8 or int8 stands for: itself; itself times the run's k_scale or v_scale; itself times a scale of
 * its token and KV head, which the write computes (the largest finite magnitude of the row becomes the largest of the type)
 * and the blocks keep. Values round to nearest, ties to even, and saturate; NaN stays NaN in fp8 and becomes 0 in int8.
 * f32, f16 and bf16 take no scale.
 */
enum aule_scale_mode { AULE_SCALE_NONE = 0, AULE_SCALE_PER_TENSOR = 1, AULE_SCALE_PER_TOKEN_HEAD = 2 };

/* The identity of a KV cache: sessions that open the same name must agree in every field. */
struct aule_cache_params {
    const char *name;
    uint32_t num_layers;          /* from 1 to 1024; AULE_LIMIT: more */
    uint32_t num_kv_heads;
    uint32_t head_dim;            /* of K; a multiple of 8 up to 576 */
    uint32_t head_dim_v;          /* a multiple of 8 up to 512; 0: as head_dim */
    bool v_is_k_prefix;           /* MLA: V is the first head_dim_v elements of K, and is not stored */
    enum aule_dtype k_dtype, v_dtype; /* any; 0: f16 */
    enum aule_scale_mode scale_mode;
    uint32_t block_size;          /* tokens; a power of two from 8 to 256; 0: 32 */
    const void *fingerprint;      /* up to 64 bytes that name the model, its revision and its RoPE */
    size_t fingerprint_size;
};

/* AULE_MISMATCH: the name exists with another identity (the sentence has both values). AULE_LIMIT: --max-caches. */
AULE_INLINE enum aule_status aule_cache_open(struct aule_session *session, const struct aule_cache_params *params,
                                             struct aule_cache **cache);
/* Gives back every block and batch of this cache that the session still has, if no other handle of the session has it open. */
AULE_API void aule_cache_close(struct aule_cache *cache);

/* What admission control needs. free + leased + held + cached + quarantined = total. */
struct aule_cache_state {
    uint64_t total_blocks;        /* the cache has memory for these now */
    uint64_t free_blocks;
    uint64_t leased_blocks;       /* one writer each */
    uint64_t held_blocks;         /* sealed, with holders */
    uint64_t evictable_blocks;    /* sealed, without holders ("cached"): looked up or evicted, whichever comes first */
    uint64_t quarantined_blocks;  /* holder died with GPU work in flight */
    uint64_t limit_blocks;        /* what the cache could have if it had the pool alone */
    uint64_t available_blocks;    /* what a lease could get now: free + evictable + what the pool may still grow by */
    uint64_t block_bytes;         /* one block, all layers, K and V */
};
/*
 * The counts of one moment: other sessions may change them before the answer is read. Waits for the session's grace.
 * AULE_TIMEOUT: no answer by then; the session lives on, ask again. AULE_DAEMON_GONE. AULE_NO_SESSION: the session was closed
 * or ended by an operator. AULE_EPOCH: the cache is of before a reconnect. AULE_FORKED. On any status but AULE_OK *state is
 * untouched.
 */
AULE_INLINE enum aule_status aule_cache_state(struct aule_cache *cache, struct aule_cache_state *state);

/* ---- blocks ---- */

/*
 * Lease `count` blocks of `cache` for this session; their contents are undefined.
 * Waits at most `timeout_ms` milliseconds for others to release some; 0 asks once (and still lets the pool grow), -1 waits
 * for ever. On AULE_OK block_ids[0..count) are this session's until aule_blocks_release() or its end. On any other status
 * nothing is leased and block_ids is untouched.
 * AULE_NO_BLOCKS: not enough came free in time. AULE_QUOTA: the session's own limit. AULE_LIMIT: more than the pool can ever hold.
 */
AULE_API enum aule_status aule_blocks_lease(struct aule_cache *cache, uint32_t count, int timeout_ms, int32_t *block_ids);

/*
 * Let go of `count` blocks, leased or held; a block that was held twice (two look-ups) is to be released twice. It takes effect
 * when the last batch that names the block is gone. AULE_NOT_HELD: nothing was released.
 */
AULE_API enum aule_status aule_blocks_release(struct aule_cache *cache, uint32_t count, const int32_t *block_ids);

/* ---- prefix cache ---- */

struct aule_prefix {
    const int32_t *tokens;
    uint32_t num_tokens;
    const void *extra_key;        /* up to 256 bytes that also decide about equality: LoRA, image hash, ...; NULL: none */
    size_t extra_key_size;
};

/*
 * The longest published chain of full blocks that begins `prefix`, looking at no more than max_tokens tokens (0: all).
 * block_ids has room for num_tokens / block_size ids; the first *num_blocks are filled, each now held by this session, to be
 * released like any other. Token ids are compared, not hashes alone. When the whole prompt hits, run its last token
 * again with slot -1 to get its output.
 */
AULE_INLINE enum aule_status aule_prefix_lookup(struct aule_cache *cache, const struct aule_prefix *prefix, uint32_t max_tokens,
                                                int32_t *block_ids, uint32_t *num_blocks);

/*
 * Seal the num_tokens / block_size full blocks of a prompt under their tokens, so that others find them once their last write
 * has passed. block_ids names them in order. Where a block of the chain exists already, block_ids[i] becomes the existing
 * one, now held by this session, and the one given may be released; *num_existing (may be NULL) counts those. The shared
 * one has the same bits. Sealed blocks can never be written again.
 * AULE_UNWRITTEN: a slot was not written in every layer. AULE_NOT_HELD: not this session's. On failure nothing is sealed.
 */
AULE_INLINE enum aule_status aule_prefix_publish(struct aule_cache *cache, const struct aule_prefix *prefix, int32_t *block_ids,
                                                 uint32_t *num_existing);

/* ---- batches ---- */

struct aule_batch;

/*
 * One model step's metadata. All arrays are copied; large ones travel through the arena, which then needs room for them.
 * Other forms of the same: aule_metadata_varlen(), aule_metadata_tokens(), aule_metadata_append().
 */
struct aule_batch_params {
    uint32_t num_seqs;
    uint32_t max_blocks;          /* columns of block_table */
    const int32_t *cu_seqlens_q;  /* [num_seqs + 1], from 0, not falling; the last is T, the number of query tokens */
    const int32_t *seq_lens_kv;   /* [num_seqs], the tokens written by this batch's runs included */
    const int32_t *block_table;   /* [num_seqs, max_blocks] physical ids, -1 = none; NULL if max_blocks is 0. A row may
                                     begin with -1 if every run has a left window that hides those keys from all its queries */
    const int64_t *slot_mapping;  /* [T] block * block_size + offset where token t's K/V go, -1 = nowhere; NULL: write nothing */
    const int32_t *positions;     /* [T] where each query stands among its sequence's keys; NULL: bottom-right aligned,
                                     query i at seq_len - q_len + i */
    const void *mask;             /* custom mask, replaces causal; NULL: none. One part a sequence, ceil(q_len * seq_len / 8)
                                     bytes each, one after the other; in a part bit i * seq_len + j (LSB first) lets query i see key j */
    size_t mask_size;             /* bytes of all parts */
    uint32_t max_context_len;     /* a bound that seq_lens_kv is checked against in this call, not in later steps; 0: none */
    uint32_t max_seqlen_q;        /* a bound for every q_len; 0: none */
    const int32_t *q_lens;        /* [num_seqs] how many of a sequence's rows are queries; `out` of the others becomes 0, their LSE
                                     -inf, and bottom-right alignment counts the queries alone; NULL: all */
    const int32_t *token_rows;    /* [T] a permutation: the row of token t in q, k, v, out, lse, slot_mapping and positions,
                                     for tokens that lie interleaved; NULL: t. Not with q_lens or outer strides */
    const int32_t *kv_starts;     /* [num_seqs] the first row of a sequence in ragged K and V; only with contiguous K and V */
};

/*
 * Checks the metadata once and keeps a reference on every block it names until the batch is destroyed.
 * AULE_NOT_HELD, AULE_OUT_OF_RANGE, AULE_DUPLICATE_SLOT, AULE_SEALED (a slot in a sealed block), AULE_INVALID, AULE_LIMIT
 * (--max-batches): the sentence names the entry and its value.
 */
AULE_INLINE enum aule_status aule_batch_create(struct aule_cache *cache, const struct aule_batch_params *params,
                                               struct aule_batch **batch);
AULE_API void aule_batch_destroy(struct aule_batch *batch); /* runs in flight finish first, in the daemon */

/*
 * The next step of the same sequences by what changes. Their number, the rows of each, q_lens, token_rows, kv_starts and the shape of the table stay.
 */
struct aule_table_entry { uint32_t seq, column; int32_t block; }; /* block_table[seq][column] becomes `block`, -1 = none */
struct aule_advance {
    const int32_t *seq_lens_kv;   /* [num_seqs]; NULL: each grows by its number of queries */
    const int64_t *slot_mapping;  /* [T]; NULL only for a batch that has none */
    const struct aule_table_entry *entries; /* [num_entries]; of two for one place the later counts; NULL if there are none */
    uint32_t num_entries;         /* at most as many as the table has */
    const int32_t *positions;     /* [T], for a batch that has positions; NULL: each grows as its sequence does */
};

/*
 * Makes `batch` the next step's. Costs as much as changes: sequences, tokens and entries, however long the table is; but a first step looks
 * at all entries, and one that puts a block where a step that still has runs has seen one copies the table (-1, for what a window
 * hides, does not). Runs that are queued already are done over the step before, so this may be called while they are on the GPU;
 * blocks that the step before named and the next one does not are let go of when these runs are over. On any status but AULE_OK
 * the batch is as it was.
 * AULE_INVALID: it has a custom mask, or no keys. AULE_UNSUPPORTED: the daemon is too old. Statuses else as aule_batch_create().
 * Not beside another call that uses the batch.
 */
AULE_INLINE enum aule_status aule_batch_advance(struct aule_batch *batch, const struct aule_advance *advance);

/* How K and V lie in the session's own arena: a batch over these needs no cache, and its runs name them (keys, values). */
struct aule_kv_layout {
    uint32_t num_kv_heads;
    uint32_t head_dim, head_dim_v; /* as in aule_cache_params */
    bool v_is_k_prefix;
    enum aule_dtype k_dtype, v_dtype; /* 0: f16 */
    enum aule_scale_mode scale_mode;  /* none or per tensor */
    uint32_t block_size;          /* tokens, a power of two from 8 to 256: keys and values are block tensors, whose outer stride is
                                     that of a block, read through block_table and written through slot_mapping;
                                     0: contiguous, key j of sequence s is row kv_starts[s] + j, or with an outer stride row j
                                     of sequence s. No block table, no slot mapping */
    uint32_t num_blocks;          /* of the block tensors: every id is checked against it */
};
/* The statuses of aule_batch_create(), and AULE_UNSUPPORTED for a shape or type that has no shader. */
AULE_INLINE enum aule_status aule_batch_create_local(struct aule_session *session, const struct aule_kv_layout *layout,
                                                     const struct aule_batch_params *params, struct aule_batch **batch);

/*
 * Other forms of a step's metadata, turned into aule_batch_params. `params` may be changed before it goes to a create; what it points to is
 * the metadata's and the caller's, and must live until then. End each with aule_metadata_finish(), which takes a zeroed one.
 * No session is needed. AULE_INVALID and AULE_OUT_OF_RANGE name the entry; AULE_NO_MEMORY; on failure *metadata is zeroed.
 */
struct aule_metadata {
    struct aule_batch_params params;
    void *owned;                  /* malloc'd */
};
AULE_INLINE void aule_metadata_finish(struct aule_metadata *metadata);

/* Ragged contiguous K and V: sequence s has the rows cu_seqlens_k[s] to cu_seqlens_k[s + 1]. The two bounds are checked; 0: none. */
AULE_INLINE enum aule_status aule_metadata_varlen(uint32_t num_seqs, const int32_t *cu_seqlens_q, const int32_t *cu_seqlens_k,
                                                  uint32_t max_seqlen_q, uint32_t max_seqlen_k, struct aule_metadata *metadata);

/*
 * Flattened tokens, in any order: each says its sequence, its position there and its slot. They are grouped by sequence, those of one
 * keeping their order; q, k, v and out stay as they are. A sequence's positions rise by one from token to token; with a custom
 * mask (set in metadata->params afterwards) they may also repeat (never leave a gap), so `repeats` is to be said. Sequences without a token are padding.
 */
struct aule_token_form {
    uint32_t num_tokens, num_seqs;
    const int32_t *seq_ids;       /* [num_tokens] from 0 to num_seqs - 1 */
    const int32_t *positions;     /* [num_tokens] from 0 */
    const int64_t *slot_mapping;  /* [num_tokens] or NULL */
    const int32_t *block_table;   /* [num_seqs, max_blocks] */
    uint32_t max_blocks;
    const int32_t *seq_lens_kv;   /* [num_seqs]; NULL: the last position of each sequence + 1 */
    bool repeats;                 /* positions may stay as well; seq_lens_kv must be given and a custom mask set: params.mask_size
                                     already says how large it is, and a create refuses the batch until params.mask is there */
};
AULE_INLINE enum aule_status aule_metadata_tokens(const struct aule_token_form *form, struct aule_metadata *metadata);

/*
 * Decode with in-place append: each sequence has cache_seqlens[s] tokens in its blocks and one new one, which is written behind
 * them and attended in the same run. AULE_OUT_OF_RANGE: a new token finds no block in its row of the table.
 */
AULE_INLINE enum aule_status aule_metadata_append(uint32_t num_seqs, const int32_t *cache_seqlens, const int32_t *block_table,
                                                  uint32_t max_blocks, uint32_t block_size, struct aule_metadata *metadata);

/* ---- runs ---- */

struct aule_window { bool enabled; int32_t left, right; }; /* -1 = unbounded */

/*
 * Rotary embedding of q as it is read and of k as it is written (K is stored rotated). Pair n of a head's first `dim` elements is turned by
 * position * frequency n, in radians: (x, y) -> (x cos - y sin, x sin + y cos). frequency n = theta ^ (-2 n / dim). What was turned is rounded
 * to q's type, as if the worker had turned it.
 */
struct aule_rope {
    uint32_t dim;                 /* of each head of Q and K; even, at most head_dim; 0: no rotation */
    float theta;                  /* 0: 10000 */
    bool interleaved;             /* pairs are elements (2n, 2n + 1); false: (n, n + dim / 2), as in NeoX and Llama of HF */
    const double *frequencies;    /* [dim / 2] radians a position, instead of theta (scaled RoPE); NULL: by theta */
};

/*
 * Scores are weighed as powers of 2, in f32: scale (also times k_scale), soft cap, slopes and sinks must be finite there, also after a
 * multiplication by log2(e): at most 2.3e38. AULE_INVALID has the value.
 */
struct aule_run_params {
    uint32_t layer;               /* 0 without a cache */
    uint32_t num_heads;           /* query heads; a multiple of num_kv_heads */
    struct aule_tensor q;         /* [T, num_heads, head_dim] */
    struct aule_tensor k, v;      /* [T, num_kv_heads, head_dim]; read only if the batch has a slot mapping; MLA: no v */
    struct aule_tensor out;       /* [T, num_heads, head_dim_v]; q, k, v and out have one dtype: f32, f16 or bf16 */
    float scale;                  /* 0: 1 / sqrt(head_dim) */
    bool causal;                  /* query i of a sequence sees keys j <= seq_len - q_len + i */
    struct aule_window window;    /* the query at position p sees keys p - left <= j <= p + right; causal holds as well */
    float logits_soft_cap;        /* 0: none; else at least 2^-126: s = cap * tanh(s / cap), after the scale and before ALiBi */
    float mask_value;             /* what an excluded score is: 0, -inf or anything <= -1e30; others are refused */
    const float *alibi_slopes;    /* [num_heads] or NULL: s -= slope * |p - j| */
    const float *sinks;           /* [num_heads] or NULL: exp(sink) joins the row's sum, and no value; -inf: none for this head */
    struct aule_tensor lse;       /* dtype 0: not wanted; else f32 [T, num_heads], heads contiguous (head_stride 0 or 4), no outer stride,
                                     offset and token_stride multiples of 4 (where a row is no multiple of 16 bytes, made by hand over aule_arena_alloc()):
                                     the natural log of the row's sum, sink included; -inf if the row sees no key and has no sink */
    uint32_t num_splits;          /* into how many parts the keys of a sequence are cut, to be worked on side by side and merged:
                                     0: by a rule of its q_len and kv_len alone; 1: none; n: n, each rounded up to 256 keys. It
                                     decides the last bits. AULE_LIMIT: the parts need more than --max-scratch,
                                     or keys in one piece more than --max-run-work */
    struct aule_rope rope;
    float k_scale, v_scale;       /* AULE_SCALE_PER_TENSOR: what a stored element is multiplied by; 0: 1 */
    struct aule_tensor keys, values; /* only over K and V in the arena; the layout says their shape and type */
};

/*
 * How a run was done. A ticket of aule_attention_submit() says whether the pool was used, and why not where it was to be.
 */
enum aule_path { AULE_PATH_AUTO = 0, AULE_PATH_CONTIGUOUS = 1, AULE_PATH_PAGED = 2 };

struct aule_ticket {
    uint64_t id;
    enum aule_path path;          /* contiguous only by aule_attention_submit() and local batches without blocks; automatic
                                     of what is no attention */
    enum aule_status fallback;    /* AULE_OK, or why the pool was not used: it gave no blocks, or there was no room for what they want
                                     beside (AULE_NO_BLOCKS, AULE_QUOTA, AULE_LIMIT, AULE_NO_MEMORY) */
    uint64_t before;              /* the library's own: the copying of K and V, waited for with this one; 0: none */
};

/*
 * Queue attention of `batch` for one layer: all K/V writes of the batch's slot mapping, then, for query i and key j it may see,
 * out_i = sum_j exp(scale * q_i . k_j) v_j / sum_j exp(scale * q_i . k_j); a row that sees no key gives zeros. A row has the
 * same bits alone, among others, at another place of the batch and through any form of the metadata.
 * Runs of one session act as if done one after another. With `ticket` NULL nobody can wait for this run; a later one of the
 * session is done only after it. While the session has info.max_tickets unreaped tickets, waits up to timeout_ms
 * (-1: for ever) for one to end. AULE_BUSY: none did, nothing was queued.
 * Slopes, sinks, frequencies and scales of layers are copied; on their way they lie in the arena. AULE_NO_MEMORY: it has no room for them.
 * AULE_LIMIT: with the session's batches and unreaped tickets they are more than --max-batch-memory.
 */
AULE_INLINE enum aule_status aule_run_submit(struct aule_batch *batch, const struct aule_run_params *params, int timeout_ms,
                                             struct aule_ticket *ticket);

struct aule_run_result {
    uint64_t gpu_ns;              /* GPU time of the dispatch: of what ran beside others, its part, by about the bytes that each moved; 0 if the device cannot tell */
    uint32_t num_runs;            /* that shared it */
    uint32_t num_sessions;        /* that shared it */
};

/*
 * Wait until the run is done; then `out` may be read and the ticket is gone. result may be NULL.
 * AULE_TIMEOUT: not done after timeout_ms (0: ask once, -1: for ever); the ticket stays and the run goes on, unless the
 * sentence says that the session is ended: the daemon did not answer within the grace.
 * AULE_LIMIT, AULE_NO_MEMORY: unless the sentence says that the run failed, there was no room for the wait itself (the daemon lets so many
 * commands of a session wait); the ticket stays and the run goes on.
 * Any other status than AULE_OK: the run failed, `out` is undefined, the ticket is gone.
 */
AULE_INLINE enum aule_status aule_ticket_wait(struct aule_session *session, struct aule_ticket ticket, int timeout_ms,
                                              struct aule_run_result *result);

/*
 * aule_run_submit() and aule_ticket_wait() in one, by one request; the timeout holds for both together. AULE_BUSY: no ticket came
 * free, nothing was queued. Arrays as in aule_run_submit(), but their room in the arena is taken until the end of the run: more threads may get
 * AULE_NO_MEMORY. After AULE_TIMEOUT, or where there was no room for the wait, the run may go on; nobody can wait for it.
 */
AULE_INLINE enum aule_status aule_run(struct aule_batch *batch, const struct aule_run_params *params, int timeout_ms,
                                      struct aule_run_result *result);

/*
 * The same run for several layers of a batch whose K and V, queries and so on are all there: layer run->layer + n * layer_step, n from 0, with tensors
 * that lie n strides behind those of `run`. A model whose layers are not all alike calls it once for each kind (windows differ, say).
 * Done one after the other if a layer reads or writes what another one writes; else in whatever order and as many at once as the device takes.
 */
struct aule_layers {
    uint32_t num_layers;          /* from 1 to 1024 */
    uint32_t layer_step;          /* 0: 1 */
    uint64_t q_stride, k_stride, v_stride, out_stride; /* bytes, multiples of 16; 0: the same for all layers */
    uint64_t lse_stride;          /* bytes, a multiple of 4 */
    uint64_t keys_stride, values_stride; /* only over K and V in the arena, which have as many layers as strides give room for */
    uint64_t slopes_stride, sinks_stride; /* bytes, multiples of 4, in arrays that are num_layers - 1 strides longer; 0: the same for all */
    const float *k_scales, *v_scales; /* [num_layers] of each layer, instead of the run's k_scale, v_scale; an entry 0: 1; NULL: the run's for all */
};

/*
 * aule_run_submit() of all these layers with one ticket: it is done when all are, its GPU time is that of all, and when a layer fails,
 * its status is that of the first that failed, and layers that were not under way then are left out. All are checked before anything is queued.
 * --max-run-work holds for each layer by itself. AULE_UNSUPPORTED: the daemon is too old, for layers or for scales of theirs.
 */
AULE_INLINE enum aule_status aule_run_layers_submit(struct aule_batch *batch, const struct aule_run_params *run,
                                                    const struct aule_layers *layers, int timeout_ms, struct aule_ticket *ticket);
/* The same, and waits for it, as aule_run() does. */
AULE_INLINE enum aule_status aule_run_layers(struct aule_batch *batch, const struct aule_run_params *run, const struct aule_layers *layers,
                                             int timeout_ms, struct aule_run_result *result);

/* ---- contiguous tensors ---- */

/*
 * Attention of q over k and v that lie in the arena as [num_seqs, num_heads, len, head_dim] in any order of the middle two, by strides:
 * each tensor's outer stride is that of a sequence; 0: the rows of all follow one another, q_len or kv_len each, as those of `lse` do.
 * run.layer, keys and values are not used. q, k, v and out have one dtype: f32, f16 or bf16. Rope turns q alone, because k is read as it lies.
 */
struct aule_attention_params {
    uint32_t num_seqs, q_len, kv_len;
    uint32_t num_kv_heads, head_dim, head_dim_v; /* head_dim_v 0: as head_dim */
    const int32_t *q_lens, *kv_lens; /* [num_seqs] at most q_len and kv_len: the rows of `out` beyond q_lens[s] become 0; NULL: all */
    const void *mask;             /* as in aule_batch_params, for q_len rows of kv_lens[s] keys each; NULL: none */
    size_t mask_size;
    enum aule_path path;          /* automatic: paged if the longest kv length exceeds the session's threshold */
    struct aule_run_params run;
};

/*
 * Contiguous, K and V are read where they lie. Paged, blocks of a cache that the library opens are leased, K and V copied
 * into them on the GPU, the attention run there, and the blocks given back when it is done or has failed. Both give the same bits.
 * The copying has a ticket of its own where there is room for one (aule_ticket.before): the two count against max_tickets.
 * The caches, one a shape and dtype, which sessions share, are opened at their first use and stay until the session ends; a block
 * is one session's all the same. While the call lasts it has a
 * batch, which counts against max_batches.
 * If the pool has no blocks now, or the copying does not fit (8 bytes a key on their way through the arena and in the daemon), the
 * automatic way is the contiguous one, and the ticket says why; AULE_PATH_PAGED then gives AULE_NO_BLOCKS (or AULE_QUOTA,
 * AULE_LIMIT, AULE_NO_MEMORY). Statuses else as aule_batch_create_local() and aule_run_submit().
 */
AULE_INLINE enum aule_status aule_attention_submit(struct aule_session *session, const struct aule_attention_params *params,
                                                   int timeout_ms, struct aule_ticket *ticket);
/* The same, and waits for it. `ticket` (may be NULL) is filled and reaped already. */
AULE_INLINE enum aule_status aule_attention(struct aule_session *session, const struct aule_attention_params *params, int timeout_ms,
                                            struct aule_run_result *result, struct aule_ticket *ticket);

/* ---- merging ---- */

/*
 * Attention over parts of the keys, made into attention over all of them: out = sum_n exp(lse_n - m) out_n / sum_n exp(lse_n - m),
 * lse = m + ln of that sum, m = max lse_n. In the order of the parts, so that the same parts give the same bits. A part with
 * lse -inf counts nothing, whatever its out holds; if all are -inf, out is 0 and lse -inf.
 */
struct aule_merge_params {
    uint32_t num_parts;           /* at least 1 */
    uint32_t num_tokens, num_heads, head_dim;
    const struct aule_tensor *outs; /* [num_parts] of [num_tokens, num_heads, head_dim], of one dtype with `out`: f32, f16 or bf16 */
    const struct aule_tensor *lses; /* [num_parts] of f32 [num_tokens, num_heads], laid out as a run's `lse` */
    struct aule_tensor out;       /* may be one of the parts */
    struct aule_tensor lse;       /* dtype 0: not wanted; may be one of the parts */
};
AULE_INLINE enum aule_status aule_merge_submit(struct aule_session *session, const struct aule_merge_params *params, int timeout_ms,
                                               struct aule_ticket *ticket);

/* ---- blocks and K/V on the GPU ---- */
/* All are queued like runs, in the session's order, with a ticket that may be NULL. */

/*
 * Copy block from[i] to to[i], all layers. The session holds both, to[i] is leased and not sealed; no block is in `to` twice or in
 * both. What was written of from[i] counts as written of to[i]. AULE_LIMIT: more than --max-run-work, or than --max-batch-memory,
 * for which a copy counts about 24 bytes a block and layer until its ticket is reaped.
 */
AULE_API enum aule_status aule_blocks_copy(struct aule_cache *cache, uint32_t count, const int32_t *from, const int32_t *to,
                                           int timeout_ms, struct aule_ticket *ticket);
/* Fill leased blocks with zeroes, all layers. None of their slots counts as written afterwards. */
AULE_API enum aule_status aule_blocks_zero(struct aule_cache *cache, uint32_t count, const int32_t *block_ids, int timeout_ms,
                                           struct aule_ticket *ticket);

/*
 * Write K and V into blocks without attending: row r goes to slot_mapping[r]. For a block tensor [blocks, block_size, heads, dim] that is dense
 * the rows are its tokens one after the other; for any other, outer_rows is its block size and the outer stride that of a block.
 */
struct aule_kv_import {
    uint32_t layer;
    uint32_t num_rows;            /* at least 1 */
    uint32_t outer_rows;          /* rows that the tensors' outer stride steps over; 0: there is none */
    const int64_t *slot_mapping;  /* [num_rows], -1 = leave out */
    struct aule_tensor k, v;      /* f32, f16 or bf16; converted to the cache's types */
    float k_scale, v_scale;       /* as in aule_run_params */
};
AULE_INLINE enum aule_status aule_kv_import(struct aule_cache *cache, const struct aule_kv_import *params, int timeout_ms,
                                            struct aule_ticket *ticket);

/*
 * The reverse: the keys and values of a batch's sequences, one sequence after the other, seq_lens_kv[s] rows each, to k and v, [sum of
 * seq_lens_kv, num_kv_heads, head_dim] of f32, f16 or bf16; what is stored scaled is multiplied out. MLA: no v.
 */
struct aule_kv_gather {
    uint32_t layer;
    struct aule_tensor k, v;
    float k_scale, v_scale;
    struct aule_tensor keys, values; /* only over K and V in the arena */
};
AULE_INLINE enum aule_status aule_kv_gather(struct aule_batch *batch, const struct aule_kv_gather *params, int timeout_ms,
                                            struct aule_ticket *ticket);

/* ---- monitor: looking into a daemon without a session ---- */

/*
 * A monitor is a connection without a session: it holds nothing in the daemon, and counts against no limit of sessions.
 * Each of its calls but close returns one of these, beside what is said at the call, and on any but AULE_OK leaves what it was
 * to fill untouched:
 * AULE_TIMEOUT: no answer within the monitor's timeout; nothing ends, ask again. AULE_DAEMON_GONE: the connection is lost and
 * stays so; close the monitor and open another. AULE_DENIED: the daemon serves another user. AULE_LIMIT: --max-connections; the
 * daemon closes this one. AULE_STOPPING.
 * AULE_NO_MEMORY: none for the answer. AULE_MALFORMED: what came is no answer of this version. AULE_FORKED. AULE_INVALID: a
 * pointer is NULL.
 * Threads: any number may use one monitor side by side.
 */
struct aule_monitor;

/*
 * Connects to the daemon at `socket` (NULL: as in aule_session_params); it is not asked anything yet. timeout_ms is for the
 * connection, and then for each answer that a later call wants (a list is several: one a page); 0: 10 s, -1: for ever.
 * Ends with aule_monitor_close(). AULE_DAEMON_GONE: nobody listens. AULE_DENIED: the permissions of the socket. AULE_TIMEOUT:
 * the daemon did not accept in time. AULE_NO_MEMORY: also when no file descriptor is left. AULE_INVALID: timeout_ms or the path.
 * On any status but AULE_OK *monitor is NULL.
 */
AULE_API enum aule_status aule_monitor_open(const char *socket, int timeout_ms, struct aule_monitor **monitor);
AULE_API void aule_monitor_close(struct aule_monitor *monitor); /* takes NULL; no call of another thread may be pending */

struct aule_ping_info { uint64_t epoch; uint64_t round_trip_ns; char version[32]; uint32_t protocol_major, protocol_minor; };
AULE_INLINE enum aule_status aule_monitor_ping(struct aule_monitor *monitor, struct aule_ping_info *info);

struct aule_daemon_state {
    uint64_t epoch, pid, uptime_ms;
    char version[32], socket[128];
    bool stopping;
    uint32_t num_sessions, max_sessions, num_caches, max_caches;
    uint64_t pool_bytes, pool_limit_bytes, pool_blocks, pool_limit_blocks; /* limit 0 = bytes alone limit */
    uint64_t free_blocks, leased_blocks, held_blocks, cached_blocks, quarantined_blocks;
    uint64_t runs_done, runs_failed, dispatches, submissions, tokens_attended;
    uint64_t lookups, lookup_tokens, hit_tokens, evictions, session_deaths;
    uint32_t max_sessions_per_dispatch;
    uint64_t sessions_served;     /* by all dispatches that runs had; and how many of these served 1, 2, 3 or 4, 5 to 8, more sessions */
    uint64_t dispatches_of_1, dispatches_of_2, dispatches_of_4, dispatches_of_8, dispatches_of_more;
    uint64_t ends_awake, ends_asleep; /* ends of the GPU's work that found the daemon looking, or woke it, which takes time; those noticed together count once */
};
AULE_INLINE enum aule_status aule_monitor_daemon(struct aule_monitor *monitor, struct aule_daemon_state *state);

/*
 * A counter or a gauge of the daemon. Which there are is the daemon's to say: a newer one may have more, and none that aule_daemon_state
 * has is missing. A counter starts at 0 when the daemon starts and only grows.
 */
enum aule_metric_kind { AULE_METRIC_COUNTER, AULE_METRIC_GAUGE };
struct aule_metric {
    char name[256];               /* as Prometheus has it: "aule_runs_done_total", "aule_blocks{state=\"free\"}" */
    char unit[32];                /* "bytes", "seconds", "runs"; "" = none */
    char help[256];               /* what it counts, in a few words */
    enum aule_metric_kind kind;
    uint64_t value;
};
/*
 * Fills *array with a malloc'd array of *count entries, to be ended with free(): all metrics, at one moment. AULE_UNSUPPORTED: the daemon
 * is too old.
 */
AULE_INLINE enum aule_status aule_monitor_metrics(struct aule_monitor *monitor, struct aule_metric **array, uint32_t *count);

struct aule_device_state {
    char name[256], driver[256], type[16], variant[64];
    uint8_t uuid[16];
    uint32_t index, api_version;
    bool software, host_import;
    uint64_t heap_bytes, budget_bytes, max_allocation_bytes, import_alignment;
    uint32_t subgroup_size, shared_memory_bytes, pipelines;
};
AULE_INLINE enum aule_status aule_monitor_device(struct aule_monitor *monitor, struct aule_device_state *state);

/* The attention shaders that the daemon knows, best first. *array is malloc'd, to be ended with free(). */
struct aule_variant_state {
    char name[32];
    char needs[256];              /* of the device */
    char missing[256];            /* what this device lacks; "" = it could be used */
    bool used;                    /* the first that could be, or the one that was forced */
};
AULE_INLINE enum aule_status aule_monitor_variants(struct aule_monitor *monitor, struct aule_variant_state **array, uint32_t *count);

struct aule_session_state {
    uint64_t session, pid;
    uint32_t uid;
    char name[256], tenant[256];
    bool arena_imported, dead;
    uint64_t arena_bytes, blocks_held, quota_blocks;
    uint32_t batches, tickets_unreaped;
    uint64_t runs_done, tokens_attended;
    uint64_t gpu_ns; /* that its runs took, of dispatches that others shared their own part, by about the bytes that each moved */
    uint64_t lookup_tokens, hit_tokens, age_ms;
};
struct aule_cache_view {
    uint64_t cache;
    char name[256];
    uint32_t num_layers, num_kv_heads, head_dim, head_dim_v, block_size;
    enum aule_dtype k_dtype, v_dtype;
    enum aule_scale_mode scale_mode;
    bool v_is_k_prefix;
    uint32_t chunk_blocks, num_chunks, open_sessions;
    uint64_t block_bytes;
    uint64_t total_blocks, free_blocks, leased_blocks, held_blocks, cached_blocks, quarantined_blocks;
    uint64_t published_blocks;    /* in the prefix cache and visible to look-ups */
    uint64_t pending_blocks;      /* in the prefix cache, their last write not yet done */
    char fingerprint[129];        /* its bytes in hexadecimal digits; "" = it has none, or the daemon does not say */
};
enum aule_block_kind {
    AULE_BLOCK_FREE, AULE_BLOCK_LEASED, AULE_BLOCK_HELD, AULE_BLOCK_CACHED, AULE_BLOCK_QUARANTINED, AULE_BLOCK_ABSENT
};
struct aule_block_state {
    int32_t block;
    enum aule_block_kind state;
    uint32_t holders, batch_refs;
    uint64_t writer;              /* session, if leased */
    uint64_t last_use;            /* the pool's use counter: smaller = longer unused */
    int32_t depth;                /* in its prefix chain, from 0; -1 = not published */
};
/*
 * Each fills *array with a malloc'd array of *count entries, to be ended with free(); NULL where there are none. A long list
 * comes in pages, between which the daemon goes on: an entry that goes or comes meanwhile may be missing or twice.
 * aule_monitor_blocks(): AULE_NOT_FOUND: there is no such cache.
 */
AULE_INLINE enum aule_status aule_monitor_sessions(struct aule_monitor *monitor, struct aule_session_state **array, uint32_t *count);
AULE_INLINE enum aule_status aule_monitor_caches(struct aule_monitor *monitor, struct aule_cache_view **array, uint32_t *count);
AULE_INLINE enum aule_status aule_monitor_blocks(struct aule_monitor *monitor, uint64_t cache, struct aule_block_state **array,
                                                 uint32_t *count);

/*
 * End another session, as if its worker had died. AULE_NOT_FOUND: there is none. AULE_TIMEOUT: it may still be ended.
 */
AULE_API enum aule_status aule_monitor_close_session(struct aule_monitor *monitor, uint64_t session);

/*
 * End a cache that no session has open, with all blocks that are cached in it; its name is free for another identity then.
 * AULE_NOT_FOUND: there is none. AULE_BUSY: a session has it open, or work that uses it is not done. AULE_UNSUPPORTED: the
 * daemon is too old.
 */
AULE_API enum aule_status aule_monitor_drop_cache(struct aule_monitor *monitor, uint64_t cache);

/* Tuning: where a kernel has several ways to the same bits, the daemon can measure which is the fastest. */
enum aule_tune_action {
    AULE_TUNE_SHOW,               /* nothing */
    AULE_TUNE_RENEW,              /* measure all that is known again; until then it stays in use */
    AULE_TUNE_CLEAR,              /* forget all, and soon the file: the kernels' own rules hold */
    AULE_TUNE_OFF,                /* neither measure nor use what was measured, until AULE_TUNE_ON or the daemon's next start */
    AULE_TUNE_ON
};
struct aule_tuning_state {
    bool enabled, software;
    uint32_t num_waiting;         /* entries that are being measured or wait for it */
    uint32_t time_ms;             /* that measuring one may take */
    uint32_t max_entries;
    char path[4096];              /* of the daemon's file; "" = there is none */
    char note[256];               /* what else there is to know, in a sentence; "" = nothing */
};
enum aule_tuned { AULE_TUNED_WAITING, AULE_TUNED_MEASURED, AULE_TUNED_FAILED }; /* FAILED: it could not be; the rule holds */
/* A kernel and what it is compiled for, in dispatches of so many workgroups and keys of a sequence, up to twice as many of both. */
struct aule_tuned_state {
    char kernel[64], geometry[256];
    uint32_t num_workgroups, num_keys;
    uint32_t local_size, rule_local_size;   /* invocations a workgroup: in use; by the kernel's rule */
    uint64_t gpu_ns, rule_gpu_ns;           /* the shortest of each; 0 = not measured */
    uint32_t num_ways, num_samples;         /* samples of each way */
    enum aule_tuned state;
};
/*
 * Does `action`, then fills *state, and *array with a malloc'd array of *count entries as the lists above do. AULE_UNSUPPORTED: the
 * daemon knows no such action. On any failure but a bad argument the action may have been done.
 */
AULE_INLINE enum aule_status aule_monitor_tune(struct aule_monitor *monitor, enum aule_tune_action action,
                                               struct aule_tuning_state *state, struct aule_tuned_state **array, uint32_t *count);

/* What the daemon writes to its log: lines of this level and of those before it. */
enum aule_log_level { AULE_LOG_SHOW, AULE_LOG_ERROR, AULE_LOG_WARN, AULE_LOG_INFO, AULE_LOG_DEBUG };
/*
 * Sets the log level until the daemon ends, and fills *before with the level that was set.
 * AULE_LOG_SHOW sets nothing. AULE_UNSUPPORTED: the daemon is too old, or has no such level.
 */
AULE_API enum aule_status aule_monitor_log_level(struct aule_monitor *monitor, enum aule_log_level level,
                                                 enum aule_log_level *before);

#ifdef __cplusplus
}
#endif

#include "sized.h"

#endif
