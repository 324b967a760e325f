// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// taker.c - takes that wait for an offer: those of one name have a queue, and the oldest one goes
// first. Knows names, but neither offers nor deadlines. Dispatcher thread only.

#include "base/hash.h"
#include "base/list.h"
#include "ledger.h"
#include "offer.h"
#include "queue.h"
#include "session.h"

#include <stdlib.h>

struct taker_queue {
    UT_hash_handle hh;       // offers->takers, by key
    struct core_wait *first; // the oldest one; a queue without any ends
    struct offer_key key;
};

static struct taker_queue *queue_find(const struct core_session *session, const uint8_t *key,
                                      uint32_t size)
{
    struct taker_queue *queue;
    unsigned hash = ledger_hash(session->ledger, key, size);
    HASH_FIND_BYHASHVALUE(hh, session->all_offers->takers, key, size, hash, queue);
    return queue;
}

static struct taker_queue *queue_create(const struct core_session *session,
                                        const struct offer_key *key)
{
    struct taker_queue *queue = calloc(1, sizeof *queue);
    if (!queue)
        return NULL;
    queue->key = *key;
    unsigned hash = ledger_hash(session->ledger, key->bytes, key->size);
    HASH_ADD_KEYPTR_BYHASHVALUE(hh, session->all_offers->takers, queue->key.bytes, key->size, hash,
                                queue);
    if (HASH_ADDED(queue))
        return queue;
    free(queue);
    return NULL;
}

static enum status key_of(const struct core_session *session, uint64_t cache, const char *name,
                          struct offer_key *key, struct error *error)
{
    struct hold_table *table;
    enum status status = hold_table_find(session, cache, &table, error);
    return status == STATUS_OK ? offer_key(session, table->cache, name, key, error) : status;
}

enum status core_wait_for_offer(struct core_session *session, struct core_wait *wait,
                                uint64_t cache, const char *name, struct error *error)
{
    struct offer_key key;
    wait->session = NULL;
    enum status status = key_of(session, cache, name, &key, error);
    if (status != STATUS_OK)
        return status;
    struct taker_queue *queue = queue_find(session, key.bytes, key.size);
    if (!queue)
        queue = queue_create(session, &key);
    if (!queue)
        return error_set(error, STATUS_NO_MEMORY, "no host memory for a take that waits");
    session_begin_wait(session, wait, CORE_WAIT_OFFER, cache);
    wait->takers = queue;
    LIST_APPEND_BY(queue->first, wait, beside_prev, beside_next);
    queue_count_wait(session, true);
    return STATUS_OK;
}

void takers_end_wait(struct core_wait *wait)
{
    struct taker_queue *queue = wait->takers;
    LIST_DELETE_BY(queue->first, wait, beside_prev, beside_next);
    queue_count_wait(wait->session, false);
    if (queue->first) { // it may have its turn
        ledger_wake(wait->session->ledger, queue->first);
        return;
    }
    HASH_DEL(wait->session->all_offers->takers, queue);
    free(queue);
}

const struct core_wait *takers_first(const struct core_session *session,
                                     const struct offer_key *key)
{
    const struct taker_queue *queue = queue_find(session, key->bytes, key->size);
    return queue ? queue->first : NULL;
}

void takers_wake(const struct offer *offer)
{
    const struct core_session *giver = offer->giver;
    const struct taker_queue *queue = queue_find(giver, offer->key, offer->key_size);
    if (queue)
        ledger_wake(giver->ledger, queue->first);
}

void takers_wake_all(const struct offers *offers)
{
    for (const struct taker_queue *queue = offers->takers; queue; queue = queue->hh.next)
        ledger_wake(queue->first->session->ledger, queue->first);
}
