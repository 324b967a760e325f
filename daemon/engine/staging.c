// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// staging.c - which tensors of a submission are copied into and out of mirrored arenas. In: the submitter, before recording;
// out: the completer, when the GPU is done. No lock is held while client memory is touched.

#include "submission.h"

#include "arena.h"
#include "batch.h"

static bool is_staged(const struct submission *s, uint32_t run)
{
    return s->planned[run].group != NO_GROUP && !s->runs[run].arena->imported;
}

static void stage_q(const struct engine_run *run)
{
    const struct engine_cache_params *cache = &run->batch->cache->params;
    arena_stage(run->arena, ARENA_IN, &run->q, run->batch->num_tokens, run->num_heads,
                (uint64_t)cache->head_dim_k * dtype_size(run->q.dtype));
}

static void stage_kv(const struct engine_run *run)
{
    const struct engine_cache_params *cache = &run->batch->cache->params;
    uint32_t num_tokens = run->batch->num_tokens;
    arena_stage(run->arena, ARENA_IN, &run->k, num_tokens, cache->num_kv_heads,
                (uint64_t)cache->head_dim_k * dtype_size(run->k.dtype));
    arena_stage(run->arena, ARENA_IN, &run->v, num_tokens, cache->num_kv_heads,
                (uint64_t)cache->head_dim_v * dtype_size(run->v.dtype));
}

// An earlier submission may still read the mirror, or owe its results to the arena.
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
        stage_q(&s->runs[i]);
        if (s->runs[i].batch->slots_address)
            stage_kv(&s->runs[i]);
        s->runs[i].arena->last_sequence = s->sequence;
    }
    return true;
}

static void stage_results(const struct engine_run *run)
{
    uint32_t num_tokens = run->batch->num_tokens;
    arena_stage(run->arena, ARENA_OUT, &run->out, num_tokens, run->num_heads,
                (uint64_t)run->batch->cache->params.head_dim_v * dtype_size(run->out.dtype));
    struct engine_tensor lse = run->lse;
    lse.head_stride = 0; // a token's heads are contiguous: one row
    if (lse.dtype)
        arena_stage(run->arena, ARENA_OUT, &lse, num_tokens, 1, run->num_heads * sizeof(float));
}

void stage_out(const struct submission *s)
{
    for (uint32_t i = 0; i < s->num_runs; i++)
        if (is_staged(s, i))
            stage_results(&s->runs[i]);
}
