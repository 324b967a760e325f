// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// tier.c - see tier.h. The list of running jobs is the dispatcher's alone. Backends hand ended jobs
// over through `ended`, a stack under a lock.

#include "tier.h"

#include "base/clock.h"
#include "base/list.h"
#include "threads.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

struct tier {
    const struct tier_ops *ops;
    struct tier_backend *backend; // owned
    int fd;                       // owned
    uint64_t last_id;
    struct tier_job *running; // started, and their end not taken
    uint32_t num_running, num_abandoned;
    struct tier_counts counts;

    pthread_mutex_t lock;
    struct tier_job *ended, *last_ended; // a queue through `next`; guarded by `lock`
    atomic_bool news;                    // `ended` has a job
    struct tier_job *taken;              // of the queue, by the dispatcher; through `next`
};

// ---- jobs ----

struct tier_job *tier_job_create(enum tier_kind kind, uint32_t num_blocks)
{
    struct tier_job *job = calloc(1, sizeof *job + num_blocks * sizeof(struct tier_block));
    if (!job)
        return NULL;
    job->kind = kind;
    job->num_blocks = num_blocks;
    job->blocks = (struct tier_block *)(job + 1);
    return job;
}

void tier_job_destroy(struct tier_job *job)
{
    free(job);
}

static void wake(const struct tier *tier)
{
    const uint64_t one = 1;
    while (write(tier->fd, &one, sizeof one) < 0 && errno == EINTR)
        ;
}

// The job's own `next` and `prev` belong to the dispatcher's list, so the queue of ended jobs has
// its links in `work`, which the backend does not need any more.
static void end_job(struct tier_job *job)
{
    struct tier *tier = job->tier;
    job->work = NULL;
    pthread_mutex_lock(&tier->lock);
    if (tier->last_ended)
        tier->last_ended->work = job;
    else
        tier->ended = job;
    tier->last_ended = job;
    atomic_store(&tier->news, true);
    wake(tier); // under the lock, so that the tier cannot be gone
    pthread_mutex_unlock(&tier->lock);
}

void tier_job_end(struct tier_job *job)
{
    job->end(job);
}

void tier_job_fail(struct tier_job *job, enum stored_reason reason)
{
    for (uint32_t i = 0; i < job->num_blocks; i++) {
        if (job->blocks[i].reason == STORED_ABSENT)
            job->blocks[i].reason = reason;
    }
    tier_job_end(job);
}

enum stored_reason tier_part_check(struct tier_job *job, uint32_t block, uint32_t part,
                                   const struct stored_header *header, uint64_t payload_bytes)
{
    const struct tier_block *own = &job->blocks[block];
    uint8_t *payload = own->data + stored_part_offset(part);
    if (job->strike)
        job->strike(job, block, part, payload, &payload_bytes);
    return stored_check(header, &job->space, &own->chain, part, payload, payload_bytes);
}

void tier_start(struct tier *tier, struct tier_job *job)
{
    void (*const start[TIER_NUM_KINDS])(struct tier_backend *, struct tier_job *) = {
        [TIER_LOOKUP] = tier->ops->lookup,
        [TIER_STORE] = tier->ops->store,
        [TIER_LOAD] = tier->ops->load,
        [TIER_DELETE] = tier->ops->erase,
    };
    job->id = ++tier->last_id;
    job->tier = tier;
    job->started_ns = clock_now_ns();
    job->abandoned = false;
    job->end = end_job;
    job->strike = NULL;
    job->work = NULL;
    for (uint32_t i = 0; i < job->num_blocks; i++) {
        job->blocks[i].answer = TIER_MISS;
        job->blocks[i].reason = STORED_ABSENT;
    }
    LIST_APPEND(tier->running, job);
    tier->num_running++;
    if (start[job->kind])
        start[job->kind](tier->backend, job);
    else
        end_job(job);
}

// ---- the life of a tier ----

enum status tier_create(const struct tier_ops *ops, struct tier_backend *backend, struct tier **out,
                        struct error *error)
{
    struct tier *tier = calloc(1, sizeof *tier);
    const int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    *out = NULL;
    if (!tier || fd < 0 || pthread_mutex_init(&tier->lock, NULL)) {
        if (fd >= 0)
            close(fd);
        free(tier);
        (void)ops->close(backend, clock_deadline_ns(THREADS_END_MS));
        return error_set(error, STATUS_NO_MEMORY, "tier %s: no memory or descriptor", ops->name);
    }
    tier->ops = ops;
    tier->backend = backend;
    tier->fd = fd;
    *out = tier;
    return STATUS_OK;
}

static void free_running(struct tier *tier)
{
    struct tier_job *job, *next;
    LIST_EACH_SAFE(tier->running, job, next) {
        free(job);
    }
}

bool tier_close(struct tier *tier, int64_t deadline_ns)
{
    if (!tier)
        return true;
    if (!tier->ops->close(tier->backend, deadline_ns))
        return false;
    free_running(tier);
    pthread_mutex_destroy(&tier->lock);
    close(tier->fd);
    free(tier);
    return true;
}

bool tiers_close(struct tier **tiers, uint32_t count, int64_t deadline_ns)
{
    bool all = true;
    for (uint32_t i = 0; i < count; i++) {
        if (tiers[i] && tiers[i]->ops->stop)
            tiers[i]->ops->stop(tiers[i]->backend);
    }
    for (uint32_t i = 0; i < count; i++) {
        const bool closed = tier_close(tiers[i], deadline_ns);
        tiers[i] = closed ? NULL : tiers[i];
        all &= closed;
    }
    return all;
}

const struct tier_ops *tier_ops(const struct tier *tier)
{
    return tier->ops;
}

struct tier_backend *tier_backend(struct tier *tier)
{
    return tier->backend;
}

int tier_fd(const struct tier *tier)
{
    return tier->fd;
}

uint32_t tier_num_jobs(const struct tier *tier)
{
    return tier->num_running;
}

uint32_t tier_num_abandoned(const struct tier *tier)
{
    return tier->num_abandoned;
}

// ---- counts ----

static void count_lookup(struct tier_counts *counts, const struct tier_block *block)
{
    if (block->answer == TIER_THERE)
        counts->hits++;
    else if (block->reason == STORED_ABSENT)
        counts->misses++;
}

static void count_block(struct tier_counts *counts, const struct tier_job *job,
                        const struct tier_block *block)
{
    const bool done = block->reason == STORED_OK;
    if (block->reason != STORED_OK && block->reason != STORED_ABSENT)
        counts->failed[block->reason]++;
    if (job->kind == TIER_LOOKUP) {
        count_lookup(counts, block);
    } else if (job->kind == TIER_LOAD) {
        counts->loaded += done;
        counts->loaded_bytes += done ? job->space.block_bytes : 0;
    } else if (job->kind == TIER_STORE) {
        counts->stored += done;
        counts->stored_bytes += done ? job->space.block_bytes : 0;
    }
}

static void count_done(struct tier *tier, const struct tier_job *job, int64_t now_ns)
{
    const uint64_t took_ns = now_ns > job->started_ns ? (uint64_t)(now_ns - job->started_ns) : 0;
    for (uint32_t i = 0; i < job->num_blocks; i++)
        count_block(&tier->counts, job, &job->blocks[i]);
    tier->counts.load_ns += job->kind == TIER_LOAD ? took_ns : 0;
    tier->counts.store_ns += job->kind == TIER_STORE ? took_ns : 0;
}

void tier_counts(const struct tier *tier, struct tier_counts *out)
{
    *out = tier->counts;
}

void tier_state(struct tier *tier, struct tier_state *out)
{
    *out = (struct tier_state){0};
    tier->ops->state(tier->backend, out);
}

enum tier_answer tier_probe(struct tier *tier, const struct stored_space *space,
                            const struct stored_chain *chain)
{
    return tier->ops->probe ? tier->ops->probe(tier->backend, space, chain) : TIER_UNKNOWN;
}

enum tier_answer tier_look(struct tier *tier, const struct stored_space *space,
                           const struct stored_chain *chain)
{
    const enum tier_answer answer = tier_probe(tier, space, chain);
    tier->counts.hits += answer == TIER_THERE;
    tier->counts.misses += answer == TIER_MISS;
    return answer;
}

// ---- events ----

bool tier_has_news(const struct tier *tier)
{
    return atomic_load(&tier->news);
}

static void take_ended(struct tier *tier)
{
    uint64_t count;
    if (tier->taken || !atomic_load(&tier->news))
        return;
    pthread_mutex_lock(&tier->lock);
    while (read(tier->fd, &count, sizeof count) < 0 && errno == EINTR)
        ;
    tier->taken = tier->ended;
    tier->ended = tier->last_ended = NULL;
    atomic_store(&tier->news, false);
    pthread_mutex_unlock(&tier->lock);
}

// The backend has ended the job.
static struct tier_event end_event(struct tier *tier, struct tier_job *job, int64_t now_ns)
{
    LIST_DELETE(tier->running, job);
    tier->num_running--;
    if (job->abandoned) {
        tier->num_abandoned--;
        return (struct tier_event){TIER_QUIET, job};
    }
    count_done(tier, job, now_ns);
    return (struct tier_event){TIER_DONE, job};
}

bool tier_poll(struct tier *tier, int64_t now_ns, struct tier_event *event)
{
    struct tier_job *job;
    take_ended(tier);
    if (tier->taken) {
        job = tier->taken;
        tier->taken = job->work;
        *event = end_event(tier, job, now_ns);
        return true;
    }
    LIST_EACH(tier->running, job) {
        if (job->abandoned || job->abandon_ns > now_ns)
            continue;
        job->abandoned = true;
        tier->num_abandoned++;
        tier->counts.failed[STORED_ABANDONED] += job->num_blocks;
        *event = (struct tier_event){TIER_ABANDONED, job};
        return true;
    }
    return false;
}

int64_t tier_wake_ns(const struct tier *tier)
{
    const struct tier_job *job;
    int64_t wake_ns = FOREVER;
    LIST_EACH(tier->running, job) {
        if (!job->abandoned && job->abandon_ns < wake_ns)
            wake_ns = job->abandon_ns;
    }
    return wake_ns;
}
