// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// staging.c - which tensors of a submission are copied into and out of mirrored arenas. The
// submitter copies in, before it records; the completer copies out, when the GPU has finished. No
// lock is held while client memory is touched.

#include "staging.h"

#include "engine/memory/arena.h"
#include "engine/plan/check.h"
#include "engine/plan/plan.h"
#include "engine/state/state.h"

static bool is_staged(const struct submission *s, uint32_t run)
{
    return plan_group(s, run) != NO_GROUP && s->runs[run].arena && !s->runs[run].arena->imported;
}

// ---- shapes ----

static uint64_t row_bytes(uint32_t head_dim, enum dtype dtype)
{
    return (uint64_t)head_dim * dtype_size(dtype);
}

// Stages the rows of all tokens, or sequence by sequence if the tensor has an outer stride.
static void stage_tokens(const struct engine_run *run, struct arena_pass *pass,
                         const struct engine_tensor *tensor, uint32_t num_heads, uint32_t head_dim)
{
    const struct engine_batch *batch = run->batch;
    uint64_t bytes = row_bytes(head_dim, tensor->dtype);
    if (tensor->outer_stride == 0) {
        arena_stage(run->arena, pass, tensor, batch->num_tokens, num_heads, bytes);
        return;
    }
    struct engine_tensor part = *tensor;
    for (uint32_t seq = 0; batch->cu_seqlens_q && seq < batch->num_seqs; seq++) {
        uint32_t num_tokens = (uint32_t)(batch->cu_seqlens_q[seq + 1] - batch->cu_seqlens_q[seq]);
        part.offset = tensor->offset + seq * tensor->outer_stride;
        arena_stage(run->arena, pass, &part, num_tokens, num_heads, bytes);
    }
}

static void stage_lse(const struct engine_arena *arena, struct arena_pass *pass,
                      const struct engine_tensor *lse, uint32_t num_tokens, uint32_t num_heads)
{
    struct engine_tensor rows = *lse;
    rows.head_stride = 0; // contiguous heads: a token is one row
    if (lse->dtype)
        arena_stage(arena, pass, &rows, num_tokens, 1, num_heads * sizeof(float));
}

// ---- keys and values in the arena ----

// Whether `num_tokens` tokens of all heads at `tensor` lie inside the arena. The id of a block that
// no query sees may be any number.
static bool fits(const struct engine_arena *arena, const struct engine_tensor *tensor,
                 uint64_t outer, uint32_t num_tokens, uint32_t num_heads, uint64_t bytes)
{
    uint64_t heads = 0, tokens = 0, blocks = 0, end = 0;
    return !__builtin_mul_overflow(tensor->head_stride, num_heads - 1, &heads) &&
           !__builtin_mul_overflow(tensor->token_stride, num_tokens - 1, &tokens) &&
           !__builtin_mul_overflow(tensor->outer_stride, outer, &blocks) &&
           !__builtin_add_overflow(tensor->offset, bytes, &end) &&
           !__builtin_add_overflow(end, heads, &end) &&
           !__builtin_add_overflow(end, tokens, &end) &&
           !__builtin_add_overflow(end, blocks, &end) && end <= arena->size;
}

// Stages `num_tokens` tokens of keys or values from `offset` in block (or sequence) `outer`.
static void stage_part(const struct engine_run *run, struct arena_pass *pass,
                       const struct engine_tensor *tensor, uint64_t outer, uint64_t offset,
                       uint32_t num_tokens, uint64_t bytes)
{
    uint32_t num_heads = run->batch->kv.num_kv_heads;
    struct engine_tensor part = *tensor;
    part.offset += offset;
    if (num_tokens == 0 || !fits(run->arena, &part, outer, num_tokens, num_heads, bytes))
        return;
    part.offset += outer * tensor->outer_stride;
    arena_stage(run->arena, pass, &part, num_tokens, num_heads, bytes);
}

static void stage_blocks(const struct engine_run *run, struct arena_pass *pass,
                         const struct engine_tensor *tensor, uint64_t bytes)
{
    struct engine_batch *batch = run->batch;
    batch_sort_blocks(batch);
    for (uint64_t i = 0; i < batch->num_blocks; i++)
        stage_part(run, pass, tensor, (uint32_t)batch->blocks[i], 0, batch->kv.block_size, bytes);
}

static void stage_rows(const struct engine_run *run, struct arena_pass *pass,
                       const struct engine_tensor *tensor, uint64_t bytes)
{
    const struct engine_batch *batch = run->batch;
    for (uint32_t seq = 0; batch->seq_lens_kv && seq < batch->num_seqs; seq++) {
        uint32_t num_keys = (uint32_t)batch->seq_lens_kv[seq];
        if (tensor->outer_stride)
            stage_part(run, pass, tensor, seq, 0, num_keys, bytes);
        else if (batch->kv_starts)
            stage_part(run, pass, tensor, 0, (uint32_t)batch->kv_starts[seq] * tensor->token_stride,
                       num_keys, bytes);
    }
}

static void stage_keys(const struct engine_run *run, struct arena_pass *pass,
                       const struct engine_tensor *tensor, uint64_t bytes)
{
    if (run->batch->place == ENGINE_BLOCKS)
        stage_blocks(run, pass, tensor, bytes);
    else if (run->batch->place == ENGINE_ROWS)
        stage_rows(run, pass, tensor, bytes);
}

// Stages the rows that slots wrote, and no others.
static void stage_slots(const struct engine_run *run, struct arena_pass *pass,
                        const struct engine_tensor *tensor, uint64_t bytes)
{
    const struct engine_batch *batch = run->batch;
    uint32_t size = batch->kv.block_size;
    for (uint32_t i = 0; batch->slots && i < batch->num_tokens; i++)
        if (batch->slots[i] >= 0) {
            uint64_t slot = (uint64_t)batch->slots[i];
            stage_part(run, pass, tensor, slot / size, slot % size * tensor->token_stride, 1,
                       bytes);
        }
}

// ---- in ----

static void stage_new_kv(const struct engine_run *run, struct arena_pass *pass)
{
    const struct engine_kv *kv = &run->batch->kv;
    if (!run->batch->address[BATCH_SLOT_MAPPING])
        return;
    stage_tokens(run, pass, &run->k, kv->num_kv_heads, kv->head_dim_k);
    if (!kv->v_is_k_prefix)
        stage_tokens(run, pass, &run->v, kv->num_kv_heads, kv->head_dim_v);
}

static void stage_old_kv(const struct engine_run *run, struct arena_pass *pass)
{
    const struct engine_kv *kv = &run->batch->kv;
    stage_keys(run, pass, &run->keys, row_bytes(kv->head_dim_k, kv->k_dtype));
    if (!kv->v_is_k_prefix)
        stage_keys(run, pass, &run->values, row_bytes(kv->head_dim_v, kv->v_dtype));
}

static void stage_parts(const struct engine_run *run, struct arena_pass *pass)
{
    for (uint32_t i = 0; i < run->num_parts; i++) {
        const struct engine_part *part = &run->parts[i];
        arena_stage(run->arena, pass, &part->out, run->num_tokens, run->num_heads,
                    row_bytes(run->head_dim, run->out.dtype));
        stage_lse(run->arena, pass, &part->lse, run->num_tokens, run->num_heads);
    }
}

static void stage_run_in(const struct engine_run *run, struct arena_pass *pass)
{
    switch (run->kind) {
    case ENGINE_ATTEND:
        stage_tokens(run, pass, &run->q, run->num_heads, run->batch->kv.head_dim_k);
        stage_old_kv(run, pass);
        stage_new_kv(run, pass);
        break;
    case ENGINE_WRITE: stage_new_kv(run, pass); break;
    case ENGINE_GATHER: stage_old_kv(run, pass); break;
    case ENGINE_MERGE: stage_parts(run, pass); break;
    case ENGINE_COPY: break;
    }
}

// Inputs may overlap: tensors may share memory, sequences may begin at the same row, parts of a
// merge may be equal. If the rows add up to more bytes than the span that they lie in, the span is
// copied once.
static void stage_each_once(const struct engine_run *run)
{
    struct arena_pass measure = {.what = ARENA_MEASURE, .begin = UINT64_MAX},
                      copy = {.what = ARENA_IN};
    stage_run_in(run, &measure);
    if (measure.begin < measure.end && measure.bytes > measure.end - measure.begin)
        arena_stage_span(run->arena, measure.begin, measure.end);
    else
        stage_run_in(run, &copy);
}

// Waits for earlier submissions: they may still read the mirror, or their results are not copied
// out yet.
static bool wait_for_arenas(const struct submission *s)
{
    uint64_t sequence = 0;
    for (uint32_t i = 0; i < s->num_runs; i++)
        if (is_staged(s, i) && s->runs[i].arena->last_sequence > sequence)
            sequence = s->runs[i].arena->last_sequence;
    return sequence == 0 || engine_wait(s->engine, sequence, -1) == STATUS_OK;
}

bool stage_in(struct submission *s)
{
    if (!wait_for_arenas(s))
        return false;
    for (uint32_t i = 0; i < s->num_runs; i++) {
        if (!is_staged(s, i))
            continue;
        stage_each_once(&s->runs[i]);
        s->runs[i].arena->last_sequence = s->sequence;
    }
    return true;
}

// ---- out ----

static void stage_written(const struct engine_run *run, struct arena_pass *pass)
{
    const struct engine_kv *kv = &run->batch->kv;
    if (run->batch->place != ENGINE_BLOCKS)
        return;
    stage_slots(run, pass, &run->keys, row_bytes(kv->head_dim_k, kv->k_dtype));
    if (!kv->v_is_k_prefix)
        stage_slots(run, pass, &run->values, row_bytes(kv->head_dim_v, kv->v_dtype));
}

static void stage_gathered(const struct engine_run *run, struct arena_pass *pass)
{
    const struct engine_kv *kv = &run->batch->kv;
    uint32_t num_keys = (uint32_t)run->batch->num_keys;
    arena_stage(run->arena, pass, &run->k, num_keys, kv->num_kv_heads,
                row_bytes(kv->head_dim_k, run->k.dtype));
    if (!kv->v_is_k_prefix)
        arena_stage(run->arena, pass, &run->v, num_keys, kv->num_kv_heads,
                    row_bytes(kv->head_dim_v, run->k.dtype));
}

static void stage_run_out(const struct engine_run *run, struct arena_pass *pass)
{
    switch (run->kind) {
    case ENGINE_ATTEND:
        stage_tokens(run, pass, &run->out, run->num_heads, run->batch->kv.head_dim_v);
        stage_lse(run->arena, pass, &run->lse, run->batch->num_tokens, run->num_heads);
        stage_written(run, pass);
        break;
    case ENGINE_WRITE: stage_written(run, pass); break;
    case ENGINE_GATHER: stage_gathered(run, pass); break;
    case ENGINE_MERGE:
        arena_stage(run->arena, pass, &run->out, run->num_tokens, run->num_heads,
                    row_bytes(run->head_dim, run->out.dtype));
        stage_lse(run->arena, pass, &run->lse, run->num_tokens, run->num_heads);
        break;
    case ENGINE_COPY: break;
    }
}

void stage_out(const struct submission *s)
{
    for (uint32_t i = 0; i < s->num_runs; i++)
        if (is_staged(s, i))
            stage_run_out(&s->runs[i], &(struct arena_pass){.what = ARENA_OUT});
}
