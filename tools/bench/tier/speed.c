// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// speed.c - aule-tier-speed [SECONDS]: how fast the redis tier stores and loads blocks over
// loopback, with one redis-server and with four, in one run; and what a look-up costs that the
// filter answers. It starts the servers itself, and checks all bytes that it loads. Not installed.

#include "base/clock.h"
#include "server.h"
#include "tier/host.h"
#include "tier/redis/redis.h"
#include "tools/bench/quantile.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_SERVERS = 4,
    PART_BYTES = RECORD_PART_BYTES,
    BLOCK_PARTS = 4,
    BLOCK_BYTES = BLOCK_PARTS * PART_BYTES,
    NUM_BLOCKS = 48,
    JOB_BLOCKS = 8, // of one job; two jobs are under way
    JOB_MS = 60000,
    NUM_PROBES = 1 << 18,
    BLOCK_TOKENS = 32,
    HOST_BYTES = 1 << 20,
};

struct bench {
    struct server servers[MOST_SERVERS];
    int num_servers;
    struct tier *tier;
    struct record_space space;
    uint8_t *data[2]; // [NUM_BLOCKS * BLOCK_BYTES]: what is stored, and what is loaded
    bool wrong;
};

// ---- servers ----

static void stop_servers(struct bench *b)
{
    for (int i = 0; i < b->num_servers; i++)
        server_stop(&b->servers[i]);
    b->num_servers = 0;
}

// ---- jobs ----

static struct record_chain chain_of(uint32_t block)
{
    const struct record_chain begin = record_chain_begin(NULL, 0);
    const int32_t token = (int32_t)block;
    return record_chain_next(&begin, &token, 1);
}

static void start(struct bench *b, enum tier_kind kind, uint32_t first, uint32_t count)
{
    struct tier_job *job = tier_job_create(kind, count);
    if (!job)
        exit(1);
    job->space = b->space;
    job->deadline_ns = clock_deadline_ns(JOB_MS);
    job->abandon_ns = clock_deadline_ns(2 * JOB_MS);
    for (uint32_t i = 0; i < count; i++) {
        job->blocks[i].chain = chain_of(first + i);
        job->blocks[i].data = b->data[kind == TIER_LOAD] + (size_t)(first + i) * BLOCK_BYTES;
    }
    tier_start(b->tier, job);
}

// Waits for one job's end. False: a block of it is not `wanted`.
static bool end_one(struct bench *b, enum record_reason wanted)
{
    struct tier_event event;
    bool right = true;
    while (!tier_poll(b->tier, clock_now_ns(), &event)) {
        struct pollfd news = {.fd = tier_fd(b->tier), .events = POLLIN};
        poll(&news, 1, 1000);
    }
    for (uint32_t i = 0; i < event.job->num_blocks; i++)
        if (event.job->blocks[i].reason != wanted) {
            if (right)
                fprintf(stderr, "a block ended with %s\n",
                        record_reason_labels[event.job->blocks[i].reason]);
            right = false;
        }
    tier_job_destroy(event.job);
    return right;
}

// Moves all blocks once. Returns GB/s; 0: failed.
static double move_all(struct bench *b, enum tier_kind kind)
{
    const int64_t began_ns = clock_now_ns();
    bool right = true;
    for (uint32_t first = 0; first < NUM_BLOCKS; first += JOB_BLOCKS) {
        start(b, kind, first, JOB_BLOCKS);
        if (first > 0)
            right = end_one(b, RECORD_OK) && right;
    }
    right = end_one(b, RECORD_OK) && right;
    const double bytes = (double)NUM_BLOCKS * BLOCK_BYTES;
    return right ? bytes / (double)(clock_now_ns() - began_ns) : 0;
}

// ---- rates ----

struct rates {
    double list[1024]; // GB/s
    uint32_t count;
    double own_s, servers_s; // of processor time
};

static double process_s(pid_t pid)
{
    clockid_t clock;
    struct timespec time = {0};
    if (clock_getcpuclockid(pid, &clock) == 0)
        clock_gettime(clock, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static double servers_s(const struct bench *b)
{
    double sum = 0;
    for (int i = 0; i < b->num_servers; i++)
        sum += process_s(b->servers[i].pid);
    return sum;
}

static void add_round(struct bench *b, enum tier_kind kind, struct rates *rates)
{
    const double own = process_s(0), servers = servers_s(b);
    rates->list[rates->count] = move_all(b, kind);
    b->wrong = b->wrong || rates->list[rates->count] == 0;
    rates->count++;
    rates->own_s += process_s(0) - own;
    rates->servers_s += servers_s(b) - servers;
}

// On a busy machine only the figures by processor time say what a free core would do.
static void say(const struct bench *b, const char *what, struct rates *rates)
{
    const double gb = (double)NUM_BLOCKS * BLOCK_BYTES * rates->count / 1e9;
    const double median = quantile_median(rates->list, rates->count);
    printf("%d server%s %-5s  median %5.2f GB/s  best %5.2f GB/s  by processor time: servers %5.2f "
           "GB/s, client %5.2f GB/s  (%u times %d MiB, parts of 1 MiB)\n",
           b->num_servers, b->num_servers == 1 ? " " : "s", what, median,
           rates->list[rates->count - 1], gb / rates->servers_s, gb / rates->own_s, rates->count,
           NUM_BLOCKS * BLOCK_PARTS);
}

static void measure_moves(struct bench *b, double seconds)
{
    struct rates stores = {0}, loads = {0};
    const size_t size = (size_t)NUM_BLOCKS * BLOCK_BYTES;
    move_all(b, TIER_STORE); // pages and connections are new
    move_all(b, TIER_LOAD);
    const int64_t end_ns = clock_now_ns() + (int64_t)(seconds * (double)NS_PER_S);
    do {
        memset(b->data[1], 0, size);
        add_round(b, TIER_STORE, &stores);
        add_round(b, TIER_LOAD, &loads);
        b->wrong = b->wrong || memcmp(b->data[0], b->data[1], size) != 0;
    } while (stores.count < 1024 && clock_now_ns() < end_ns && !b->wrong);
    say(b, "store", &stores);
    say(b, "load", &loads);
}

static double own_s(void)
{
    struct timespec time;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

// What a look-up in core costs for each block that no tier has: it names the block, and asks host
// memory and the filter.
static void measure_lookup(struct bench *b, struct tier *host)
{
    static const int32_t tokens[BLOCK_TOKENS] = {1, 2, 3};
    static struct record_chain absent[256];
    uint32_t known = 0;
    for (uint32_t i = 0; i < 256; i++)
        absent[i] = chain_of(100000 + i);
    struct record_chain chain = record_chain_begin(NULL, 0);
    const double began_s = own_s();
    for (uint32_t i = 0; i < NUM_PROBES; i++) {
        chain = record_chain_next(&chain, tokens, BLOCK_TOKENS);
        known += tier_probe(host, &b->space, &chain) == TIER_MISS &&
                 tier_probe(b->tier, &b->space, &absent[i % 256]) == TIER_MISS;
    }
    printf(
        "%d server%s, look-up of an absent block without a round trip: %.0f ns of processor time "
        "(%u of %d known)\n",
        b->num_servers, b->num_servers == 1 ? " " : "s", (own_s() - began_s) * 1e9 / NUM_PROBES,
        known, NUM_PROBES);
}

static bool measure_with_host(struct bench *b)
{
    struct tier_backend *backend;
    struct tier *host = NULL;
    struct error error;
    void *memory = aligned_alloc(4096, HOST_BYTES);
    const struct host_params params = {.base = memory, .size = HOST_BYTES};
    const bool opened = memory && host_open(&params, &backend, &error) == STATUS_OK &&
                        tier_create(&host_ops, backend, &host, &error) == STATUS_OK;
    if (opened)
        measure_lookup(b, host);
    tier_close(host, FOREVER);
    free(memory);
    return opened;
}

// A server is asked once, then the filter answers.
static void measure_probes(struct bench *b)
{
    start(b, TIER_LOOKUP, 100000, 256);
    b->wrong = !end_one(b, RECORD_ABSENT) || !measure_with_host(b) || b->wrong;
    const int64_t asked_ns = clock_now_ns();
    start(b, TIER_LOOKUP, 200000, 64);
    b->wrong = !end_one(b, RECORD_ABSENT) || b->wrong;
    printf("%d server%s, look-up of 64 blocks by round trip: %.0f us\n", b->num_servers,
           b->num_servers == 1 ? " " : "s", (double)(clock_now_ns() - asked_ns) / 1000);
}

static bool open_tier(struct bench *b, int num_servers)
{
    char url[128] = "redis://";
    struct tier_backend *backend;
    struct error error;
    for (; b->num_servers < num_servers; b->num_servers++) {
        struct server *server = &b->servers[b->num_servers];
        if (!server_start(server, "4gb"))
            return false;
        snprintf(url + strlen(url), sizeof url - strlen(url), "%s127.0.0.1:%d",
                 b->num_servers ? "," : "", server->port);
    }
    const struct redis_params params = {
        .url = url, .stall_ms = 10000, .absent_ms = 60000, .queue_bytes = UINT64_C(1) << 30};
    if (redis_create(&params, &backend, &error) == STATUS_OK &&
        tier_create(&redis_ops, backend, &b->tier, &error) == STATUS_OK)
        return true;
    fprintf(stderr, "%s\n", error.text);
    return false;
}

int main(int argc, char **argv)
{
    static const int counts[] = {1, 4};
    const double seconds = argc > 1 ? strtod(argv[1], NULL) : 5;
    struct bench b = {.space = {.block_bytes = BLOCK_BYTES}};
    for (int i = 0; i < 2; i++) {
        b.data[i] = malloc((size_t)NUM_BLOCKS * BLOCK_BYTES);
        if (!b.data[i])
            return 1;
    }
    for (size_t i = 0; i < (size_t)NUM_BLOCKS * BLOCK_BYTES; i++)
        b.data[0][i] = (uint8_t)(i * 2654435761u >> 13);
    memset(b.data[1], 0, (size_t)NUM_BLOCKS * BLOCK_BYTES);
    for (int i = 0; i < 2 && !b.wrong; i++) {
        if (open_tier(&b, counts[i])) {
            measure_moves(&b, seconds);
            measure_probes(&b);
        } else {
            b.wrong = true;
        }
        tier_close(b.tier, FOREVER);
        b.tier = NULL;
        stop_servers(&b);
    }
    free(b.data[0]);
    free(b.data[1]);
    return b.wrong;
}
