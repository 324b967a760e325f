// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// draft_blocks.c - see draft_blocks.h. A batch may use blocks that its session holds, or blocks of
// its own block tensors. After these checks the engine uses every id without checking it again.

#include "draft_blocks.h"

#include "base/prefetch.h"
#include "core/pool/ledger.h"
#include "core/pool/pool.h"
#include "core/pool/session.h"
#include "draft.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

// ---- blocks of the cache ----

// Makes room in batch->blocks for `more` blocks. False: no memory.
static bool reserve(struct batch *batch, uint32_t more)
{
    uint64_t wanted = (uint64_t)batch->num_blocks + more,
             capacity = 2 * (uint64_t)batch->block_capacity;
    if (wanted <= batch->block_capacity)
        return true;
    capacity = capacity > wanted ? capacity : wanted;
    int32_t *blocks =
        capacity <= UINT32_MAX ? realloc(batch->blocks, capacity * sizeof *blocks) : NULL;
    if (!blocks)
        return false;
    batch->blocks = blocks;
    batch->block_capacity = (uint32_t)capacity;
    return true;
}

// Adds a mention of block `id`; there is room. False: the session does not hold it.
static inline bool mention(struct draft *d, int64_t id)
{
    struct batch *batch = d->batch;
    enum hold_sight sight = hold_see(d->table, id);
    if (sight == HOLD_FIRST)
        batch->blocks[batch->num_blocks++] = (int32_t)id;
    batch->num_again += sight == HOLD_AGAIN;
    return sight != HOLD_NONE;
}

static bool grow_writes(struct batch *batch, size_t mask_size)
{
    uint32_t capacity = batch->write_capacity ? 2 * batch->write_capacity : 16;
    struct block **writes = realloc(batch->writes, capacity * sizeof(struct block *));
    if (writes)
        batch->writes = writes;
    uint8_t *masks = realloc(batch->write_masks, capacity * mask_size);
    if (masks)
        batch->write_masks = masks;
    if (!writes || !masks)
        return false;
    batch->write_capacity = capacity;
    return true;
}

// Adds the block to batch->writes, if it is not there. Returns its mask of slots; NULL: no memory.
static uint8_t *add_write(struct draft *d, struct block *block)
{
    struct batch *batch = d->batch;
    size_t mask_size = d->block_size / 8;
    if (block->stamp != d->stamp) {
        if (batch->num_writes == batch->write_capacity && !grow_writes(batch, mask_size))
            return NULL;
        memset(batch->write_masks + batch->num_writes * mask_size, 0, mask_size);
        batch->writes[batch->num_writes] = block;
        block->stamp = d->stamp;
        block->mark = ++batch->num_writes;
    }
    return batch->write_masks + (block->mark - 1) * mask_size;
}

// ---- table entries ----

// Notes a block of the arena's block tensors for batch->end_block. False: there is no such block.
static bool reach(struct draft *d, int64_t id)
{
    if (id < 0 || id >= (int64_t)d->num_blocks)
        return false;
    if ((uint64_t)id >= d->batch->end_block)
        d->batch->end_block = (uint64_t)id + 1;
    return true;
}

// Names the blocks of row[from .. to), up to the first that the session may not read. Returns that
// one's column, or `to`.
static uint32_t take_entries(struct draft *d, const int32_t *row, uint32_t from, uint32_t to)
{
    if (d->table)
        while (from < to && mention(d, row[from]))
            from++;
    else
        while (from < to && reach(d, row[from]))
            from++;
    return from;
}

uint32_t draft_num_used(const struct draft *d, int32_t seq_len)
{
    return ((uint32_t)seq_len + d->block_size - 1) >> d->block_shift;
}

static uint64_t num_ids(const struct draft *d)
{
    return d->table ? cache_num_ids(d->table->cache) : d->num_blocks;
}

enum status draft_entry_status(const struct draft *d, int32_t id)
{
    return id < 0 || (uint64_t)id >= num_ids(d) ? STATUS_OUT_OF_RANGE : STATUS_NOT_HELD;
}

enum status draft_entry_error(const struct draft *d, enum status status, uint32_t s, uint32_t i,
                              int32_t id)
{
    if (id == -1)
        return error_set(d->error, STATUS_INVALID,
                         "block_table[%" PRIu32 "][%" PRIu32
                         "] = -1, but the queries of that sequence see keys there",
                         s, i);
    if (status == STATUS_OUT_OF_RANGE)
        return error_set(d->error, status,
                         "block_table[%" PRIu32 "][%" PRIu32 "] = %" PRId32
                         " is outside the %s %" PRIu64 " block ids",
                         s, i, id, d->table ? "cache's" : "layout's", num_ids(d));
    return error_set(d->error, status,
                     "block_table[%" PRIu32 "][%" PRIu32 "] = %" PRId32
                     " is not held by this session",
                     s, i, id);
}

// The lowest position of the sequence's queries; it has at least one. Without `positions` it is
// that of the first query, which is negative if there are more queries than keys.
static int64_t least_position(const struct draft *d, uint32_t s)
{
    const struct core_batch_params *p = d->params;
    uint32_t first = (uint32_t)p->cu_seqlens_q[s], count = draft_q_len(d, s);
    if (!p->num_positions)
        return (int64_t)p->seq_lens_kv[s] - count;
    int32_t least = INT32_MAX;
    for (uint32_t t = first; t < first + count; t++) {
        int32_t position = p->positions[draft_row(d, t)];
        least = position < least ? position : least;
    }
    return least;
}

void draft_note_hole(const struct draft *d, uint32_t s, uint32_t entry, int32_t id)
{
    if (!d->batch->hole.there)
        d->batch->hole = (struct hole){true, s, entry, id};
}

// The window is a run's, so it is not known here. The batch notes the largest window_left that
// hides the entries: the first query must see no key of theirs. If not even window_left 0 hides
// them, no run could use the batch, and the check fails.
enum status draft_check_missing(struct draft *d, uint32_t s, uint32_t entries)
{
    struct missing *missing = &d->batch->missing;
    int64_t seq_len = d->params->seq_lens_kv[s], keys = (int64_t)entries << d->block_shift;
    int64_t position = least_position(d, s);
    int64_t max_left = position - (keys < seq_len ? keys : seq_len);
    if (max_left < 0)
        return draft_entry_error(d, STATUS_INVALID, s,
                                 position > 0 ? (uint32_t)(position >> d->block_shift) : 0, -1);
    if (missing->num_entries == 0 || max_left < missing->max_left)
        *missing = (struct missing){.num_entries = entries, .seq = s, .max_left = max_left};
    draft_note_hole(d, s, 0, -1);
    return STATUS_OK;
}

uint32_t draft_count_missing(const int32_t *row, uint32_t visible)
{
    uint32_t count = 0;
    while (count < visible && row[count] == -1)
        count++;
    return count;
}

// No query sees these entries, so they may have any value. A gather reads them, so the first one
// that the session may not read is noted.
static enum status look_at_unseen(struct draft *d, uint32_t s, const int32_t *row, uint32_t used)
{
    uint32_t hole = take_entries(d, row, 0, used);
    if (hole < used)
        draft_note_hole(d, s, hole, row[hole]);
    return STATUS_OK;
}

// Whether a run is causal is not known here, so all entries within seq_len count as seen.
enum status draft_check_entries(struct draft *d, uint32_t s)
{
    const struct core_batch_params *p = d->params;
    const int32_t *row = p->block_table + (size_t)s * p->max_blocks;
    uint32_t used = draft_num_used(d, p->seq_lens_kv[s]);
    if (d->table && !reserve(d->batch, used))
        return draft_no_memory(d);
    if (draft_q_len(d, s) == 0)
        return look_at_unseen(d, s, row, used);
    uint32_t missing = draft_count_missing(row, used);
    enum status status = missing ? draft_check_missing(d, s, missing) : STATUS_OK;
    if (status != STATUS_OK)
        return status;
    uint32_t end = take_entries(d, row, missing, used);
    return end == used ? STATUS_OK
                       : draft_entry_error(d, draft_entry_status(d, row[end]), s, end, row[end]);
}

// ---- slots ----

static enum status slot_error(const struct draft *d, enum status status, uint32_t row, int64_t slot,
                              const char *why)
{
    return error_set(d->error, status,
                     "slot_mapping[%" PRIu32 "] = %" PRId64 " (block %" PRId64 ", offset %" PRId64
                     ") %s",
                     row, slot, slot >> d->block_shift, slot & (d->block_size - 1), why);
}

static enum status reserved_error(const struct draft *d, uint32_t row, int64_t slot,
                                  const struct block *block)
{
    const uint32_t offset = (uint32_t)slot & (d->block_size - 1);
    const struct batch *other = NULL;
    for (const struct batch *b = d->session->batches; b && !other; b = b->hh.next)
        for (uint32_t i = 0; b->reserves && i < b->num_writes; i++)
            if (b->writes[i] == block &&
                b->write_masks[i * (size_t)(d->block_size / 8) + offset / 8] >> (offset & 7) & 1)
                other = b;
    return error_set(d->error, STATUS_DUPLICATE_SLOT,
                     "slot_mapping[%" PRIu32 "] = %" PRId64 " (block %" PRId32 ", offset %" PRIu32
                     ") is also written by batch %" PRIu64 ", which has not run yet",
                     row, slot, block->id, offset, other ? other->id : 0);
}

static enum status check_pool_slot(struct draft *d, uint32_t row, int64_t slot)
{
    struct block *block;
    enum status status = hold_probe(d->table, slot >> d->block_shift, &block);
    if (status == STATUS_OUT_OF_RANGE)
        return slot_error(d, status, row, slot, "is outside the cache");
    if (status != STATUS_OK)
        return slot_error(d, status, row, slot, "lies in a block that this session does not hold");
    if (block->sealed)
        return slot_error(d, STATUS_SEALED, row, slot, "lies in a sealed block");
    if (block->writer != d->session->id)
        return slot_error(d, STATUS_DENIED, row, slot,
                          "lies in a block that was offered to another session");
    uint8_t *mask = add_write(d, block);
    if (!mask)
        return draft_no_memory(d);
    uint32_t offset = (uint32_t)slot & (d->block_size - 1);
    uint8_t bit = (uint8_t)(1u << (offset & 7));
    if (mask[offset >> 3] & bit)
        return slot_error(d, STATUS_DUPLICATE_SLOT, row, slot, "occurs twice");
    if (d->batch->has_keys && block_reserved(d->table->cache, block)[offset >> 3] & bit)
        return reserved_error(d, row, slot, block);
    mask[offset >> 3] |= bit;
    return STATUS_OK;
}

// A hash table with linear probing, at most half full.
static bool reserve_seen(struct draft *d)
{
    d->num_seen = 16;
    while (d->num_seen < 2 * (size_t)d->batch->num_tokens)
        d->num_seen *= 2;
    d->seen = calloc(d->num_seen, sizeof *d->seen);
    return d->seen != NULL;
}

static enum status check_local_slot(struct draft *d, uint32_t row, int64_t slot)
{
    const struct ledger *ledger = d->session->ledger;
    int64_t block = slot >> d->block_shift;
    uint64_t wanted = (uint64_t)slot + 1;
    if (block >= (int64_t)d->num_blocks)
        return slot_error(d, STATUS_OUT_OF_RANGE, row, slot, "is outside the layout's blocks");
    size_t at = ledger_hash(ledger, &slot, sizeof slot) & (d->num_seen - 1);
    while (d->seen[at] && d->seen[at] != wanted)
        at = (at + 1) & (d->num_seen - 1);
    if (d->seen[at])
        return slot_error(d, STATUS_DUPLICATE_SLOT, row, slot, "occurs twice");
    d->seen[at] = wanted;
    reach(d, block);
    return STATUS_OK;
}

// Prefetches the struct block of a slot, which may be any number.
static void fetch(const struct draft *d, int64_t slot)
{
    const struct block *block = block_find(d->table->cache, slot >> d->block_shift);
    if (block)
        prefetch(block);
}

enum status draft_check_slots(struct draft *d)
{
    const int64_t *slots = d->params->slot_mapping;
    enum status status = STATUS_OK;
    if (!d->table && !reserve_seen(d))
        return draft_no_memory(d);
    for (uint32_t row = 0; status == STATUS_OK && row < d->batch->num_tokens; row++) {
        if (d->table && row + BLOCK_AHEAD < d->batch->num_tokens)
            fetch(d, slots[row + BLOCK_AHEAD]);
        if (slots[row] == -1)
            continue;
        if (slots[row] < 0)
            return error_set(d->error, STATUS_OUT_OF_RANGE,
                             "slot_mapping[%" PRIu32 "] = %" PRId64 " is below -1", row,
                             slots[row]);
        status =
            d->table ? check_pool_slot(d, row, slots[row]) : check_local_slot(d, row, slots[row]);
    }
    return status;
}

enum status draft_name_writes(struct draft *d)
{
    const struct batch *batch = d->batch;
    if (d->table && !reserve(d->batch, batch->num_writes))
        return draft_no_memory(d);
    for (uint32_t i = 0; i < batch->num_writes; i++)
        mention(d, batch->writes[i]->id);
    return STATUS_OK;
}
