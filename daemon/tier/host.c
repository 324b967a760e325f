// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// host.c - see host.h. One lock guards the index, the tenants, the area and the queues. Threads
// compute without it: each takes one block of a job at a time, so they share a large job. Loads go
// first, because a worker waits for them. A block that is in use stays in the index until its turn
// to go has come again.

#include "host.h"

#include "area.h"
#include "base/clock.h"
#include "shelf.h"
#include "threads.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

// Enough threads to check as fast as PCIe 5 moves; see docs/performance.md.
enum { ENOUGH_THREADS = 12 };

// A job in a queue, and until its last block is done.
struct host_work {
    struct host_work *next;
    struct tier_job *job;
    uint32_t taken;   // blocks; guard: the lock
    atomic_uint done; // of these; the thread of the last one ends the job
};

struct host_queue {
    struct host_work *first, *last; // those with blocks that no thread has taken
};

struct tier_backend {
    pthread_mutex_t lock;
    pthread_cond_t news;
    struct threads threads;
    bool stops;
    struct host_queue loads, stores;
    struct area area;
    struct shelf shelf; // item->place: a struct area_place, with one reference
    uint64_t evicted;
};

// ---- the index; under the lock ----

static bool is_used(const struct shelf_item *item)
{
    const struct area_place *place = item->place;
    return place->refs > 1;
}

static struct shelf_item *find(const struct tier_backend *host, const struct stored_space *space,
                               const struct stored_chain *chain)
{
    const struct shelf_key key = shelf_key_of(space, chain);
    return shelf_find(&host->shelf, &key);
}

static void drop(struct tier_backend *host, struct shelf_item *item)
{
    area_unref(&host->area, item->place);
    shelf_remove(&host->shelf, item);
}

static void evict(struct tier_backend *host, struct shelf_item *item)
{
    host->evicted++;
    drop(host, item);
}

// Takes over the memory of a stored block.
static enum stored_reason insert(struct tier_backend *host, const struct tier_job *job,
                                 const struct tier_block *stored)
{
    const struct shelf_key key = shelf_key_of(&job->space, &stored->chain);
    struct area_place *place = area_find(&host->area, stored->data);
    struct shelf_item *item = shelf_find(&host->shelf, &key), *excess;
    if (item) {
        shelf_touch(item);
        return STORED_OK;
    }
    item = shelf_add(&host->shelf, &key, &job->share, place->bytes);
    if (!item)
        return STORED_MEMORY;
    item->place = place;
    area_ref(place);
    const struct shelf_tenant *tenant = item->tenant;
    while ((excess = shelf_excess(tenant)))
        evict(host, excess);
    return STORED_OK;
}

// ---- the threads ----

static bool is_late(const struct tier_job *job)
{
    return clock_now_ns() >= job->deadline_ns;
}

static enum stored_reason store_block(struct tier_backend *host, const struct tier_job *job,
                                      struct tier_block *block)
{
    struct area_place *place;
    pthread_mutex_lock(&host->lock);
    place = area_find(&host->area, block->data);
    pthread_mutex_unlock(&host->lock);
    const uint32_t num_parts = stored_num_parts(job->space.block_bytes);
    for (uint32_t i = 0; i < num_parts; i++)
        stored_header_fill(&place->headers[i], &job->space, &block->chain, i,
                           block->data + stored_part_offset(i));
    pthread_mutex_lock(&host->lock);
    const enum stored_reason reason = insert(host, job, block);
    pthread_mutex_unlock(&host->lock);
    return reason;
}

// Takes a reference to the block's memory. NULL: it is not there.
static struct area_place *lend(struct tier_backend *host, const struct tier_job *job,
                               struct tier_block *block)
{
    struct area_place *place = NULL;
    pthread_mutex_lock(&host->lock);
    struct shelf_item *own = find(host, &job->space, &block->chain);
    if (own) {
        shelf_touch(own);
        place = own->place;
        area_ref(place);
        block->data = area_data(&host->area, place);
    }
    pthread_mutex_unlock(&host->lock);
    return place;
}

// The memory does not have what was stored: nobody shall get it any more.
static void reject(struct tier_backend *host, const struct tier_job *job, struct tier_block *block,
                   struct area_place *place)
{
    pthread_mutex_lock(&host->lock);
    struct shelf_item *own = find(host, &job->space, &block->chain);
    if (own && own->place == place)
        drop(host, own);
    area_unref(&host->area, place);
    pthread_mutex_unlock(&host->lock);
    block->data = NULL;
}

static enum stored_reason load_block(struct tier_backend *host, struct tier_job *job,
                                     uint32_t index)
{
    struct tier_block *block = &job->blocks[index];
    struct area_place *place = lend(host, job, block);
    enum stored_reason reason = place ? STORED_OK : STORED_ABSENT;
    const uint32_t num_parts = stored_num_parts(job->space.block_bytes);
    for (uint32_t i = 0; reason == STORED_OK && i < num_parts; i++)
        reason = tier_part_check(job, index, i, &place->headers[i],
                                 stored_part_bytes(job->space.block_bytes, i));
    if (place && reason != STORED_OK)
        reject(host, job, block, place);
    return reason;
}

static void do_block(struct tier_backend *host, struct tier_job *job, uint32_t index)
{
    struct tier_block *block = &job->blocks[index];
    if (is_late(job))
        block->reason = STORED_TIMEOUT;
    else
        block->reason =
            job->kind == TIER_STORE ? store_block(host, job, block) : load_block(host, job, index);
}

// Takes a block of the first job. NULL: there is none. Under the lock.
static struct host_work *take(struct tier_backend *host, uint32_t *index)
{
    struct host_queue *queue = host->loads.first ? &host->loads : &host->stores;
    struct host_work *work = queue->first;
    if (!work)
        return NULL;
    *index = work->taken++;
    if (work->taken == work->job->num_blocks)
        queue->first = work->next;
    return work;
}

// The thread that ends the last block ends the job. After the others have counted theirs, work and
// job may be gone.
static void end_block(struct host_work *work)
{
    struct tier_job *job = work->job;
    const uint32_t num_blocks = job->num_blocks;
    if (atomic_fetch_add(&work->done, 1) + 1 != num_blocks)
        return;
    free(work);
    tier_job_end(job);
}

static void run_thread(void *argument)
{
    struct tier_backend *host = argument;
    uint32_t index;
    pthread_mutex_lock(&host->lock);
    for (;;) {
        struct host_work *work = take(host, &index);
        if (!work && host->stops)
            break;
        if (!work) {
            pthread_cond_wait(&host->news, &host->lock);
            continue;
        }
        pthread_mutex_unlock(&host->lock);
        do_block(host, work->job, index);
        end_block(work);
        pthread_mutex_lock(&host->lock);
    }
    pthread_mutex_unlock(&host->lock);
}

// ---- the calls ----

static void hand_over(struct tier_backend *host, struct tier_job *job)
{
    struct host_queue *queue = job->kind == TIER_LOAD ? &host->loads : &host->stores;
    struct host_work *work = job->num_blocks ? calloc(1, sizeof *work) : NULL;
    if (!work) {
        tier_job_fail(job, STORED_MEMORY);
        return;
    }
    work->job = job;
    pthread_mutex_lock(&host->lock);
    if (queue->first)
        queue->last->next = work;
    else
        queue->first = work;
    queue->last = work;
    pthread_cond_broadcast(&host->news);
    pthread_mutex_unlock(&host->lock);
}

static void host_lookup(struct tier_backend *host, struct tier_job *job)
{
    pthread_mutex_lock(&host->lock);
    for (uint32_t i = 0; i < job->num_blocks; i++) {
        struct tier_block *block = &job->blocks[i];
        if (!find(host, &job->space, &block->chain))
            continue;
        block->answer = TIER_THERE;
        block->reason = STORED_OK;
    }
    pthread_mutex_unlock(&host->lock);
    tier_job_end(job);
}

static void host_erase(struct tier_backend *host, struct tier_job *job)
{
    pthread_mutex_lock(&host->lock);
    for (uint32_t i = 0; i < job->num_blocks; i++) {
        struct shelf_item *block = find(host, &job->space, &job->blocks[i].chain);
        if (!block)
            continue;
        drop(host, block);
        job->blocks[i].reason = STORED_OK;
    }
    pthread_mutex_unlock(&host->lock);
    tier_job_end(job);
}

static enum tier_answer host_probe(struct tier_backend *host, const struct stored_space *space,
                                   const struct stored_chain *chain)
{
    pthread_mutex_lock(&host->lock);
    const bool there = find(host, space, chain);
    pthread_mutex_unlock(&host->lock);
    return there ? TIER_THERE : TIER_MISS;
}

static void host_give_back(struct tier_backend *host, uint8_t *data)
{
    pthread_mutex_lock(&host->lock);
    area_unref(&host->area, area_find(&host->area, data));
    pthread_mutex_unlock(&host->lock);
}

void host_ref(struct tier_backend *host, uint8_t *data)
{
    pthread_mutex_lock(&host->lock);
    area_ref(area_find(&host->area, data));
    pthread_mutex_unlock(&host->lock);
}

uint8_t *host_reserve(struct tier_backend *host, const struct tier_share *share, uint64_t bytes)
{
    struct area_place *place = NULL;
    struct shelf_item *item;
    pthread_mutex_lock(&host->lock);
    while (bytes <= host->area.size && !(place = area_take(&host->area, bytes)) &&
           (item = shelf_victim(&host->shelf, share->tenant)))
        evict(host, item);
    pthread_mutex_unlock(&host->lock);
    return place ? area_data(&host->area, place) : NULL;
}

uint64_t host_used_bytes(struct tier_backend *host)
{
    pthread_mutex_lock(&host->lock);
    const uint64_t bytes = host->area.used_bytes;
    pthread_mutex_unlock(&host->lock);
    return bytes;
}

static void host_state(struct tier_backend *host, struct tier_state *out)
{
    pthread_mutex_lock(&host->lock);
    *out = (struct tier_state){
        .bytes = host->area.used_bytes,
        .limit_bytes = host->area.size,
        .blocks = host->shelf.num_items,
        .evicted = host->evicted,
    };
    pthread_mutex_unlock(&host->lock);
}

static void host_free(struct tier_backend *host)
{
    shelf_finish(&host->shelf);
    area_finish(&host->area);
    pthread_cond_destroy(&host->news);
    pthread_mutex_destroy(&host->lock);
    free(host);
}

static void host_stop(struct tier_backend *host)
{
    pthread_mutex_lock(&host->lock);
    host->stops = true;
    pthread_cond_broadcast(&host->news);
    pthread_mutex_unlock(&host->lock);
}

static bool end_threads(struct tier_backend *host, int64_t deadline_ns)
{
    host_stop(host);
    return threads_end(&host->threads, deadline_ns);
}

static bool host_close(struct tier_backend *host, int64_t deadline_ns)
{
    if (!end_threads(host, deadline_ns))
        return false;
    host_free(host);
    return true;
}

const struct tier_ops host_ops = {
    .name = "host",
    .lends = true,
    .lookup = host_lookup,
    .store = hand_over,
    .load = hand_over,
    .erase = host_erase,
    .probe = host_probe,
    .give_back = host_give_back,
    .state = host_state,
    .stop = host_stop,
    .close = host_close,
};

static uint32_t num_threads(uint32_t asked)
{
    cpu_set_t set;
    const long cores = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set)
                                                                   : sysconf(_SC_NPROCESSORS_ONLN);
    const uint32_t wanted = cores < 4 ? 1 : (uint32_t)(cores * 3 / 4);
    return asked ? asked : wanted < ENOUGH_THREADS ? wanted : ENOUGH_THREADS;
}

static bool start_threads(struct tier_backend *host, uint32_t count)
{
    if (!threads_init(&host->threads, count))
        return false;
    for (uint32_t i = 0; i < count; i++)
        if (!threads_start(&host->threads, run_thread, host))
            return false;
    return true;
}

enum status host_open(const struct host_params *params, struct tier_backend **out,
                      struct error *error)
{
    *out = NULL;
    if (params->size < AREA_UNIT)
        return error_set(error, STATUS_INVALID,
                         "a host tier of %llu bytes; it needs %d (--host-tier)",
                         (unsigned long long)params->size, AREA_UNIT);
    struct tier_backend *host = calloc(1, sizeof *host);
    if (!host)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the host tier");
    host->shelf.is_used = is_used;
    pthread_mutex_init(&host->lock, NULL);
    pthread_cond_init(&host->news, NULL);
    if (!area_init(&host->area, params->base, params->size, params->part_bytes) ||
        !start_threads(host, num_threads(params->threads))) {
        (void)host_close(host, clock_deadline_ns(THREADS_END_MS));
        return error_set(error, STATUS_NO_MEMORY,
                         "no memory for the host tier, or for its %u threads (--tier-threads)",
                         num_threads(params->threads));
    }
    *out = host;
    return STATUS_OK;
}
