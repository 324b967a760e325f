// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// model_claims.c - see model_claims.h. A claim has a place for each block of its chain. The queue
// of a block is all places of the same chain that are `queued`, by the ids of their claims.

#include "model_claims.h"

#include "check_main.h"

#include <string.h>

enum { CLAIMS = 64 };

struct model_claim {
    bool used;
    uint64_t id;
    int worker, cache;
    uint32_t key, depth, found;
    bool queued[DEPTH], published[DEPTH];
};

static struct model_claim claims[CLAIMS];
uint64_t num_claims, num_promises;

// ---- the model ----

static uint32_t key_at(const struct model_claim *claim, uint32_t i)
{
    return prefix_key(claim->key, i + 1);
}

// The place of this chain in a claim; -1: it has none that is queued.
static int place_of(const struct model_claim *claim, int cache, uint32_t key)
{
    for (uint32_t i = 0; claim->used && claim->cache == cache && i < claim->depth; i++)
        if (key_at(claim, i) == key)
            return claim->queued[i] ? (int)i : -1;
    return -1;
}

// The oldest claim in the queue of `key`; w >= 0: of this worker, and without having published it.
static struct model_claim *first_in_queue(int cache, uint32_t key, int w)
{
    struct model_claim *first = NULL;
    for (struct model_claim *claim = claims; claim < claims + CLAIMS; claim++) {
        int place = place_of(claim, cache, key);
        if (place < 0 || (w >= 0 && (claim->worker != w || claim->published[place])))
            continue;
        if (!first || claim->id < first->id)
            first = claim;
    }
    return first;
}

static void end_if_over(struct model_claim *claim)
{
    for (uint32_t i = 0; i < claim->depth; i++)
        if (claim->queued[i])
            return;
    claim->used = false;
}

static void dequeue(struct model_claim *claim, uint32_t i)
{
    claim->queued[i] = claim->published[i] = false;
}

void claims_part(int cache, uint32_t key)
{
    for (struct model_claim *claim = claims; claim < claims + CLAIMS; claim++) {
        int place = place_of(claim, cache, key);
        if (place >= 0)
            claim->published[place] = false;
    }
}

void claims_visible(int cache, uint32_t key)
{
    for (struct model_claim *claim = claims; claim < claims + CLAIMS; claim++) {
        int place = place_of(claim, cache, key);
        if (place < 0 || !claim->published[place])
            continue;
        dequeue(claim, (uint32_t)place);
        end_if_over(claim);
    }
}

void claims_publish(int w, int cache, uint32_t key)
{
    struct model_claim *own = first_in_queue(cache, key, w);
    if (own)
        own->published[place_of(own, cache, key)] = true;
    if (is_visible(cache, key))
        claims_visible(cache, key);
}

void claims_leave(int w, int cache)
{
    for (struct model_claim *claim = claims; claim < claims + CLAIMS; claim++)
        if (claim->worker == w && (cache < 0 || claim->cache == cache))
            claim->used = false;
}

// A place that left its queue comes back if its block is in the index no more.
static bool is_promised(struct model_claim *claim, uint32_t i)
{
    uint32_t key = key_at(claim, i);
    if (find_node(claim->cache, key) >= 0)
        return true;
    claim->queued[i] = true;
    return first_in_queue(claim->cache, key, -1) != claim;
}

static uint32_t count_promised(struct model_claim *claim)
{
    uint32_t end = claim->found;
    while (end < claim->depth && is_promised(claim, end))
        end++;
    return end - claim->found;
}

static bool waits(struct model_claim *claim)
{
    return !is_visible(claim->cache, key_at(claim, claim->found)) &&
           is_promised(claim, claim->found);
}

// ---- random calls ----

static uint32_t claimed_by(int w)
{
    uint32_t count = 0;
    for (const struct model_claim *claim = claims; claim < claims + CLAIMS; claim++)
        count += claim->used && claim->worker == w ? claim->depth : 0;
    return count;
}

static struct model_claim *free_claim(void)
{
    for (struct model_claim *claim = claims; claim < claims + CLAIMS; claim++)
        if (!claim->used)
            return claim;
    ck_abort_msg("the model has no place for a claim");
}

static void add_claim(int w, const struct text *text, const struct core_claim *told)
{
    struct model_claim *claim = free_claim();
    *claim = (struct model_claim){.used = true,
                                  .id = told->claim,
                                  .worker = w,
                                  .cache = text->cache,
                                  .key = text->key,
                                  .depth = text->depth,
                                  .found = text->num_hit};
    for (uint32_t i = claim->found; i < claim->depth; i++)
        claim->queued[i] = true;
    ck_assert_uint_eq(told->num_promised, count_promised(claim));
    num_promises += told->num_promised;
    num_claims++;
}

// Looks a text up and claims the rest. It may compute the rest at once, without waiting.
void do_claim(int w)
{
    struct text *text = free_text(w);
    if (!text)
        return;
    struct text drawn = draw_text(w);
    int32_t tokens[DEPTH * 8], found[DEPTH];
    uint32_t fresh, expected = count_visible(w, &drawn, 0, &fresh);
    struct core_claim told;
    const struct core_prefix prefix = {.tokens = tokens, .num_tokens = drawn.depth * 8};
    text_tokens(drawn.key, drawn.depth, tokens);
    enum status status = core_prefix_claim(workers[w].real.session, cache_ids[drawn.cache], &prefix,
                                           0, found, &told, NULL),
                wanted = distinct(w) + fresh > QUOTA ? STATUS_QUOTA
                         : expected < drawn.depth && claimed_by(w) + drawn.depth > MAX_CLAIMED
                             ? STATUS_LIMIT
                             : STATUS_OK;
    ck_assert_int_eq((int)status, (int)wanted);
    if (status != STATUS_OK)
        return;
    ck_assert_uint_eq(told.num_found, expected);
    ck_assert_int_eq(told.claim != 0, expected < drawn.depth);
    for (uint32_t i = 0; i < expected; i++)
        take_hit(w, &drawn, i, found[i]);
    drawn.num_hit = expected;
    drawn.used = !told.claim;
    drawn.waits = told.claim;
    if (told.claim)
        add_claim(w, &drawn, &told);
    *text = drawn;
}

static struct model_claim *some_claim(int w)
{
    uint32_t start = roll(CLAIMS);
    for (uint32_t i = 0; i < CLAIMS; i++) {
        struct model_claim *claim = &claims[(start + i) % CLAIMS];
        if (claim->used && claim->worker == w)
            return claim;
    }
    return NULL;
}

// The waiting text of a claim. Several claims of a worker may have one chain: any of their texts.
static struct text *text_of(const struct model_claim *claim)
{
    struct text *texts = workers[claim->worker].texts;
    for (int t = 0; t < TEXTS; t++)
        if (texts[t].waits && texts[t].cache == claim->cache && texts[t].key == claim->key &&
            texts[t].num_hit == claim->found)
            return &texts[t];
    return NULL;
}

// The worker computes what the text still lacks; without blocks it gives the text up.
static void stop_waiting(int w, struct text *text)
{
    text->waits = false;
    text->used = lease_rest(w, text);
    if (!text->used)
        release(w, text->cache, text->blocks, text->num_hit);
}

static enum status expect_take(struct model_claim *claim, uint32_t *count)
{
    const struct text text = {.cache = claim->cache, .key = claim->key, .depth = claim->depth};
    uint32_t fresh;
    if (waits(claim))
        return STATUS_TIMEOUT;
    *count = count_visible(claim->worker, &text, claim->found, &fresh);
    return distinct(claim->worker) + fresh > QUOTA ? STATUS_QUOTA : STATUS_OK;
}

static void advance(struct model_claim *claim, uint32_t count)
{
    for (; count; count--)
        dequeue(claim, claim->found++);
    end_if_over(claim);
}

// Texts whose claims have ended without them: the worker has published the blocks itself, or it has
// another claim of the same chain.
static void stop_idle_waits(int w)
{
    struct text *texts = workers[w].texts;
    for (int t = 0; t < TEXTS; t++) {
        bool has = false;
        for (const struct model_claim *claim = claims; claim < claims + CLAIMS; claim++)
            has |= claim->used && claim->worker == w && text_of(claim) == &texts[t];
        if (texts[t].waits && !has)
            stop_waiting(w, &texts[t]);
    }
}

// Takes what has come; computes the rest if no one else does, and sometimes if someone does.
void do_claim_take(int w)
{
    struct model_claim *claim = workers[w].open ? some_claim(w) : NULL;
    struct text *text = claim ? text_of(claim) : NULL;
    int32_t blocks[DEPTH];
    uint32_t got, count = 0;
    struct core_claim told;
    if (workers[w].open)
        stop_idle_waits(w);
    if (!claim)
        return;
    if (!text) { // the worker computes it, or has given it up
        ck_assert_int_eq(
            core_claim_waits(workers[w].real.session, cache_ids[claim->cache], claim->id),
            waits(claim));
        return;
    }
    enum status wanted = expect_take(claim, &count),
                status = core_claim_take(workers[w].real.session, cache_ids[claim->cache],
                                         claim->id, blocks, &got, &told, NULL);
    ck_assert_int_eq((int)status, (int)wanted);
    if (status == STATUS_OK) {
        uint32_t promised = count_promised(claim);
        ck_assert_uint_eq(got, count);
        ck_assert_uint_eq(told.num_promised, promised - count);
        for (uint32_t i = 0; i < count; i++)
            take_hit(w, text, claim->found + i, blocks[i]);
        text->num_hit += count;
        advance(claim, count);
        ck_assert_int_eq(told.claim != 0, claim->used);
    }
    if (status == STATUS_OK ? text->num_hit == text->depth || !told.num_promised : !roll(8))
        stop_waiting(w, text);
}

void do_claim_release(int w)
{
    struct model_claim *claim = workers[w].open ? some_claim(w) : NULL;
    struct text *text = claim ? text_of(claim) : NULL;
    if (!claim || roll(2))
        return;
    uint32_t kept = roll(claim->depth + 1);
    ck_assert_status(core_claim_release(workers[w].real.session, cache_ids[claim->cache], claim->id,
                                        kept, &error),
                     STATUS_OK);
    for (uint32_t i = kept; i < claim->depth; i++)
        dequeue(claim, i);
    claim->depth = kept < claim->depth ? kept : claim->depth;
    claim->found = claim->found < claim->depth ? claim->found : claim->depth;
    claim->key = prefix_key(claim->key, claim->depth);
    end_if_over(claim);
    if (text) // it computes the rest itself
        stop_waiting(w, text);
}

// ---- where a worker may die ----

bool claim_computes(int w)
{
    for (const struct model_claim *claim = claims; claim < claims + CLAIMS; claim++)
        for (uint32_t i = 0; claim->used && claim->worker != w && i < claim->depth; i++) {
            const struct model_claim *first = first_in_queue(claim->cache, key_at(claim, i), -1);
            if (first && first->worker == w && claim->queued[i])
                return true;
        }
    return false;
}

bool claim_waits_for(int w)
{
    for (const struct model_claim *claim = claims; claim < claims + CLAIMS; claim++) {
        const struct model_claim *first =
            claim->used ? first_in_queue(claim->cache, key_at(claim, claim->found), -1) : NULL;
        if (first && claim->worker == w && first->worker != w && text_of(claim))
            return true;
    }
    return false;
}

bool claim_is_pending(int w)
{
    for (const struct model_claim *claim = claims; claim < claims + CLAIMS; claim++)
        for (uint32_t i = 0; claim->used && claim->worker == w && i < claim->depth; i++)
            if (claim->published[i])
                return true;
    return false;
}
