// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// offer.c - see offer.h. Make and take check and reserve everything first; what follows cannot
// fail, and neither can anything that a death sets off.

#include "offer.h"

#include "attached.h"
#include "base/clock.h"
#include "base/container_of.h"
#include "base/list.h"
#include "hold.h"
#include "ledger.h"
#include "salt.h"
#include "session.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

bool offer_names(const struct offer *offer, int32_t block)
{
    for (uint32_t i = 0; offer->table && i < offer->view.num_blocks; i++)
        if (offer->view.blocks[i] == block)
            return true;
    return false;
}

// ---- by name ----

enum status offer_key(const struct core_session *session, const struct cache *cache,
                      const char *name, struct offer_key *key, struct error *error)
{
    const uint64_t ids[] = {session->salt->id, cache->id};
    size_t length = name ? strlen(name) : 0;
    if (length == 0 || length > WIRE_MAX_NAME)
        return error_set(error, STATUS_INVALID, "an offer's name of %zu bytes; it needs 1 to %u",
                         length, WIRE_MAX_NAME);
    memcpy(key->bytes, ids, sizeof ids);
    memcpy(key->bytes + sizeof ids, name, length);
    key->size = (uint32_t)(sizeof ids + length);
    return STATUS_OK;
}

static unsigned key_hash(const struct core_session *session, const void *key, uint32_t size)
{
    return ledger_hash(session->ledger, key, size);
}

struct offer *offer_find(const struct core_session *session, const struct offer_key *key)
{
    struct offer *offer;
    HASH_FIND_BYHASHVALUE(hh, session->all_offers->by_name, key->bytes, key->size,
                          key_hash(session, key->bytes, key->size), offer);
    return offer;
}

// ---- the end of an offer ----

static void wait_for_taker(struct offer *offer)
{
    if (offer->expires_ns != FOREVER)
        heap_add(&offer->giver->all_offers->expiring, &offer->expiry, (uint64_t)offer->expires_ns);
    offer->giver->ledger->news = true;
    takers_wake(offer);
}

static void await(struct offer *offer, const struct block *block)
{
    if (!offer->awaited)
        LIST_APPEND_BY(offer->giver->all_offers->unwritten, offer, unwritten_prev, unwritten_next);
    offer->awaited = block;
}

static void await_no_more(struct offers *offers, struct offer *offer)
{
    if (offer->awaited)
        LIST_DELETE_BY(offers->unwritten, offer, unwritten_prev, unwritten_next);
    offer->awaited = NULL;
}

void offers_written(struct offers *offers, const struct block *block)
{
    struct offer *offer, *next;
    LIST_EACH_SAFE_BY(offers->unwritten, offer, next, unwritten_next) {
        if (offer->awaited != block)
            continue;
        await_no_more(offers, offer);
        takers_wake(offer);
    }
}

static void part_from_taker(struct offer *offer)
{
    LIST_DELETE_BY(offer->taker->offers.taken, offer, taken_prev, taken_next);
    offer->taker->offers.num_taken--;
    session_discharge(offer->taker, offer->bytes);
    offer->taker = NULL;
}

// The giver names the blocks no more, and the name is free.
static void part_from_giver(struct offer *offer)
{
    struct core_session *giver = offer->giver;
    struct hold_table *table = offer->table;
    HASH_DEL(giver->all_offers->by_name, offer);
    heap_remove(&giver->all_offers->expiring, &offer->expiry);
    await_no_more(giver->all_offers, offer);
    LIST_DELETE_BY(giver->offers.given, offer, given_prev, given_next);
    giver->offers.num_given--;
    session_discharge(giver, offer->bytes);
    offer->giver = NULL;
    offer->table = NULL;
    for (uint32_t i = 0; i < offer->view.num_blocks; i++)
        block_find(table->cache, offer->view.blocks[i])->offers--;
    hold_unref_all(table, offer->view.blocks, offer->view.num_blocks);
    hold_table_unuse(table);
    giver->ledger->news = true;
}

// Ends the offer, which cannot be taken any more. Its blocks that no session has become free or
// cached.
static void end(struct offers *offers, struct offer *offer)
{
    if (offer->taker)
        part_from_taker(offer);
    if (offer->giver)
        part_from_giver(offer);
    offers->num--;
    free(offer);
}

void offers_leave(struct core_session *session, const struct cache *cache)
{
    struct offer *offer, *next;
    for (offer = session->offers.taken; offer; offer = next) {
        next = offer->taken_next;
        if (cache && offer->cache != cache)
            continue;
        part_from_taker(offer);
        if (offer->giver)
            wait_for_taker(offer);
        else
            end(session->all_offers, offer);
    }
    for (offer = session->offers.given; offer; offer = next) {
        next = offer->given_next;
        if (cache && offer->cache != cache)
            continue;
        if (offer->taker)
            part_from_giver(offer);
        else
            end(session->all_offers, offer);
    }
}

void offers_expire(struct offers *offers, int64_t now_ns)
{
    while (offers_wake_ns(offers) <= now_ns) {
        struct offer *offer = container_of(heap_first(&offers->expiring), struct offer, expiry);
        offer->giver->ledger->metrics[METRIC_OFFERS_EXPIRED]++;
        end(offers, offer);
    }
}

int64_t offers_wake_ns(const struct offers *offers)
{
    const struct heap_node *first = heap_first(&offers->expiring);
    return first ? (int64_t)first->key : FOREVER;
}

void offers_finish(struct offers *offers)
{
    heap_finish(&offers->expiring);
}

// ---- make ----

// True: accepted runs write slots [0, count) of the block in every layer. While a block is in the
// prefix index, none of its writes has failed.
static bool is_written(const struct cache *cache, const struct block *block, uint32_t count)
{
    const uint8_t rest = (uint8_t)((1u << count % 8) - 1);
    for (uint32_t layer = 0; !block->node && layer < cache->identity.num_layers; layer++) {
        const uint8_t *bits = block_written(cache, block, layer);
        for (uint32_t i = 0; i < count / 8; i++)
            if (bits[i] != UINT8_MAX)
                return false;
        if (rest && (bits[count / 8] & rest) != rest)
            return false;
    }
    return true;
}

static enum status check_written(const struct cache *cache, const int32_t *blocks,
                                 uint32_t num_stored, struct error *error)
{
    uint32_t block_size = cache->identity.kv.block_size;
    for (uint32_t i = 0, left = num_stored; left; i++) {
        const struct block *block = block_find(cache, blocks[i]);
        uint32_t count = left < block_size ? left : block_size;
        if (!is_written(cache, block, count))
            return error_set(error, STATUS_UNWRITTEN,
                             "no run writes each of the first %" PRIu32 " slots of blocks[%" PRIu32
                             "] = %" PRId32 " in every layer",
                             count, i, block->id);
        left -= count;
    }
    return STATUS_OK;
}

static enum status check_numbers(const struct cache *cache, const struct core_offer_params *p,
                                 struct error *error)
{
    uint64_t room = (uint64_t)p->num_blocks * cache->identity.kv.block_size;
    if (p->num_stored > room)
        return error_set(error, STATUS_INVALID,
                         "num_stored %" PRIu32 ", but %" PRIu32 " blocks hold %" PRIu64 " tokens",
                         p->num_stored, p->num_blocks, room);
    if (p->num_computed > p->num_stored || p->num_stored > p->num_tokens ||
        p->num_known > p->num_tokens || p->num_tokens > INT32_MAX)
        return error_set(error, STATUS_INVALID,
                         "num_computed %" PRIu32 ", num_stored %" PRIu32 ", num_tokens %" PRIu32
                         ", %" PRIu32 " token ids; the first three may not fall, ids may not be "
                         "more than tokens, and these at most %d",
                         p->num_computed, p->num_stored, p->num_tokens, p->num_known, INT32_MAX);
    return STATUS_OK;
}

// True: a live batch that has not run yet is to write slots of the block.
static bool is_reserved(const struct cache *cache, const struct block *block)
{
    const uint8_t *bits = block_reserved(cache, block);
    for (uint32_t i = 0; i < cache->layer_bytes; i++)
        if (bits[i])
            return true;
    return false;
}

static enum status check_blocks(const struct hold_table *table, const struct core_offer_params *p,
                                struct error *error)
{
    uint64_t stamp = ++table->session->ledger->last_stamp;
    for (uint32_t i = 0; i < p->num_blocks; i++) {
        struct block *block;
        hold_fetch_ahead(table, p->blocks, i, p->num_blocks);
        enum status status = hold_check(table, i, p->blocks[i], &block, error);
        if (status != STATUS_OK)
            return status;
        if (block->stamp == stamp)
            return error_set(error, STATUS_INVALID,
                             "blocks[%" PRIu32 "] = %" PRId32 " occurs twice", i, block->id);
        block->stamp = stamp;
        if (is_reserved(table->cache, block))
            return error_set(error, STATUS_BUSY,
                             "blocks[%" PRIu32 "] = %" PRId32
                             " is written by a batch that has not run yet; run or destroy it",
                             i, block->id);
    }
    return check_written(table->cache, p->blocks, p->num_stored, error);
}

static uint64_t bytes_for(const struct core_offer_params *p, const struct offer_key *key)
{
    return sizeof(struct offer) + ((uint64_t)p->num_blocks + p->num_known) * sizeof(int32_t) +
           p->extra_key_size + key->size;
}

static void *append(uint8_t **at, const void *from, size_t size)
{
    uint8_t *to = *at;
    if (size)
        memcpy(to, from, size);
    *at = to + size;
    return to;
}

static struct offer *offer_create(const struct core_offer_params *p, const struct offer_key *key)
{
    struct offer *offer = calloc(1, bytes_for(p, key));
    if (!offer)
        return NULL;
    uint8_t *at = (uint8_t *)offer->memory;
    const int32_t *blocks = append(&at, p->blocks, p->num_blocks * sizeof *p->blocks);
    const int32_t *tokens = append(&at, p->tokens, p->num_known * sizeof *p->tokens);
    const uint8_t *extra_key = append(&at, p->extra_key, p->extra_key_size);
    offer->view = (struct core_offer){
        .blocks = blocks,
        .tokens = tokens,
        .extra_key = extra_key,
        .num_blocks = p->num_blocks,
        .num_known = p->num_known,
        .extra_key_size = p->extra_key_size,
        .num_stored = p->num_stored,
        .num_computed = p->num_computed,
        .num_tokens = p->num_tokens,
        .publish = p->publish,
    };
    offer->key = append(&at, key->bytes, key->size);
    offer->key_size = key->size;
    offer->bytes = bytes_for(p, key);
    offer->expires_ns = p->expires_ns;
    return offer;
}

static enum status check_offer(const struct hold_table *table, const struct core_offer_params *p,
                               const struct offer_key *key, struct error *error)
{
    const struct core_session *session = table->session;
    uint32_t most = session->ledger->params->max_tickets;
    if (offer_find(session, key))
        return error_set(error, STATUS_INVALID,
                         "cache \"%.64s\" has an offer named \"%.64s\" already", table->cache->name,
                         p->name);
    if (session->offers.num_given >= most)
        return error_set(error, STATUS_LIMIT,
                         "the session has made %" PRIu32
                         " offers that have not ended, which is the most (--max-tickets)",
                         most);
    enum status status = session_check_batch_memory(session, bytes_for(p, key), "an offer", error);
    if (status == STATUS_OK)
        status = check_numbers(table->cache, p, error);
    return status == STATUS_OK ? check_blocks(table, p, error) : status;
}

// Enters the offer into the index and reserves its place in the heap. NO_MEMORY.
static enum status enlist(struct core_session *session, struct offer *offer, struct error *error)
{
    struct offers *offers = session->all_offers;
    bool room = heap_reserve(&offers->expiring, (size_t)offers->num + 1);
    if (room) {
        unsigned hash = key_hash(session, offer->key, offer->key_size);
        HASH_ADD_KEYPTR_BYHASHVALUE(hh, offers->by_name, offer->key, offer->key_size, hash, offer);
    }
    return room && HASH_ADDED(offer)
               ? STATUS_OK
               : error_set(error, STATUS_NO_MEMORY, "no host memory for an offer");
}

// Cannot fail. The giver's hold becomes a reference of the offer, unless the giver keeps the hold.
static void give(struct hold_table *table, struct offer *offer, const uint8_t *keep)
{
    for (uint32_t i = 0; i < offer->view.num_blocks; i++) {
        struct block *block = block_find(table->cache, offer->view.blocks[i]);
        hold_ref(table, block->id);
        if (!keep || !keep[i])
            hold_drop(table, block);
        block->offers++;
        block->writer = 0;
    }
    table->num_users++;
    table->cache->seals++; // batches that write these blocks may do so no more
}

static void make(struct hold_table *table, struct offer *offer, const uint8_t *keep)
{
    struct core_session *session = table->session;
    offer->giver = session;
    offer->cache = table->cache;
    offer->table = table;
    offer->view.id = ++session->ledger->last_id;
    give(table, offer, keep);
    LIST_APPEND_BY(session->offers.given, offer, given_prev, given_next);
    session->offers.num_given++;
    session_charge(session, offer->bytes);
    session->all_offers->num++;
    session->ledger->metrics[METRIC_OFFERS_MADE]++;
    wait_for_taker(offer);
}

enum status core_offer_make(struct core_session *session, const struct core_offer_params *params,
                            struct error *error)
{
    struct hold_table *table;
    struct offer_key key;
    enum status status = session_usable(session, error);
    if (status == STATUS_OK)
        status = hold_table_find(session, params->cache, &table, error);
    if (status == STATUS_OK)
        status = offer_key(session, table->cache, params->name, &key, error);
    if (status == STATUS_OK)
        status = check_offer(table, params, &key, error);
    if (status != STATUS_OK)
        return status;
    struct offer *offer = offer_create(params, &key);
    if (!offer)
        return error_set(error, STATUS_NO_MEMORY, "no host memory for an offer");
    status = enlist(session, offer, error);
    if (status == STATUS_OK)
        make(table, offer, params->keep);
    else
        free(offer);
    return status;
}

// ---- take ----

// The giver's own writes come before its own later runs, so it need not wait for them.
static enum status check_writes(struct offer *offer, const struct core_session *taker,
                                const char *name, struct error *error)
{
    if (taker == offer->giver)
        return STATUS_OK;
    for (uint32_t i = 0; i < offer->view.num_blocks; i++) {
        const struct block *block = block_find(offer->cache, offer->view.blocks[i]);
        if (!block->pending)
            continue;
        await(offer, block);
        return error_set(error, STATUS_BUSY,
                         "offer \"%.64s\": writes of its block %" PRId32 " have not ended", name,
                         block->id);
    }
    return check_written(offer->cache, offer->view.blocks, offer->view.num_stored, error);
}

// `first`: a take that waits and goes first; NULL: none does.
static enum status check_turn(const struct offer *offer, const struct hold_table *table,
                              const char *name, const struct core_wait *first, struct error *error)
{
    if (!offer)
        return error_set(error, STATUS_NOT_FOUND, "cache \"%.64s\" has no offer named \"%.64s\"",
                         table->cache->name, name);
    if (offer->taker)
        return error_set(error, STATUS_BUSY, "session %" PRIu64 " has taken offer \"%.64s\"",
                         offer->taker->id, name);
    if (first)
        return error_set(error, STATUS_BUSY,
                         "session %" PRIu64 " waits for offer \"%.64s\" and goes first",
                         first->session->id, name);
    return STATUS_OK;
}

static enum status check_take(struct offer *offer, struct hold_table *table, const char *name,
                              struct error *error)
{
    const struct core_session *session = table->session;
    struct hold_more fresh = {0};
    uint32_t most = session->ledger->params->max_tickets;
    if (session->offers.num_taken >= most)
        return error_set(error, STATUS_LIMIT,
                         "the session has taken %" PRIu32
                         " offers and not accepted them, which is the most (--max-tickets)",
                         most);
    enum status status = session_check_batch_memory(session, offer->bytes, "an offer", error);
    if (status == STATUS_OK)
        status = check_writes(offer, session, name, error);
    for (uint32_t i = 0; status == STATUS_OK && i < offer->view.num_blocks; i++)
        status =
            hold_prepare(table, block_find(offer->cache, offer->view.blocks[i]), &fresh, error);
    return status == STATUS_OK ? hold_check_quota(session, fresh, error) : status;
}

enum status core_offer_take(struct core_session *session, const struct core_wait *wait,
                            uint64_t cache, const char *name, const struct core_offer **out,
                            struct error *error)
{
    struct hold_table *table;
    struct offer_key key;
    enum status status = session_usable(session, error);
    if (status == STATUS_OK)
        status = hold_table_find(session, cache, &table, error);
    if (status == STATUS_OK)
        status = offer_key(session, table->cache, name, &key, error);
    if (status != STATUS_OK)
        return status;
    struct offer *offer = offer_find(session, &key);
    const struct core_wait *first = takers_first(session, &key);
    status = check_turn(offer, table, name, first == wait ? NULL : first, error);
    if (status == STATUS_OK)
        status = check_take(offer, table, name, error);
    if (status == STATUS_OK)
        status = attached_check_zeroes(table, offer->view.blocks, offer->view.num_blocks, error);
    if (status != STATUS_OK)
        return status;
    for (uint32_t i = 0; i < offer->view.num_blocks; i++)
        hold_take(table, block_find(table->cache, offer->view.blocks[i]));
    heap_remove(&session->all_offers->expiring, &offer->expiry);
    offer->taker = session;
    LIST_APPEND_BY(session->offers.taken, offer, taken_prev, taken_next);
    session->offers.num_taken++;
    session_charge(session, offer->bytes);
    session->ledger->metrics[METRIC_OFFERS_TAKEN]++;
    *out = &offer->view;
    return STATUS_OK;
}

enum status core_offer_find(const struct core_session *session, uint64_t id,
                            const struct core_offer **out, struct error *error)
{
    for (const struct offer *offer = session->offers.taken; offer; offer = offer->taken_next) {
        if (offer->view.id == id) {
            *out = &offer->view;
            return STATUS_OK;
        }
    }
    return error_set(error, STATUS_NOT_FOUND,
                     "session %" PRIu64 " has no offer %" PRIu64 " that it has taken", session->id,
                     id);
}

// ---- accept, or give back ----

static enum core_access access_of(const struct block *block, const struct core_session *session)
{
    if (block->sealed)
        return CORE_ACCESS_SEALED;
    return block->writer == session->id ? CORE_ACCESS_WRITE : CORE_ACCESS_READ;
}

enum core_access core_offer_access(const struct core_session *session,
                                   const struct core_offer *view, uint32_t index)
{
    const struct offer *offer = container_of(view, const struct offer, view);
    return access_of(block_find(offer->cache, view->blocks[index]), session);
}

// The giver names the block no more. A block that the taker has let go of meanwhile may be free.
static enum core_access lease(const struct hold_table *table, int32_t id)
{
    struct block *block = block_find(table->cache, id);
    if (!hold_has(table, id))
        return CORE_ACCESS_READ;
    if (!block->sealed && !block->offers && block->holders == 1 && hold_find(table, id).holds == 1)
        block->writer = table->session->id;
    return access_of(block, table->session);
}

static void accept(struct offer *offer, const struct hold_table *table, uint8_t *access)
{
    if (offer->giver)
        part_from_giver(offer);
    for (uint32_t i = 0; i < offer->view.num_blocks; i++)
        access[i] = (uint8_t)lease(table, offer->view.blocks[i]);
    table->session->ledger->metrics[METRIC_OFFERS_ACCEPTED]++;
}

enum status core_offer_settle(struct core_session *session, uint64_t id, bool accepted,
                              uint8_t *access, struct error *error)
{
    const struct core_offer *view = NULL;
    struct hold_table *table;
    enum status status = core_offer_find(session, id, &view, error);
    if (status != STATUS_OK)
        return status;
    struct offer *offer = container_of(view, struct offer, view);
    status = hold_table_find(session, offer->cache->id, &table, error);
    if (status != STATUS_OK)
        return status;
    if (accepted)
        accept(offer, table, access);
    if (accepted || !offer->giver) {
        end(session->all_offers, offer);
    } else {
        part_from_taker(offer);
        wait_for_taker(offer);
    }
    return STATUS_OK;
}
