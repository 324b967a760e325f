// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// redis.c - see redis.h. What the dispatcher calls: it cuts jobs into units, answers what needs no
// server, and hands the rest to the I/O threads.

#include "redis.h"

#include "absent.h"
#include "base/clock.h"
#include "base/list.h"
#include "io_thread.h"
#include "node.h"
#include "tls.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    STALL_MS = 50,
    EXPIRE_S = 86400,
    CONNECTIONS = 8,
    ABSENT_MS = 2000,
    FILTER_ENTRIES = 1 << 18,
    QUEUE_COMMANDS = 1 << 16,
};
#define QUEUE_BYTES (UINT64_C(256) << 20)

bool redis_is_built(void)
{
    return true;
}

// ---- starting jobs ----

static bool is_broken(struct tier_backend *redis, const struct stored_chain *chain)
{
    return atomic_load_explicit(&redis->num_broken, memory_order_relaxed) > 0 &&
           node_is_broken(store_node_of(redis, chain));
}

// Blocks that a server has to be asked about get STORED_OK; returns how many.
static uint32_t choose(struct tier_backend *redis, struct tier_job *job)
{
    const bool looks = job->kind == TIER_LOOKUP;
    const int64_t now_ns = clock_now_ns();
    uint32_t count = 0;
    for (uint32_t i = 0; i < job->num_blocks; i++) {
        struct tier_block *block = &job->blocks[i];
        if (is_broken(redis, &block->chain)) {
            block->reason = STORED_BREAKER;
        } else if (looks &&
                   absent_has(redis->absent, absent_hash(&job->space, &block->chain), now_ns)) {
            block->reason = STORED_ABSENT;
        } else {
            block->reason = STORED_OK;
            block->answer = looks ? TIER_THERE : TIER_MISS;
            count++;
        }
    }
    return count;
}

// The blocks that choose() chose end with this reason.
static void refuse(struct tier_job *job, enum stored_reason reason)
{
    for (uint32_t i = 0; i < job->num_blocks; i++) {
        struct tier_block *block = &job->blocks[i];
        if (block->reason != STORED_OK)
            continue;
        block->reason = reason;
        block->answer = TIER_MISS;
    }
    tier_job_end(job);
}

// Counts the job into the queue. False: it is full.
static bool enter_queue(struct tier_backend *redis, uint64_t bytes, uint32_t units)
{
    const uint64_t all_bytes = atomic_fetch_add(&redis->queue_bytes, bytes) + bytes,
                   all_units = atomic_fetch_add(&redis->queue_units, units) + units;
    if (all_bytes <= redis->most_queue_bytes && all_units <= redis->most_queue_units)
        return true;
    atomic_fetch_sub(&redis->queue_bytes, bytes);
    atomic_fetch_sub(&redis->queue_units, units);
    return false;
}

// The job may end, and `work` be freed, while the last list is given.
static void give(struct tier_backend *redis, struct redis_job *work)
{
    struct unit *lists[MOST_IO_THREADS] = {NULL};
    for (uint32_t i = 0; i < work->num_units; i++) {
        struct unit *unit = &work->units[i];
        LIST_APPEND(lists[io_thread_index(unit->node->io)], unit);
    }
    for (uint32_t i = 0; i < redis->num_io_threads; i++)
        if (lists[i])
            io_thread_give(redis->io_threads[i], lists[i]);
}

static void start(struct tier_backend *redis, struct tier_job *job)
{
    const uint32_t count = choose(redis, job), units = redis_job_count_units(job);
    const uint64_t bytes = job->kind == TIER_STORE ? count * job->space.block_bytes : 0;
    if (count == 0) {
        tier_job_end(job);
    } else if (!enter_queue(redis, bytes, units)) {
        refuse(job, STORED_FULL);
    } else {
        struct redis_job *work = redis_job_create(redis, job);
        if (work) {
            work->queue_bytes = bytes;
            give(redis, work);
            return;
        }
        atomic_fetch_sub(&redis->queue_bytes, bytes);
        atomic_fetch_sub(&redis->queue_units, units);
        refuse(job, STORED_MEMORY);
    }
}

static enum tier_answer probe(struct tier_backend *redis, const struct stored_space *space,
                              const struct stored_chain *chain)
{
    return is_broken(redis, chain) ||
                   absent_has(redis->absent, absent_hash(space, chain), clock_now_ns())
               ? TIER_MISS
               : TIER_UNKNOWN;
}

// A server's memory is as it was in the last second, or when it was asked last.
static void add_memory(struct node *node, int64_t now_ns, struct tier_state *out)
{
    out->bytes += atomic_load(&node->used_memory);
    out->limit_bytes += atomic_load(&node->maxmemory);
    if (now_ns - atomic_load(&node->facts_ns) < NS_PER_S)
        return;
    atomic_store(&node->wants_facts, true);
    io_thread_give(node->io, NULL); // wakes it
}

static void state(struct tier_backend *redis, struct tier_state *out)
{
    const int64_t now_ns = clock_now_ns();
    out->connects = atomic_load(&redis->connects);
    out->broken = atomic_load(&redis->num_broken) > 0;
    pthread_mutex_lock(&redis->lock);
    for (uint32_t i = 0; i < redis->num_nodes; i++) {
        struct node *node = redis->nodes[i];
        add_memory(node, now_ns, out);
        out->breaks += atomic_load(&node->breaker.opens);
        if (node->note[0] && !out->note[0])
            snprintf(out->note, sizeof out->note, "%.40s: %.110s", node->address, node->note);
    }
    pthread_mutex_unlock(&redis->lock);
}

// ---- the life of the backend ----

static void destroy(struct tier_backend *redis)
{
    for (uint32_t i = 0; i < redis->num_nodes; i++)
        node_destroy(redis->nodes[i]);
    for (uint32_t i = 0; i < redis->num_io_threads; i++)
        io_thread_destroy(redis->io_threads[i]);
    absent_destroy(redis->absent);
    tls_destroy(redis->tls);
    redis_url_forget(&redis->url);
    pthread_mutex_destroy(&redis->lock);
    free(redis);
}

static void stop(struct tier_backend *redis)
{
    atomic_store(&redis->stopping, true);
    for (uint32_t i = 0; i < redis->num_io_threads; i++)
        io_thread_stop(redis->io_threads[i]);
}

static bool close_redis(struct tier_backend *redis, int64_t deadline_ns)
{
    stop(redis);
    if (!threads_end(&redis->threads, deadline_ns))
        return false;
    for (uint32_t i = 0; i < redis->num_io_threads; i++)
        io_thread_clear(redis->io_threads[i]);
    destroy(redis);
    return true;
}

const struct tier_ops redis_ops = {
    .name = "redis",
    .lookup = start,
    .store = start,
    .load = start,
    .erase = start,
    .probe = probe,
    .state = state,
    .stop = stop,
    .close = close_redis,
};

static void apply(struct tier_backend *redis, const struct redis_params *params)
{
    redis->stall_ns = (params->stall_ms ? params->stall_ms : STALL_MS) * NS_PER_MS;
    redis->expire_s = params->never_expires ? 0 : params->expire_s ? params->expire_s : EXPIRE_S;
    redis->connections = params->connections ? params->connections : CONNECTIONS;
    redis->most_queue_bytes = params->queue_bytes ? params->queue_bytes : QUEUE_BYTES;
    redis->most_queue_units = params->queue_commands ? params->queue_commands : QUEUE_COMMANDS;
    redis->say = params->say;
    redis->say_context = params->say_context;
    atomic_init(&redis->wants_map, true);
    pthread_mutex_init(&redis->lock, NULL);
}

static bool add_servers(struct tier_backend *redis)
{
    const char *addresses[REDIS_URL_HOSTS];
    for (uint32_t i = 0; i < redis->url.num_hosts; i++)
        if (!store_node_at(redis, redis->url.hosts[i].name, redis->url.hosts[i].port))
            return false;
    for (uint32_t i = 0; i < redis->num_nodes; i++)
        addresses[i] = redis->nodes[i]->address;
    slots_share(redis->slots, addresses, redis->num_nodes);
    return true;
}

static bool make_parts(struct tier_backend *redis, const struct redis_params *params)
{
    const uint32_t hosts = redis->url.num_hosts, threads = params->threads ? params->threads
                                                           : hosts < MOST_IO_THREADS
                                                               ? hosts
                                                               : MOST_IO_THREADS;
    redis->absent = absent_create(params->filter_entries ? params->filter_entries : FILTER_ENTRIES,
                                  (params->absent_ms ? params->absent_ms : ABSENT_MS) * NS_PER_MS);
    for (; redis->num_io_threads < threads; redis->num_io_threads++) {
        redis->io_threads[redis->num_io_threads] = io_thread_create(redis, redis->num_io_threads);
        if (!redis->io_threads[redis->num_io_threads])
            return false;
    }
    return redis->absent && add_servers(redis);
}

static bool start_threads(struct tier_backend *redis)
{
    if (!threads_init(&redis->threads, redis->num_io_threads))
        return false;
    for (uint32_t i = 0; i < redis->num_io_threads; i++)
        if (!io_thread_start(redis->io_threads[i]))
            return false;
    return true;
}

static enum status check(const struct redis_params *params, struct tier_backend *redis,
                         struct error *error)
{
    struct redis_url *url = &redis->url;
    enum status status = redis_url_parse(params->url, url, error);
    if (status == STATUS_OK && params->password_file)
        status = redis_url_password_file(url, params->password_file, error);
    if (status == STATUS_OK && url->tls)
        status = tls_create(params->ca_file, params->cert_file, &redis->tls, error);
    if (status == STATUS_OK && params->threads > MOST_IO_THREADS)
        status = error_set(error, STATUS_INVALID, "the redis tier has 1 to %d threads, not %u",
                           MOST_IO_THREADS, params->threads);
    return status;
}

enum status redis_create(const struct redis_params *params, struct tier_backend **out,
                         struct error *error)
{
    *out = NULL;
    struct tier_backend *redis = calloc(1, sizeof *redis);
    if (!redis)
        return error_set(error, STATUS_NO_MEMORY, "the redis tier has no memory");
    enum status status = check(params, redis, error);
    if (status) {
        tls_destroy(redis->tls);
        redis_url_forget(&redis->url);
        free(redis);
        return status;
    }
    apply(redis, params);
    if (!make_parts(redis, params) || !start_threads(redis)) {
        (void)close_redis(redis, clock_deadline_ns(THREADS_END_MS));
        return error_set(error, STATUS_NO_MEMORY, "the redis tier has no memory or no thread");
    }
    *out = redis;
    return STATUS_OK;
}
