// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// plan.c - turns a submission's runs into as few dispatches as their pipelines allow: in each wave, runs of one geometry,
// one set of dtypes and one set of features become one ragged dispatch, whoever they belong to and whatever layer they are. Records nothing.
// Submitter only.

#include "submission.h"

#include "arena.h"
#include "batch.h"

#include <string.h>

static const double log2_e = 1.4426950408889634;

// What is off costs a pipeline nothing; so a window without borders is none.
static uint32_t features_of(const struct engine_run *run)
{
    bool window = run->windowed && (run->window_left >= 0 || run->window_right >= 0);
    return (run->soft_cap > 0 ? AULE_FEATURE_SOFT_CAP : 0) | (run->slopes ? AULE_FEATURE_ALIBI : 0) |
           (window ? AULE_FEATURE_WINDOW : 0) | (run->batch->mask_address ? AULE_FEATURE_MASK : 0) |
           (run->batch->positions_address ? AULE_FEATURE_POSITIONS : 0) | (run->sinks ? AULE_FEATURE_SINKS : 0) |
           (run->lse.dtype ? AULE_FEATURE_LSE : 0);
}

static struct geometry geometry_of(const struct engine_run *run)
{
    const struct engine_cache_params *cache = &run->batch->cache->params;
    return (struct geometry){.spec = {
                                 [AULE_SPEC_HEAD_DIM_K] = cache->head_dim_k,
                                 [AULE_SPEC_HEAD_DIM_V] = cache->head_dim_v,
                                 [AULE_SPEC_NUM_KV_HEADS] = cache->num_kv_heads,
                                 [AULE_SPEC_BLOCK_SIZE] = cache->block_size,
                                 [AULE_SPEC_K_DTYPE] = cache->k_dtype,
                                 [AULE_SPEC_V_DTYPE] = cache->v_dtype,
                                 [AULE_SPEC_IO_DTYPE] = run->q.dtype,
                                 [AULE_SPEC_FEATURES] = features_of(run),
                             }};
}

static bool writes(const struct engine_run *run)
{
    return run->batch->slots_address != 0;
}

// Of the wave that is being planned: the group with room for this run, else NULL.
static struct group *find_group(struct submission *s, uint32_t first, const struct geometry *geometry,
                                uint32_t num_items, uint32_t num_tokens)
{
    for (uint32_t i = first; i < s->num_groups; i++) {
        struct group *group = &s->groups[i];
        if (memcmp(&group->geometry, geometry, sizeof *geometry) == 0 && group->num_items <= INT32_MAX - num_items &&
            group->num_tokens <= INT32_MAX - num_tokens)
            return group;
    }
    return NULL;
}

static enum status add_group(struct submission *s, const struct geometry *geometry, struct group **out,
                             struct error *error)
{
    struct group fresh = {.geometry = *geometry};
    enum status status = pipeline_get(&s->engine->pipelines, PIPELINE_ATTENTION, geometry, &fresh.attention, error);
    if (status != STATUS_OK)
        return status;
    *out = &s->groups[s->num_groups++];
    **out = fresh;
    return STATUS_OK;
}

// Adds run `index` to a group of the wave whose groups begin at `first`.
static enum status plan_run(struct submission *s, uint32_t first, uint32_t index, struct error *error)
{
    const struct engine_run *run = &s->runs[index];
    struct planned *planned = &s->planned[index];
    struct geometry geometry = geometry_of(run);
    uint32_t num_tokens = writes(run) ? run->batch->num_tokens : 0;
    VkPipeline write = VK_NULL_HANDLE;
    enum status status = batch_items(run->batch, run->num_heads / run->batch->cache->params.num_kv_heads, s->sequence,
                                     &planned->items, &planned->num_items, error);
    if (status == STATUS_OK && writes(run))
        status = pipeline_get(&s->engine->pipelines, PIPELINE_KV_WRITE, &geometry, &write, error);
    if (status != STATUS_OK)
        return status;
    struct group *group = find_group(s, first, &geometry, planned->num_items, num_tokens);
    if (!group)
        status = add_group(s, &geometry, &group, error);
    if (status != STATUS_OK)
        return status;
    if (write)
        group->write = write;
    group->num_runs++;
    group->num_writers += writes(run);
    group->num_items += planned->num_items;
    group->num_tokens += num_tokens;
    planned->group = (uint32_t)(group - s->groups);
    return STATUS_OK;
}

static void plan_wave(struct submission *s, uint32_t wave)
{
    uint32_t first = s->num_groups;
    s->wave_groups[wave] = first;
    for (uint32_t i = wave ? s->wave_ends[wave - 1] : 0; i < s->wave_ends[wave]; i++) {
        struct error error = {0};
        s->planned[i].group = NO_GROUP;
        if (s->runs[i].batch->num_tokens == 0)
            continue;
        s->results[i].status = plan_run(s, first, i, &error);
        if (s->results[i].status != STATUS_OK)
            device_log(&s->engine->device, 0, "submission %llu: run %u fails: %s", (unsigned long long)s->sequence, i,
                       error.text);
    }
}

static uint32_t units(uint64_t bytes)
{
    return (uint32_t)(bytes / 16);
}

static uint32_t window_side(int32_t side)
{
    return side < 0 ? INT32_MAX : (uint32_t)side;
}

// Where the slot's piece will lie is not known yet: slopes and sinks are offsets in `floats` until they are uploaded.
static uint64_t floats_offset(const struct submission *s, const float *floats)
{
    return floats ? (uint64_t)(floats - s->floats) * sizeof *floats : 0;
}

static struct gpu_run describe(const struct submission *s, const struct engine_run *run, const struct planned *planned)
{
    const struct engine_batch *batch = run->batch;
    uint64_t arena = run->arena->buffer.address;
    return (struct gpu_run){
        .q = arena + run->q.offset,
        .k = arena + run->k.offset,
        .v = arena + run->v.offset,
        .out = arena + run->out.offset,
        .chunks = cache_table_address(batch->cache, run->layer),
        .cu_seqlens_q = batch->cu_address,
        .seq_lens_kv = batch->seq_lens_address,
        .block_table = batch->table_address,
        .slot_mapping = batch->slots_address,
        .items = planned->items,
        .positions = batch->positions_address,
        .mask = batch->mask_address,
        .mask_starts = batch->mask_starts_address,
        .slopes = floats_offset(s, run->slopes),
        .sinks = floats_offset(s, run->sinks),
        .lse = arena + run->lse.offset,
        .q_token_stride = units(run->q.token_stride),
        .q_head_stride = units(run->q.head_stride),
        .k_token_stride = units(run->k.token_stride),
        .k_head_stride = units(run->k.head_stride),
        .v_token_stride = units(run->v.token_stride),
        .v_head_stride = units(run->v.head_stride),
        .out_token_stride = units(run->out.token_stride),
        .out_head_stride = units(run->out.head_stride),
        .num_tokens = batch->num_tokens,
        .num_heads = run->num_heads,
        .max_blocks = batch->max_blocks,
        .chunk_stride = batch->cache->params.num_layers,
        .chunk_shift = batch->cache->chunk_shift,
        .causal = run->causal && !batch->mask_address,
        .scale_log2e = (float)(run->scale * log2_e),
        .lse_token_stride = (uint32_t)(run->lse.token_stride / sizeof(float)),
        .window_left = window_side(run->window_left),
        .window_right = window_side(run->window_right),
        .soft_cap = run->soft_cap,
    };
}

// Where each group's runs begin. Items and tokens are counted anew as place_runs() goes: each run's first ones.
static void place_groups(struct submission *s)
{
    for (uint32_t i = 0; i < s->num_groups; i++) {
        struct group *group = &s->groups[i];
        group->first = s->num_gpu_runs;
        group->num_items = group->num_tokens = 0;
        s->num_gpu_runs += group->num_runs;
    }
}

// One pass over those that write, which come first in their groups, one over the others.
static void place_runs(struct submission *s, bool writers)
{
    for (uint32_t i = 0; i < s->num_runs; i++) {
        const struct engine_run *run = &s->runs[i];
        const struct planned *planned = &s->planned[i];
        if (planned->group == NO_GROUP || writes(run) != writers)
            continue;
        struct group *group = &s->groups[planned->group];
        struct gpu_run *gpu = &s->gpu_runs[group->first + group->num_placed++];
        *gpu = describe(s, run, planned);
        gpu->first_item = group->num_items;
        gpu->first_token = group->num_tokens;
        group->num_items += planned->num_items;
        group->num_tokens += writers ? run->batch->num_tokens : 0;
    }
}

static void place_zeroes(struct submission *s)
{
    for (uint32_t i = 0; i < s->num_zeroes; i++) {
        struct engine_cache *cache = s->zeroes[i].cache;
        for (uint32_t layer = 0; layer < cache->params.num_layers; layer++) {
            uint64_t address = cache_block_address(cache, layer, s->zeroes[i].block);
            if (address) // a chunk that was given back is zeroed when it returns
                s->ranges[s->num_ranges++] = (struct gpu_range){address, cache->layer_block_bytes};
        }
    }
}

// Runs without a dispatch get numbers of their own, behind the real ones.
static void number_dispatches(struct submission *s)
{
    uint32_t next = s->num_groups;
    for (uint32_t i = 0; i < s->num_runs; i++)
        s->results[i].dispatch = s->planned[i].group == NO_GROUP ? next++ : s->planned[i].group;
}

void plan_build(struct submission *s)
{
    for (uint32_t wave = 0; wave < s->num_waves; wave++)
        plan_wave(s, wave);
    s->wave_groups[s->num_waves] = s->num_groups;
    place_groups(s);
    place_runs(s, true);
    place_runs(s, false);
    place_zeroes(s);
    number_dispatches(s);
}
