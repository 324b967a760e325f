// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// store.h - what the files of this folder share: the backend with its servers, its table of slots
// and its filter. Servers are only ever added, so a pointer to one stays good.

#ifndef AULE_TIER_REDIS_STORE_H
#define AULE_TIER_REDIS_STORE_H

#include "redis.h"
#include "redis_job.h"
#include "slots.h"
#include "tier/threads.h"
#include "url.h"

#include <pthread.h>

enum {
    MOST_NODES = 64, // servers; uint8_t in the table of slots
    ADDRESS_SIZE = REDIS_HOST_SIZE + 8,
};

struct absent;
struct io_thread;

struct tier_backend {
    // constant
    struct redis_url url;
    struct tls *tls; // owned; NULL: the servers speak plain text
    int64_t stall_ns;
    uint32_t expire_s; // 0 = never
    uint32_t connections;
    uint64_t most_queue_bytes;
    uint32_t most_queue_units;
    struct absent *absent;
    void (*say)(void *context, const char *sentence);
    void *say_context;
    struct io_thread *io_threads[MOST_IO_THREADS];
    uint32_t num_io_threads;
    struct threads threads; // of the I/O threads

    atomic_uint_least64_t queue_bytes, queue_units;
    atomic_uint_least64_t connects;
    atomic_uint num_broken; // servers whose breaker is not closed
    atomic_bool stopping;
    atomic_bool is_cluster;
    atomic_int_least64_t map_asked_ns;
    atomic_bool wants_map; // the cluster's table is out of date

    pthread_mutex_t lock; // guards what follows, the jobs' answers, and the nodes' notes
    struct node *nodes[MOST_NODES];
    atomic_uint num_nodes;    // grows under the lock; any thread may read it
    uint8_t slots[NUM_SLOTS]; // index into `nodes`
};

// Where a block is. Any thread.
struct node *store_node_of(struct tier_backend *redis, const struct stored_chain *chain);
// The server of this address; it is added if it is new. NULL: there are MOST_NODES, or no memory.
struct node *store_node_at(struct tier_backend *redis, const char *host, uint16_t port);
// A cluster says that the slots first..last are at this server.
void store_set_slots(struct tier_backend *redis, uint32_t first, uint32_t last, struct node *node);
void store_say(struct tier_backend *redis, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
