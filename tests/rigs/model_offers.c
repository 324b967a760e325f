// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// model_offers.c - see model_offers.h.

#include "model_offers.h"

#include "base/clock.h"
#include "check_main.h"

#include <string.h>

enum { OFFERS = 64, NAMES = 3, LIFE_NS = 4000000 };

struct model_offer {
    bool used;
    uint64_t id;        // known to its taker
    int giver, taker;   // -1: none
    int64_t expires_ns; // FOREVER: never
    uint32_t name, salt;
    uint32_t num_stored; // blocks
    struct text text;    // what it hands over
};

static struct model_offer offers[OFFERS];
uint64_t num_offers, num_offers_accepted, num_offers_expired, num_offers_returned;

// ---- the model ----

static struct model_block *block_of(const struct model_offer *offer, uint32_t i)
{
    return &model[offer->text.cache][offer->text.blocks[i]];
}

static void part_from_giver(struct model_offer *offer)
{
    for (uint32_t i = 0; i < offer->text.depth; i++) {
        block_of(offer, i)->refs[offer->giver]--;
        block_of(offer, i)->offers--;
    }
    offer->giver = -1;
}

static void end(struct model_offer *offer)
{
    if (offer->giver >= 0)
        part_from_giver(offer);
    offer->used = false;
}

static void return_offer(struct model_offer *offer)
{
    offer->taker = -1;
    num_offers_returned++;
    if (offer->giver < 0)
        end(offer);
}

void model_offers_leave(int w, int cache)
{
    for (struct model_offer *offer = offers; offer < offers + OFFERS; offer++) {
        if (!offer->used || (cache >= 0 && offer->text.cache != cache))
            continue;
        if (offer->taker == w)
            return_offer(offer);
        if (offer->used && offer->giver == w && offer->taker < 0)
            end(offer);
        else if (offer->used && offer->giver == w)
            part_from_giver(offer);
    }
}

void model_offers_expire(void)
{
    for (struct model_offer *offer = offers; offer < offers + OFFERS; offer++) {
        if (!offer->used || offer->taker >= 0 || offer->expires_ns > world.now_ns)
            continue;
        end(offer);
        num_offers_expired++;
    }
}

void model_offers_compare(void)
{
    uint64_t count = 0;
    for (const struct model_offer *offer = offers; offer < offers + OFFERS; offer++)
        count += offer->used;
    const uint64_t *metrics = core_metrics(world.core);
    ck_assert_uint_eq(metrics[METRIC_OFFERS], count);
    ck_assert_uint_eq(metrics[METRIC_OFFERS_EXPIRED], num_offers_expired);
}

static uint32_t count_of(int w, bool given)
{
    uint32_t count = 0;
    for (const struct model_offer *offer = offers; offer < offers + OFFERS; offer++)
        count += offer->used && (given ? offer->giver : offer->taker) == w;
    return count;
}

static struct model_offer *find_named(uint32_t salt, int cache, uint32_t name)
{
    for (struct model_offer *offer = offers; offer < offers + OFFERS; offer++)
        if (offer->used && offer->giver >= 0 && offer->salt == salt && offer->text.cache == cache &&
            offer->name == name)
            return offer;
    return NULL;
}

// ---- make ----

static const char *name_of(uint32_t name)
{
    static const char *const names[NAMES] = {"a", "b", "c"};
    return names[name];
}

static bool is_written(const struct model_block *block)
{
    return block->node || (block->written[0] && block->written[1]);
}

// The blocks that a batch will write which has not run yet.
static bool is_reserved(int cache, int32_t id)
{
    for (int n = 0; n < BATCHES; n++) {
        const struct model_batch *batch = &batches[n];
        bool reserves = batch->used && batch->registered && !batch->ran && batch->cache == cache;
        for (uint32_t k = batch->num_hit; reserves && k < batch->depth; k++)
            if (batch->blocks[k] == id)
                return true;
    }
    return false;
}

static enum status expect_make(int w, const struct model_offer *offer)
{
    const struct text *text = &offer->text;
    if (find_named(offer->salt, text->cache, offer->name))
        return STATUS_INVALID;
    if (count_of(w, true) == MAX_TICKETS)
        return STATUS_LIMIT;
    for (uint32_t i = 0; i < text->depth; i++)
        if (is_reserved(text->cache, text->blocks[i]))
            return STATUS_BUSY;
    for (uint32_t i = 0; i < offer->num_stored; i++)
        if (!is_written(block_of(offer, i)))
            return STATUS_UNWRITTEN;
    return STATUS_OK;
}

static enum status make(int w, const struct model_offer *offer, const uint8_t *keep)
{
    const uint32_t stored = offer->num_stored ? offer->num_stored * 8 - roll(3) : 0;
    const struct core_offer_params params = {
        .cache = cache_ids[offer->text.cache],
        .name = name_of(offer->name),
        .blocks = offer->text.blocks,
        .num_blocks = offer->text.depth,
        .keep = keep,
        .num_stored = stored,
        .num_computed = stored,
        .num_tokens = stored + 1,
        .expires_ns = offer->expires_ns,
    };
    return core_offer_make(workers[w].real.session, &params, NULL);
}

static struct model_offer *free_offer(void)
{
    for (struct model_offer *offer = offers; offer < offers + OFFERS; offer++)
        if (!offer->used)
            return offer;
    ck_abort_msg("the model has no place for an offer");
}

static void give(int w, const struct model_offer *offer, uint32_t num_kept)
{
    for (uint32_t i = 0; i < offer->text.depth; i++) {
        struct model_block *block = block_of(offer, i);
        block->refs[w]++;
        block->holds[w] -= i >= num_kept;
        block->offers++;
        block->writer = 0;
    }
}

// Offers a text. The worker keeps its holds on the first blocks, often on none, as a shorter text.
void do_offer(int w)
{
    struct text *text = some_text(w);
    if (!text)
        return;
    uint32_t written = 0, num_kept = roll(3) ? 0 : roll(text->depth + 1);
    struct model_offer made = {.used = true,
                               .giver = w,
                               .taker = -1,
                               .expires_ns = roll(3) ? world.now_ns + 1 + roll(LIFE_NS) : FOREVER,
                               .name = roll(NAMES),
                               .salt = workers[w].salt,
                               .text = *text};
    while (written < text->depth && is_written(block_of(&made, written)))
        written++;
    made.num_stored = roll(6) ? written : roll(text->depth + 1);
    uint8_t keep[DEPTH];
    for (uint32_t i = 0; i < DEPTH; i++)
        keep[i] = i < num_kept;
    enum status wanted = expect_make(w, &made),
                status = make(w, &made, num_kept || roll(2) ? keep : NULL);
    ck_assert_int_eq((int)status, (int)wanted);
    if (status != STATUS_OK)
        return;
    give(w, &made, num_kept);
    *free_offer() = made;
    text->used = num_kept;
    text->depth = num_kept;
    text->key = prefix_key(text->key, num_kept);
    text->num_hit = text->num_hit < num_kept ? text->num_hit : num_kept;
    num_offers++;
}

// ---- take ----

static enum status expect_take(int w, const struct model_offer *offer)
{
    uint32_t fresh = 0;
    if (!offer)
        return STATUS_NOT_FOUND;
    if (offer->taker >= 0)
        return STATUS_BUSY;
    if (count_of(w, false) == MAX_TICKETS)
        return STATUS_LIMIT;
    for (uint32_t i = 0; i < offer->text.depth; i++) {
        if (block_of(offer, i)->pending && w != offer->giver)
            return STATUS_BUSY;
        fresh += !block_of(offer, i)->holds[w] && !block_of(offer, i)->refs[w];
    }
    for (uint32_t i = 0; w != offer->giver && i < offer->num_stored; i++)
        if (!is_written(block_of(offer, i)))
            return STATUS_UNWRITTEN;
    return distinct(w) + fresh > QUOTA ? STATUS_QUOTA : STATUS_OK;
}

void do_offer_take(int w)
{
    const struct model_worker *worker = &workers[w];
    int cache = worker->open && worker->opened[1] ? (int)roll(CACHES) : 0;
    uint32_t name = roll(NAMES);
    const struct core_offer *view;
    if (!worker->open)
        return;
    struct model_offer *offer = find_named(worker->salt, cache, name);
    enum status wanted = expect_take(w, offer),
                status = core_offer_take(worker->real.session, NULL, cache_ids[cache],
                                         name_of(name), &view, NULL);
    ck_assert_int_eq((int)status, (int)wanted);
    if (status != STATUS_OK)
        return;
    ck_assert_uint_eq(view->num_blocks, offer->text.depth);
    ck_assert_mem_eq(view->blocks, offer->text.blocks,
                     offer->text.depth * sizeof(*offer->text.blocks));
    offer->taker = w;
    offer->id = view->id;
    for (uint32_t i = 0; i < offer->text.depth; i++)
        block_of(offer, i)->holds[w]++;
}

// ---- settle ----

static enum core_access lease(struct model_block *block, int w)
{
    uint32_t holders = 0;
    if (!block->holds[w])
        return CORE_ACCESS_READ;
    for (int other = 0; other < WORKERS; other++)
        holders += block->holds[other] > 0;
    if (!block->sealed && !block->offers && holders == 1 && block->holds[w] == 1)
        block->writer = workers[w].real.id;
    return block->sealed                         ? CORE_ACCESS_SEALED
           : block->writer == workers[w].real.id ? CORE_ACCESS_WRITE
                                                 : CORE_ACCESS_READ;
}

// Accepts. *text becomes the taker's, which writes its end only if it may.
static void accept(int w, struct model_offer *offer, struct text *text)
{
    uint8_t access[DEPTH];
    *text = offer->text;
    ck_assert_status(core_offer_settle(workers[w].real.session, offer->id, true, access, &error),
                     STATUS_OK);
    if (offer->giver >= 0)
        part_from_giver(offer);
    for (uint32_t i = 0; i < text->depth; i++) {
        enum core_access expected = lease(block_of(offer, i), w);
        ck_assert_int_eq((int)access[i], (int)expected);
        if (expected != CORE_ACCESS_WRITE && i >= offer->text.num_hit)
            text->num_hit = text->depth;
    }
    end(offer);
    num_offers_accepted++;
}

// Lets go of the blocks first, or afterwards.
static void give_back(int w, struct model_offer *offer)
{
    const struct text text = offer->text;
    bool first = roll(2);
    if (first)
        release(w, text.cache, text.blocks, text.depth);
    ck_assert_status(core_offer_settle(workers[w].real.session, offer->id, false, NULL, &error),
                     STATUS_OK);
    return_offer(offer);
    if (!first)
        release(w, text.cache, text.blocks, text.depth);
}

static struct model_offer *taken_by(int w)
{
    uint32_t start = roll(OFFERS);
    for (uint32_t i = 0; i < OFFERS; i++) {
        struct model_offer *offer = &offers[(start + i) % OFFERS];
        if (offer->used && offer->taker == w)
            return offer;
    }
    return NULL;
}

void do_offer_settle(int w)
{
    struct model_offer *offer = workers[w].open ? taken_by(w) : NULL;
    struct text *text = offer ? free_text(w) : NULL, none;
    if (!offer)
        return;
    if (!text) {
        give_back(w, offer);
    } else if (roll(6)) {
        accept(w, offer, text);
    } else { // a taker that has let go of the blocks meanwhile
        release(w, offer->text.cache, offer->text.blocks, offer->text.depth);
        accept(w, offer, &none);
    }
}

// ---- where a worker may die ----

static bool any(int w, bool gave, bool took, bool pending)
{
    for (const struct model_offer *offer = offers; offer < offers + OFFERS; offer++) {
        bool is = offer->used && (gave ? offer->giver == w : offer->giver != w) &&
                  (took ? offer->taker >= 0 : offer->taker < 0) &&
                  (gave ? offer->taker != w : offer->taker == w),
             writes = !pending;
        for (uint32_t i = 0; is && i < offer->text.depth; i++)
            writes |= block_of(offer, i)->pending > 0;
        if (is && writes)
            return true;
    }
    return false;
}

bool offer_is_given(int w)
{
    return any(w, true, false, false);
}

bool offer_is_pending(int w)
{
    return any(w, true, false, true);
}

bool offer_gave(int w)
{
    return any(w, true, true, false);
}

bool offer_took(int w)
{
    return any(w, false, true, false);
}
