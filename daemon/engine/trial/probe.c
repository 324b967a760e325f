// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// probe.c - see probe.h. Knows the engine's own interface and the geometry of a kind; no Vulkan.
// The tuning thread.

#include "probe.h"

#include "engine/flow/submit.h"
#include "engine/kernels/kv.h"
#include "engine/memory/batch.h"
#include "engine/state/state.h"
#include "shaders/layout.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { BUDGET_SHARE = 4 }; // takes at most a quarter of the free device memory
enum { GROUP = 4 };        // query heads for one KV head

static uint64_t at_most(uint64_t value, uint64_t most)
{
    return value < most ? value : most;
}

// ---- shapes ----

struct shape {
    struct engine_kv kv;
    enum engine_place place;
    uint32_t num_seqs, num_keys, num_heads, num_splits;
    uint32_t max_blocks; // columns of the block table
    uint64_t num_blocks; // blocks in memory, a power of two; ENGINE_ROWS: rows of K and V
    uint64_t key_row, value_row, query_row, out_row; // bytes of one head's row
    enum dtype io;
};

static uint64_t power_of_two_up(uint64_t number)
{
    uint64_t power = 1;
    while (power < number)
        power *= 2;
    return power;
}

// Bytes of K, V and scales of one token; an estimate.
static uint64_t pair_bytes(const struct shape *shape)
{
    uint64_t scales = shape->kv.scale_mode == SCALE_PER_TOKEN_HEAD ? 2 * sizeof(float) : 0;
    return shape->kv.num_kv_heads * (shape->key_row + shape->value_row + scales);
}

// Bytes of Q, output and LSE.
static uint64_t rows_bytes(const struct shape *shape)
{
    return (uint64_t)shape->num_seqs * shape->num_heads *
               (shape->query_row + shape->out_row + sizeof(float)) +
           64;
}

// As many blocks (or rows) as all sequences have, so that K and V come from memory as in real work.
// With too little memory, sequences share blocks. The default of 256 MiB exceeds any GPU's cache.
static enum status count_blocks(struct shape *shape, uint64_t most, struct error *error)
{
    uint64_t left = most > rows_bytes(shape) ? most - rows_bytes(shape) : 0;
    bool rows = shape->place == ENGINE_ROWS;
    // The least that works.
    uint64_t one = (rows ? shape->num_keys : shape->kv.block_size) * pair_bytes(shape);
    if (one > left)
        return error_set(error, STATUS_LIMIT,
                         "measuring %u sequences of %u keys takes at least %" PRIu64
                         " bytes; --tune-memory allows %" PRIu64,
                         shape->num_seqs, shape->num_keys, one + rows_bytes(shape), most);
    if (rows) {
        shape->num_blocks =
            at_most((uint64_t)shape->num_seqs * shape->num_keys, left / pair_bytes(shape));
        return STATUS_OK;
    }
    shape->max_blocks = (uint32_t)divide_up(shape->num_keys, shape->kv.block_size);
    shape->num_blocks = power_of_two_up((uint64_t)shape->num_seqs * shape->max_blocks);
    while (shape->num_blocks * one > left)
        shape->num_blocks /= 2;
    return STATUS_OK;
}

static enum status shape_of(const struct engine *engine, const struct tune_key *key, uint64_t most,
                            struct shape *shape, struct error *error)
{
    const uint32_t *spec = key->spec;
    *shape = (struct shape){
        .kv = geometry_kv(spec),
        .place = (enum engine_place)spec[AULE_SPEC_PLACE],
        .num_keys = key->num_keys,
        .num_splits = key->num_splits,
        .io = (enum dtype)spec[AULE_SPEC_IO_DTYPE],
    };
    enum status status =
        kv_check(shape->place, &shape->kv, engine->device.adapter.max_groups[0], error);
    if (status != STATUS_OK)
        return status;
    if (key->num_keys == 0 || dtype_size(shape->io) == 0)
        return error_set(error, STATUS_UNSUPPORTED,
                         "cannot measure sequences of %u keys with queries of dtype %d",
                         key->num_keys, shape->io);
    const struct engine_kv *kv = &shape->kv;
    uint64_t num_seqs =
        key->num_workgroups / (kernel_usual_parts(kv, key->num_keys) * kv->num_kv_heads);
    shape->num_seqs = num_seqs ? (uint32_t)num_seqs : 1;
    shape->num_heads = GROUP * kv->num_kv_heads;
    shape->key_row = padded((uint64_t)kv->head_dim_k * dtype_size(kv->k_dtype));
    shape->value_row =
        kv->v_is_k_prefix ? 0 : padded((uint64_t)kv->head_dim_v * dtype_size(kv->v_dtype));
    shape->query_row = padded((uint64_t)kv->head_dim_k * dtype_size(shape->io));
    shape->out_row = padded((uint64_t)kv->head_dim_v * dtype_size(shape->io));
    return count_blocks(shape, most, error);
}

// ---- memory ----

static enum status check_budget(struct engine *engine, uint64_t bytes, struct error *error)
{
    uint64_t left = engine_budget_bytes(engine);
    if (bytes <= left / BUDGET_SHARE)
        return STATUS_OK;
    return error_set(error, STATUS_NO_MEMORY,
                     "measuring takes %" PRIu64 " bytes, more than a quarter of the %" PRIu64
                     " that the device has left; --tune-memory sets a lower limit",
                     bytes, left);
}

static enum status make_cache(struct probe *probe, const struct shape *shape, struct error *error)
{
    struct engine_cache_params params = {.name = "tuning",
                                         .num_layers = 1,
                                         .chunk_blocks = (uint32_t)shape->num_blocks,
                                         .kv = shape->kv};
    enum status status =
        check_budget(probe->engine, engine_block_bytes(&params) * params.chunk_blocks, error);
    if (status == STATUS_OK)
        status = engine_cache_create(probe->engine, &params, &probe->cache, error);
    return status == STATUS_OK ? cache_fill(probe->cache, 0, error) : status;
}

// Takes `bytes` of the arena; returns their offset.
static uint64_t take(struct probe *probe, uint64_t bytes)
{
    uint64_t at = probe->arena_bytes;
    probe->arena_bytes += padded(bytes);
    return at;
}

static struct wire_tensor rows(struct probe *probe, enum dtype dtype, uint64_t num_rows,
                               uint64_t num_heads, uint64_t head_bytes)
{
    return (struct wire_tensor){.offset = take(probe, num_rows * num_heads * head_bytes),
                                .token_stride = num_heads * head_bytes,
                                .head_stride = head_bytes,
                                .dtype = dtype};
}

// [blocks, heads, block_size, dim]
static struct wire_tensor blocks(struct probe *probe, enum dtype dtype, const struct shape *shape,
                                 uint64_t row_bytes)
{
    uint64_t head = shape->kv.block_size * row_bytes, block = shape->kv.num_kv_heads * head;
    return (struct wire_tensor){.offset = take(probe, shape->num_blocks * block),
                                .token_stride = row_bytes,
                                .head_stride = head,
                                .dtype = dtype,
                                .outer_stride = block};
}

static struct wire_tensor kv_tensor(struct probe *probe, enum dtype dtype,
                                    const struct shape *shape, uint64_t row_bytes)
{
    if (shape->place == ENGINE_POOL || row_bytes == 0)
        return (struct wire_tensor){0};
    return shape->place == ENGINE_ROWS
               ? rows(probe, dtype, shape->num_blocks, shape->kv.num_kv_heads, row_bytes)
               : blocks(probe, dtype, shape, row_bytes);
}

// Puts the tensors into an arena that the engine allocates, so that nothing is staged. The arena is
// zeroed, because old contents might be NaN.
static enum status make_arena(struct probe *probe, const struct shape *shape, struct error *error)
{
    struct engine_run *run = &probe->run;
    bool lse = probe->sample.key.spec[AULE_SPEC_FEATURES] & AULE_FEATURE_LSE;
    run->q = rows(probe, shape->io, shape->num_seqs, shape->num_heads, shape->query_row);
    run->out = rows(probe, shape->io, shape->num_seqs, shape->num_heads, shape->out_row);
    if (lse)
        run->lse = (struct wire_tensor){
            .offset = take(probe, (uint64_t)shape->num_seqs * shape->num_heads * 4),
            .token_stride = shape->num_heads * sizeof(float),
            .dtype = DTYPE_F32};
    run->keys = kv_tensor(probe, shape->kv.k_dtype, shape, shape->key_row);
    run->values = kv_tensor(probe, shape->kv.v_dtype, shape, shape->value_row);
    enum status status = check_budget(probe->engine, probe->arena_bytes, error);
    if (status == STATUS_OK)
        status = engine_arena_create(probe->engine, NULL, probe->arena_bytes, &probe->arena, error);
    if (status == STATUS_OK)
        memset(engine_arena_base(probe->arena), 0, probe->arena_bytes);
    run->arena = probe->arena;
    return status;
}

// ---- the batch ----

// The arrays for engine_batch_create(); owned.
struct arrays {
    int32_t *cu_seqlens_q, *seq_lens_kv, *block_table, *positions, *kv_starts;
    uint8_t *mask;
    uint64_t mask_bytes;
};

static void arrays_finish(struct arrays *arrays)
{
    free(arrays->cu_seqlens_q);
    free(arrays->seq_lens_kv);
    free(arrays->block_table);
    free(arrays->positions);
    free(arrays->kv_starts);
    free(arrays->mask);
}

static bool arrays_make(struct arrays *arrays, const struct shape *shape)
{
    uint64_t entries = (uint64_t)shape->num_seqs * shape->max_blocks;
    arrays->mask_bytes = divide_up(shape->num_keys, 8) * shape->num_seqs;
    arrays->cu_seqlens_q = calloc(shape->num_seqs + (size_t)1, sizeof(int32_t));
    arrays->seq_lens_kv = calloc(shape->num_seqs, sizeof(int32_t));
    arrays->positions = calloc(shape->num_seqs, sizeof(int32_t));
    arrays->kv_starts = calloc(shape->num_seqs, sizeof(int32_t));
    arrays->block_table = calloc(entries ? entries : 1, sizeof(int32_t));
    arrays->mask = malloc(arrays->mask_bytes);
    if (!arrays->cu_seqlens_q || !arrays->seq_lens_kv || !arrays->positions || !arrays->kv_starts ||
        !arrays->block_table || !arrays->mask)
        return false;
    memset(arrays->mask, 0xff, arrays->mask_bytes);
    for (uint32_t i = 0; i < shape->num_seqs; i++) {
        arrays->cu_seqlens_q[i + 1] = (int32_t)i + 1;
        arrays->seq_lens_kv[i] = (int32_t)shape->num_keys;
        arrays->positions[i] = (int32_t)shape->num_keys - 1;
        if (shape->place == ENGINE_ROWS)
            arrays->kv_starts[i] = (int32_t)((uint64_t)i * shape->num_keys %
                                             (shape->num_blocks - shape->num_keys + 1));
    }
    // The factor is odd, so every block occurs, scattered.
    for (uint64_t i = 0; i < entries; i++)
        arrays->block_table[i] = (int32_t)(i * 0x9e3779b1u & (shape->num_blocks - 1));
    return true;
}

static enum status make_batch(struct probe *probe, const struct shape *shape, struct error *error)
{
    uint32_t features = probe->sample.key.spec[AULE_SPEC_FEATURES];
    struct arrays arrays = {NULL};
    bool made = arrays_make(&arrays, shape), pooled = shape->place != ENGINE_ROWS,
         masked = features & AULE_FEATURE_MASK;
    struct engine_batch_params params = {
        .engine = probe->engine,
        .cache = probe->cache,
        .place = shape->place,
        .kv = shape->kv,
        .num_seqs = shape->num_seqs,
        .max_blocks = shape->max_blocks,
        .num_tokens = shape->num_seqs,
        .cu_seqlens_q = arrays.cu_seqlens_q,
        .seq_lens_kv = arrays.seq_lens_kv,
        .block_table = pooled ? arrays.block_table : NULL,
        .positions = features & AULE_FEATURE_POSITIONS ? arrays.positions : NULL,
        .mask = masked ? arrays.mask : NULL,
        .mask_bytes = masked ? arrays.mask_bytes : 0,
        .kv_starts = pooled ? NULL : arrays.kv_starts,
    };
    enum status status = made ? engine_batch_create(&params, &probe->batch, error)
                              : error_set(error, STATUS_NO_MEMORY,
                                          "no memory for a batch of %u sequences", shape->num_seqs);
    arrays_finish(&arrays);
    return status;
}

// ---- the run ----

// Turns on the features of the kind, with values that hide no key.
static enum status make_run(struct probe *probe, const struct shape *shape, struct error *error)
{
    uint32_t features = probe->sample.key.spec[AULE_SPEC_FEATURES];
    struct engine_run *run = &probe->run;
    probe->zeroes = calloc(shape->num_heads, sizeof *probe->zeroes);
    if (!probe->zeroes)
        return error_set(error, STATUS_NO_MEMORY, "no memory for %u heads", shape->num_heads);
    run->kind = ENGINE_ATTEND;
    run->batch = probe->batch;
    run->num_heads = shape->num_heads;
    run->num_splits = shape->num_splits;
    run->scale = run->k_scale = run->v_scale = 1;
    run->causal = true;
    run->windowed = features & AULE_FEATURE_WINDOW;
    run->window_left = (int32_t)shape->num_keys;
    run->window_right = -1;
    run->soft_cap = features & AULE_FEATURE_SOFT_CAP ? 30.0f : 0.0f;
    run->slopes = features & AULE_FEATURE_ALIBI ? probe->zeroes : NULL;
    run->sinks = features & AULE_FEATURE_SINKS ? probe->zeroes : NULL;
    if (features & AULE_FEATURE_ROPE)
        run->rope = (struct engine_rope){.dim = shape->kv.head_dim_k,
                                         .interleaved = features & AULE_FEATURE_ROPE_PAIRS,
                                         .theta = 10000};
    return engine_run_check(probe->engine, run, error);
}

enum status probe_open(struct probe *probe, struct engine *engine, const struct tune_key *key,
                       uint64_t memory_bytes, struct error *error)
{
    struct shape shape;
    probe->engine = engine;
    probe->sample.key = *key;
    enum status status = shape_of(engine, key, memory_bytes, &shape, error);
    if (status == STATUS_OK && shape.place == ENGINE_POOL)
        status = make_cache(probe, &shape, error);
    if (status == STATUS_OK)
        status = make_arena(probe, &shape, error);
    if (status == STATUS_OK)
        status = make_batch(probe, &shape, error);
    return status == STATUS_OK ? make_run(probe, &shape, error) : status;
}

void probe_close(struct probe *probe)
{
    engine_batch_destroy(probe->batch);
    engine_cache_destroy(probe->cache);
    (void)engine_arena_destroy(probe->arena); // if the device is lost, the engine frees the arena
    free(probe->zeroes);
    *probe = (struct probe){.engine = NULL};
}

// ---- timing ----

enum status probe_time(struct probe *probe, uint32_t local_size, uint64_t *gpu_ns,
                       struct error *error)
{
    uint64_t sequence;
    uint32_t end = 1;
    struct engine_submission submission = {
        .runs = &probe->run, .num_runs = 1, .wave_ends = &end, .num_waves = 1};
    probe->sample.local_size = local_size;
    probe->sample.is_kind = false;
    probe->sample.gpu_ns = 0;
    probe->sample.error = (struct error){.status = STATUS_OK};
    enum status status = submit_queue(probe->engine, &submission, &probe->sample, &sequence, error);
    if (status == STATUS_OK && (status = engine_wait(probe->engine, sequence, -1)) != STATUS_OK)
        error_set(error, status, "the device is lost");
    if (status != STATUS_OK)
        return status;
    *gpu_ns = probe->sample.gpu_ns;
    if (probe->sample.error.status != STATUS_OK) {
        *error = probe->sample.error;
        return error->status;
    }
    if (!probe->sample.is_kind)
        return error_set(error, STATUS_MISMATCH,
                         "the measured run became another kind of dispatch");
    return *gpu_ns ? STATUS_OK
                   : error_set(error, STATUS_UNSUPPORTED, "the device has no timestamps");
}
