// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// store.c - see store.h.

#include "store.h"

#include "io_thread.h"
#include "node.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

struct node *store_node_of(struct tier_backend *redis, const struct stored_chain *chain)
{
    const uint16_t slot = slot_of(chain);
    pthread_mutex_lock(&redis->lock);
    struct node *node = redis->nodes[redis->slots[slot]];
    pthread_mutex_unlock(&redis->lock);
    return node;
}

static struct node *find(struct tier_backend *redis, const char *host, uint16_t port)
{
    for (uint32_t i = 0; i < redis->num_nodes; i++)
        if (redis->nodes[i]->port == port && strcmp(redis->nodes[i]->host, host) == 0)
            return redis->nodes[i];
    return NULL;
}

static struct node *add(struct tier_backend *redis, const char *host, uint16_t port)
{
    const uint32_t index = redis->num_nodes;
    if (index == MOST_NODES)
        return NULL;
    struct io_thread *io = redis->io_threads[index % redis->num_io_threads];
    struct node *node = node_create(redis, io, (uint8_t)index, host, port);
    if (!node)
        return NULL;
    redis->nodes[index] = node;
    atomic_store(&redis->num_nodes, index + 1); // behind the node, for readers without the lock
    return node;
}

struct node *store_node_at(struct tier_backend *redis, const char *host, uint16_t port)
{
    pthread_mutex_lock(&redis->lock);
    struct node *node = find(redis, host, port);
    const bool is_new = !node;
    if (is_new)
        node = add(redis, host, port);
    pthread_mutex_unlock(&redis->lock);
    if (is_new && node)
        io_thread_give(node->io, NULL); // it connects
    return node;
}

void store_set_slots(struct tier_backend *redis, uint32_t first, uint32_t last, struct node *node)
{
    pthread_mutex_lock(&redis->lock);
    memset(redis->slots + first, node->index, last - first + 1);
    pthread_mutex_unlock(&redis->lock);
}

void store_say(struct tier_backend *redis, const char *format, ...)
{
    char text[512];
    va_list list;
    if (!redis->say)
        return;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    redis->say(redis->say_context, text);
}
