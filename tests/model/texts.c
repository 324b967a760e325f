// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// texts.c - see texts.h. What each function sends follows client/src/sequence.c, room.c, step.c and
// offer.c; sequence.h promises the results.

#include "texts.h"

#include <string.h>

static void message(struct model *m)
{
    if (m->eager)
        texts_wake(m);
}

static struct model_sequence *text_at(struct model *m, int worker, int sequence)
{
    return &m->sequences[worker][sequence];
}

static uint32_t blocks_for(uint32_t num_tokens)
{
    return (num_tokens + BLOCK - 1) / BLOCK;
}

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

// ---- records ----

static int record(struct model *m, int worker, int block, bool sealed)
{
    int r = 0;
    while (m->records[worker][r].sharers)
        r++;
    m->records[worker][r] = (struct model_record){.sharers = 1, .sealed = sealed, .block = block};
    return r;
}

// Adds the block to `released` if nobody shares it any more.
static void unshare(struct model *m, int worker, int r, int *released, uint32_t *count)
{
    if (--m->records[worker][r].sharers == 0)
        released[(*count)++] = m->records[worker][r].block;
}

static void release(struct model *m, int worker, const int *blocks, uint32_t count)
{
    if (!count)
        return;
    model_release(m, worker, blocks, count);
    message(m);
}

static void drop_blocks(struct model *m, int worker, struct model_sequence *q, uint32_t first)
{
    int released[DEPTH + 1];
    uint32_t count = 0;
    for (uint32_t i = first; i < q->num_blocks; i++)
        unshare(m, worker, q->records[i], released, &count);
    q->num_blocks = smaller(q->num_blocks, first);
    release(m, worker, released, count);
}

uint32_t text_blocks(const struct model *m, int worker, int sequence, int *blocks)
{
    const struct model_sequence *q = &m->sequences[worker][sequence];
    for (uint32_t i = 0; i < q->num_blocks; i++)
        blocks[i] = m->records[worker][q->records[i]].block;
    return q->num_blocks;
}

// ---- claims ----

uint32_t text_promised(const struct model *m, int worker, int sequence)
{
    const struct model_sequence *q = &m->sequences[worker][sequence];
    return q->num_stored > q->num_found ? 0 : q->claim_promised * BLOCK;
}

static void release_claim(struct model *m, struct model_sequence *q, uint32_t num_tokens)
{
    uint32_t num_blocks = num_tokens / BLOCK;
    if (!q->claim || num_blocks >= q->claim_max)
        return;
    model_claim_release(m, q->claim, num_blocks);
    q->claim_max = num_blocks;
    if (q->claim_max <= q->claim_blocks) {
        q->claim = 0;
        q->claim_blocks = q->claim_max;
        q->claim_promised = 0;
    }
    q->claim_promised = smaller(q->claim_promised, q->claim_max - q->claim_blocks);
    message(m);
}

// The cache has the first `end` blocks, and the session holds them.
static void take_found(struct model *m, int worker, struct model_sequence *q, const int *blocks,
                       uint32_t first, uint32_t end)
{
    for (uint32_t i = first; i < end; i++) {
        int released[1];
        uint32_t count = 0;
        if (i < q->num_blocks)
            unshare(m, worker, q->records[i], released, &count);
        release(m, worker, released, count);
        q->records[i] = record(m, worker, blocks[i - first], true);
        if (i >= q->num_blocks)
            q->num_blocks = i + 1;
    }
    q->num_found = q->num_stored = end * BLOCK;
    q->num_computed = end && end * BLOCK == q->num_tokens ? q->num_tokens - 1 : end * BLOCK;
    q->num_published = end;
}

enum outcome text_create(struct model *m, int worker, int sequence, const int32_t *tokens,
                         uint32_t num_tokens, bool publish, bool claims)
{
    struct model_sequence *q = text_at(m, worker, sequence);
    uint32_t most = num_tokens / BLOCK, found = 0;
    int blocks[DEPTH];
    memset(q, 0, sizeof *q);
    enum outcome outcome = most ? model_lookup(m, worker, tokens, most, blocks, &found) : DONE;
    if (outcome != DONE)
        return outcome;
    *q = (struct model_sequence){.used = true,
                                 .publish = publish,
                                 .num_tokens = num_tokens,
                                 .offer = NONE,
                                 .claim_max = claims ? most : 0,
                                 .claim_blocks = found};
    memcpy(q->tokens, tokens, num_tokens * sizeof *tokens);
    if (claims && found < most) {
        struct model_claim *claim = model_claim(m, worker, tokens, most, found);
        q->claim = claim->id;
        q->claim_promised = claim_promised(m, claim);
    }
    message(m);
    take_found(m, worker, q, blocks, 0, found);
    return DONE;
}

static enum outcome take_claimed(struct model *m, int worker, int sequence)
{
    struct model_sequence *q = text_at(m, worker, sequence);
    int blocks[DEPTH];
    uint32_t count = 0, promised = 0, had = q->claim_blocks;
    bool ended = false;
    enum outcome outcome = model_claim_take(m, q->claim, blocks, &count, &promised, &ended);
    if (outcome == NOT_FOUND) { // ended by what this session has published
        q->claim = 0;
        q->claim_max = q->claim_promised = 0;
        return DONE;
    }
    if (outcome != DONE)
        return outcome;
    if (ended)
        q->claim = 0;
    q->claim_blocks += count;
    q->claim_promised = ended ? 0 : promised;
    if (count)
        take_found(m, worker, q, blocks, had, had + count);
    return DONE;
}

static void begin_wait(struct model *m, enum waiting kind, int worker, int sequence)
{
    memset(&m->waiter, 0, sizeof m->waiter);
    m->waiter.kind = kind;
    m->waiter.worker = worker;
    m->waiter.sequence = sequence;
    m->sessions[worker].waits = true;
}

enum outcome text_wait(struct model *m, int worker, int sequence, bool waits)
{
    if (!text_promised(m, worker, sequence))
        return DONE;
    enum outcome outcome = take_claimed(m, worker, sequence);
    if (outcome == TIMEOUT && waits)
        begin_wait(m, WAITS_CLAIM, worker, sequence);
    return outcome;
}

// ---- publishing ----

static enum outcome publish_blocks(struct model *m, int worker, struct model_sequence *q,
                                   uint32_t first, uint32_t end)
{
    int blocks[DEPTH], released[DEPTH];
    uint32_t count = 0;
    bool releases = true;
    for (uint32_t i = first; i < end; i++) {
        blocks[i - first] = m->records[worker][q->records[i]].block;
        releases = releases && m->records[worker][q->records[i]].sharers == 1;
    }
    int parent = first ? m->records[worker][q->records[first - 1]].block : NONE;
    enum outcome outcome = model_publish(m, worker, parent, q->tokens + (size_t)first * BLOCK,
                                         blocks, end - first, releases);
    message(m);
    if (outcome != DONE)
        return outcome;
    q->num_published = end;
    for (uint32_t i = first; i < end; i++) {
        struct model_record *mine = &m->records[worker][q->records[i]];
        if (blocks[i - first] != mine->block && !releases) {
            unshare(m, worker, q->records[i], released, &count);
            q->records[i] = record(m, worker, blocks[i - first], true);
        }
        mine = &m->records[worker][q->records[i]];
        mine->block = blocks[i - first];
        mine->sealed = true;
    }
    release(m, worker, released, count);
    return DONE;
}

static enum outcome publish_computed(struct model *m, int worker, struct model_sequence *q)
{
    uint32_t end = q->num_computed / BLOCK, first = q->num_published;
    if (end <= first)
        return DONE;
    enum outcome outcome = publish_blocks(m, worker, q, first, end);
    return outcome == NOT_FOUND && first ? publish_blocks(m, worker, q, 0, end) : outcome;
}

enum outcome text_publish(struct model *m, int worker, int sequence)
{
    return publish_computed(m, worker, text_at(m, worker, sequence));
}

// ---- steps ----

static bool must_copy(const struct model *m, int worker, const struct model_sequence *q,
                      uint32_t end)
{
    if (q->num_stored % BLOCK == 0 || end <= q->num_stored)
        return false;
    const struct model_record *r = &m->records[worker][q->records[q->num_stored / BLOCK]];
    return r->sealed || r->sharers > 1;
}

bool text_would_copy(const struct model *m, int worker, int sequence, uint32_t num_new)
{
    const struct model_sequence *q = &m->sequences[worker][sequence];
    return must_copy(m, worker, q, q->num_tokens + num_new);
}

static uint32_t missing_blocks(const struct model_sequence *q)
{
    uint32_t wanted = blocks_for(q->num_tokens);
    return wanted > q->num_blocks ? wanted - q->num_blocks : 0;
}

static void finish_step(struct model *m, int worker, struct model_sequence *q, const int *leased)
{
    bool copies = must_copy(m, worker, q, q->num_tokens);
    if (copies) {
        int *place = &q->records[q->num_stored / BLOCK], released[1];
        uint32_t count = 0;
        unshare(m, worker, *place, released, &count);
        release(m, worker, released, count);
        *place = record(m, worker, *leased++, false);
    }
    for (uint32_t missing = missing_blocks(q); missing; missing--)
        q->records[q->num_blocks++] = record(m, worker, *leased++, false);
    q->num_computed = q->num_tokens;
    if (q->num_stored < q->num_tokens)
        q->num_stored = q->num_tokens;
}

enum outcome text_step(struct model *m, int worker, int sequence, const int32_t *tokens,
                       uint32_t count, bool waits)
{
    struct model_sequence *q = text_at(m, worker, sequence);
    int leased[DEPTH + 2];
    memcpy(q->tokens + q->num_tokens, tokens, count * sizeof *tokens);
    q->num_tokens += count;
    if (q->publish)
        (void)publish_computed(m, worker, q);
    uint32_t wanted = must_copy(m, worker, q, q->num_tokens) + missing_blocks(q);
    enum outcome outcome = wanted ? model_lease(m, worker, wanted, leased, false) : DONE;
    if (outcome == NO_BLOCKS && waits) {
        begin_wait(m, WAITS_LEASE, worker, sequence);
        m->waiter.count = wanted;
    }
    if (outcome != DONE)
        return outcome;
    message(m);
    finish_step(m, worker, q, leased);
    return DONE;
}

// ---- the rest of a sequence's life ----

void text_truncate(struct model *m, int worker, int sequence, uint32_t num_tokens)
{
    struct model_sequence *q = text_at(m, worker, sequence);
    release_claim(m, q, num_tokens);
    drop_blocks(m, worker, q, blocks_for(num_tokens));
    q->num_tokens = num_tokens;
    q->num_stored = smaller(q->num_stored, num_tokens);
    q->num_computed = smaller(q->num_computed, num_tokens);
    q->num_found = smaller(q->num_found, num_tokens);
    q->num_published = smaller(q->num_published, num_tokens / BLOCK);
}

void text_fork(struct model *m, int worker, int from, int to)
{
    struct model_sequence *q = text_at(m, worker, to);
    *q = *text_at(m, worker, from);
    q->num_blocks = blocks_for(q->num_stored);
    for (uint32_t i = 0; i < q->num_blocks; i++)
        m->records[worker][q->records[i]].sharers++;
    q->claim = 0;
    q->claim_max = q->claim_blocks = q->claim_promised = 0;
    q->offer = NONE;
}

static void end_text(struct model *m, int worker, struct model_sequence *q)
{
    bool access[DEPTH + 1];
    release_claim(m, q, 0);
    drop_blocks(m, worker, q, 0);
    if (q->offer != NONE) {
        model_settle(m, q->offer, false, access);
        message(m);
    }
    q->used = false;
}

void text_destroy(struct model *m, int worker, int sequence)
{
    struct model_sequence *q = text_at(m, worker, sequence);
    if (q->publish)
        (void)publish_computed(m, worker, q);
    end_text(m, worker, q);
}

// ---- hand-over ----

enum outcome text_offer(struct model *m, int worker, int sequence, int offer)
{
    struct model_sequence *q = text_at(m, worker, sequence);
    struct model_offer what = {.num_stored = q->num_stored};
    bool keep[DEPTH + 1];
    if (q->publish)
        (void)publish_computed(m, worker, q);
    what.num_blocks = q->num_blocks;
    what.num_computed = q->num_computed;
    what.num_tokens = q->num_tokens;
    what.publish = q->publish;
    memcpy(what.tokens, q->tokens, sizeof what.tokens);
    for (uint32_t i = 0; i < q->num_blocks; i++) {
        what.blocks[i] = m->records[worker][q->records[i]].block;
        keep[i] = m->records[worker][q->records[i]].sharers > 1;
    }
    model_offer(m, worker, offer, &what, keep);
    message(m);
    uint32_t kept = 0;
    for (uint32_t i = 0; i < q->num_blocks; i++) {
        struct model_record *r = &m->records[worker][q->records[i]];
        if (keep[i]) {
            r->sealed = true;
            q->records[kept++] = q->records[i];
        } else {
            r->sharers = 0;
        }
    }
    q->num_blocks = kept;
    end_text(m, worker, q);
    return DONE;
}

static enum outcome take(struct model *m, int worker, int sequence, int offer)
{
    struct model_sequence *q = text_at(m, worker, sequence);
    const struct model_offer *o = &m->offers[offer];
    enum outcome outcome = model_take(m, worker, offer);
    if (outcome != DONE)
        return outcome;
    *q = (struct model_sequence){.used = true,
                                 .publish = o->publish,
                                 .num_tokens = o->num_tokens,
                                 .num_stored = o->num_stored,
                                 .num_computed = o->num_computed,
                                 .offer = offer};
    memcpy(q->tokens, o->tokens, sizeof q->tokens);
    bool sealed = true;
    for (; q->num_blocks < o->num_blocks; q->num_blocks++) {
        q->records[q->num_blocks] = record(m, worker, o->blocks[q->num_blocks], true);
        sealed = sealed && m->blocks[o->blocks[q->num_blocks]].sealed;
        q->num_published += sealed;
    }
    q->num_published = smaller(q->num_published, q->num_stored / BLOCK);
    return DONE;
}

enum outcome text_take(struct model *m, int worker, int sequence, int offer, bool waits)
{
    enum outcome outcome = take(m, worker, sequence, offer);
    if (waits && (outcome == NOT_FOUND || outcome == BUSY)) {
        begin_wait(m, WAITS_TAKE, worker, sequence);
        m->waiter.offer = offer;
    }
    return outcome;
}

void text_accept(struct model *m, int worker, int sequence)
{
    struct model_sequence *q = text_at(m, worker, sequence);
    const struct model_offer offer = m->offers[q->offer];
    bool may_write[DEPTH + 1];
    model_settle(m, q->offer, true, may_write);
    message(m);
    for (uint32_t i = 0; i < offer.num_blocks && i < q->num_blocks; i++) {
        struct model_record *r = &m->records[worker][q->records[i]];
        if (r->block == offer.blocks[i])
            r->sealed = !may_write[i];
    }
    q->offer = NONE;
}

// ---- the command that waits ----

void texts_wake(struct model *m)
{
    int w = m->waiter.worker, s = m->waiter.sequence;
    int leased[DEPTH + 2];
    enum outcome outcome;
    if (m->waiter.kind == WAITS_NOT || m->waiter.over)
        return;
    if (m->waiter.kind == WAITS_CLAIM)
        outcome = take_claimed(m, w, s);
    else if (m->waiter.kind == WAITS_TAKE)
        outcome = take(m, w, s, m->waiter.offer);
    else
        outcome = model_lease(m, w, m->waiter.count, leased, true);
    if (outcome == TIMEOUT || outcome == NO_BLOCKS ||
        (m->waiter.kind == WAITS_TAKE && (outcome == NOT_FOUND || outcome == BUSY)))
        return;
    m->waiter.over = true;
    m->waiter.outcome = outcome;
    m->sessions[w].waits = false;
    if (outcome == DONE && m->waiter.kind == WAITS_LEASE)
        finish_step(m, w, text_at(m, w, s), leased);
}
