// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// written.c - see written.h. Runs of a session take effect in the order of their tickets.
// block->filled is the ticket of the last copy into a block; this copy replaces what earlier runs
// wrote there. After a failure a written slot may count as unwritten, never the reverse.

#include "written.h"

#include "core/pool/claim.h"
#include "core/pool/ledger.h"
#include "core/pool/offer.h"
#include "core/pool/pace.h"
#include "core/pool/pool.h"
#include "core/pool/prefix.h"
#include "core/pool/session.h"
#include "core/pool/tenant.h"

#include <string.h>

// Returns by how much the number of layers changes in which all slots of the block are written.
// `mask` has the slots, cache->layer_bytes of it.
static int mark_layer(const struct cache *cache, const struct block *block, const uint8_t *mask,
                      uint32_t layer, bool written)
{
    uint8_t *bits = block_written(cache, block, layer);
    uint8_t before = UINT8_MAX, after = UINT8_MAX, cleared = 0;
    for (uint32_t i = 0; i < cache->layer_bytes; i++) {
        before &= bits[i];
        cleared |= (uint8_t)(written ? 0 : bits[i] & mask[i]);
        bits[i] = (uint8_t)(written ? bits[i] | mask[i] : bits[i] & ~mask[i]);
        after &= bits[i];
    }
    block->account->tenant->unwrites += cleared != 0;
    return (after == UINT8_MAX) - (before == UINT8_MAX);
}

void written_report(struct cache *cache, struct block *block, const uint8_t *mask, uint32_t first,
                    uint32_t count)
{
    int layers = block->written_layers;
    for (uint32_t i = 0; i < count; i++)
        layers += mark_layer(cache, block, mask, first + i, true);
    block_set_written(cache, block, (uint32_t)layers);
}

void written_whole(struct cache *cache, struct block *block)
{
    memset(block_written(cache, block, 0), UINT8_MAX,
           (size_t)cache->identity.num_layers * cache->layer_bytes);
    block_set_written(cache, block, cache->identity.num_layers);
}

// Sets or clears the bits of the batch's block `index` in all layers of the run.
static void mark(const struct run *run, uint32_t index, bool written)
{
    struct cache *cache = run->batch->table->cache;
    struct block *block = run->batch->writes[index];
    const uint8_t *mask = run->batch->write_masks + index * (size_t)cache->layer_bytes;
    int layers = block->written_layers;
    for (uint32_t i = 0; i < run->layers.num_layers; i++)
        layers +=
            mark_layer(cache, block, mask, run->engine.layer + i * run->layers.layer_step, written);
    block_set_written(cache, block, (uint32_t)layers);
}

// The bits of `to` become those of `from`, in all layers; NULL: all become 0.
static void take_over(struct cache *cache, struct block *to, const struct block *from)
{
    const size_t size = (size_t)cache->identity.num_layers * cache->layer_bytes;
    const uint8_t *wanted = from ? block_written(cache, from, 0) : NULL;
    uint8_t *bits = block_written(cache, to, 0), cleared = 0;
    for (size_t i = 0; i < size; i++) {
        const uint8_t now = wanted ? wanted[i] : 0;
        cleared |= (uint8_t)(bits[i] & ~now);
        bits[i] = now;
    }
    to->account->tenant->unwrites += cleared != 0;
    block_set_written(cache, to, from ? from->written_layers : 0);
}

// The copy writes blocks. `copy` may be NULL.
static bool fills(const struct copy *copy)
{
    return copy && copy->way != COPY_OUT;
}

void written_begin(struct run *run)
{
    struct batch *batch = run->engine.kind == ENGINE_GATHER ? NULL : run->batch;
    if (batch)
        batch_unreserve(batch);
    if (batch && !batch->began_ns)
        batch->began_ns = run->session->ledger->now_ns;
    for (uint32_t i = 0; batch && i < batch->num_writes; i++) {
        batch->writes[i]->pending++;
        mark(run, i, true);
    }
    for (uint32_t i = 0; fills(run->copy) && i < run->copy->count; i++) {
        struct copy_pair *pair = &run->copy->pairs[i];
        pair->to->pending++;
        pair->to->filled = run->ticket;
        if (run->copy->way == COPY_IN)
            written_whole(run->copy->table->cache, pair->to); // only whole blocks are stored
        else
            take_over(run->copy->table->cache, pair->to, pair->from);
    }
}

// ---- failure ----

// Marks a block whose contents differ from what its bits said, and takes it out of the prefix
// index.
static void distrust(struct cache *cache, struct block *block, uint64_t stamp)
{
    block->stamp = stamp;
    if (block->node)
        prefix_unlink(cache, block->node);
}

static void distrust_copy(const struct copy *copy, uint64_t ticket, uint64_t stamp)
{
    struct cache *cache = copy->table->cache;
    for (uint32_t i = 0; i < copy->count; i++) {
        struct block *to = copy->pairs[i].to;
        const struct block *from = copy->pairs[i].from;
        bool bad = from && from->stamp == stamp, last = to->filled == ticket;
        if (bad && last) {
            take_over(cache, to, NULL);
            distrust(cache, to, stamp);
        }
        to->stamp = bad ? stamp : to->stamp == stamp ? 0 : to->stamp;
    }
}

// Follows the copies that are queued behind `run`: a copy from a marked block marks its target, and
// a copy from another block clears the mark.
static void distrust_copies(const struct run *run, uint64_t stamp)
{
    while ((run = run->next)) {
        if (fills(run->copy) && !run->over)
            distrust_copy(run->copy, run->ticket, stamp);
    }
}

// ---- the end ----

static void end_pending(const struct run *run, struct cache *cache, struct block *block)
{
    if (--block->pending)
        return;
    if (block->offers)
        offers_written(run->session->all_offers, block);
    if (block->node) {
        cache->num_pending--;
        cache->pool->ledger->news = true;
        prefix_note_fresh(cache, block->node);
        claim_visible(cache, block->node);
    }
}

static uint64_t count_whole(const struct batch *batch)
{
    const uint32_t size = batch->table->cache->layer_bytes;
    uint64_t count = 0;
    for (uint32_t i = 0; i < batch->num_writes; i++) {
        uint8_t all = UINT8_MAX;
        for (uint32_t at = 0; at < size; at++)
            all &= batch->write_masks[i * (size_t)size + at];
        count += all == UINT8_MAX;
    }
    return count;
}

// With its last layer, a batch teaches how long its tokens took. Imports compute nothing.
static void learn(struct batch *batch, const struct run *run)
{
    const struct cache *cache = batch->table->cache;
    batch->num_layers_written += run->layers.num_layers;
    if (cache->pool->has_tiers && batch->has_keys &&
        batch->num_layers_written == cache->identity.num_layers)
        pace_learn(&batch->table->account->pace, count_whole(batch) * cache->identity.kv.block_size,
                   run->session->ledger->now_ns - batch->began_ns);
}

// Ends the run's writes. In blocks that a later copy fills, the bits are that copy's already.
static void end_writes(const struct run *run, bool ok, uint64_t stamp)
{
    const struct batch *batch = run->batch;
    struct cache *cache = batch->table->cache;
    for (uint32_t i = 0; i < batch->num_writes; i++) {
        struct block *block = batch->writes[i];
        bool last = block->filled < run->ticket;
        if (last)
            mark(run, i, ok); // if ok, sets again what an earlier failed run cleared
        if (!ok && last)
            distrust(cache, block, stamp);
        else if (!ok)
            block->stamp = stamp;
        end_pending(run, cache, block);
    }
}

static void end_copy(const struct run *run, bool ok, uint64_t stamp)
{
    struct cache *cache = run->copy->table->cache;
    for (uint32_t i = 0; i < run->copy->count; i++) {
        struct block *to = run->copy->pairs[i].to;
        bool last = to->filled == run->ticket;
        if (!ok && last) {
            take_over(cache, to, NULL);
            distrust(cache, to, stamp);
        } else if (!ok) {
            to->stamp = stamp;
        }
        end_pending(run, cache, to);
    }
}

void written_end(struct run *run, bool ok)
{
    bool writes = run->batch && run->batch->num_writes && run->engine.kind != ENGINE_GATHER;
    uint64_t stamp = ok ? 0 : ++run->session->ledger->last_stamp;
    if (writes)
        end_writes(run, ok, stamp);
    if (writes && ok)
        learn(run->batch, run);
    if (fills(run->copy))
        end_copy(run, ok, stamp);
    if (!ok && (writes || fills(run->copy)))
        distrust_copies(run, stamp);
}
