// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// engine.h - what core and server may ask of the GPU. Plain C, no Vulkan: tests/fakes/fake_engine.c
// implements it without a device. Knows nothing of sessions, holds, prefixes or sockets; the caller
// has checked every id, length and offset.
//
// Thread: dispatcher, where a declaration has no other tag. Only engine_wait(), engine_destroy(),
// engine_destroy_within(), engine_arena_create_exported() and the two functions that copy a block
// wait for the GPU. The engine's own threads do the rest; they call `wake` when engine_poll() has
// an event.
//
// Ownership: destroy() never frees what the GPU may still read. Such memory is freed when the last
// submission that uses it has completed.

#ifndef AULE_ENGINE_H
#define AULE_ENGINE_H

#include "metrics.h"
#include "schema/status.h"
#include "schema/wire_structs.h"

struct engine;
struct engine_cache;
struct engine_batch;
struct engine_arena;

// ---- the device ----

#define ENGINE_NO_POLL UINT32_MAX

// How copies between a cache and host memory run beside the submissions (engine_haul()). AUTO: on
// queues that only transfer and on further compute queues, if the device has some. ON: else on the
// queue of the submissions. COPIES: as ON, but only by copy commands, which take no compute unit.
enum engine_haul_mode { ENGINE_HAUL_AUTO, ENGINE_HAUL_OFF, ENGINE_HAUL_ON, ENGINE_HAUL_COPIES };

struct engine_params {
    // Index, UUID (with or without dashes) or part of the name; NULL = the best device.
    const char *device;
    bool require_gpu;   // a device that runs on the CPU is not found
    bool force_staging; // never import host memory
    // Enables VK_LAYER_KHRONOS_validation. Its messages go to `log` and are counted.
    bool validation;
    // Logs the driver's statistics of each compiled pipeline at level 3, if it has any.
    bool statistics;
    uint32_t max_pipelines; // compiled pipelines to keep; 0 = 256
    // Bytes for the partial results of split-KV, for one submission; 0 = 256 MiB.
    uint64_t max_scratch_bytes;
    // Turns off the cascade kernel: shared keys are read once for each sequence. The bits are the
    // same; dispatches take longer.
    bool no_cascade;
    // A cascade also where it is slower. For tests, whose sequences are short.
    bool all_cascades;
    // Most microseconds that the completer polls: for the end of a submission, from shortly before
    // the predicted end, and then for the next submission. 0 = 100 with 4 cores or more and a GPU,
    // else no polling. ENGINE_NO_POLL = no polling.
    uint32_t completion_poll_us;
    // Name of a variant, a list of attention kernels (AULE_VARIANT). NULL = the best that fits.
    const char *variant;
    // Folder for compiled pipelines, one file for each device. NULL = nothing is kept.
    const char *cache_folder;
    // A program, of the same build, that calls engine_compile_main() if ENGINE_COMPILE_COMMAND is
    // its only argument. On a software device, new pipelines are compiled in a process of it first,
    // because the driver would compile them on the thread of all runs. NULL = they are not. Must
    // live as long as the engine.
    const char *compile_program;
    enum engine_haul_mode haul;
    // Called when engine_poll() has an event. Must not block. Thread: the engine's.
    void (*wake)(void *context);
    // Thread: any. Level 0 error, 1 warning, 2 info, 3 debug. `format` is what `text` was
    // made by: the kind of line. NULL = silent.
    void (*log)(void *context, int level, const char *format, const char *text);
    void *context; // passed to `wake` and `log`
};

struct engine_device {
    uint32_t index; // place in engine_list_devices(); not the index that Vulkan gives
    char name[256];
    char driver[256]; // driver name and version
    char type[16];    // "discrete", "integrated", "virtual", "cpu", "other"
    uint8_t uuid[16];
    uint32_t api_version;  // VK_MAKE_API_VERSION
    bool software;         // runs on the CPU
    bool usable;           // has everything that the engine needs
    char missing[256];     // what it lacks, if not usable
    uint64_t heap_bytes;   // size of the device-local heap that holds the pool
    uint64_t budget_bytes; // what VK_EXT_memory_budget says is left, else heap_bytes
    uint64_t max_allocation_bytes;
    uint32_t subgroup_size;
    uint32_t shared_memory_bytes; // for one workgroup
    uint32_t num_multiprocessors; // assumed if the device does not report it
    bool host_import;             // VK_EXT_external_memory_host, and not force_staging
    uint64_t import_alignment;    // bytes
    bool memory_export;           // other processes can import its memory by a descriptor
};

// Sets *out to a malloc'd array of the machine's devices, best first.
// STATUS_NOT_FOUND: Vulkan has no device.
enum status engine_list_devices(struct engine_device **out, uint32_t *count, struct error *error);

// The process that compiles one pipeline. Its main() returns what this returns, and has done
// nothing else.
#define ENGINE_COMPILE_COMMAND "compile-pipeline"
int engine_compile_main(void);

// STATUS_NOT_FOUND: no device or variant matches; the error lists the names.
// STATUS_UNSUPPORTED: the error says what the device lacks.
enum status engine_create(const struct engine_params *params, struct engine **out,
                          struct error *error);
// Waits for submitted work, then destroys the engine and every cache, batch and arena that the
// caller left. Takes NULL.
void engine_destroy(struct engine *engine);
// The same with a deadline. false: the GPU is still busy after `timeout_ms`, and nothing is freed.
// The caller then ends the process or calls again; until then engine threads may call `wake` and
// `log`, and arenas must stay mapped.
bool engine_destroy_within(struct engine *engine, int timeout_ms);
const struct engine_device *engine_device(const struct engine *engine);
uint64_t engine_budget_bytes(struct engine *engine);  // budget_bytes, read now
uint32_t engine_num_pipelines(struct engine *engine); // compiled pipelines that are kept
// Fills `metrics`, by enum engine_metric.
void engine_metrics(const struct engine *engine, uint64_t metrics[NUM_ENGINE_METRICS]);
const char *engine_variant(const struct engine *engine); // name of the variant in use

// The strings are static, except `missing`.
struct engine_variant_info {
    const char *name, *needs;
    // What the device lacks for the variant; "" = nothing. For the variant in use: why GLSL
    // replaces native kernels; "" = no kernel that was needed so far is replaced.
    char missing[256];
};
// Variant `index` of the table, best first. false: there are no more.
bool engine_variant_at(const struct engine *engine, uint32_t index,
                       struct engine_variant_info *out);
uint32_t engine_validation_messages(const struct engine *engine);

// ---- where K and V lie ----

enum engine_place {
    ENGINE_POOL,   // in the blocks of a cache
    ENGINE_BLOCKS, // in block tensors of the run's arena, also by the block table
    ENGINE_ROWS,   // in contiguous tensors of the run's arena
};

struct engine_kv {
    uint32_t num_kv_heads, head_dim_k, head_dim_v;
    uint32_t block_size; // tokens; 0 for ENGINE_ROWS
    enum dtype k_dtype, v_dtype;
    bool v_is_k_prefix;         // V is the first head_dim_v elements of K; no V is stored (MLA)
    enum scale_mode scale_mode; // only with 8-bit dtypes; PER_TOKEN_HEAD only in ENGINE_POOL
    // Not 0: opaque blocks of so many bytes in one layer, a multiple of 16. Only copies use them,
    // and of the fields above only block_size is not 0. Only in ENGINE_POOL.
    uint32_t block_bytes;
};
// STATUS_UNSUPPORTED: no shader serves a shape or dtype. STATUS_INVALID: values contradict each
// other. The error names the value.
enum status engine_kv_check(const struct engine *engine, enum engine_place place,
                            const struct engine_kv *kv, struct error *error);

// ---- caches: memory for blocks ----

struct engine_cache_params {
    const char *name; // for debug names and logs
    uint32_t num_layers;
    uint32_t chunk_blocks; // blocks of a chunk; a power of two
    struct engine_kv kv;
    bool exported; // other processes can import its memory; needs info.memory_export
};

// The statuses of engine_kv_check(). STATUS_UNSUPPORTED also if one layer of a chunk exceeds the
// device's largest allocation.
enum status engine_cache_check(const struct engine *engine,
                               const struct engine_cache_params *params, struct error *error);
// Bytes of a block: in one layer, and in all layers. In one layer a block has K as
// [kv_head][token][dim], then V likewise. With PER_TOKEN_HEAD the f32 scales of K follow as
// [kv_head][token], then those of V.
uint64_t engine_layer_block_bytes(const struct engine_cache_params *params);
uint64_t engine_block_bytes(const struct engine_cache_params *params);

// A new cache has no memory. Physical block b lies in chunk b / chunk_blocks.
enum status engine_cache_create(struct engine *engine, const struct engine_cache_params *params,
                                struct engine_cache **out, struct error *error);
void engine_cache_destroy(struct engine_cache *cache);
// Allocates and zeroes chunk `chunk` on an engine thread. ENGINE_EVENT_CHUNK reports the outcome.
// Blocks never move. False: no host memory, so nothing happens, and no event comes.
bool engine_cache_grow(struct engine_cache *cache, uint32_t chunk);
// Frees chunk `chunk` once the submissions so far have completed. Later ones must not use its
// blocks.
void engine_cache_shrink(struct engine_cache *cache, uint32_t chunk);

// Device memory as another process imports it: OPAQUE_FD of Vulkan.
struct engine_export {
    int fd;             // the caller closes it
    uint64_t allocated; // bytes of the whole allocation, which importers must know
    bool dedicated;     // it has one buffer alone, which importers must know, too
};
// One of the allocations of chunk 0. It has whole layers: layer first_layer + i begins at byte
// i * layer_bytes, and block b of a layer lies b * block_bytes behind the layer's begin.
struct engine_cache_part {
    struct engine_export memory;
    uint32_t num_parts; // allocations of the chunk
    uint32_t first_layer, num_layers;
    uint64_t layer_bytes, block_bytes;
};
// Opens a descriptor of allocation `part` of chunk 0 of an exported cache. The memory lives until
// the cache and all imports have ended. BUSY: the chunk has no memory yet. OUT_OF_RANGE: there is
// no such part. UNSUPPORTED: the cache is not exported.
enum status engine_cache_export(struct engine_cache *cache, uint32_t part,
                                struct engine_cache_part *out, struct error *error);

// Copy one block of one layer out of the cache to `bytes`, or into it. `bytes` has
// engine_layer_block_bytes(). For tests and fault injection: they wait until the GPU is idle.
enum status engine_block_read(struct engine_cache *cache, uint32_t layer, int32_t block,
                              void *bytes);
enum status engine_block_write(struct engine_cache *cache, uint32_t layer, int32_t block,
                               const void *bytes);

// ---- arenas: memory that a client writes ----

// Makes [base, base + size) usable by the GPU. The memory is imported where the device allows it;
// else the engine keeps a mirror and copies rows before and after each submission. `base` is page
// aligned and stays mapped until engine_arena_destroy() returns true.
// `base` NULL: the engine allocates the memory, on the device if the CPU can write there (reading
// it back is slow). engine_arena_base() returns the address. The memory ends with the arena.
// Thread: any.
enum status engine_arena_create(struct engine *engine, void *base, uint64_t size,
                                struct engine_arena **out, struct error *error);
// Makes an arena in zeroed device memory that other processes can import. Waits for the GPU. The
// CPU cannot reach it: engine_arena_base() is NULL. UNSUPPORTED: the device exports no memory.
// LIMIT: `size` exceeds the device's largest allocation. Thread: any.
enum status engine_arena_create_exported(struct engine *engine, uint64_t size,
                                         struct engine_arena **out, struct error *error);
// Opens a descriptor of the memory of an arena of engine_arena_create_exported(). The memory lives
// until the arena and all imports have ended. Thread: any.
enum status engine_arena_export(const struct engine_arena *arena, struct engine_export *out,
                                struct error *error);
// Makes [base, base + size) usable for copies of blocks, and for nothing else. It is imported in
// parts of `part_bytes`, a multiple of 2 MiB. 0: parts as large as the device allows. No copy may
// cross the end of a part. UNSUPPORTED: the device does not import this memory.
enum status engine_arena_create_parts(struct engine *engine, void *base, uint64_t size,
                                      uint64_t part_bytes, struct engine_arena **out,
                                      struct error *error);
uint64_t engine_arena_part_bytes(const struct engine_arena *arena); // its size: there is one part
// Call this when every submission and haul that uses the arena has completed, or the device is
// lost. Takes NULL. true: the memory may be unmapped. false: the device is lost and may still write
// to the memory, so it must stay mapped until the process ends. Thread: any.
bool engine_arena_destroy(struct engine_arena *arena);
bool engine_arena_imported(const struct engine_arena *arena);
void *engine_arena_base(const struct engine_arena *arena);

// ---- batches: the metadata of one model step, in memory that only the daemon writes ----

struct engine_batch_params {
    struct engine *engine;
    struct engine_cache *cache; // NULL: K and V lie in the arenas of the runs
    enum engine_place place;    // ENGINE_POOL if there is a cache
    struct engine_kv kv;        // used without a cache
    // num_seqs 0 or seq_lens_kv NULL: only ENGINE_WRITE runs use the batch.
    uint32_t num_seqs, max_blocks, num_tokens;
    const int32_t *cu_seqlens_q; // [num_seqs + 1], monotonic, from 0
    const int32_t *seq_lens_kv;  // [num_seqs], tokens
    // [num_seqs, max_blocks]; NULL in ENGINE_ROWS. Entries that no query sees may be any number.
    const int32_t *block_table;
    const int64_t *slot_mapping; // [num_tokens], -1 = not written; NULL = nothing is written
    const int32_t *positions;    // [num_tokens], not negative; NULL = bottom-right aligned
    // ceil(rows * kv_len / 8) bytes for each sequence, concatenated, with rows of cu_seqlens_q.
    // NULL = no mask.
    const uint8_t *mask;
    uint64_t mask_bytes;
    // [num_seqs], at most the lengths of cu_seqlens_q. Rows beyond q_lens give zeros and an LSE of
    // -inf. NULL = all rows are queries.
    const int32_t *q_lens;
    // [num_tokens], a permutation: the row of token t in every tensor, in slot_mapping and in
    // positions. NULL = row t.
    const int32_t *token_rows;
    // [num_seqs], ENGINE_ROWS: the first row of each sequence in keys and values without an outer
    // stride. NULL = both have one.
    const int32_t *kv_starts;
};
// Copies every array.
enum status engine_batch_create(const struct engine_batch_params *params, struct engine_batch **out,
                                struct error *error);
// One entry of a block table that changes.
struct engine_entry {
    uint32_t seq, column;
    int32_t block; // -1: no run of the next step reads the entry
};
struct engine_advance {
    const int32_t *seq_lens_kv;         // [num_seqs]
    const struct engine_entry *entries; // [num_entries]: the changed entries, each once
    uint32_t num_entries;
    const int32_t *block_table;  // the whole table with these changes
    const int64_t *slot_mapping; // [num_tokens], if `batch` has one
    const int32_t *positions;    // likewise
    bool is_used;                // `batch` has unfinished runs, submitted or not
};
// True: the step needs no block table of its own and no search for shared keys, so it takes no time
// that grows with the table. Of `advance`, block_table and the arrays of tokens are not read.
bool engine_batch_is_light(const struct engine_batch *batch, const struct engine_advance *advance);
// Makes the batch of the next step from `batch`, which has a cache and no mask. Metadata that
// `struct engine_advance` does not have stays the same. `batch` itself does not change; the caller
// destroys both.
enum status engine_batch_advance(struct engine_batch *batch, const struct engine_advance *params,
                                 struct engine_batch **out, struct error *error);
// Whether `next`, made from `batch`, uses the same block table in memory.
bool engine_batch_shares_table(const struct engine_batch *batch, const struct engine_batch *next);
void engine_batch_destroy(struct engine_batch *batch);

// ---- submissions ----

// Tensors are the schema's. Element 0 of head h of token t lies at
//   offset + t * token_stride + h * head_stride
// and with an outer stride, for token i of sequence (or block) s, at
//   offset + s * outer_stride + i * token_stride + h * head_stride
// in the run's arena. All are bytes, multiples of 16. The engine does not read `memory`.

// Metadata bytes for each block and layer of an ENGINE_COPY, while it is under way.
enum { ENGINE_RANGE_BYTES = 24 };
enum engine_kind {
    ENGINE_ATTEND, // writes K and V where the batch has slots, then attends
    ENGINE_WRITE,  // only writes K and V
    ENGINE_GATHER, // copies K and V of the batch's sequences to k and v, dequantised, in order
    ENGINE_COPY,   // copies blocks of a cache in all layers; no batch; an arena only if it is named
    ENGINE_MERGE,  // merges the caller's partial results by their LSE; no batch
};

struct engine_rope {
    uint32_t dim;              // even; 0 = no rotation
    bool interleaved;          // pairs are (2n, 2n + 1); else (n, n + dim / 2)
    float theta;               // not 0, unless `frequencies` is set
    const double *frequencies; // [dim / 2], radians a position; NULL = theta ^ (-2 n / dim)
};

enum { ENGINE_COPY_ZEROES = -1, ENGINE_COPY_ARENA = -2 };
struct engine_copy {
    int32_t from, to; // blocks; from ENGINE_COPY_ZEROES = fill with zeros
    // If one of them is ENGINE_COPY_ARENA: where the block's bytes lie in the run's arena, which is
    // imported; layer after layer, engine_block_bytes() in all. A multiple of 16.
    uint64_t offset;
};

struct engine_part {
    struct wire_tensor out, lse;
};

// engine_submit() copies the arrays. `final`: the caller has already put the default in place.
struct engine_run {
    enum engine_kind kind;
    // Runs of one line keep their order. If a pipeline that a run needs is not compiled yet, this
    // run and all later ones of its line are put off until engine_line_resume(); other lines go on.
    // 0: no line. The whole submission, and those behind it, wait for the pipeline.
    uint64_t line;
    // Who pays for the line; 0: nobody. Payers take turns at the compiler, and the one that has the
    // most compiled pipelines evicts its own.
    uint64_t payer;
    struct engine_batch *batch; // ATTEND, WRITE, GATHER
    struct engine_arena *arena; // COPY: NULL unless a copy names it
    uint32_t layer, num_heads;
    // k and v are read only if the batch has a slot mapping; GATHER writes them.
    struct wire_tensor q, k, v, out;
    struct wire_tensor keys, values; // ENGINE_BLOCKS, ENGINE_ROWS; no values if v_is_k_prefix
    float scale;                     // softmax scale; final: never 0
    bool causal;                     // ignored if the batch has a mask
    // Each of the next features is off while zero or NULL.
    bool windowed;
    int32_t window_left, window_right; // keys beside the query; -1 = unbounded
    float soft_cap;
    const float *slopes, *sinks; // [num_heads]
    // f32 [num_tokens, num_heads] with contiguous heads; dtype 0 = no LSE. offset and token_stride
    // are multiples of 4; head_stride and outer_stride are not used.
    struct wire_tensor lse;
    // Split-KV: 0 = the kernel's rule; 1 = no splits; n = at most n splits. Each has at least 256
    // keys, and the kernel rounds its length up. Kernels without splits ignore it. Unless
    // num_splits is 1, a software device splits further if a split has more keys than its loops get
    // through.
    uint32_t num_splits;
    struct engine_rope rope;
    float k_scale, v_scale; // SCALE_PER_TENSOR; final: never 0
    // ATTEND, WRITE, GATHER: as the client sent them, checked.
    struct wire_run_options options;
    // Slice `slice` of `num_slices` of the run, from 0; num_slices 0 or 1: the whole run. Its rows
    // get the same bits. The slices of a run follow each other in their order, each in a wave of
    // its own, and differ in `slice` alone. No other run of the batch lies between them. A run with
    // a mirrored arena is whole. A slice may have nothing to do.
    uint32_t slice, num_slices;
    bool is_written;            // ATTEND: earlier runs have written K and V of the batch's slots
    struct engine_cache *cache; // COPY
    const struct engine_copy *copies; // [num_copies]
    uint32_t num_copies;
    // MERGE: [num_parts], at least 1, each shaped as out and lse: num_tokens, num_heads, head_dim.
    const struct engine_part *parts;
    uint32_t num_parts, num_tokens, head_dim;
};
// Each array of the struct engine_run *run, with its length: X(array, length).
#define ENGINE_RUN_ARRAYS(X, run)                                                                  \
    X((run)->slopes, (run)->num_heads)                                                             \
    X((run)->sinks, (run)->num_heads)                                                              \
    X((run)->rope.frequencies, (run)->rope.dim / 2)                                                \
    X((run)->copies, (run)->num_copies)                                                            \
    X((run)->parts, (run)->num_parts)
// STATUS_LIMIT: the partial results of this run alone exceed max_scratch_bytes, and the error names
// --max-scratch. Or, on a software device with num_splits 1, a split has more keys than its loops
// get through.
enum status engine_run_check(const struct engine *engine, const struct engine_run *run,
                             struct error *error);

struct engine_zero {
    struct engine_cache *cache;
    int32_t block;
};

// The engine zeroes blocks first, then runs wave after wave. In a wave all K/V writes and copies
// come before all reads. Runs of one wave do not depend on each other, so runs that fit one
// pipeline become one ragged dispatch.
struct engine_submission {
    const struct engine_zero *zeroes;
    uint32_t num_zeroes;
    const struct engine_run *runs;
    uint32_t num_runs;
    // Wave w is runs [w ? wave_ends[w - 1] : 0, wave_ends[w]); the last end is num_runs.
    const uint32_t *wave_ends;
    uint32_t num_waves;
};

// Copies and queues the submission; does not wait for it. *sequence becomes 1, 2, ...; submissions
// run in this order. STATUS_NO_MEMORY, STATUS_DEVICE_LOST: nothing was queued.
enum status engine_submit(struct engine *engine, const struct engine_submission *submission,
                          uint64_t *sequence, struct error *error);

// ---- hauls: copies between a cache and an arena, beside the submissions ----
// Submissions do not wait for a haul where the device has a queue for it; they share bandwidth.
// Hauls have no order.

struct engine_haul {
    // They stay until the haul has ended, with the chunks of the blocks.
    struct engine_cache *cache;
    struct engine_arena *arena;       // imported
    const struct engine_copy *copies; // [num_copies]; all from the arena, or all to it
    uint32_t num_copies;              // at least 1
    // The haul begins when this submission and all before it have completed. All that writes or
    // reads what the haul uses is among them, or begins after the haul's event.
    uint64_t after;
};
// False: there are no hauls, so such copies are runs of kind ENGINE_COPY.
bool engine_hauls(const struct engine *engine);
// Copies and queues the haul; does not wait for it. *number becomes 1, 2, ...; an
// ENGINE_EVENT_HAULED reports the end. NO_MEMORY, DEVICE_LOST: nothing was queued.
enum status engine_haul(struct engine *engine, const struct engine_haul *haul, uint64_t *number,
                        struct error *error);
// As engine_wait(), for the event of a haul.
enum status engine_haul_wait(struct engine *engine, uint64_t number, int timeout_ms);

struct engine_run_result {
    // Of this run: for example, its pipeline cannot be compiled. BUSY: its line is put off. Nothing
    // of the run was done; submit it again once the line is resumed.
    enum status status;
    // Runs of one submission with equal numbers shared a dispatch; if a run has several, this is
    // the first. num_dispatches and above: the run had none (no tokens, or it failed).
    uint32_t dispatch;
    // GPU time in ns of the whole dispatches that the run was in, and of the K/V writes before
    // them. All runs of a dispatch have the same. The time of a wave is divided among its
    // dispatches by the bytes that each moves. 0: no timestamps.
    uint64_t gpu_ns;
    uint64_t own_ns;     // gpu_ns, with each dispatch divided among its runs by their bytes
    const char *message; // why the run failed; NULL: it did not, or `status` says it all
};

enum engine_event_kind {
    ENGINE_EVENT_DONE,
    ENGINE_EVENT_CHUNK,
    ENGINE_EVENT_HAULED,
    ENGINE_EVENT_COMPILED, // ask engine_line_resume() for the lines that are put off
    ENGINE_EVENT_LOST
};
// One COMPILED may stand for several compiles. LOST comes once and last. Submissions, hauls and
// chunks that are still under way get no event then.
struct engine_event {
    enum engine_event_kind kind;
    uint64_t sequence;                       // DONE: of the submission; DONE events come in order
    const struct engine_run_result *results; // DONE: one a run; valid until the next engine_poll()
    uint32_t num_results, num_dispatches;
    uint64_t prepared_ns;       // DONE: from engine_submit() to the GPU; 0 = it never got there
    struct engine_cache *cache; // CHUNK; never a destroyed one
    uint32_t chunk;
    uint64_t haul;      // HAULED: its number
    struct error error; // CHUNK, HAULED: OK, or why not; LOST: what happened
};

// A submission will come soon. Wakes the thread that prepares submissions, which then polls, so
// that its wake-up does not delay the submission. If the thread that awaits the GPU already polls
// for a submission, it goes on. Both stop after a bounded time until a submission comes, however
// often this is called. Does nothing where no thread polls.
void engine_expect(struct engine *engine);
// True: what the line waited for has ended, well or not, and it is not put off any more. Call this
// when all its runs have come back. False: an ENGINE_EVENT_COMPILED will come.
bool engine_line_resume(struct engine *engine, uint64_t line);
// The line will submit nothing more. What only this line waited for is not compiled.
void engine_line_end(struct engine *engine, uint64_t line);

bool engine_poll(struct engine *engine, struct engine_event *event); // false: there is no event
// Thread: any, at the cost of one atomic load. false: there is no event, or `wake` will still be
// called for it. true may be a false alarm.
bool engine_has_news(const struct engine *engine);
// Waits until the event of submission `sequence` can be polled. STATUS_TIMEOUT,
// STATUS_DEVICE_LOST, STATUS_NOT_FOUND: no such submission. For tests and the benchmark.
enum status engine_wait(struct engine *engine, uint64_t sequence, int timeout_ms);

#endif
