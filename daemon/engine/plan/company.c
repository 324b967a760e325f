// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// company.c - first sorts runs into buckets: runs of one bucket read the same cache and layer, and
// turn keys into scores alike. Then a filter of first blocks tells which buckets may share at all;
// most do not, and cost no more than that. A joint (joint.h) says what the others share. Submitter
// only.

#include "company.h"

#include "check.h"
#include "choice.h"
#include "engine/state/state.h"
#include "joint.h"

#include <stdlib.h>
#include <string.h>

// The runs of a wave, while they are sorted.
struct buckets {
    uint32_t *heads; // [size]: a bucket's first run, found by hash; NO_RUN = there is none
    uint32_t *nexts; // [count]: of run begin + i, the next run of its bucket; NO_RUN
    // [count]: scratch for one bucket: its runs, and the same for them.
    struct member *members;
    struct sharing_part *parts;
    struct engine_batch **batches;
    uint32_t begin, size; // size: a power of two
};

struct member {
    uint64_t serial; // of its batch
    uint32_t run;
};

// ---- buckets ----

static bool may_join(const struct engine_run *run)
{
    return run->kind == ENGINE_ATTEND && !run_is_slice(run) && run->batch->sharing.num_firsts > 0 &&
           run->batch->table && run->batch->table->rows;
}

static uint64_t hash_of(const struct engine_run *run)
{
    uint64_t where = run->batch->cache ? (uintptr_t)run->batch->cache : (uintptr_t)run->arena;
    uint64_t hash = (where >> 4) * UINT64_C(0x9e3779b97f4a7c15);
    hash ^= (run->layer + run->keys.offset) * UINT64_C(0xbf58476d1ce4e5b9);
    return hash >> 32;
}

static bool same_tensor(const struct wire_tensor *a, const struct wire_tensor *b)
{
    return a->offset == b->offset && a->outer_stride == b->outer_stride &&
           a->token_stride == b->token_stride && a->head_stride == b->head_stride;
}

// Whether block n is the same memory for both.
static bool same_blocks(const struct engine_run *a, const struct engine_run *b)
{
    if (a->batch->place != b->batch->place)
        return false;
    if (a->batch->place == ENGINE_POOL)
        return a->batch->cache == b->batch->cache && a->layer == b->layer;
    return a->arena == b->arena && same_tensor(&a->keys, &b->keys) &&
           same_tensor(&a->values, &b->values);
}

// Whether a cascade may compute rows of both with the parameters of one of them.
static bool same_scores(const struct engine_run *a, const struct engine_run *b)
{
    return a->num_heads == b->num_heads && a->num_splits == b->num_splits && a->scale == b->scale &&
           a->k_scale == b->k_scale && a->v_scale == b->v_scale && a->soft_cap == b->soft_cap;
}

static void buckets_add(struct buckets *buckets, const struct submission *s, uint32_t run)
{
    const struct engine_run *of = &s->runs[run];
    uint32_t at = (uint32_t)hash_of(of) & (buckets->size - 1);
    while (buckets->heads[at] != NO_RUN && !(same_blocks(&s->runs[buckets->heads[at]], of) &&
                                             same_scores(&s->runs[buckets->heads[at]], of)))
        at = (at + 1) & (buckets->size - 1);
    buckets->nexts[run - buckets->begin] = buckets->heads[at];
    buckets->heads[at] = run;
}

static void buckets_finish(struct buckets *buckets)
{
    free(buckets->heads);
    free(buckets->nexts);
    free(buckets->members);
    free(buckets->parts);
    free(buckets->batches);
}

static bool buckets_init(struct buckets *buckets, uint32_t begin, uint32_t count)
{
    *buckets = (struct buckets){.begin = begin, .size = 4};
    while (buckets->size < 2 * (uint64_t)count)
        buckets->size *= 2;
    buckets->heads = malloc(buckets->size * sizeof *buckets->heads);
    buckets->nexts = malloc(count * sizeof *buckets->nexts);
    buckets->members = malloc(count * sizeof *buckets->members);
    buckets->parts = malloc(count * sizeof *buckets->parts);
    buckets->batches = malloc(count * sizeof(struct engine_batch *));
    if (buckets->heads)
        memset(buckets->heads, 0xff, buckets->size * sizeof *buckets->heads);
    return buckets->heads && buckets->nexts && buckets->members && buckets->parts &&
           buckets->batches;
}

// ---- one bucket ----

// Copies a bucket's runs to buckets->members. Returns their number.
static uint32_t list_members(struct buckets *buckets, const struct submission *s, uint32_t head)
{
    uint32_t count = 0;
    for (uint32_t run = head; run != NO_RUN; run = buckets->nexts[run - buckets->begin])
        buckets->members[count++] = (struct member){s->runs[run].batch->serial, run};
    return count;
}

static int compare_members(const void *left, const void *right)
{
    const struct member *a = left, *b = right;
    if (a->serial != b->serial)
        return a->serial < b->serial ? -1 : 1;
    return a->run < b->run ? -1 : a->run > b->run;
}

static bool may_meet(struct buckets *buckets, const struct submission *s, uint32_t count)
{
    bool meet;
    for (uint32_t i = 0; i < count; i++)
        buckets->parts[i].sharing = &s->runs[buckets->members[i].run].batch->sharing;
    return sharing_meet(buckets->parts, count, &meet) && meet;
}

// Keeps the runs that use the same pipelines as the first. Returns their number.
static uint32_t keep_same(struct buckets *buckets, struct submission *s, uint32_t count,
                          uint64_t num_workgroups, struct choice *first)
{
    uint32_t kept = 1, num_kernels = s->engine->pipelines.variant->num_kernels;
    choice_make(first, s, &s->runs[buckets->members[0].run], num_workgroups, false);
    for (uint32_t i = 1; i < count; i++) {
        struct choice other;
        choice_make(&other, s, &s->runs[buckets->members[i].run], num_workgroups, false);
        if (choice_same(first, &other, num_kernels))
            buckets->members[kept++] = buckets->members[i];
    }
    return kept;
}

static void take_joint(struct submission *s, const struct buckets *buckets, uint32_t count,
                       const struct joint *joint)
{
    for (uint32_t i = 0; i < count; i++) {
        struct planned *planned = &s->planned[buckets->members[i].run];
        planned->joint = joint;
        planned->number = i;
        planned->leader = buckets->members[0].run;
        planned->next = i + 1 < count ? buckets->members[i + 1].run : NO_RUN;
    }
}

// Makes a company of the runs of a bucket, if they share keys. The order of its runs is that of
// their batches, so that the next layer asks for the same joint.
static bool join_bucket(struct submission *s, struct buckets *buckets, uint32_t head,
                        uint64_t num_workgroups)
{
    struct choice choice;
    uint32_t count = list_members(buckets, s, head);
    if (count < 2 || !may_meet(buckets, s, count))
        return false;
    qsort(buckets->members, count, sizeof *buckets->members, compare_members);
    count = keep_same(buckets, s, count, num_workgroups, &choice);
    if (count < 2)
        return false;
    for (uint32_t i = 0; i < count; i++)
        buckets->batches[i] = s->runs[buckets->members[i].run].batch;
    const struct joint *joint =
        joint_get(s->engine, buckets->batches, count, &choice.cutting, s->sequence);
    if (!joint || !joint->shares)
        return false;
    take_joint(s, buckets, count, joint);
    return true;
}

static void find(struct submission *s, uint32_t begin, uint32_t end, uint64_t num_workgroups)
{
    struct buckets buckets;
    if (buckets_init(&buckets, begin, end - begin)) {
        for (uint32_t i = begin; i < end; i++)
            if (may_join(&s->runs[i]) && run_num_tokens(&s->runs[i]) > 0)
                buckets_add(&buckets, s, i);
        for (uint32_t i = 0; i < buckets.size; i++)
            if (buckets.heads[i] != NO_RUN)
                s->in_company |= join_bucket(s, &buckets, buckets.heads[i], num_workgroups);
    }
    buckets_finish(&buckets);
}

void company_find(struct submission *s, uint32_t begin, uint32_t end, uint64_t num_workgroups)
{
    s->in_company = false;
    if (end - begin >= 2 && !s->apart && !s->alone && !s->engine->no_cascade &&
        !s->engine->helpers_refused)
        find(s, begin, end, num_workgroups);
}
