// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// wire.h - the messages of aule.fbs as plain C structs. Knows nothing of sockets, sessions or the GPU.
// wire.cc, behind this header, holds all the C++ there is. The structs mirror the tables of aule.fbs field by field;
// what a field means stands there.
//
// Decoding verifies first and never trusts: the caller hands in a private, 8-byte-aligned copy of the message, which
// must stay as it is while the decoded struct is in use, because strings and vectors point into it. After STATUS_OK every
// pointer is readable for its count, every string is NUL-terminated, every union has the member that its type names.
// Ranges, ids and the relation of one vector's length to another's are the caller's to check.
// Encoding allocates; wire_buffer_finish() frees. Thread rule: all functions are reentrant, no global state.

// Laid out by hand, one thought a line.
// clang-format off
#ifndef AULE_SCHEMA_WIRE_H
#define AULE_SCHEMA_WIRE_H

#include "status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define WIRE_PROTOCOL_MAJOR 2u   // another major is refused
#define WIRE_PROTOCOL_MINOR 4u   // a higher minor only adds; 1: layers of a run, BatchAdvance; 2: scales of layers; 3: DropCache; 4: a Run that waits
#define WIRE_MAX_MESSAGE (1u << 20)   // bytes; the default and the upper limit of one nng message
#define WIRE_MAX_NAME 255u       // bytes of a client, tenant or cache name
#define WIRE_MAX_FINGERPRINT 64u
#define WIRE_MAX_EXTRA_KEY 256u

// A vector inside the message: `data` is NULL if the field is absent (then count is 0).
struct wire_ints  { const int32_t *data; uint32_t count; };
struct wire_longs { const int64_t *data; uint32_t count; };
struct wire_bytes { const uint8_t *data; uint32_t count; };
struct wire_names { const char **data; uint32_t count; };   // decoded: the array is owned by the wire_reply, see wire_reply_finish()

struct wire_span { uint64_t offset, count; };
struct wire_tensor { uint32_t memory, dtype; uint64_t offset, token_stride, head_stride, outer_stride; };
struct wire_tensors { const struct wire_tensor *data; uint32_t count; };   // decoded: points into the message

// ---- commands ----

struct wire_hello { uint32_t major, minor; const char *client_name, *tenant; uint64_t arena_size; };
struct wire_ping { uint64_t payload; };
struct wire_cache_open {
    const char *name;
    uint32_t num_layers, num_kv_heads, head_dim_k, head_dim_v;
    bool v_is_k_prefix;
    uint32_t k_dtype, v_dtype, scale_mode, block_size;
    struct wire_bytes fingerprint;
};
struct wire_cache_close { uint64_t cache; };
struct wire_cache_state { uint64_t cache; };
struct wire_blocks_lease { uint64_t cache; uint32_t count; int32_t timeout_ms; };
struct wire_blocks_release { uint64_t cache; struct wire_ints blocks; };
struct wire_blocks_copy { uint64_t cache; struct wire_ints from, to; uint32_t flags; int32_t timeout_ms; };
struct wire_prefix_lookup {
    uint64_t cache; struct wire_ints tokens; struct wire_span token_span; uint32_t max_tokens; struct wire_bytes extra_key;
};
struct wire_prefix_publish {
    uint64_t cache; struct wire_ints tokens; struct wire_span token_span; struct wire_ints blocks; struct wire_bytes extra_key;
};
struct wire_kv_layout {
    uint32_t num_kv_heads, head_dim_k, head_dim_v;
    bool v_is_k_prefix;
    uint32_t k_dtype, v_dtype, scale_mode, block_size, num_blocks;
};
struct wire_batch_create {
    uint64_t cache;
    bool has_layout;
    struct wire_kv_layout layout;
    uint32_t num_seqs, max_blocks, max_context_len, max_seqlen_q;
    struct wire_ints cu_seqlens_q, seq_lens_kv, block_table;
    struct wire_longs slot_mapping;
    struct wire_ints positions;
    struct wire_bytes mask;
    struct wire_ints q_lens, token_rows, kv_starts;
    struct wire_span cu_seqlens_q_span, seq_lens_kv_span, block_table_span, slot_mapping_span, positions_span, mask_span;
    struct wire_span q_lens_span, token_rows_span, kv_starts_span;
};
struct wire_batch_destroy { uint64_t batch; };
struct wire_batch_advance {
    uint64_t batch;
    struct wire_ints seq_lens_kv, entries;
    struct wire_longs slot_mapping;
    struct wire_ints positions;
    struct wire_span seq_lens_kv_span, entries_span, slot_mapping_span, positions_span;
};

enum wire_run_flag {   // RunFlag of aule.fbs
    WIRE_RUN_CAUSAL = 1u << 0,
    WIRE_RUN_DETACHED = 1u << 1,
    WIRE_RUN_ROPE_INTERLEAVED = 1u << 2,
};
enum wire_run_kind { WIRE_RUN_ATTEND, WIRE_RUN_WRITE, WIRE_RUN_GATHER };   // RunKind of aule.fbs
struct wire_layers {   // strides in bytes
    uint32_t num_layers, layer_step;
    uint64_t q, k, v, out, lse, keys, values, slopes, sinks;
};
struct wire_run {
    uint64_t batch;
    uint32_t layer, num_heads;
    struct wire_tensor q, k, v, out, lse;
    struct wire_span slopes, sinks;
    float scale, logits_soft_cap, mask_value;
    int32_t window_left, window_right;
    uint32_t num_splits, flags;
    float rope_theta;
    uint32_t rope_dim;
    float k_scale, v_scale;
    uint32_t kind;
    struct wire_span rope_frequencies;
    struct wire_tensor keys, values;
    struct wire_layers layers;   // all 0: one layer
    struct wire_span scales;
    int32_t timeout_ms;
    bool waits;
    int32_t wait_ms;
};
struct wire_merge {
    uint32_t num_tokens, num_heads, head_dim;
    struct wire_tensors outs, lses;
    struct wire_tensor out, lse;
    uint32_t flags;
    int32_t timeout_ms;
};
struct wire_wait { uint64_t ticket; int32_t timeout_ms; };
struct wire_inspect_range { uint32_t first, max; };
struct wire_inspect_blocks { uint64_t cache; uint32_t first, max; };
struct wire_kill_session { uint64_t session; };
struct wire_drop_cache { uint64_t cache; };

enum wire_tune_action { WIRE_TUNE_SHOW, WIRE_TUNE_RENEW, WIRE_TUNE_CLEAR, WIRE_TUNE_OFF, WIRE_TUNE_ON };   // TuneAction of aule.fbs
struct wire_tune { uint32_t action, first, max; };

// X(NAME, member of struct wire_request's union or `none`, FlatBuffers table). Order and count as in union Command.
#define WIRE_COMMAND_MAP(X)                                                                                           \
    X(HELLO,            hello,           Hello)                                                                       \
    X(MAPPED,           none,            Mapped)                                                                      \
    X(PING,             ping,            Ping)                                                                        \
    X(CLOSE_SESSION,    none,            CloseSession)                                                                \
    X(CACHE_OPEN,       cache_open,      CacheOpen)                                                                   \
    X(CACHE_CLOSE,      cache_close,     CacheClose)                                                                  \
    X(CACHE_STATE,      cache_state,     CacheState)                                                                  \
    X(BLOCKS_LEASE,     blocks_lease,    BlocksLease)                                                                 \
    X(BLOCKS_RELEASE,   blocks_release,  BlocksRelease)                                                               \
    X(PREFIX_LOOKUP,    prefix_lookup,   PrefixLookup)                                                                \
    X(PREFIX_PUBLISH,   prefix_publish,  PrefixPublish)                                                               \
    X(BATCH_CREATE,     batch_create,    BatchCreate)                                                                 \
    X(BATCH_DESTROY,    batch_destroy,   BatchDestroy)                                                                \
    X(RUN,              run,             Run)                                                                         \
    X(WAIT,             wait,            Wait)                                                                        \
    X(INSPECT_DAEMON,   none,            InspectDaemon)                                                               \
    X(INSPECT_SESSIONS, inspect_range,   InspectSessions)                                                             \
    X(INSPECT_CACHES,   inspect_range,   InspectCaches)                                                               \
    X(INSPECT_BLOCKS,   inspect_blocks,  InspectBlocks)                                                               \
    X(INSPECT_DEVICE,   none,            InspectDevice)                                                               \
    X(KILL_SESSION,     kill_session,    KillSession)                                                                 \
    X(BLOCKS_COPY,      blocks_copy,     BlocksCopy)                                                                  \
    X(MERGE,            merge,           Merge)                                                                       \
    X(TUNE,             tune,            Tune)                                                                        \
    X(BATCH_ADVANCE,    batch_advance,   BatchAdvance)                                                                \
    X(DROP_CACHE,       drop_cache,      DropCache)

enum wire_command {
    WIRE_COMMAND_NONE,
#define X(name, member, table) WIRE_COMMAND_##name,
    WIRE_COMMAND_MAP(X)
#undef X
    WIRE_COMMAND_COUNT
};
const char *wire_command_name(int command);   // "BLOCKS_LEASE"; "UNKNOWN" for none of them

struct wire_request {
    uint64_t session, epoch;
    enum wire_command command;
    union {
        struct wire_hello hello;
        struct wire_ping ping;
        struct wire_cache_open cache_open;
        struct wire_cache_close cache_close;
        struct wire_cache_state cache_state;
        struct wire_blocks_lease blocks_lease;
        struct wire_blocks_release blocks_release;
        struct wire_prefix_lookup prefix_lookup;
        struct wire_prefix_publish prefix_publish;
        struct wire_batch_create batch_create;
        struct wire_batch_destroy batch_destroy;
        struct wire_run run;
        struct wire_wait wait;
        struct wire_inspect_range inspect_range;
        struct wire_inspect_blocks inspect_blocks;
        struct wire_kill_session kill_session;
        struct wire_drop_cache drop_cache;
        struct wire_blocks_copy blocks_copy;
        struct wire_merge merge;
        struct wire_tune tune;
        struct wire_batch_advance batch_advance;
    };
};

// ---- answers ----

struct wire_hello_reply {
    uint32_t major, minor;
    uint64_t session, epoch;
    const char *segment_name;
    uint64_t segment_size, header_offset, arena_offset, arena_size;
    uint64_t submission_ring_offset, submission_ring_size, completion_ring_offset, completion_ring_size;
    uint64_t max_message;
    uint32_t max_tickets, max_batches;
    uint64_t quota_blocks;
    const char *device_name;
    uint8_t device_uuid[16];
    bool arena_imported;
    uint32_t ring_entries, ring_entry_size;
    const char *doorbell;
};
struct wire_ping_reply { uint64_t payload, epoch; const char *version; uint32_t major, minor; };
struct wire_cache_open_reply { uint64_t cache; uint32_t chunk_blocks; uint64_t block_bytes; };
struct wire_cache_state_reply {
    uint64_t total_blocks, free_blocks, leased_blocks, held_blocks, cached_blocks, quarantined_blocks;
    uint64_t limit_blocks, available_blocks, block_bytes;
};
struct wire_blocks_lease_reply { struct wire_ints blocks; };
struct wire_prefix_lookup_reply { struct wire_ints blocks; uint32_t num_tokens; };
struct wire_prefix_publish_reply { struct wire_ints blocks; uint32_t num_existing; };
struct wire_batch_create_reply { uint64_t batch; uint32_t num_tokens; };
struct wire_run_reply { uint64_t ticket; };
struct wire_wait_reply { int32_t run_status; uint64_t gpu_ns; uint32_t num_runs, num_sessions; const char *run_message; };

struct wire_inspect_daemon_reply {
    uint64_t epoch, pid, uptime_ms;
    const char *version, *socket;
    uint32_t num_sessions, max_sessions, num_caches, max_caches;
    uint64_t pool_bytes, pool_limit_bytes, pool_blocks, pool_limit_blocks;
    uint64_t free_blocks, leased_blocks, held_blocks, cached_blocks, quarantined_blocks;
    uint64_t runs_done, runs_failed, dispatches, submissions, tokens_attended;
    uint64_t lookups, lookup_tokens, hit_tokens, evictions, session_deaths;
    bool stopping;
    uint32_t max_sessions_per_dispatch;
    uint64_t sessions_served, dispatches_of_1, dispatches_of_2, dispatches_of_4, dispatches_of_8, dispatches_of_more;
    uint64_t ends_awake, ends_asleep;
};
struct wire_session_state {
    uint64_t session, pid;
    uint32_t uid;
    bool arena_imported, dead;
    uint64_t arena_bytes, blocks_held, quota_blocks;
    uint32_t batches, tickets_unreaped;
    uint64_t runs_done, tokens_attended, gpu_ns, lookup_tokens, hit_tokens, age_ms;
};
struct wire_cache_counts {
    uint64_t cache;
    uint32_t num_layers, num_kv_heads, head_dim_k, head_dim_v, k_dtype, v_dtype, block_size;
    uint32_t chunk_blocks, num_chunks, open_sessions;
    bool v_is_k_prefix;
    uint32_t scale_mode;
    uint64_t block_bytes;
    uint64_t total_blocks, free_blocks, leased_blocks, held_blocks, cached_blocks, quarantined_blocks;
    uint64_t published_blocks, pending_blocks;
};
struct wire_block_state { int32_t block; uint32_t state, holders, batch_refs; uint64_t writer, last_use; int32_t depth; };

// Arrays of these three replies: `count` entries each; when decoding, allocated and owned by the wire_reply.
struct wire_inspect_sessions_reply {
    uint32_t total, count; const struct wire_session_state *sessions; struct wire_names names, tenants;
};
struct wire_inspect_caches_reply {
    uint32_t total, count;
    const struct wire_cache_counts *caches;
    struct wire_names names, fingerprints; // fingerprints: in hexadecimal digits, or empty
};
struct wire_inspect_blocks_reply { uint32_t total, count; const struct wire_block_state *blocks; };
struct wire_inspect_device_reply {
    const char *name, *driver;
    uint32_t api_version;
    uint8_t uuid[16];
    uint32_t index;
    const char *type;
    bool software;
    uint64_t heap_bytes, budget_bytes;
    uint32_t subgroup_size, shared_memory_bytes;
    uint64_t max_allocation_bytes;
    bool host_import;
    uint64_t import_alignment;
    uint32_t pipelines;
    const char *variant;
    struct wire_names variants, variant_needs, variant_missing;   // of one length
};

enum wire_tune_state { WIRE_TUNE_WAITING, WIRE_TUNE_MEASURED, WIRE_TUNE_FAILED };   // TuneState of aule.fbs
struct wire_tune_entry {
    uint32_t num_workgroups, num_keys, local_size, rule_local_size;
    uint64_t gpu_ns, rule_gpu_ns;
    uint32_t num_ways, num_samples, state;
};
struct wire_tune_reply {
    bool enabled, software;
    uint32_t num_waiting, time_ms, max_entries;
    const char *path, *note;
    uint32_t total, count;                      // a list like those of sessions, caches and blocks
    const struct wire_tune_entry *entries;
    struct wire_names kernels, geometries;      // of one length with it
};

#define WIRE_ANSWER_MAP(X)                                                                                            \
    X(EMPTY,            none,             Empty)                                                                      \
    X(HELLO,            hello,            HelloReply)                                                                 \
    X(PING,             ping,             PingReply)                                                                  \
    X(CACHE_OPEN,       cache_open,       CacheOpenReply)                                                             \
    X(CACHE_STATE,      cache_state,      CacheStateReply)                                                            \
    X(BLOCKS_LEASE,     blocks_lease,     BlocksLeaseReply)                                                           \
    X(PREFIX_LOOKUP,    prefix_lookup,    PrefixLookupReply)                                                          \
    X(PREFIX_PUBLISH,   prefix_publish,   PrefixPublishReply)                                                         \
    X(BATCH_CREATE,     batch_create,     BatchCreateReply)                                                           \
    X(RUN,              run,              RunReply)                                                                   \
    X(WAIT,             wait,             WaitReply)                                                                  \
    X(INSPECT_DAEMON,   inspect_daemon,   InspectDaemonReply)                                                         \
    X(INSPECT_SESSIONS, inspect_sessions, InspectSessionsReply)                                                       \
    X(INSPECT_CACHES,   inspect_caches,   InspectCachesReply)                                                         \
    X(INSPECT_BLOCKS,   inspect_blocks,   InspectBlocksReply)                                                         \
    X(INSPECT_DEVICE,   inspect_device,   InspectDeviceReply)                                                         \
    X(TUNE,             tune,             TuneReply)

enum wire_answer {
    WIRE_ANSWER_NONE,
#define X(name, member, table) WIRE_ANSWER_##name,
    WIRE_ANSWER_MAP(X)
#undef X
    WIRE_ANSWER_COUNT
};

struct wire_reply {
    int32_t status;
    const char *message;   // "" if the status is OK
    uint64_t ticket;
    enum wire_answer answer;
    union {
        struct wire_hello_reply hello;
        struct wire_ping_reply ping;
        struct wire_cache_open_reply cache_open;
        struct wire_cache_state_reply cache_state;
        struct wire_blocks_lease_reply blocks_lease;
        struct wire_prefix_lookup_reply prefix_lookup;
        struct wire_prefix_publish_reply prefix_publish;
        struct wire_batch_create_reply batch_create;
        struct wire_run_reply run;
        struct wire_wait_reply wait;
        struct wire_inspect_daemon_reply inspect_daemon;
        struct wire_inspect_sessions_reply inspect_sessions;
        struct wire_inspect_caches_reply inspect_caches;
        struct wire_inspect_blocks_reply inspect_blocks;
        struct wire_inspect_device_reply inspect_device;
        struct wire_tune_reply tune;
    };
    void *owned[3];        // arrays that decoding allocated
};

// ---- encode and decode ----

struct wire_buffer {
    void *data;   // malloc'd; owned
    size_t size;  // bytes
};
void wire_buffer_finish(struct wire_buffer *buffer);   // takes NULL and a zeroed buffer

// Encode into a fresh buffer. STATUS_NO_MEMORY; STATUS_LIMIT if the message exceeds WIRE_MAX_MESSAGE bytes (the text
// says by how much); STATUS_INVALID for a command or an answer that is none, a name, fingerprint or extra key that is too long, a
// count without data, lists of a reply whose lengths differ. A reply without content has the answer EMPTY, not NONE. A NULL
// string is left out and decodes as "". On failure *out is zeroed.
enum status wire_encode_request(const struct wire_request *request, struct wire_buffer *out, struct error *error);
enum status wire_encode_reply(const struct wire_reply *reply, struct wire_buffer *out, struct error *error);

// Verify `size` bytes at `data` (8-byte aligned) and fill *out. STATUS_MALFORMED with what is wrong: too large, truncated,
// not aule's file identifier, a table outside the buffer, a missing or unknown command, a required field absent,
// vectors of a reply whose lengths differ, a name, fingerprint or extra key that is too long, a NUL byte inside a string.
// STATUS_INVALID if `data` is not aligned; STATUS_NO_MEMORY. On failure *out is zeroed.
enum status wire_decode_request(const void *data, size_t size, struct wire_request *out, struct error *error);
enum status wire_decode_reply(const void *data, size_t size, struct wire_reply *out, struct error *error);
void wire_reply_finish(struct wire_reply *reply);      // frees what decoding allocated; takes a zeroed reply

// ---- the ring lane's entries: what a Run or Wait and its answer are there. See ring.h for the rings themselves. ----

#define WIRE_SUBMISSION_SIZE 512u   // bytes from one entry to the next
#define WIRE_COMPLETION_SIZE 512u

struct wire_submission {
    uint32_t sequence;
    uint32_t command;            // WIRE_COMMAND_RUN or _WAIT; of a hostile client anything
    struct wire_wait wait;
    struct wire_run run;
};
struct wire_completion {
    uint32_t sequence;
    int32_t status;
    uint32_t answer;             // WIRE_ANSWER_RUN, _WAIT or _EMPTY
    int32_t run_status;
    uint32_t num_runs, num_sessions;
    uint64_t gpu_ns, ticket;
    char text[384];              // always ends with 0
};
// The entry is private memory, 8-byte aligned, of the size above. Nothing can fail: what the numbers mean is the reader's to check.
void wire_put_submission(const struct wire_submission *submission, void *entry);
void wire_get_submission(const void *entry, struct wire_submission *submission);
void wire_put_completion(const struct wire_completion *completion, void *entry);
void wire_get_completion(const void *entry, struct wire_completion *completion);

// ---- the shared-memory segment: one per session, made by the daemon ----
// [ header, one page ][ submission ring ][ completion ring ][ arena ], each part at a page border; see schema/README.md.

#define WIRE_SEGMENT_MAGIC 0x656c7561u   // "aule", little-endian: a peer of the other byte order sees another number
#define WIRE_SEGMENT_VERSION 1u
#define WIRE_PAGE 4096u
#define WIRE_SEGMENT_PREFIX "/aule-"     // of the name in the shm_open name space

struct wire_segment_header {
    uint32_t magic, version;
    uint32_t header_bytes;       // sizeof(struct wire_segment_header) of the daemon
    uint32_t reserved;
    uint64_t epoch, session;
    uint64_t segment_size, arena_offset, arena_size;
};

#ifdef __cplusplus
}
#endif

#endif
