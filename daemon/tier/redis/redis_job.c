// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// redis_job.c - see redis_job.h.

#include "redis_job.h"

#include "absent.h"
#include "base/clock.h"
#include "store.h"

#include <stdlib.h>

// ---- cutting a job ----

// A long answer to MGET is slower than two shorter ones: a server makes all of it before it sends.
enum { MGET_PARTS = (2 << 20) / STORED_PART_BYTES };

static uint32_t parts_at_once(const struct tier_job *job)
{
    return job->kind == TIER_STORE ? 1 : job->kind == TIER_LOAD ? MGET_PARTS : UNIT_PARTS;
}

uint32_t redis_job_count_units(const struct tier_job *job)
{
    const uint32_t step = parts_at_once(job), parts = stored_num_parts(job->space.block_bytes);
    uint32_t count = 0;
    for (uint32_t i = 0; i < job->num_blocks; i++)
        count += job->blocks[i].reason == STORED_OK ? (parts + step - 1) / step : 0;
    return count;
}

static void add_units(struct redis_job *work, uint32_t block)
{
    const uint32_t step = parts_at_once(work->job),
                   parts = stored_num_parts(work->job->space.block_bytes);
    struct node *node = store_node_of(work->redis, &work->job->blocks[block].chain);
    for (uint32_t part = 0; part < parts; part += step)
        work->units[work->num_units++] = (struct unit){
            .work = work,
            .node = node,
            .block = block,
            .part = part,
            .num_parts = (uint8_t)(parts - part < step ? parts - part : step),
        };
}

struct redis_job *redis_job_create(struct tier_backend *redis, struct tier_job *job)
{
    const uint32_t count = redis_job_count_units(job);
    struct redis_job *work = malloc(sizeof *work + count * sizeof *work->units);
    if (!work)
        return NULL;
    *work = (struct redis_job){.job = job, .redis = redis, .started_ns = clock_now_ns()};
    atomic_init(&work->left, count);
    for (uint32_t i = 0; i < MOST_IO_THREADS; i++)
        work->shares[i].work = work;
    for (uint32_t i = 0; i < job->num_blocks; i++)
        if (job->blocks[i].reason == STORED_OK)
            add_units(work, i);
    job->work = work;
    return work;
}

uint32_t unit_part_bytes(const struct unit *unit, uint32_t index)
{
    return stored_part_bytes(unit->work->job->space.block_bytes, unit->part + index);
}

uint8_t *unit_part_data(const struct unit *unit, uint32_t index)
{
    return unit->work->job->blocks[unit->block].data + stored_part_offset(unit->part + index);
}

uint64_t unit_bytes(const struct unit *unit)
{
    const enum tier_kind kind = unit->work->job->kind;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < unit->num_parts && (kind == TIER_LOAD || kind == TIER_STORE); i++)
        bytes += sizeof(struct stored_header) + unit_part_bytes(unit, i);
    return bytes;
}

// ---- answers ----

void unit_note(struct unit *unit, enum stored_reason reason)
{
    struct tier_job *job = unit->work->job;
    struct tier_block *block = &job->blocks[unit->block];
    if (reason == STORED_OK)
        return;
    pthread_mutex_lock(&unit->work->redis->lock);
    if (block->reason == STORED_OK) {
        block->reason = reason;
        block->answer = TIER_MISS;
    }
    pthread_mutex_unlock(&unit->work->redis->lock);
}

// Not there, or of no use: what is computed in its place should be stored.
static bool is_missing(enum stored_reason reason)
{
    return reason == STORED_ABSENT || reason == STORED_OTHER_VERSION || reason == STORED_IDENTITY ||
           reason == STORED_LENGTH || reason == STORED_CHECKSUM;
}

// What the filter learns of a block that a server was asked about. A question counts from the job's
// start, which is before it was asked.
static void teach(const struct redis_job *work, const struct tier_block *block, int64_t now_ns)
{
    struct absent *absent = work->redis->absent;
    const struct tier_job *job = work->job;
    const uint64_t hash = absent_hash(&job->space, &block->chain);
    if (job->kind == TIER_STORE && block->reason == STORED_OK)
        absent_note_stored(absent, hash, now_ns);
    else if (job->kind == TIER_DELETE ? block->reason == STORED_OK
                                      : job->kind != TIER_STORE && is_missing(block->reason))
        absent_note_missing(absent, hash, work->started_ns);
}

static void end_job(struct redis_job *work)
{
    struct tier_backend *redis = work->redis;
    struct tier_job *job = work->job;
    const int64_t now_ns = clock_now_ns();
    for (uint32_t i = 0; i < work->num_units; i++)
        if (work->units[i].part == 0)
            teach(work, &job->blocks[work->units[i].block], now_ns);
    atomic_fetch_sub(&redis->queue_bytes, work->queue_bytes);
    atomic_fetch_sub(&redis->queue_units, work->num_units);
    free(work);
    tier_job_end(job);
}

void redis_job_hold(struct redis_job *work)
{
    atomic_fetch_add(&work->left, 1);
}

void redis_job_release(struct redis_job *work)
{
    if (atomic_fetch_sub(&work->left, 1) == 1)
        end_job(work);
}

void unit_end(struct unit *unit, enum stored_reason reason)
{
    unit_note(unit, reason);
    redis_job_release(unit->work);
}
