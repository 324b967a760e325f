// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// engine.h - what core and server may ask of the GPU. Plain C, no Vulkan: tests/fakes/fake_engine.c
// implements it without a device. Knows nothing of sessions, holds, prefixes or sockets: whoever
// calls has checked every id, length and offset.
//
// Threads: the caller is one thread (the dispatcher), except engine_arena_create/destroy, which any
// thread may call, and tuning's thread, which has caches and batches of its own. Nothing here
// blocks on the GPU but engine_wait() and engine_destroy(): submissions, new chunks and retired
// objects are handled by the engine's own threads, which report through engine_poll() after calling
// `wake`. Ownership: what the GPU may still read dies when the last submission that names it has
// passed, not at destroy().

// Laid out by hand, one thought a line.
// clang-format off
#ifndef AULE_ENGINE_H
#define AULE_ENGINE_H

#include "metrics.h"
#include "schema/status.h"

struct engine;
struct engine_cache;
struct engine_batch;
struct engine_arena;

// ---- the device ----

#define ENGINE_NO_POLL UINT32_MAX

enum engine_tune { ENGINE_TUNE_OFF, ENGINE_TUNE_ON, ENGINE_TUNE_AUTO };   // AUTO: on but for software devices

struct engine_params {
    const char *device;               // index, UUID (with or without dashes) or part of the name; NULL = the best one
    bool force_staging;               // never import host memory
    bool validation;                  // enable VK_LAYER_KHRONOS_validation; its messages go to `log` and are counted
    bool statistics;                  // log, at level 3, what the driver says of each pipeline that it compiled, if it says anything
    uint32_t max_pipelines;           // compiled shaders to keep, the latest used ones; 0 = 256
    uint64_t max_scratch_bytes;       // for the partial results of split runs, of one submission; 0 = 256 MiB
    bool no_cascade;                  // keys that several sequences of a batch share are read for each of them: the same bits, more slowly
    uint32_t completion_poll_us;      // about the end of a submission its thread looks at the GPU for at most so long before it waits, and
                                      //   then another one for the next submission;
                                      //   0 = 100 with 4 cores and a GPU, else never; ENGINE_NO_POLL = never
    const char *variant;              // name of the attention shader to use (AULE_VARIANT); NULL = the best that fits
    const char *cache_folder;         // where compiled pipelines are kept, in a file a device, and what was measured, in one a device
                                      //   and driver; NULL = nowhere
    enum engine_tune tune;            // measure what gives the same bits sooner
    uint32_t tune_time_ms;            // that measuring one kind of dispatch may take; 0 = 200
    uint32_t max_tuned;               // kinds of dispatches to know; 0 = 256
    uint64_t tune_memory_bytes;       // of the device, for what is made up to be measured; 0 = 256 MiB
    void (*wake)(void *context);      // called from engine threads when engine_poll() has news; must not block
    void (*log)(void *context, int level, const char *text);  // any thread; level 0 error, 1 warning, 2 info, 3 debug; NULL = silent
    void *context;
};

struct engine_device {
    uint32_t index;                   // among the devices of this Vulkan instance
    char name[256];
    char driver[256];                 // driver name and version
    char type[16];                    // "discrete", "integrated", "virtual", "cpu", "other"
    uint8_t uuid[16];
    uint32_t api_version;             // VK_MAKE_API_VERSION
    bool software;                    // runs on the CPU
    bool usable;                      // has all that the engine needs
    char missing[256];                // what it lacks, if not usable
    uint64_t heap_bytes;              // of the device-local heap that the pool lives in
    uint64_t budget_bytes;            // what VK_EXT_memory_budget says is left, else heap_bytes
    uint64_t max_allocation_bytes;
    uint32_t subgroup_size;
    uint32_t shared_memory_bytes;
    bool host_import;                 // VK_EXT_external_memory_host, and not force_staging
    uint64_t import_alignment;        // bytes
};

// Fills *out with a malloc'd array of all devices of the machine, best first. STATUS_NOT_FOUND if Vulkan has none.
enum status engine_list_devices(struct engine_device **out, uint32_t *count, struct error *error);

// STATUS_NOT_FOUND with the list of names if no device or variant matches; STATUS_UNSUPPORTED with what is missing.
enum status engine_create(const struct engine_params *params, struct engine **out, struct error *error);
// Waits for submitted work; takes NULL. Ends every cache, batch and arena that still lives, those in use by that work too.
void engine_destroy(struct engine *engine);
// The same, with a deadline. false: the GPU is still busy after `timeout_ms` and nothing is freed; the process then ends, or
// asks again. Until it ends, threads of the engine may still call `wake` and `log`, and arenas must stay mapped.
bool engine_destroy_within(struct engine *engine, int timeout_ms);
const struct engine_device *engine_device(const struct engine *engine);
uint64_t engine_budget_bytes(struct engine *engine);       // as of now
uint32_t engine_num_pipelines(struct engine *engine);      // compiled, kept
void engine_metrics(const struct engine *engine, uint64_t metrics[NUM_ENGINE_METRICS]);   // by enum engine_metric
const char *engine_variant(const struct engine *engine);   // name of the attention shader in use

// Variant `index` of the table, best first; false: there are no more. Static strings, but for `missing`.
struct engine_variant_info { const char *name, *needs; char missing[256]; };   // missing "" = this device could use it
bool engine_variant_at(const struct engine *engine, uint32_t index, struct engine_variant_info *out);
uint32_t engine_validation_messages(const struct engine *engine);

// ---- tuning: which of the ways that give the same bits kernels take; measured behind the work that first wanted to know ----

struct engine_tuning {
    bool enabled;
    uint32_t num_entries, num_waiting, time_ms, max_entries;
    const char *path;                 // of the file; "" = none; lives as long as the engine
    char note[256];                   // what else there is to know, in a sentence; "" = nothing
};
void engine_tuning(const struct engine *engine, struct engine_tuning *out);

enum engine_tune_state { ENGINE_TUNE_WAITING, ENGINE_TUNE_MEASURED, ENGINE_TUNE_FAILED };   // FAILED: the kernel's rule holds
// One kind of dispatch: a kernel and geometry, so many workgroups and keys of a sequence, up to twice as many of both.
struct engine_tuned {
    enum engine_tune_state state;
    char kernel[64], geometry[200];
    uint32_t num_workgroups, num_keys;
    uint32_t local_size, rule_local_size;      // invocations a workgroup: in use, and by the kernel's rule
    uint64_t gpu_ns, rule_gpu_ns;              // the shortest of each; 0 = not measured
    uint32_t num_candidates, num_samples;      // samples of each
};
// Entry `index`; false: there are no more. They come and go.
bool engine_tuned_at(const struct engine *engine, uint32_t index, struct engine_tuned *out);

enum engine_tune_action {
    ENGINE_TUNE_RENEW,                // measure all again
    ENGINE_TUNE_CLEAR,                // forget all, and soon the file
    ENGINE_TUNE_DISABLE,              // neither measure nor use what was measured
    ENGINE_TUNE_ENABLE,
};
void engine_tune(struct engine *engine, enum engine_tune_action action);

// ---- how K and V lie ----

enum engine_place {
    ENGINE_POOL,     // in the blocks of a cache
    ENGINE_BLOCKS,   // in block tensors of the run's arena, reached through the block table as well
    ENGINE_ROWS,     // in contiguous tensors of the run's arena
};

struct engine_kv {
    uint32_t num_kv_heads, head_dim_k, head_dim_v;
    uint32_t block_size;              // of ENGINE_ROWS: 0
    enum dtype k_dtype, v_dtype;
    bool v_is_k_prefix;               // V is the first head_dim_v elements of K; no V is stored or written
    enum scale_mode scale_mode;       // only with 8-bit dtypes; PER_TOKEN_HEAD only in ENGINE_POOL
};
// STATUS_UNSUPPORTED with the value if a shape or dtype has no shader; STATUS_INVALID if the values contradict each other.
enum status engine_kv_check(const struct engine *engine, enum engine_place place, const struct engine_kv *kv, struct error *error);

// ---- caches: memory for blocks ----

struct engine_cache_params {
    const char *name;                 // for debug names and logs
    uint32_t num_layers;
    uint32_t chunk_blocks;            // power of two
    struct engine_kv kv;
};

// Those of engine_kv_check(), and STATUS_UNSUPPORTED with the value for what the device cannot hold.
enum status engine_cache_check(const struct engine *engine, const struct engine_cache_params *params, struct error *error);
// Bytes of one block of one layer, and over all layers: K [kv head][token][dim], then V the same, then with PER_TOKEN_HEAD the f32
// scales of K [kv head][token] and of V.
uint64_t engine_layer_block_bytes(const struct engine_cache_params *params);
uint64_t engine_block_bytes(const struct engine_cache_params *params);

// A cache begins without memory. Physical block b lives in chunk b / chunk_blocks.
enum status engine_cache_create(struct engine *engine, const struct engine_cache_params *params,
                                struct engine_cache **out, struct error *error);
void engine_cache_destroy(struct engine_cache *cache);
// Allocate chunk `chunk` and zero it, on the engine's own thread; ENGINE_EVENT_CHUNK tells the outcome. Never moves a block.
void engine_cache_grow(struct engine_cache *cache, uint32_t chunk);
// Give chunk `chunk`'s memory back once the GPU is past it. No later submission may name its blocks.
void engine_cache_shrink(struct engine_cache *cache, uint32_t chunk);

// Copy one block of one layer to or from `bytes` (engine_layer_block_bytes() of them).
// For tests and fault injection only: waits until the GPU is idle.
enum status engine_block_read(struct engine_cache *cache, uint32_t layer, int32_t block, void *bytes);
enum status engine_block_write(struct engine_cache *cache, uint32_t layer, int32_t block, const void *bytes);

// ---- arenas: memory that a client writes ----

// Make [base, base + size) usable by the GPU: imported in place where the device allows it, else mirrored and copied
// around each submission. `base` is page aligned and stays mapped until engine_arena_destroy() says that it may go. NULL: the engine makes
// the memory, on the device if the CPU can write there (reading it back is slow), and engine_arena_base() says where; it ends with the arena.
enum status engine_arena_create(struct engine *engine, void *base, uint64_t size, struct engine_arena **out, struct error *error);
// The caller has seen every submission that names it pass, or the loss of the device; takes NULL. true: the memory is free
// to unmap. false: the device is lost and may still write there, so that it stays mapped until the process ends.
bool engine_arena_destroy(struct engine_arena *arena);
bool engine_arena_imported(const struct engine_arena *arena);
void *engine_arena_base(const struct engine_arena *arena);

// ---- batches: one model step's metadata, in memory that only the daemon writes ----

struct engine_batch_params {
    struct engine *engine;
    struct engine_cache *cache;       // NULL: K and V lie in the runs' arenas, as the next two say
    enum engine_place place;          // ENGINE_POOL with a cache
    struct engine_kv kv;
    uint32_t num_seqs, max_blocks, num_tokens;   // num_seqs 0 or seq_lens_kv NULL: a batch that only ENGINE_WRITE runs use
    const int32_t *cu_seqlens_q;      // [num_seqs + 1], monotonic from 0
    const int32_t *seq_lens_kv;       // [num_seqs]
    const int32_t *block_table;       // [num_seqs, max_blocks]; entries that no query sees may hold anything; NULL in ENGINE_ROWS
    const int64_t *slot_mapping;      // [num_tokens], -1 = write nowhere; NULL = no writes
    const int32_t *positions;         // [num_tokens] not negative; NULL = bottom-right aligned
    const uint8_t *mask;              // for each sequence ceil(q_len * kv_len / 8) bytes, one part after the other; NULL = none
    uint64_t mask_bytes;
    const int32_t *q_lens;            // [num_seqs] at most cu_seqlens_q's; rows beyond give zeros and LSE -inf; NULL = all are queries
    const int32_t *token_rows;        // [num_tokens] a permutation: the row of token t in every tensor, in slot_mapping and in
                                      //   positions; NULL = t
    const int32_t *kv_starts;         // [num_seqs] ENGINE_ROWS: the first row of each sequence in keys and values without an outer
                                      //   stride; NULL = all such have one
};
// Copies everything it needs.
enum status engine_batch_create(const struct engine_batch_params *params, struct engine_batch **out, struct error *error);
// The next step of `batch`, one of a cache without a mask: what is not here is the same. `batch` stays as it is and is ended like any other.
struct engine_entry { uint32_t seq, column; int32_t block; };
struct engine_advance {
    const int32_t *seq_lens_kv;           // [num_seqs]
    const struct engine_entry *entries;   // [num_entries] that changed in the block table, each place once; -1: no run of the next step reads it
    uint32_t num_entries;
    const int32_t *block_table;           // all of it, as it is now
    const int64_t *slot_mapping;          // [num_tokens] if `batch` has one
    const int32_t *positions;             // likewise
    bool is_used;                         // `batch` has runs that are not over, submitted or not
};
enum status engine_batch_advance(struct engine_batch *batch, const struct engine_advance *params, struct engine_batch **out,
                                 struct error *error);
// Whether a batch and the next step of it have one block table.
bool engine_batch_shares_table(const struct engine_batch *batch, const struct engine_batch *next);
void engine_batch_destroy(struct engine_batch *batch);

// ---- submissions ----

// Token t, or with an outer stride token i of sequence (or block) s: offset + s * outer_stride + i * token_stride + h * head_stride.
struct engine_tensor {
    uint64_t offset, token_stride, head_stride;   // bytes, multiples of 16, inside the run's arena
    enum dtype dtype;
    uint64_t outer_stride;                        // 0 = none
};

enum { ENGINE_RANGE_BYTES = 24 };
enum engine_kind {
    ENGINE_ATTEND,   // writes K and V where the batch has slots, then attention
    ENGINE_WRITE,    // only the writes
    ENGINE_GATHER,   // K and V of the batch's sequences, one after the other, to k and v (dequantised)
    ENGINE_COPY,     // blocks of a cache, all layers: no batch, no arena; ENGINE_RANGE_BYTES a block and layer while it is under way
    ENGINE_MERGE,    // partial results: no batch
};

struct engine_rope {
    uint32_t dim;                        // 0 = none; even
    bool interleaved;
    float theta;                         // final; unused with frequencies
    const double *frequencies;           // [dim / 2] radians a position; NULL = theta ^ (-2 n / dim)
};

struct engine_copy { int32_t from, to; };   // from -1: fill with zeroes

struct engine_part { struct engine_tensor out, lse; };

// Arrays are copied by engine_submit().
struct engine_run {
    enum engine_kind kind;
    struct engine_batch *batch;          // ATTEND, WRITE, GATHER
    struct engine_arena *arena;          // all but COPY
    uint32_t layer, num_heads;
    struct engine_tensor q, k, v, out;   // k and v are read only if the batch has a slot mapping; GATHER writes them
    struct engine_tensor keys, values;   // ENGINE_BLOCKS and ENGINE_ROWS; values unused if v_is_k_prefix
    float scale;                         // final: never 0
    bool causal;                         // a batch with a mask ignores it
    // What is off when zero or NULL.
    bool windowed;
    int32_t window_left, window_right;   // only if windowed; -1 = unbounded
    float soft_cap;
    const float *slopes, *sinks;         // [num_heads]
    struct engine_tensor lse;            // dtype 0 = none, else f32 [num_tokens, num_heads], heads contiguous; head_stride and
                                         //   outer_stride unused, offset and token_stride multiples of 4
    uint32_t num_splits;                 // 0 = by the variant's rule, 1 = none, n = that many, each rounded up as the shader wants and
                                         //   256 keys at least; a shader that never cuts does not
    struct engine_rope rope;
    float k_scale, v_scale;              // SCALE_PER_TENSOR: final, never 0
    struct engine_cache *cache;          // COPY
    const struct engine_copy *copies;    // [num_copies]
    uint32_t num_copies;
    const struct engine_part *parts;     // MERGE: [num_parts], shaped as out and lse, over num_tokens, num_heads and head_dim
    uint32_t num_parts, num_tokens, head_dim;
};
// STATUS_LIMIT naming --max-scratch if the partial results of `run` alone exceed max_scratch_bytes.
enum status engine_run_check(const struct engine *engine, const struct engine_run *run, struct error *error);

struct engine_zero { struct engine_cache *cache; int32_t block; };

// Order inside a submission: the zeroes, then wave by wave; inside a wave all K/V writes and copies come before all reads and the
// runs are independent of one another, so that those which fit one pipeline become one ragged dispatch.
struct engine_submission {
    const struct engine_zero *zeroes;
    uint32_t num_zeroes;
    const struct engine_run *runs;
    uint32_t num_runs;
    const uint32_t *wave_ends;           // wave w is runs [w ? wave_ends[w - 1] : 0, wave_ends[w]); the last is num_runs
    uint32_t num_waves;
};

// Copies the submission, queues it and returns its sequence number (1, 2, ...) at once. Submissions run in order.
// STATUS_NO_MEMORY or STATUS_DEVICE_LOST: nothing was queued.
enum status engine_submit(struct engine *engine, const struct engine_submission *submission, uint64_t *sequence, struct error *error);

struct engine_run_result {
    enum status status;                  // of this run: a pipeline may fail to build
    uint32_t dispatch;                   // runs of one submission with equal `dispatch` shared one dispatch (of those that a run has,
                                         //   the first); from num_dispatches on: the run had none (no tokens, or it failed)
    uint64_t gpu_ns;                     // of its dispatches and the K/V writes before them: what of a wave's time is theirs by the
                                         //   bytes that they move; 0 if the device has no timestamps
    uint64_t own_ns;                     // of gpu_ns, what is this run's alone, by the same rule
    const char *message;                 // why it failed, in a sentence; NULL = it did not, or the status has to do
};

enum engine_event_kind { ENGINE_EVENT_DONE, ENGINE_EVENT_CHUNK, ENGINE_EVENT_LOST };
// After LOST, told once, no event follows: what was queued or growing has no outcome.
struct engine_event {
    enum engine_event_kind kind;
    uint64_t sequence;                          // DONE: which submission; they come in order
    const struct engine_run_result *results;    // DONE: one a run; valid until the next engine_poll()
    uint32_t num_results, num_dispatches;
    uint64_t prepared_ns;                       // DONE: from engine_submit() until the GPU had it; 0 = it never had
    struct engine_cache *cache;                 // CHUNK; never one that was destroyed
    uint32_t chunk;
    struct error error;                         // CHUNK: status OK or why not; LOST: what happened
};

bool engine_poll(struct engine *engine, struct engine_event *event);   // false: no news
// Any thread, at the cost of a load: false: engine_poll() has none, or `wake` is still to be called for it. May be true for nothing.
bool engine_has_news(const struct engine *engine);
// Blocks until submission `sequence` is done and its event can be polled. STATUS_TIMEOUT, STATUS_DEVICE_LOST. For tests and bench.
enum status engine_wait(struct engine *engine, uint64_t sequence, int timeout_ms);

#endif
