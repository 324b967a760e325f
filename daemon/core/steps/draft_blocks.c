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

static bool grow_writes(struct draft *d)
{
    struct batch *batch = d->batch;
    uint32_t capacity = batch->write_capacity ? 2 * batch->write_capacity : 16;
    struct block **blocks = realloc(batch->writes, capacity * sizeof(struct block *));
    if (blocks)
        batch->writes = blocks;
    uint8_t *masks = realloc(batch->write_masks, capacity * (size_t)(d->block_size / 8));
    if (masks)
        batch->write_masks = masks;
    struct draft_write *writes = realloc(d->writes, capacity * sizeof *writes);
    if (writes)
        d->writes = writes;
    if (!blocks || !masks || !writes)
        return false;
    batch->write_capacity = capacity;
    return true;
}

// The place of block `id` in the hash table, or the free one where it would be.
static uint32_t *place_of(const struct draft *d, int32_t id)
{
    uint32_t at = ledger_hash(d->session->ledger, &id, sizeof id) & (d->num_places - 1);
    while (d->places[at] && d->writes[d->places[at] - 1].id != id)
        at = (at + 1) & (d->num_places - 1);
    return &d->places[at];
}

// Makes the hash table at most half full with one more. False: no memory.
static bool grow_places(struct draft *d)
{
    const uint32_t count = d->batch->num_writes;
    if (2 * (count + 1) <= d->num_places)
        return true;
    const uint32_t size = d->num_places ? 2 * d->num_places : 32;
    uint32_t *places = calloc(size, sizeof *places);
    if (!places)
        return false;
    free(d->places);
    d->places = places;
    d->num_places = size;
    for (uint32_t i = 0; i < count; i++)
        *place_of(d, d->writes[i].id) = i + 1;
    return true;
}

// Puts the block into d->writes. False: no memory.
static bool put_write(struct draft *d, int32_t id, uint32_t row)
{
    struct batch *batch = d->batch;
    const size_t mask_size = d->block_size / 8;
    if (batch->num_writes == batch->write_capacity && !grow_writes(d))
        return false;
    memset(batch->write_masks + batch->num_writes * mask_size, 0, mask_size);
    d->writes[batch->num_writes++] = (struct draft_write){id, row};
    return true;
}

// Sets d->last_write by the stamp of the block itself. False: no memory.
static bool find_stamped(struct draft *d, int32_t id, uint32_t row)
{
    struct block *block = block_find(d->table->cache, id);
    if (block->stamp != d->stamp) {
        if (!put_write(d, id, row))
            return false;
        block->stamp = d->stamp;
        block->mark = d->batch->num_writes;
    }
    d->last_write = block->mark - 1;
    return true;
}

// The same by d->places: another thread than the dispatcher's touches no block.
static bool find_placed(struct draft *d, int32_t id, uint32_t row)
{
    if (!grow_places(d))
        return false;
    uint32_t *place = place_of(d, id);
    if (!*place) {
        if (!put_write(d, id, row))
            return false;
        *place = d->batch->num_writes;
    }
    d->last_write = *place - 1;
    return true;
}

// Adds the block to d->writes, if it is not there. Returns its mask of slots; NULL: no memory.
static uint8_t *add_write(struct draft *d, int32_t id, uint32_t row)
{
    struct batch *batch = d->batch;
    const bool is_last = batch->num_writes && d->writes[d->last_write].id == id;
    if (!is_last &&
        !(hold_is_sketch(d->table) ? find_placed(d, id, row) : find_stamped(d, id, row)))
        return NULL;
    return batch->write_masks + d->last_write * (size_t)(d->block_size / 8);
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
    return d->table ? d->num_ids : d->num_blocks;
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

static const char not_held[] = "lies in a block that this session does not hold";

static enum status check_pool_slot(struct draft *d, uint32_t row, int64_t slot)
{
    const int64_t id = slot >> d->block_shift;
    if ((uint64_t)id >= d->num_ids)
        return slot_error(d, STATUS_OUT_OF_RANGE, row, slot, "is outside the cache");
    if (!hold_has(d->table, id))
        return slot_error(d, STATUS_NOT_HELD, row, slot, not_held);
    uint8_t *mask = add_write(d, (int32_t)id, row);
    if (!mask)
        return draft_no_memory(d);
    uint32_t offset = (uint32_t)slot & (d->block_size - 1);
    uint8_t bit = (uint8_t)(1u << (offset & 7));
    if (mask[offset >> 3] & bit)
        return slot_error(d, STATUS_DUPLICATE_SLOT, row, slot, "occurs twice");
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

enum status draft_check_slots(struct draft *d)
{
    const int64_t *slots = d->params->slot_mapping;
    enum status status = STATUS_OK;
    if (!d->table && !reserve_seen(d))
        return draft_no_memory(d);
    for (uint32_t row = 0; status == STATUS_OK && row < d->batch->num_tokens; row++) {
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
        mention(d, d->writes[i].id);
    return STATUS_OK;
}

// ---- rights ----

static enum status reserved_error(const struct draft *d, uint32_t row, const struct block *block)
{
    const int64_t slot = d->params->slot_mapping[row];
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

// Finds the first row whose slot lies in the block and is reserved; `reserved`: the bits.
static enum status check_reserved(const struct draft *d, uint32_t i, const struct block *block,
                                  const uint8_t *reserved)
{
    const uint8_t *mask = d->batch->write_masks + i * (size_t)(d->block_size / 8);
    const int64_t *slots = d->params->slot_mapping;
    uint8_t both = 0;
    for (uint32_t n = 0; n < d->block_size / 8; n++)
        both |= mask[n] & reserved[n];
    for (uint32_t row = d->writes[i].row; both && row < d->batch->num_tokens; row++) {
        const uint32_t offset = (uint32_t)slots[row] & (d->block_size - 1);
        if (slots[row] >> d->block_shift == block->id && reserved[offset / 8] >> (offset & 7) & 1)
            return reserved_error(d, row, block);
    }
    return STATUS_OK;
}

static enum status check_write(struct draft *d, uint32_t i, const struct hold_table *table)
{
    struct block *block = block_find(table->cache, d->writes[i].id);
    const uint32_t row = d->writes[i].row;
    if (!hold_has(table, block->id))
        return slot_error(d, STATUS_NOT_HELD, row, d->params->slot_mapping[row], not_held);
    if (block->sealed)
        return slot_error(d, STATUS_SEALED, row, d->params->slot_mapping[row],
                          "lies in a sealed block");
    if (block->writer != d->session->id)
        return slot_error(d, STATUS_DENIED, row, d->params->slot_mapping[row],
                          "lies in a block that was offered to another session");
    block->stamp = d->stamp;
    block->mark = i + 1;
    d->batch->writes[i] = block;
    return d->batch->has_keys ? check_reserved(d, i, block, block_reserved(table->cache, block))
                              : STATUS_OK;
}

enum status draft_check_written(struct draft *d, const struct hold_table *table)
{
    const uint32_t count = table ? d->batch->num_writes : 0;
    enum status status = STATUS_OK;
    for (uint32_t i = 0; status == STATUS_OK && i < count; i++) {
        if (i + BLOCK_AHEAD < count)
            hold_fetch(table, d->writes[i + BLOCK_AHEAD].id);
        status = check_write(d, i, table);
    }
    return status;
}
