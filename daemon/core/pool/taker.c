// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// taker.c - takes that wait for an offer: those of one name have a queue, and the oldest one goes
// first. Knows names, but neither offers nor deadlines. Dispatcher thread only.

#include "base/hash.h"
#include "base/list.h"
#include "ledger.h"
#include "offer.h"
#include "session.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct taker_queue {
    UT_hash_handle hh;        // offers->takers, by key
    struct core_taker *first; // the oldest one; a queue without any ends
    struct offer_key key;
};

static struct taker_queue *queue_find(const struct core_session *session, const uint8_t *key,
                                      uint32_t size)
{
    struct taker_queue *queue;
    unsigned hash = ledger_hash(session->ledger, key, size);
    HASH_FIND_BYHASHVALUE(hh, session->offers->takers, key, size, hash, queue);
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
    HASH_ADD_KEYPTR_BYHASHVALUE(hh, session->offers->takers, queue->key.bytes, key->size, hash,
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

enum status core_take_wait(struct core_session *session, struct core_taker *taker, uint64_t cache,
                           const char *name, struct error *error)
{
    struct offer_key key;
    enum status status = key_of(session, cache, name, &key, error);
    if (status != STATUS_OK)
        return status;
    struct taker_queue *queue = queue_find(session, key.bytes, key.size);
    if (!queue)
        queue = queue_create(session, &key);
    if (!queue)
        return error_set(error, STATUS_NO_MEMORY, "no host memory for a take that waits");
    taker->session = session;
    taker->queue = queue;
    LIST_APPEND(queue->first, taker);
    return STATUS_OK;
}

void core_take_wait_end(struct core_taker *taker)
{
    struct taker_queue *queue = taker->queue;
    LIST_DELETE(queue->first, taker);
    ledger_unwake(taker->session->ledger, &taker->waker);
    if (queue->first) { // it may have its turn
        ledger_wake(taker->session->ledger, &queue->first->waker);
        return;
    }
    HASH_DEL(taker->session->offers->takers, queue);
    free(queue);
}

enum status core_take_turn(const struct core_session *session, const struct core_taker *taker,
                           uint64_t cache, const char *name, struct error *error)
{
    struct offer_key key;
    enum status status = key_of(session, cache, name, &key, error);
    if (status != STATUS_OK)
        return status;
    const struct taker_queue *queue = queue_find(session, key.bytes, key.size);
    const struct offer *offer = offer_find(session, &key);
    if (!queue || queue->first == taker || !offer || offer->taker) // then the take fails by itself
        return STATUS_OK;
    return error_set(error, STATUS_BUSY,
                     "session %" PRIu64 " waits for offer \"%.64s\" and goes first",
                     queue->first->session->id, name);
}

void takers_wake(const struct offer *offer)
{
    const struct core_session *giver = offer->giver;
    const struct taker_queue *queue = queue_find(giver, offer->key, offer->key_size);
    if (queue)
        ledger_wake(giver->ledger, &queue->first->waker);
}

void takers_wake_all(const struct offers *offers)
{
    for (const struct taker_queue *queue = offers->takers; queue; queue = queue->hh.next)
        ledger_wake(queue->first->session->ledger, &queue->first->waker);
}
