// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// room.c - leases blocks for several sequences by one message. A shared or sealed block is copied
// before a step writes into it. A sequence has at most one such block: the one with its first token
// that is not stored.

#include "room.h"

#include "client/src/block.h"
#include "client/src/error.h"

#include <inttypes.h>
#include <stdlib.h>

static atomic_ullong lists; // a new number for each list, to find a sequence that occurs twice

enum aule_status entries_enter(const struct aule_step_entry *entries, uint32_t num_entries)
{
    enum aule_status status = AULE_OK;
    uint32_t i = 0;
    for (; i < num_entries && status == AULE_OK; i++) {
        struct handle *entered;
        status = entries[i].sequence
                     ? handle_enter(entries[i].sequence, &sequence_handles, "", "", &entered)
                     : fail(AULE_INVALID, "entries[%u].sequence is NULL", i);
    }
    if (status != AULE_OK)
        entries_leave(entries, i - 1);
    return status;
}

void entries_leave(const struct aule_step_entry *entries, uint32_t num_entries)
{
    for (uint32_t i = 0; i < num_entries; i++) {
        struct handle *entered = &entries[i].sequence->handle;
        handle_leave(&entered);
    }
}

enum aule_status room_check_entries(const struct aule_cache *cache,
                                    const struct aule_step_entry *entries, uint32_t num_entries)
{
    uint64_t mark = atomic_fetch_add(&lists, 1) + 1;
    for (uint32_t i = 0; i < num_entries; i++) {
        struct aule_sequence *sequence = entries[i].sequence;
        if (sequence->cache->id != cache->id || sequence->cache->life != cache->life)
            return fail(AULE_INVALID, "entries[%u].sequence belongs to another cache", i);
        if (sequence->mark == mark)
            return fail(AULE_INVALID, "entries[%u].sequence occurs twice", i);
        sequence->mark = mark;
        if (entries[i].num_tokens > INT32_MAX - sequence->num_computed)
            return fail(AULE_LIMIT, "entries[%u]: %u tokens and %u more; a sequence has %d at most",
                        i, sequence->num_computed, entries[i].num_tokens, INT32_MAX);
    }
    return AULE_OK;
}

static uint32_t end_of(const struct aule_step_entry *entry)
{
    return entry->sequence->num_computed + entry_tokens(entry);
}

// True: the next token goes into a part-filled block that is sealed or shared.
static bool must_copy(const struct aule_step_entry *entry)
{
    const struct aule_sequence *sequence = entry->sequence;
    uint32_t stored = sequence->num_stored, block_size = sequence->cache->block_size;
    if (stored % block_size == 0 || end_of(entry) <= stored)
        return false;
    struct seq_block *block = sequence->blocks[stored / block_size];
    return atomic_load(&block->sealed) || atomic_load(&block->sharers) > 1;
}

static uint32_t missing_blocks(const struct aule_step_entry *entry)
{
    uint32_t wanted = blocks_for(entry->sequence->cache, end_of(entry));
    return wanted > entry->sequence->num_blocks ? wanted - entry->sequence->num_blocks : 0;
}

// What room_make() leases and copies. Whether a block is shared is read only once, because another
// thread may stop sharing it meanwhile.
struct making {
    uint64_t num_blocks, num_copies;
    bool *copies;               // [num_entries] copy the part-filled block first
    int32_t *ids;               // [num_blocks] leased; those for copies first
    int32_t *from;              // [num_copies]
    struct seq_block **records; // [num_blocks]
};

static void count_blocks(struct making *making, const struct aule_step_entry *entries,
                         uint32_t num_entries)
{
    for (uint32_t i = 0; i < num_entries; i++) {
        making->copies[i] = must_copy(&entries[i]);
        making->num_copies += making->copies[i];
        making->num_blocks += making->copies[i] + missing_blocks(&entries[i]);
    }
}

static enum aule_status allocate(struct making *making, const struct aule_step_entry *entries,
                                 uint32_t num_entries)
{
    enum aule_status status = AULE_OK;
    for (uint32_t i = 0; i < num_entries && status == AULE_OK; i++)
        status = sequence_make_room(entries[i].sequence,
                                    entries[i].sequence->num_blocks + missing_blocks(&entries[i]));
    making->ids = malloc(making->num_blocks * sizeof *making->ids);
    making->from = malloc((making->num_copies + 1) * sizeof *making->from);
    making->records = calloc(making->num_blocks, sizeof(struct seq_block *));
    bool whole = making->ids && making->from && making->records;
    for (uint64_t i = 0; whole && i < making->num_blocks; i++) {
        making->records[i] = seq_block_create(-1, false);
        whole = making->records[i] != NULL;
    }
    if (status == AULE_OK && !whole)
        status = fail(AULE_NO_MEMORY, "no memory for %" PRIu64 " blocks of sequences",
                      making->num_blocks);
    return status;
}

static void end(struct making *making)
{
    for (uint64_t i = 0; making->records && i < making->num_blocks; i++)
        free(making->records[i]);
    free(making->records);
    free(making->from);
    free(making->ids);
    free(making->copies);
}

static struct seq_block **part_filled(const struct aule_sequence *sequence)
{
    return &sequence->blocks[sequence->num_stored / sequence->cache->block_size];
}

static enum aule_status lease_and_copy(struct aule_cache *cache, struct making *making,
                                       const struct aule_step_entry *entries, uint32_t num_entries,
                                       int timeout_ms)
{
    const struct timeout timeout = timeout_start(timeout_ms); // of both requests together
    uint32_t count = 0;
    for (uint32_t i = 0; i < num_entries; i++)
        if (making->copies[i])
            making->from[count++] = (*part_filled(entries[i].sequence))->id;
    enum aule_status status =
        blocks_lease(cache, (uint32_t)making->num_blocks, timeout_ms, making->ids);
    if (status != AULE_OK || count == 0)
        return status;
    // A run reads whatever a block holds, so no step gets a copy that may still fail.
    status = blocks_copy_to_end(cache, count, making->from, making->ids, timeout_left(&timeout));
    if (status == AULE_OK)
        return AULE_OK;
    error_mute(true);
    blocks_release(cache, (uint32_t)making->num_blocks, making->ids);
    error_mute(false);
    return status;
}

static struct seq_block *take(struct making *making, uint64_t index)
{
    struct seq_block *block = making->records[index];
    block->id = making->ids[index];
    making->records[index] = NULL;
    return block;
}

// Puts the copy in the place of the shared block. The last sequence that drops the shared block
// releases it.
static void replace(struct aule_sequence *sequence, struct seq_block *copy)
{
    struct seq_block **place = part_filled(sequence);
    int32_t released;
    if (seq_block_drop(*place, &released))
        blocks_release(sequence->cache, 1, &released);
    *place = copy;
    sequence_touch(sequence);
}

static void hand_out(struct making *making, const struct aule_step_entry *entries,
                     uint32_t num_entries)
{
    uint64_t copied = 0, leased = making->num_copies;
    for (uint32_t i = 0; i < num_entries; i++) {
        struct aule_sequence *sequence = entries[i].sequence;
        if (making->copies[i])
            replace(sequence, take(making, copied++));
        for (uint32_t missing = missing_blocks(&entries[i]); missing > 0; missing--)
            sequence->blocks[sequence->num_blocks++] = take(making, leased++);
    }
}

enum aule_status room_make(struct aule_cache *cache, const struct aule_step_entry *entries,
                           uint32_t num_entries, int timeout_ms)
{
    struct making making = {.copies = calloc((size_t)num_entries + 1, sizeof(bool))};
    enum aule_status status = AULE_OK;
    if (!making.copies)
        return fail(AULE_NO_MEMORY, "no memory for a step of %u sequences", num_entries);
    count_blocks(&making, entries, num_entries);
    if (making.num_blocks > INT32_MAX)
        status = fail(AULE_LIMIT, "%" PRIu64 " blocks for one step; %d at most", making.num_blocks,
                      INT32_MAX);
    else if (making.num_blocks > 0)
        status = allocate(&making, entries, num_entries);
    if (status == AULE_OK && making.num_blocks > 0)
        status = lease_and_copy(cache, &making, entries, num_entries, timeout_ms);
    if (status == AULE_OK)
        hand_out(&making, entries, num_entries);
    end(&making);
    return status;
}

enum aule_status aule_sequences_reserve(const struct aule_step_entry *entries, uint32_t num_entries,
                                        int timeout_ms)
{
    if (num_entries == 0)
        return AULE_OK;
    REQUIRE(entries);
    enum aule_status status = entries_enter(entries, num_entries);
    if (status != AULE_OK)
        return status;
    struct aule_cache *cache = entries[0].sequence->cache;
    status = room_check_entries(cache, entries, num_entries);
    if (status == AULE_OK)
        status = room_make(cache, entries, num_entries, timeout_ms);
    entries_leave(entries, num_entries);
    return status;
}
