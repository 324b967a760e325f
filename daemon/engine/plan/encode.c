// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// encode.c - writes what shaders read about each planned run into the slot's piece. The order is:
// the array of struct gpu_run; ranges; the extras of each run (slopes, sinks, RoPE rotations,
// struct gpu_merge, its parts); for each group with a second pass a struct gpu_redo, and room for
// the notes of the first pass. Knows layout.h and the plan; records nothing. Submitter only.

#include "encode.h"

#include "check.h"
#include "engine/kernels/hopper.h"
#include "engine/kernels/kv.h"
#include "engine/memory/arena.h"
#include "engine/state/state.h"
#include "items.h"
#include "plan.h"

#include <math.h>
#include <string.h>

static const double log2_e = 1.4426950408889634;
static const float ln_2 = 0.6931471805599453f;

// What 1 in base-2 logarithms is in the LSE of the run.
static float lse_unit(const struct engine_run *run)
{
    return run->options.lse_base2 ? 1 : ln_2;
}

// ---- extras ----

// Offsets of the arrays that a run points to, in bytes from its first extra, multiples of 16.
struct extras {
    uint64_t slopes, sinks, rotations, merge, parts, bytes;
};

static uint64_t add_extra(struct extras *extras, uint64_t count, size_t size)
{
    uint64_t at = extras->bytes;
    extras->bytes += padded(count * size);
    return at;
}

static uint32_t rope_dim(const struct engine_run *run)
{
    return run->kind == ENGINE_ATTEND || run->kind == ENGINE_WRITE ? run->rope.dim : 0;
}

static struct extras extras_of(const struct engine_run *run)
{
    struct extras extras = {0};
    bool merges = run->kind == ENGINE_MERGE;
    extras.slopes = add_extra(&extras, run->slopes ? run->num_heads : 0, sizeof(float));
    extras.sinks = add_extra(&extras, run->sinks ? run->num_heads : 0, sizeof(float));
    extras.rotations = add_extra(&extras, rope_dim(run) / 2, sizeof(uint64_t));
    extras.merge = add_extra(&extras, merges, sizeof(struct gpu_merge));
    extras.parts = add_extra(&extras, merges ? run->num_parts : 0, sizeof(struct gpu_part));
    return extras;
}

void encode_measure(struct submission *s)
{
    uint64_t runs = 0;
    for (uint32_t i = 0; i < s->num_groups; i++)
        runs += s->groups[i].num_runs + plan_num_tails(&s->groups[i]) + s->groups[i].num_split_runs;
    s->num_gpu_runs = (uint32_t)runs; // submission_create() has reserved as many
    s->ranges_at = padded(runs * sizeof *s->gpu_runs);
    s->upload_bytes = s->ranges_at + padded(s->num_ranges * sizeof *s->ranges);
    for (uint32_t i = 0; i < s->num_runs; i++) {
        s->planned[i].extras_at = s->upload_bytes;
        if (plan_group(s, i) != NO_GROUP)
            s->upload_bytes += extras_of(&s->runs[i]).bytes;
    }
    for (uint32_t i = 0; i < s->num_groups; i++) {
        struct group *group = &s->groups[i];
        uint64_t entries =
            (uint64_t)group->num_doubtful * group->geometry.spec[AULE_SPEC_NUM_KV_HEADS];
        group->redo_at = s->upload_bytes;
        if (group->redo)
            s->upload_bytes += padded(sizeof(struct gpu_redo) + entries * AULE_REDO_ENTRY);
        s->native = s->native || group->is_native;
        if (group->is_native)
            s->upload_bytes = hopper_measure(s->upload_bytes, &group->geometry, group->num_runs,
                                             group->num_items, &group->native_at);
    }
}

uint64_t encode_merge(const struct submission *s, uint32_t run)
{
    return s->slot->piece.address + s->planned[run].extras_at + extras_of(&s->runs[run]).merge;
}

static uint32_t units(uint64_t bytes)
{
    return (uint32_t)(bytes / 16);
}

static void put_merge(const struct engine_run *run, const struct extras *extras, char *to,
                      uint64_t address)
{
    const struct run_span span = run_span(run);
    uint64_t arena = run->arena->buffer.address;
    struct gpu_part *parts = (struct gpu_part *)(to + extras->parts);
    *(struct gpu_merge *)(to + extras->merge) = (struct gpu_merge){
        .parts = address + extras->parts,
        .out = arena + run->out.offset + span.first * run->out.token_stride,
        .lse = run->lse.dtype ? arena + run->lse.offset + span.first * run->lse.token_stride : 0,
        .out_token_stride = units(run->out.token_stride),
        .out_head_stride = units(run->out.head_stride),
        .lse_token_stride = (uint32_t)(run->lse.token_stride / sizeof(float)),
        .num_parts = run->num_parts,
        .num_tokens = (uint32_t)span.count,
        .num_heads = run->num_heads,
        .head_dim = run->head_dim,
        .lse_unit = lse_unit(run),
        .lse_log2 = run->options.lse_base2 ? 1 : (float)log2_e,
    };
    for (uint32_t i = 0; i < run->num_parts; i++)
        parts[i] = (struct gpu_part){
            .out = arena + run->parts[i].out.offset + span.first * run->parts[i].out.token_stride,
            .lse = arena + run->parts[i].lse.offset + span.first * run->parts[i].lse.token_stride,
            .out_token_stride = units(run->parts[i].out.token_stride),
            .out_head_stride = units(run->parts[i].out.head_stride),
            .lse_token_stride = (uint32_t)(run->parts[i].lse.token_stride / sizeof(float)),
        };
}

// Writes the extras of one run to `to`, whose shader address is `address`.
static void put_extras(const struct submission *s, const struct engine_run *run,
                       const struct extras *extras, char *to, uint64_t address)
{
    if (run->slopes)
        memcpy(to + extras->slopes, run->slopes, run->num_heads * sizeof(float));
    if (run->sinks)
        memcpy(to + extras->sinks, run->sinks, run->num_heads * sizeof(float));
    if (rope_dim(run))
        rope_rotations(&s->engine->rope, &run->rope, (uint64_t *)(to + extras->rotations));
    if (run->kind == ENGINE_MERGE)
        put_merge(run, extras, to, address);
}

// ---- runs ----

static uint32_t window_side(int32_t side)
{
    return side < 0 ? INT32_MAX : (uint32_t)side;
}

// The factor of an element of `dtype`. Scales per token and head are stored beside the elements.
static float tensor_scale(const struct engine_kv *kv, enum dtype dtype, float scale)
{
    return kv->scale_mode == SCALE_PER_TENSOR && kv_is_scaled(kv, dtype) ? scale : 1.0f;
}

static void encode_tensors(const struct engine_run *run, struct gpu_run *gpu)
{
    uint64_t arena = run->arena->buffer.address;
    gpu->q = arena + run->q.offset;
    gpu->k = arena + run->k.offset;
    gpu->v = arena + run->v.offset;
    gpu->out = arena + run->out.offset;
    gpu->keys = arena + run->keys.offset;
    gpu->values = arena + run->values.offset;
    gpu->lse = run->lse.dtype ? arena + run->lse.offset : 0;
    gpu->q_outer = run->q.outer_stride;
    gpu->k_outer = run->k.outer_stride;
    gpu->v_outer = run->v.outer_stride;
    gpu->out_outer = run->out.outer_stride;
    gpu->keys_outer = run->keys.outer_stride;
    gpu->values_outer = run->values.outer_stride;
    gpu->q_token_stride = units(run->q.token_stride);
    gpu->q_head_stride = units(run->q.head_stride);
    gpu->k_token_stride = units(run->k.token_stride);
    gpu->k_head_stride = units(run->k.head_stride);
    gpu->v_token_stride = units(run->v.token_stride);
    gpu->v_head_stride = units(run->v.head_stride);
    gpu->out_token_stride = units(run->out.token_stride);
    gpu->out_head_stride = units(run->out.head_stride);
    gpu->keys_token_stride = units(run->keys.token_stride);
    gpu->keys_head_stride = units(run->keys.head_stride);
    gpu->values_token_stride = units(run->values.token_stride);
    gpu->values_head_stride = units(run->values.head_stride);
    gpu->lse_token_stride = (uint32_t)(run->lse.token_stride / sizeof(float));
    gpu->lse_unit = lse_unit(run);
}

// Address and step of an optional array. If the batch lacks the array: the engine's zeros, step 0.
static uint64_t optional(const struct engine_batch *batch, enum batch_array array, uint32_t *step)
{
    *step = batch->address[array] != 0;
    return *step ? batch->address[array] : batch->engine->nothing.address;
}

// The same for an array without a step. A batch without sequences lacks lengths, and a batch
// without keys may lack a block table.
static uint64_t array_or_zero(const struct engine_batch *batch, enum batch_array array)
{
    return batch->address[array] ? batch->address[array] : batch->engine->nothing.address;
}

static void encode_batch(const struct engine_run *run, struct gpu_run *gpu)
{
    const struct engine_batch *batch = run->batch;
    const uint64_t *address = batch->address;
    if (batch->cache) {
        gpu->chunks = cache_table_address(batch->cache, run->layer);
        gpu->chunk_stride = batch->cache->params.num_layers;
        gpu->chunk_shift = batch->cache->chunk_shift;
    }
    gpu->cu_seqlens_q = array_or_zero(batch, BATCH_CU_SEQLENS_Q);
    gpu->seq_lens_kv = array_or_zero(batch, BATCH_SEQ_LENS_KV);
    gpu->block_table = array_or_zero(batch, BATCH_BLOCK_TABLE);
    gpu->slot_mapping = optional(batch, BATCH_SLOT_MAPPING, &gpu->slot_step);
    gpu->q_lens = optional(batch, BATCH_Q_LENS, &gpu->q_len_step);
    gpu->token_rows = optional(batch, BATCH_TOKEN_ROWS, &gpu->token_row_step);
    gpu->kv_starts = optional(batch, BATCH_KV_STARTS, &gpu->kv_start_step);
    gpu->kv_offsets = array_or_zero(batch, BATCH_KV_OFFSETS);
    gpu->positions = address[BATCH_POSITIONS];
    gpu->mask = address[BATCH_MASK];
    gpu->mask_starts = address[BATCH_MASK_STARTS];
    gpu->num_seqs = address[BATCH_CU_SEQLENS_Q] ? batch->num_seqs : 0;
    gpu->num_tokens = (uint32_t)(run->kind == ENGINE_GATHER ? batch->num_keys : batch->num_tokens);
    gpu->max_blocks = batch->max_blocks;
}

static void encode_scores(const struct engine_run *run, struct gpu_run *gpu)
{
    const struct engine_kv *kv = &run->batch->kv;
    gpu->k_scale = tensor_scale(kv, kv->k_dtype, run->k_scale);
    gpu->v_scale = tensor_scale(kv, kv->v_dtype, run->v_scale);
    gpu->k_inverse = 1.0f / gpu->k_scale;
    gpu->v_inverse = 1.0f / gpu->v_scale;
    gpu->num_heads = run->num_heads;
    gpu->causal = run->causal && !run->batch->address[BATCH_MASK_STARTS];
    gpu->scale_log2e = (float)(run->scale * log2_e * gpu->k_scale);
    gpu->window_left = run->windowed ? window_side(run->window_left) : INT32_MAX;
    gpu->window_right = run->windowed ? window_side(run->window_right) : INT32_MAX;
    gpu->attention_chunk = run->options.attention_chunk;
    gpu->soft_cap = run->soft_cap;
    gpu->rope_dim = rope_dim(run);
}

// Fills all but the work lists. `extras_address` is the shader address of the run's first extra.
static struct gpu_run encode_run(const struct engine_run *run, const struct extras *extras,
                                 uint64_t extras_address)
{
    struct gpu_run gpu = {
        .slopes = run->slopes ? extras_address + extras->slopes : 0,
        .sinks = run->sinks ? extras_address + extras->sinks : 0,
        .rotations = rope_dim(run) ? extras_address + extras->rotations : 0,
    };
    encode_tensors(run, &gpu);
    encode_batch(run, &gpu);
    encode_scores(run, &gpu);
    return gpu;
}

// ---- placing ----

// Sets where each group begins in gpu_runs. A group has its runs, then its tails, then its runs
// with splits once more. Resets the counts that place_share() adds up again.
static void place_groups(const struct submission *s)
{
    uint32_t next = 0;
    for (uint32_t i = 0; i < s->num_groups; i++) {
        struct group *group = &s->groups[i];
        group->first = next;
        group->first_split = next + group->num_runs + plan_num_tails(group);
        group->num_items = group->num_merges = 0;
        // A caller's merge has no gpu_run, so its count stays.
        group->num_tokens = group->kind == ENGINE_MERGE ? group->num_tokens : 0;
        group->partial_bytes = 0;
        next = group->first_split + group->num_split_runs;
    }
}

// Sets where the share's partial results and counters lie. The share of a cascade kernel uses the
// partial results and counters of the share that it helps, which was placed before.
static void place_splits(const struct submission *s, uint32_t run, const struct share *share,
                         struct gpu_run *gpu, uint64_t *next_counter)
{
    struct planned *planned = &s->planned[run];
    uint64_t num_counters = plan_counters(s, run, share);
    struct group *group = &s->groups[share->group];
    if (group->helps) {
        gpu->partials = planned->partials;
        gpu->counters = planned->counters;
    } else if (share->work.kept_partials) {
        gpu->partials = share->work.kept_partials;
        gpu->counters = share->work.kept_counters;
    } else if (share->work.num_merges) {
        const struct engine_batch *batch = s->runs[run].batch;
        const uint32_t kernel = group->geometry.kernel;
        // A slice's numbers do not begin with 0.
        gpu->partials = s->slot->scratch.address + group->partials_at + group->partial_bytes -
                        batch_partial_bytes(batch, kernel, share->work.first_partial);
        gpu->counters =
            num_counters
                ? s->slot->counters.address +
                      (*next_counter - (uint64_t)share->work.first_merge * batch->kv.num_kv_heads) *
                          sizeof(uint32_t)
                : 0;
        *next_counter += num_counters;
        group->partial_bytes += batch_partial_bytes(batch, kernel, share->work.num_partials);
    }
    if (group->helper) {
        planned->partials = gpu->partials;
        planned->counters = gpu->counters;
    }
}

// Adds the share's entry to gpu_runs. `gpu` has what all shares of the run have in common.
static void place_share(const struct submission *s, uint32_t run, struct share *share,
                        struct gpu_run gpu, uint64_t *next_counter)
{
    struct group *group = &s->groups[share->group];
    const struct work *work = &share->work;
    const bool parted = plan_num_tails(group) && plan_has_tail(s, share);
    gpu.items = work->items;
    gpu.first_item = group->num_items;
    // The first row of a slice is not 0. It has the dispatch alone, so no run is searched by this.
    gpu.first_token =
        group->num_tokens - (group->is_apart ? (uint32_t)run_span(&s->runs[run]).first : 0);
    gpu.first_merge = group->num_merges;
    place_splits(s, run, share, &gpu, next_counter);
    share->place = group->first + group->num_placed++;
    s->gpu_runs[share->place] = gpu;
    group->num_items += parted ? work->num_large : work->num_items;
    if (share->writes || s->runs[run].kind == ENGINE_GATHER)
        group->num_tokens += (uint32_t)run_num_tokens(&s->runs[run]);
    if (work->num_merges == 0 || !group->merge)
        return;
    gpu.items = work->merges;
    s->gpu_runs[group->first_split + group->num_split_placed++] = gpu;
    group->num_merges += work->num_merges;
}

// The order of runs in a group: those that write K and V, those that do not; and in a cascade, the
// runs of a company one after another.
enum turn { WRITERS, READERS, CASCADES };

static enum turn turn_of(const struct submission *s, const struct share *share)
{
    if (s->groups[share->group].helps)
        return CASCADES;
    return share->writes ? WRITERS : READERS;
}

static void place_shares(const struct submission *s, uint32_t run, const struct gpu_run *gpu,
                         enum turn turn, uint64_t *next_counter)
{
    for (uint32_t i = 0; i < s->planned[run].num_shares; i++) {
        struct share *share = &s->planned[run].shares[i];
        if (turn_of(s, share) == turn)
            place_share(s, run, share, *gpu, next_counter);
    }
}

static bool has_turn(const struct submission *s, uint32_t run, enum turn turn)
{
    for (uint32_t i = 0; i < s->planned[run].num_shares; i++)
        if (turn_of(s, &s->planned[run].shares[i]) == turn)
            return true;
    return false;
}

// Places the run's shares whose turn it is.
static void place_run(const struct submission *s, uint32_t index, enum turn turn,
                      uint64_t *next_counter)
{
    const struct engine_run *run = &s->runs[index];
    uint64_t at = s->planned[index].extras_at;
    if (plan_group(s, index) == NO_GROUP)
        return;
    struct extras extras = extras_of(run);
    uint64_t address = s->slot->piece.address + at;
    if (turn == WRITERS) // once for each run
        put_extras(s, run, &extras, (char *)s->slot->piece.mapped + at, address);
    const bool has_gpu_run = run->kind != ENGINE_COPY && run->kind != ENGINE_MERGE;
    if (!has_gpu_run || !has_turn(s, index, turn))
        return;
    struct gpu_run gpu = encode_run(run, &extras, address);
    place_shares(s, index, &gpu, turn, next_counter);
}

// Places the cascades. Those of a company come together, when it is the leader's turn.
static void place_cascades(const struct submission *s, uint64_t *next_counter)
{
    for (uint32_t i = 0; i < s->num_runs; i++) {
        bool joint = s->planned[i].joint != NULL;
        uint32_t end = joint ? NO_RUN : i + 1;
        if (joint ? s->planned[i].leader != i : !has_turn(s, i, CASCADES))
            continue;
        for (uint32_t run = i; run != end; run = joint ? s->planned[run].next : end)
            place_run(s, run, CASCADES, next_counter);
    }
}

// Adds the entry of the share's small items.
static void place_tail(const struct submission *s, const struct share *share)
{
    struct group *group = &s->groups[share->group];
    const struct work *work = &share->work;
    struct gpu_run gpu = s->gpu_runs[share->place];
    gpu.items += work->num_large * sizeof(struct gpu_item);
    gpu.first_item = group->num_items;
    s->gpu_runs[group->first + group->num_runs + group->num_tails_placed++] = gpu;
    group->num_items += work->num_items - work->num_large;
}

// The GPU takes items in their order. If small items came before other runs' large ones, the large
// ones would begin late, and the dispatch would end late.
static void place_tails(const struct submission *s)
{
    for (uint32_t i = 0; i < s->num_runs; i++) {
        for (uint32_t j = 0; j < s->planned[i].num_shares; j++) {
            const struct share *share = &s->planned[i].shares[j];
            if (plan_num_tails(&s->groups[share->group]) && plan_has_tail(s, share))
                place_tail(s, share);
        }
    }
}

void encode_upload(const struct submission *s)
{
    char *to = s->slot->piece.mapped;
    uint64_t next_counter = 0;
    place_groups(s);
    for (uint32_t i = 0; i < s->num_runs; i++)
        place_run(s, i, WRITERS, &next_counter);
    for (uint32_t i = 0; i < s->num_runs; i++)
        place_run(s, i, READERS, &next_counter);
    place_cascades(s, &next_counter);
    place_tails(s);
    memcpy(to, s->gpu_runs, s->num_gpu_runs * sizeof *s->gpu_runs);
    memcpy(to + s->ranges_at, s->ranges, s->num_ranges * sizeof *s->ranges);
    for (uint32_t i = 0; i < s->num_groups; i++) {
        if (s->groups[i].redo)
            *(struct gpu_redo *)(to + s->groups[i].redo_at) = (struct gpu_redo){.y = 1, .z = 1};
        if (s->groups[i].is_native)
            hopper_put(to + s->groups[i].native_at, &s->groups[i].geometry,
                       s->gpu_runs + s->groups[i].first, s->groups[i].num_runs);
    }
}
