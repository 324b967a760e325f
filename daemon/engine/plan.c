// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// plan.c - turns a submission's runs into as few dispatches as their pipelines allow: in each wave, runs of one kind, one geometry,
// one set of dtypes and one set of features become one ragged dispatch, whoever they belong to and whatever layer they are. Records nothing.
// Submitter only.

#include "submission.h"

#include "arena.h"
#include "kv.h"

#include <string.h>

// ---- which pipelines ----

static uint32_t rope_features(const struct engine_run *run)
{
    if (run->rope.dim == 0)
        return 0;
    return AULE_FEATURE_ROPE | (run->rope.interleaved ? AULE_FEATURE_ROPE_PAIRS : 0) |
           (run->batch->address[BATCH_POSITIONS] ? AULE_FEATURE_POSITIONS : 0);
}

// What is off costs a pipeline nothing; so a window without borders is none.
static uint32_t attention_features(const struct engine_run *run, const struct work *work)
{
    const uint64_t *address = run->batch->address;
    bool window = run->windowed && (run->window_left >= 0 || run->window_right >= 0);
    return (run->soft_cap > 0 ? AULE_FEATURE_SOFT_CAP : 0) | (run->slopes ? AULE_FEATURE_ALIBI : 0) |
           (window ? AULE_FEATURE_WINDOW : 0) | (address[BATCH_MASK_STARTS] ? AULE_FEATURE_MASK : 0) |
           (address[BATCH_POSITIONS] ? AULE_FEATURE_POSITIONS : 0) | (run->sinks ? AULE_FEATURE_SINKS : 0) |
           (run->lse.dtype ? AULE_FEATURE_LSE : 0) | rope_features(run) | (work->num_merges ? AULE_FEATURE_SPLIT : 0);
}

static struct geometry kv_geometry(const struct engine_batch *batch, enum dtype io)
{
    const struct engine_kv *kv = &batch->kv;
    return (struct geometry){.spec = {
                                 [AULE_SPEC_HEAD_DIM_K] = kv->head_dim_k,
                                 [AULE_SPEC_HEAD_DIM_V] = kv->head_dim_v,
                                 [AULE_SPEC_NUM_KV_HEADS] = kv->num_kv_heads,
                                 [AULE_SPEC_BLOCK_SIZE] = kv_block_size(kv),
                                 [AULE_SPEC_K_DTYPE] = kv->k_dtype,
                                 [AULE_SPEC_V_DTYPE] = kv->v_dtype,
                                 [AULE_SPEC_IO_DTYPE] = io,
                                 [AULE_SPEC_PLACE] = batch->place,
                                 [AULE_SPEC_V_IN_K] = kv->v_is_k_prefix,
                                 [AULE_SPEC_SCALE_MODE] = kv->scale_mode,
                             }};
}

_Static_assert((int)ENGINE_POOL == AULE_PLACE_POOL && (int)ENGINE_BLOCKS == AULE_PLACE_BLOCKS &&
                   (int)ENGINE_ROWS == AULE_PLACE_ROWS,
               "one numbering");
_Static_assert((int)SCALE_NONE == AULE_SCALE_NONE_MODE && (int)SCALE_PER_TENSOR == AULE_SCALE_TENSOR_MODE &&
                   (int)SCALE_PER_TOKEN_HEAD == AULE_SCALE_TOKEN_HEAD_MODE,
               "one numbering");

static struct geometry geometry_of(const struct submission *s, const struct engine_run *run, const struct work *work)
{
    struct geometry geometry = {0};
    switch (run->kind) {
    case ENGINE_ATTEND:
        geometry = kv_geometry(run->batch, run->q.dtype);
        geometry.spec[AULE_SPEC_FEATURES] = attention_features(run, work);
        geometry.spec[AULE_SPEC_TILE_ROWS] = s->engine->pipelines.variant->tile_rows(&run->batch->kv);
        break;
    case ENGINE_WRITE:
        geometry = kv_geometry(run->batch, run->k.dtype);
        geometry.spec[AULE_SPEC_FEATURES] = rope_features(run);
        break;
    case ENGINE_GATHER: geometry = kv_geometry(run->batch, run->k.dtype); break;
    case ENGINE_MERGE: geometry.spec[AULE_SPEC_IO_DTYPE] = run->out.dtype; break;
    case ENGINE_COPY: break;
    }
    return geometry;
}

static bool writes(const struct engine_run *run)
{
    return (run->kind == ENGINE_ATTEND || run->kind == ENGINE_WRITE) && run->batch->address[BATCH_SLOT_MAPPING];
}

// Of one run, what it has in `group` that the group may not have yet.
static enum status get_pipelines(struct submission *s, const struct engine_run *run, const struct work *work,
                                 struct group *group, struct error *error)
{
    const struct {
        bool wanted;
        enum pipeline_kind kind;
        VkPipeline *out;
    } pipelines[] = {
        {writes(run), PIPELINE_KV_WRITE, &group->write},
        {run->kind == ENGINE_COPY, PIPELINE_COPY, &group->write},
        {run->kind == ENGINE_ATTEND, PIPELINE_ATTENTION, &group->read},
        {run->kind == ENGINE_GATHER, PIPELINE_GATHER, &group->read},
        {run->kind == ENGINE_MERGE, PIPELINE_MERGE, &group->read},
        {work->num_merges > 0, PIPELINE_SPLITS, &group->merge},
    };
    enum status status = STATUS_OK;
    for (size_t i = 0; i < sizeof pipelines / sizeof *pipelines && status == STATUS_OK; i++)
        if (pipelines[i].wanted)
            status = pipeline_get(&s->engine->pipelines, pipelines[i].kind, &group->geometry, pipelines[i].out, error);
    return status;
}

// ---- groups ----

// Whether all that `fresh`, one run's, has can join `group`.
static bool joins(const struct submission *s, const struct group *group, const struct group *fresh)
{
    return group->kind == fresh->kind && group->kind != ENGINE_MERGE &&
           memcmp(&group->geometry, &fresh->geometry, sizeof group->geometry) == 0 &&
           group->num_items <= INT32_MAX - fresh->num_items && group->num_tokens <= INT32_MAX - fresh->num_tokens &&
           group->num_merges <= INT32_MAX - fresh->num_merges &&
           group->partial_bytes <= s->engine->max_scratch_bytes - fresh->partial_bytes;
}

// Of the wave that is being planned, the groups that begin at `first`: the one that `fresh` joins, else a new one.
static struct group *join_group(struct submission *s, uint32_t first, const struct group *fresh)
{
    for (uint32_t i = first; i < s->num_groups; i++) {
        struct group *group = &s->groups[i];
        if (!joins(s, group, fresh))
            continue;
        group->write = fresh->write ? fresh->write : group->write;
        group->num_runs++;
        group->num_writers += fresh->num_writers;
        group->num_split_runs += fresh->num_split_runs;
        group->num_items += fresh->num_items;
        group->num_tokens += fresh->num_tokens;
        group->num_merges += fresh->num_merges;
        group->partial_bytes += fresh->partial_bytes;
        return group;
    }
    s->groups[s->num_groups] = *fresh;
    return &s->groups[s->num_groups++];
}

static enum status plan_work(struct submission *s, const struct engine_run *run, struct work *work, struct error *error)
{
    struct engine_batch *batch = run->batch;
    if (run->kind != ENGINE_ATTEND)
        return STATUS_OK;
    enum status status =
        batch_work(batch, run->num_heads / batch->kv.num_kv_heads, run->num_splits, s->sequence, work, error);
    return status == STATUS_OK ? scratch_check(batch, work->num_partials, error) : status;
}

// Adds run `index` to a group of the wave whose groups begin at `first`.
static enum status plan_run(struct submission *s, uint32_t first, uint32_t index, struct error *error)
{
    const struct engine_run *run = &s->runs[index];
    struct work *work = &s->planned[index].work;
    enum status status = engine_run_fits(s->engine, run, error);
    if (status == STATUS_OK)
        status = plan_work(s, run, work, error);
    if (status != STATUS_OK)
        return status;
    bool reads_tokens = run->kind == ENGINE_GATHER || run->kind == ENGINE_MERGE;
    struct group fresh = {
        .kind = run->kind,
        .geometry = geometry_of(s, run, work),
        .run = index,
        .num_runs = 1,
        .num_writers = writes(run),
        .num_split_runs = work->num_merges > 0,
        .num_items = work->num_items,
        .num_tokens = writes(run) || reads_tokens ? (uint32_t)run_num_tokens(run) : 0,
        .num_merges = work->num_merges,
        .partial_bytes = work->num_partials ? batch_partial_bytes(run->batch, work->num_partials) : 0,
    };
    status = get_pipelines(s, run, work, &fresh, error);
    if (status == STATUS_OK)
        s->planned[index].group = (uint32_t)(join_group(s, first, &fresh) - s->groups);
    return status;
}

static void fail_run(struct submission *s, uint32_t run, const struct error *error)
{
    s->results[run].status = error->status;
    s->planned[run].group = NO_GROUP;
    device_log(&s->engine->device, 0, "submission %llu: run %u fails: %s", (unsigned long long)s->sequence, run,
               error->text);
}

static void plan_wave(struct submission *s, uint32_t wave)
{
    uint32_t first = s->num_groups;
    s->wave_groups[wave] = first;
    for (uint32_t i = wave ? s->wave_ends[wave - 1] : 0; i < s->wave_ends[wave]; i++) {
        struct error error = {0};
        s->planned[i].group = NO_GROUP;
        if (run_num_tokens(&s->runs[i]) > 0 && plan_run(s, first, i, &error) != STATUS_OK)
            fail_run(s, i, &error);
    }
}

// ---- memory for partial results ----

// A wave's groups share the scratch memory while it lasts; the next one begins anew, behind the merge of those before it.
static void place_partials(struct submission *s, uint32_t wave)
{
    uint64_t used = 0;
    for (uint32_t i = s->wave_groups[wave]; i < s->wave_groups[wave + 1]; i++) {
        struct group *group = &s->groups[i];
        group->scratch_anew = used > 0 && group->partial_bytes > s->engine->max_scratch_bytes - used;
        if (group->scratch_anew)
            used = 0;
        group->partials_at = used;
        used += group->partial_bytes;
        if (used > s->scratch_bytes)
            s->scratch_bytes = used;
    }
}

// A run with splits that finds no memory fails, and with it what it would have written; its group stays behind, empty of runs.
static void fail_split_runs(struct submission *s, const struct error *error)
{
    for (uint32_t i = 0; i < s->num_runs; i++)
        if (s->planned[i].group != NO_GROUP && s->groups[s->planned[i].group].partial_bytes > 0)
            fail_run(s, i, error);
    for (uint32_t i = 0; i < s->num_groups; i++)
        if (s->groups[i].partial_bytes > 0)
            s->groups[i] = (struct group){.kind = s->groups[i].kind, .geometry = s->groups[i].geometry};
}

static void plan_scratch(struct submission *s)
{
    struct error error = {0};
    for (uint32_t wave = 0; wave < s->num_waves; wave++)
        place_partials(s, wave);
    if (slot_reserve_scratch(s->engine, s->slot, s->scratch_bytes, &error) != STATUS_OK)
        fail_split_runs(s, &error);
}

// ---- ranges ----

static void place_range(struct submission *s, struct engine_cache *cache, int32_t from, int32_t to)
{
    for (uint32_t layer = 0; layer < cache->params.num_layers; layer++) {
        uint64_t source = from < 0 ? 0 : cache_block_address(cache, layer, from);
        uint64_t target = cache_block_address(cache, layer, to);
        if (target && (source || from < 0)) // a chunk that was given back is zeroed when it returns
            s->ranges[s->num_ranges++] = (struct gpu_range){source, target, cache->layer_block_bytes};
    }
}

// A wave has one group of copies, and groups come wave by wave: so its ranges lie one after the other.
static void place_ranges(struct submission *s)
{
    for (uint32_t i = 0; i < s->num_zeroes; i++)
        place_range(s, s->zeroes[i].cache, -1, s->zeroes[i].block);
    s->num_zero_ranges = s->num_ranges;
    for (uint32_t i = 0; i < s->num_runs; i++) {
        const struct engine_run *run = &s->runs[i];
        if (run->kind != ENGINE_COPY || s->planned[i].group == NO_GROUP)
            continue;
        struct group *group = &s->groups[s->planned[i].group];
        if (group->num_ranges == 0)
            group->first_range = s->num_ranges;
        for (uint32_t j = 0; j < run->num_copies; j++)
            place_range(s, run->cache, run->copies[j].from, run->copies[j].to);
        group->num_ranges = s->num_ranges - group->first_range;
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
    plan_scratch(s);
    place_ranges(s);
    describe_measure(s);
    number_dispatches(s);
}
