// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// redis_world.c - see redis_world.h.

#include "redis_world.h"

#include <poll.h>
#include <pthread.h>
#include <unistd.h>

struct redis_world world;
static pthread_mutex_t said_lock = PTHREAD_MUTEX_INITIALIZER;

enum {
    LONG_MS = 60000,
    PATIENT_MS = 20000, // on a busy machine a server may have no processor for a while
};

// ---- the tier ----

static void hear(void *context, const char *sentence)
{
    (void)context;
    pthread_mutex_lock(&said_lock);
    const size_t used = strlen(world.said);
    snprintf(world.said + used, sizeof world.said - used, "%s\n", sentence);
    pthread_mutex_unlock(&said_lock);
}

bool world_was_told(const char *part)
{
    pthread_mutex_lock(&said_lock);
    const bool told = strstr(world.said, part) != NULL;
    pthread_mutex_unlock(&said_lock);
    return told;
}

void world_open(int num, const struct redis_params *params, uint64_t block_bytes)
{
    struct redis_params all = params ? *params : (struct redis_params){0};
    struct tier_backend *backend;
    struct error error;
    char url[256] = "redis://";
    for (int i = 0; i < num; i++)
        snprintf(url + strlen(url), sizeof url - strlen(url), "%s127.0.0.1:%d", i ? "," : "",
                 servers[i].port);
    all.url = all.url ? all.url : url;
    all.stall_ms = all.stall_ms ? all.stall_ms : PATIENT_MS;
    all.say = hear;
    ck_assert_msg(redis_create(&all, &backend, &error) == STATUS_OK, "%s", error.text);
    ck_assert_msg(tier_create(&redis_ops, backend, &world.tier, &error) == STATUS_OK, "%s",
                  error.text);
    world.space.block_bytes = block_bytes;
    stored_fingerprint("model", 5, world.space.fingerprint);
    stored_salt("key", 3, "tenant", 6, world.space.salt);
}

void world_close(void)
{
    ck_assert(tier_close(world.tier, clock_deadline_ns(LONG_MS)));
    servers_end();
    memset(&world, 0, sizeof world);
}

// ---- blocks ----

struct stored_chain world_chain(uint32_t block)
{
    const struct stored_chain begin = stored_chain_begin(NULL, 0);
    const int32_t token = (int32_t)block;
    return stored_chain_next(&begin, &token, 1);
}

void world_name(uint32_t block, uint32_t part, char name[STORED_NAME_ROOM])
{
    const struct stored_chain chain = world_chain(block);
    stored_name(name, &world.space, &chain, part);
}

static void fill(uint8_t *data, uint64_t size, uint64_t block)
{
    uint64_t state = block * UINT64_C(0x9e3779b97f4a7c15) + 1;
    for (uint64_t i = 0; i < size; i++) {
        if (i % 8 == 0) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
        }
        data[i] = (uint8_t)(state >> (i % 8 * 8));
    }
}

// ---- jobs ----

struct tier_job *world_start(enum tier_kind kind, uint32_t first, uint32_t count, int timeout_ms)
{
    const uint64_t size = world.space.block_bytes;
    struct tier_job *job = tier_job_create(kind, count);
    ck_assert_ptr_nonnull(job);
    job->space = world.space;
    job->deadline_ns = clock_deadline_ns(timeout_ms);
    job->abandon_ns = clock_deadline_ns(timeout_ms + LONG_MS);
    for (uint32_t i = 0; i < count; i++) {
        struct tier_block *block = &job->blocks[i];
        block->chain = world_chain(first + i);
        block->tag = first + i;
        if (kind != TIER_STORE && kind != TIER_LOAD)
            continue;
        block->data = calloc(1, size);
        ck_assert_ptr_nonnull(block->data);
        if (kind == TIER_STORE)
            fill(block->data, size, first + i);
    }
    job->owner = &world; // until it is given back
    tier_start(world.tier, job);
    return job;
}

static void check_loaded(const struct tier_job *job)
{
    const uint64_t size = world.space.block_bytes;
    uint8_t *right = malloc(size);
    for (uint32_t i = 0; i < job->num_blocks; i++) {
        const struct tier_block *block = &job->blocks[i];
        fill(right, size, block->tag);
        if (block->reason == STORED_OK)
            ck_assert_msg(memcmp(block->data, right, size) == 0, "block %u has wrong bytes",
                          (unsigned)block->tag);
    }
    free(right);
}

// Waits until the tier gives any job back.
static struct tier_job *await_event(void)
{
    struct tier_event event;
    while (!tier_poll(world.tier, clock_now_ns(), &event)) {
        struct pollfd news = {.fd = tier_fd(world.tier), .events = POLLIN};
        poll(&news, 1, 1000);
    }
    ck_assert_int_eq(event.kind, TIER_DONE); // the backend keeps its deadlines
    return event.job;
}

void world_end(struct tier_job *job)
{
    while (job->owner)
        await_event()->owner = NULL;
    if (job->kind == TIER_LOAD)
        check_loaded(job);
}

struct tier_job *world_run(enum tier_kind kind, uint32_t first, uint32_t count)
{
    struct tier_job *job = world_start(kind, first, count, LONG_MS);
    world_end(job);
    return job;
}

void world_free(struct tier_job *job)
{
    for (uint32_t i = 0; i < job->num_blocks; i++)
        free(job->blocks[i].data);
    tier_job_destroy(job);
}

uint32_t world_count(const struct tier_job *job, enum stored_reason reason)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < job->num_blocks; i++)
        count += job->blocks[i].reason == reason;
    return count;
}

void world_expect(enum tier_kind kind, uint32_t first, uint32_t count, enum stored_reason reason)
{
    struct tier_job *job = world_run(kind, first, count);
    for (uint32_t i = 0; i < count; i++) {
        const struct tier_block *block = &job->blocks[i];
        ck_assert_msg(block->reason == reason, "block %u: %s, not %s", first + i,
                      stored_reason_labels[block->reason], stored_reason_labels[reason]);
        if (kind == TIER_LOOKUP)
            ck_assert_int_eq(block->answer, reason == STORED_OK ? TIER_THERE : TIER_MISS);
    }
    world_free(job);
}

void world_expect_round_trip(void)
{
    world_expect(TIER_LOOKUP, 0, 8, STORED_ABSENT);
    world_expect(TIER_LOAD, 0, 8, STORED_ABSENT);
    world_expect(TIER_STORE, 0, 8, STORED_OK);
    world_expect(TIER_LOOKUP, 0, 8, STORED_OK);
    world_expect(TIER_LOAD, 0, 8, STORED_OK);
    world_expect(TIER_DELETE, 0, 4, STORED_OK);
    world_expect(TIER_DELETE, 0, 4, STORED_ABSENT);
    world_expect(TIER_LOOKUP, 0, 4, STORED_ABSENT);
    world_expect(TIER_LOAD, 0, 4, STORED_ABSENT);
    world_expect(TIER_LOAD, 4, 4, STORED_OK);
}

void world_await(uint32_t block, enum stored_reason reason)
{
    for (bool done = false; !done; usleep(10000)) {
        struct tier_job *job = world_start(TIER_LOOKUP, block, 1, 1000);
        world_end(job);
        done = job->blocks[0].reason == reason;
        world_free(job);
    }
}
