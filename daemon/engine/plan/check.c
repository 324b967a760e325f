// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// check.c - whether a run can be done. A run that no shader can do is refused before it reaches the
// GPU, because reading an address that does not exist loses the device. The caller has checked
// every id and range. Any thread, except engine_run_check(): caller's thread.

#include "check.h"

#include "cut.h"
#include "engine/memory/arena.h"
#include "engine/memory/batch.h"
#include "engine/state/state.h"
#include "items.h"

#include <inttypes.h>

static uint64_t num_rows(const struct engine_run *run)
{
    switch (run->kind) {
    case ENGINE_ATTEND: return run->batch->num_tokens;
    case ENGINE_WRITE: return run->batch->address[BATCH_SLOT_MAPPING] ? run->batch->num_tokens : 0;
    case ENGINE_GATHER: return run->batch->num_keys;
    case ENGINE_COPY: return (uint64_t)run->num_copies * run->cache->params.num_layers;
    case ENGINE_MERGE: return run->num_tokens;
    }
    return 0;
}

bool run_is_slice(const struct engine_run *run)
{
    return run->num_slices > 1;
}

struct run_span run_span(const struct engine_run *run)
{
    const uint64_t all = num_rows(run);
    if (!run_is_slice(run))
        return (struct run_span){0, all};
    // Below 2^32 slices of below 2^45 rows.
    const unsigned __int128 first = (unsigned __int128)all * run->slice / run->num_slices,
                            end = (unsigned __int128)all * (run->slice + 1) / run->num_slices;
    return (struct run_span){(uint64_t)first, (uint64_t)(end - first)};
}

uint64_t run_num_tokens(const struct engine_run *run)
{
    return run->kind == ENGINE_ATTEND ? num_rows(run) : run_span(run).count;
}

static enum status check_rope(const struct engine_run *run, struct error *error)
{
    const struct engine_batch *batch = run->batch;
    if (run->rope.dim % 2 || run->rope.dim > batch->kv.head_dim_k)
        return error_set(error, STATUS_INVALID,
                         "rope.dim %u: an even number up to head_dim_k, %u, is wanted",
                         run->rope.dim, batch->kv.head_dim_k);
    if (run->rope.dim && !batch->address[BATCH_POSITIONS] && !batch->address[BATCH_SEQ_LENS_KV])
        return error_set(error, STATUS_INVALID,
                         "rope.dim %u: a batch without sequences needs positions", run->rope.dim);
    return STATUS_OK;
}

static enum status check_sequences(const struct engine_run *run, struct error *error)
{
    const struct engine_batch *batch = run->batch;
    if (batch->num_seqs == 0 || !batch->seq_lens_kv || !batch->cu_seqlens_q)
        return error_set(error, STATUS_INVALID,
                         "a batch of %u tokens and %u sequences%s can only be written: attention "
                         "and gathers need sequences with lengths",
                         batch->num_tokens, batch->num_seqs,
                         batch->num_seqs ? " without lengths" : "");
    if (run->kind == ENGINE_GATHER && batch->num_keys > INT32_MAX)
        return error_set(error, STATUS_LIMIT, "a gather of %" PRIu64 " keys; one takes %d at most",
                         batch->num_keys, INT32_MAX);
    return STATUS_OK;
}

// Without a block table or row starts, shaders would read keys at address 0.
static enum status check_places(const struct engine_run *run, struct error *error)
{
    const struct engine_batch *batch = run->batch;
    bool rows = batch->place == ENGINE_ROWS;
    bool outer = run->keys.outer_stride && (batch->kv.v_is_k_prefix || run->values.outer_stride);
    if (batch->num_keys == 0)
        return STATUS_OK;
    if (!rows && !batch->address[BATCH_BLOCK_TABLE])
        return error_set(
            error, STATUS_INVALID,
            "%" PRIu64
            " keys of %u sequences lie in blocks, but the batch has no block table (%u columns)",
            batch->num_keys, batch->num_seqs, batch->max_blocks);
    if (rows && !outer && !batch->address[BATCH_KV_STARTS])
        return error_set(error, STATUS_INVALID,
                         "contiguous keys and values with outer strides of %" PRIu64 " and %" PRIu64
                         " bytes: without a stride the batch of %u sequences needs kv_starts",
                         run->keys.outer_stride, run->values.outer_stride, batch->num_seqs);
    return STATUS_OK;
}

static enum status check_heads(const struct engine_run *run, struct error *error)
{
    uint32_t num_kv_heads = run->batch->kv.num_kv_heads;
    if (run->num_heads > 0 && num_kv_heads > 0 && run->num_heads % num_kv_heads == 0)
        return STATUS_OK;
    return error_set(error, STATUS_INVALID, "%u heads: a multiple of the %u KV heads is wanted",
                     run->num_heads, num_kv_heads);
}

// ---- loops of a software device ----
// docs/kernels.md says why they may end too early, and plan/cut.h what is cut so that they do not.

// kv_write.comp and kv_gather.comp: 72 octs a head, 128 a round, each looked at twice, and 8 rounds
// for each oct that RoPE turns.
enum { MOST_LOOP_HEADS = 4096, MOST_LOOP_ROUNDS = 60000 };

static enum status check_loop_heads(const struct engine_run *run, struct error *error)
{
    uint32_t heads = run->batch->kv.num_kv_heads;
    if (heads <= MOST_LOOP_HEADS)
        return STATUS_OK;
    return error_set(error, STATUS_UNSUPPORTED, "%u KV heads: a software device takes %d at most",
                     heads, MOST_LOOP_HEADS);
}

// Keys that a workgroup goes through, or a few more.
static uint64_t keys_seen(const struct engine_run *run, const struct cut *cut, uint64_t kv_len)
{
    const struct engine_batch *batch = run->batch;
    bool causal = run->causal && !batch->address[BATCH_MASK_STARTS];
    uint64_t part = cut->length && cut->length < kv_len ? cut->length : kv_len;
    if (!run->windowed || run->window_left < 0 || batch->address[BATCH_POSITIONS] ||
        (!causal && run->window_right < 0))
        return part;
    uint64_t seen =
        (uint64_t)run->window_left + cut->tile_rows + (causal ? 0 : (uint64_t)run->window_right);
    return seen < part ? seen : part;
}

static enum status check_loop_keys(const struct engine_run *run, struct error *error)
{
    const struct engine_batch *batch = run->batch;
    const struct variant *variant = batch->engine->pipelines.variant;
    struct cutting cutting = cutting_of_run(run);
    for (uint32_t seq = 0; seq < batch->num_seqs; seq++) {
        struct cut cut = cut_sequence(batch, seq, &cutting);
        uint32_t kv_len = (uint32_t)batch->seq_lens_kv[seq];
        uint32_t most = variant->kernels[cut.kernel]->loop_keys(&batch->kv);
        if (cut.live_tiles > 0 && keys_seen(run, &cut, kv_len) > most)
            return error_set(error, STATUS_LIMIT,
                             "sequence %u: %u keys in %" PRIu64
                             " parts; a part has %u keys at most on a software device, which ends "
                             "long loops early (num_splits %u; 0 cuts as it must)",
                             seq, kv_len, cut.parts, most, run->num_splits);
    }
    return STATUS_OK;
}

static enum status check_loops(const struct engine *engine, const struct engine_run *run,
                               struct error *error)
{
    if (!engine->device.adapter.info.software)
        return STATUS_OK;
    enum status status = check_loop_heads(run, error);
    return status == STATUS_OK && run->kind == ENGINE_ATTEND ? check_loop_keys(run, error) : status;
}

// merge.comp goes through the parts twice, then once for each 1024 dims.
static enum status check_merge_loops(const struct engine *engine, const struct engine_run *run,
                                     struct error *error)
{
    uint64_t most = MOST_LOOP_ROUNDS / (2 + divide_up(run->head_dim, 1024));
    if (!engine->device.adapter.info.software || run->num_parts <= most)
        return STATUS_OK;
    return error_set(error, STATUS_LIMIT,
                     "a merge of %u parts of %u dims: a software device takes %" PRIu64 " at most",
                     run->num_parts, run->head_dim, most);
}

static enum status check_merge(const struct engine *engine, const struct engine_run *run,
                               struct error *error)
{
    uint32_t most = engine->device.adapter.max_groups[0];
    if (run->num_heads == 0 || run->num_heads > most)
        return error_set(error, STATUS_UNSUPPORTED,
                         "a merge of %u heads: this device takes 1 to %u", run->num_heads, most);
    if (run->num_parts == 0)
        return error_set(error, STATUS_INVALID, "a merge of 0 parts; 1 at least is wanted");
    if (run->num_tokens > INT32_MAX)
        return error_set(error, STATUS_LIMIT, "a merge of %u tokens; one takes %d at most",
                         run->num_tokens, INT32_MAX);
    return check_merge_loops(engine, run, error);
}

enum status engine_run_fits(const struct engine *engine, const struct engine_run *run,
                            struct error *error)
{
    enum status status = STATUS_OK;
    if (run->kind == ENGINE_COPY && run->arena && !run->arena->imported)
        return error_set(error, STATUS_INVALID,
                         "blocks are copied to and from imported arenas only");
    if (run->kind != ENGINE_COPY && run->arena && run->arena->part_bytes)
        return error_set(error, STATUS_INVALID,
                         "host memory in parts is for copies of blocks only");
    if (run_is_slice(run) &&
        (run->slice >= run->num_slices || (run->arena && !run->arena->imported)))
        return error_set(error, STATUS_INVALID,
                         "slice %u of %u: slices are numbered from 0, and a run with a mirrored "
                         "arena is whole",
                         run->slice, run->num_slices);
    if (run_num_tokens(run) == 0 || run->kind == ENGINE_COPY)
        return STATUS_OK;
    if (run->kind == ENGINE_MERGE)
        return check_merge(engine, run, error);
    if (run->kind == ENGINE_ATTEND || run->kind == ENGINE_GATHER)
        status = check_sequences(run, error);
    if (status == STATUS_OK && (run->kind == ENGINE_ATTEND || run->kind == ENGINE_GATHER))
        status = check_places(run, error);
    if (status == STATUS_OK && run->kind == ENGINE_ATTEND)
        status = check_heads(run, error);
    if (status == STATUS_OK && run->kind != ENGINE_GATHER)
        status = check_rope(run, error);
    return status == STATUS_OK ? check_loops(engine, run, error) : status;
}

enum status scratch_check(const struct engine_batch *batch, const struct partials *partials,
                          struct error *error)
{
    uint64_t most = batch->engine->max_scratch_bytes;
    if (partials->bytes <= most)
        return STATUS_OK;
    return error_set(error, STATUS_LIMIT,
                     "the partial results of %" PRIu64 " splits take %" PRIu64
                     " bytes; --max-scratch allows %" PRIu64,
                     partials->count, partials->bytes, most);
}

// The runs of a batch's layers ask for the same cutting, one after the other: the last answer is
// kept.
static const struct partials *count_partials(struct engine_batch *batch,
                                             const struct cutting *cutting)
{
    if (!batch->checked || !cutting_same(&batch->checked_cutting, cutting))
        batch->checked_partials = batch_partials(batch, cutting);
    batch->checked = true;
    batch->checked_cutting = *cutting;
    return &batch->checked_partials;
}

enum status engine_run_check(const struct engine *engine, const struct engine_run *run,
                             struct error *error)
{
    enum status status = engine_run_fits(engine, run, error);
    if (status != STATUS_OK || run->kind != ENGINE_ATTEND || run->batch->num_tokens == 0)
        return status;
    struct cutting cutting = cutting_of_run(run);
    return scratch_check(run->batch, count_partials(run->batch, &cutting), error);
}
