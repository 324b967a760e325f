// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// step.c - turns a model step over sequences into a batch of aule.h. Keeps a copy of the daemon's
// block table, so that a step of the same sequences sends only what changed. See sequence.h for
// threads.

#include "client/src/caller.h"
#include "client/src/error.h"
#include "room.h"

#include <stdlib.h>
#include <string.h>

// What the batch knows of a sequence.
struct row {
    const struct aule_sequence *sequence;
    uint64_t generation;
    uint32_t num_tokens, num_blocks;
};

struct aule_step {
    struct handle handle;
    struct aule_cache *cache; // a reference
    struct aule_batch *batch; // owned; NULL: none
    uint32_t num_rows;        // 0: the step is not made
    uint32_t room, columns;
    uint64_t table_room, token_room, entry_room;
    struct row *rows;                 // [room]
    int32_t *cu_seqlens;              // [room + 1]
    int32_t *seq_lens;                // [room]
    int32_t *table;                   // [num_rows, columns] as the daemon has it
    int64_t *slots;                   // [token_room]
    struct aule_table_entry *changes; // [entry_room]
};

enum aule_status aule_step_create(struct aule_cache *cache, struct aule_step **out)
{
    REQUIRE(out);
    *out = NULL;
    USE(cache);
    struct aule_step *step = calloc(1, sizeof *step);
    if (!step)
        return fail(AULE_NO_MEMORY, "no memory for a step");
    enum aule_status status = handle_open(&step->handle, &step_handles);
    if (status != AULE_OK) {
        free(step);
        return status;
    }
    handle_ref(&cache->handle);
    step->cache = cache;
    *out = step;
    return AULE_OK;
}

// Keeps the sentence of a failure before it.
static void end_batch(struct aule_step *step)
{
    error_mute(true);
    aule_batch_destroy(step->batch);
    error_mute(false);
    step->batch = NULL;
}

static void end_handle(struct handle *handle)
{
    struct aule_step *step = (struct aule_step *)handle;
    end_batch(step);
    free(step->rows);
    free(step->cu_seqlens);
    free(step->seq_lens);
    free(step->table);
    free(step->slots);
    free(step->changes);
    handle_unref(&step->cache->handle);
    free(step);
}

const struct handle_kind step_handles = {"the step", AULE_INVALID, end_handle};

void aule_step_destroy(struct aule_step *step)
{
    if (step && handle_close(step, &step_handles))
        handle_unref(&step->handle);
}

void aule_step_rest(struct aule_step *step)
{
    struct handle *in_use __attribute__((cleanup(handle_leave))) = NULL;
    if (step && handle_enter(step, &step_handles, __func__, "step", &in_use) == AULE_OK)
        end_batch(step);
}

struct aule_batch *aule_step_batch(const struct aule_step *step)
{
    struct handle *in_use __attribute__((cleanup(handle_leave))) = NULL;
    if (!step || handle_enter(step, &step_handles, __func__, "step", &in_use) != AULE_OK)
        return NULL;
    return step->batch;
}

// ---- memory ----

// The array with room for `count` elements. Without memory the array as it was; then *whole becomes
// false.
static void *resized(void *array, uint64_t count, size_t element_size, bool *whole)
{
    void *grown = realloc(array, (count ? count : 1) * element_size);
    *whole = *whole && grown;
    return grown ? grown : array;
}
#define RESIZE(array, count, whole) ((array) = resized((array), (count), sizeof *(array), (whole)))

static enum aule_status make_rows(struct aule_step *step, uint32_t num_rows, uint64_t num_tokens)
{
    bool whole = true;
    if (num_rows > step->room || !step->cu_seqlens) {
        RESIZE(step->rows, num_rows, &whole);
        RESIZE(step->cu_seqlens, (uint64_t)num_rows + 1, &whole);
        RESIZE(step->seq_lens, num_rows, &whole);
        step->room = whole ? num_rows : 0;
    }
    if (whole && num_tokens > step->token_room) {
        RESIZE(step->slots, num_tokens, &whole);
        step->token_room = whole ? num_tokens : 0;
    }
    return whole ? AULE_OK : fail(AULE_NO_MEMORY, "no memory for a step of %u sequences", num_rows);
}

// ---- what the step computes ----

static enum aule_status count_tokens(const struct aule_step_entry *entries, uint32_t num_entries,
                                     uint64_t *num_tokens)
{
    for (uint32_t i = 0; i < num_entries; i++) {
        const struct aule_sequence *sequence = entries[i].sequence;
        uint32_t left = sequence->num_tokens - sequence->num_computed;
        if (entries[i].num_tokens > left)
            return fail(AULE_INVALID,
                        "entries[%u].num_tokens = %u, but its sequence of %u tokens has %u left to "
                        "compute",
                        i, entries[i].num_tokens, sequence->num_tokens, left);
        *num_tokens += entry_tokens(&entries[i]);
        if (*num_tokens > INT32_MAX)
            return fail(AULE_LIMIT, "a step of more than %d tokens", INT32_MAX);
    }
    return AULE_OK;
}

static void fill_rows(struct aule_step *step, const struct aule_step_entry *entries,
                      uint32_t num_entries)
{
    uint32_t block_size = step->cache->block_size;
    int64_t *slot = step->slots;
    step->cu_seqlens[0] = 0;
    for (uint32_t i = 0; i < num_entries; i++) {
        const struct aule_sequence *sequence = entries[i].sequence;
        uint32_t end = sequence->num_computed + entry_tokens(&entries[i]);
        step->cu_seqlens[i + 1] = step->cu_seqlens[i] + (int32_t)entry_tokens(&entries[i]);
        step->seq_lens[i] = (int32_t)end;
        for (uint32_t p = sequence->num_computed; p < end; p++)
            *slot++ =
                p < sequence->num_stored
                    ? -1
                    : (int64_t)sequence->blocks[p / block_size]->id * block_size + p % block_size;
    }
}

// ---- the batch ----

static uint32_t blocks_seen(const struct aule_step *step, uint32_t row)
{
    return blocks_for(step->cache, (uint32_t)step->seq_lens[row]);
}

// True: the step has the same sequences with as many tokens each, and they fit into the table.
static bool may_advance(const struct aule_step *step, const struct aule_step_entry *entries,
                        uint32_t num_entries)
{
    bool same = step->batch && step->num_rows == num_entries;
    for (uint32_t i = 0; same && i < num_entries; i++)
        same = step->rows[i].sequence == entries[i].sequence &&
               step->rows[i].num_tokens == entry_tokens(&entries[i]) &&
               blocks_seen(step, i) <= step->columns;
    return same;
}

static void note_row(struct aule_step *step, uint32_t i, const struct aule_step_entry *entry)
{
    step->rows[i] = (struct row){.sequence = entry->sequence,
                                 .generation = entry->sequence->generation,
                                 .num_tokens = entry_tokens(entry),
                                 .num_blocks = blocks_seen(step, i)};
}

static struct aule_batch_params params_of(const struct aule_step *step)
{
    return (struct aule_batch_params){.num_seqs = step->num_rows,
                                      .max_blocks = step->columns,
                                      .cu_seqlens_q = step->cu_seqlens,
                                      .seq_lens_kv = step->seq_lens,
                                      .block_table = step->table,
                                      .slot_mapping = step->slots};
}

// The whole block table, wide enough for some steps more.
static enum aule_status fill_table(struct aule_step *step, const struct aule_step_entry *entries,
                                   uint32_t num_entries)
{
    uint32_t widest = 0;
    for (uint32_t i = 0; i < num_entries; i++)
        widest = blocks_seen(step, i) > widest ? blocks_seen(step, i) : widest;
    step->columns = widest + widest / 4 + 8; // so that many steps fit
    uint64_t cells = (uint64_t)num_entries * step->columns;
    if (cells > step->table_room) {
        bool whole = true;
        RESIZE(step->table, cells, &whole);
        if (!whole)
            return fail(AULE_NO_MEMORY, "no memory for a block table of %u x %u", num_entries,
                        step->columns);
        step->table_room = cells;
    }
    for (uint32_t i = 0; i < num_entries; i++) {
        int32_t *cells_of_row = step->table + (uint64_t)i * step->columns;
        for (uint32_t c = 0; c < step->columns; c++)
            cells_of_row[c] = c < blocks_seen(step, i) ? entries[i].sequence->blocks[c]->id : -1;
        note_row(step, i, &entries[i]);
    }
    step->num_rows = num_entries;
    return AULE_OK;
}

static enum aule_status create_batch(struct aule_step *step, const struct aule_step_entry *entries,
                                     uint32_t num_entries)
{
    end_batch(step);
    enum aule_status status = fill_table(step, entries, num_entries);
    if (status != AULE_OK)
        return status;
    const struct aule_batch_params params = params_of(step);
    return aule_batch_create(step->cache, &params, &step->batch);
}

static enum aule_status add_change(struct aule_step *step, uint32_t *count, uint32_t row,
                                   uint32_t column, int32_t block)
{
    if (*count == step->entry_room) {
        uint64_t room = step->entry_room + step->entry_room / 2 + 64;
        bool whole = true;
        RESIZE(step->changes, room, &whole);
        if (!whole)
            return fail(AULE_NO_MEMORY, "no memory for %u changes of a block table", *count);
        step->entry_room = room;
    }
    step->changes[(*count)++] = (struct aule_table_entry){row, column, block};
    return AULE_OK;
}

// Looks at the columns that can differ: new ones, and all if an earlier block was replaced. A
// column beyond the sequence's end becomes -1, so that the batch lets go of its block.
static enum aule_status list_changes(struct aule_step *step, uint32_t i, uint32_t *count)
{
    const struct row *row = &step->rows[i];
    const struct aule_sequence *sequence = row->sequence;
    int32_t *cells = step->table + (uint64_t)i * step->columns;
    uint32_t seen = blocks_seen(step, i), end = seen > row->num_blocks ? seen : row->num_blocks;
    uint32_t first = sequence->generation == row->generation ? row->num_blocks : 0;
    enum aule_status status = AULE_OK;
    for (uint32_t c = first; c < end && status == AULE_OK; c++) {
        int32_t block = c < seen ? sequence->blocks[c]->id : -1;
        if (cells[c] != block)
            status = add_change(step, count, i, c, block);
        cells[c] = block;
    }
    return status;
}

static enum aule_status advance_batch(struct aule_step *step, const struct aule_step_entry *entries,
                                      uint32_t num_entries)
{
    uint32_t count = 0;
    enum aule_status status = AULE_OK;
    for (uint32_t i = 0; i < num_entries && status == AULE_OK; i++) {
        status = list_changes(step, i, &count);
        note_row(step, i, &entries[i]);
    }
    const struct aule_advance advance = {.seq_lens_kv = step->seq_lens,
                                         .slot_mapping = step->slots,
                                         .entries = step->changes,
                                         .num_entries = count};
    return status == AULE_OK ? aule_batch_advance(step->batch, &advance) : status;
}

enum aule_status aule_step_masked(const struct aule_step *step, const void *mask, size_t mask_size,
                                  struct aule_batch **batch)
{
    REQUIRE(batch);
    *batch = NULL;
    USE(step);
    REQUIRE(mask);
    if (!step->batch)
        return fail(AULE_INVALID, "a mask for a step that is not made");
    struct aule_batch_params params = params_of(step);
    params.mask = mask;
    params.mask_size = mask_size;
    params.beside = step->batch;
    return aule_batch_create(step->cache, &params, batch);
}

// ---- one step ----

// Blocks that cannot be published now are tried again by the next step. An error that ends the
// session is told by the next call.
static void publish(const struct aule_step_entry *entries, uint32_t num_entries)
{
    error_mute(true);
    for (uint32_t i = 0; i < num_entries; i++)
        (void)sequence_publish(entries[i].sequence);
    error_mute(false);
}

// The batch of the step before still refers to blocks that its sequences have released. It goes
// only if there are no other blocks, because a batch costs more to make than to advance; or if no
// ticket is free for a copy, because the blocks may be gone when there is one.
static enum aule_status make_room(struct aule_step *step, const struct aule_step_entry *entries,
                                  uint32_t num_entries, int timeout_ms)
{
    if (step->batch) {
        enum aule_status status = room_make(step->cache, entries, num_entries, 0);
        if (status != AULE_NO_BLOCKS && status != AULE_QUOTA && status != AULE_BUSY)
            return status;
        end_batch(step);
    }
    return room_make(step->cache, entries, num_entries, timeout_ms);
}

static void count_as_computed(const struct aule_step *step, struct aule_step_entry *entries,
                              uint32_t num_entries)
{
    for (uint32_t i = 0; i < num_entries; i++) {
        struct aule_sequence *sequence = entries[i].sequence;
        entries[i].num_tokens = entry_tokens(&entries[i]);
        entries[i].row = (uint32_t)step->cu_seqlens[i];
        sequence->num_computed += entries[i].num_tokens;
        if (sequence->num_stored < sequence->num_computed)
            sequence->num_stored = sequence->num_computed;
    }
}

// Blocks, rows and slots of the step; a batch is the caller's.
static enum aule_status prepare(struct aule_step *step, const struct aule_step_entry *entries,
                                uint32_t num_entries, int timeout_ms)
{
    uint64_t num_tokens = 0;
    enum aule_status status = room_check_entries(step->cache, entries, num_entries);
    if (status == AULE_OK)
        status = count_tokens(entries, num_entries, &num_tokens);
    if (status == AULE_OK) {
        publish(entries, num_entries);
        status = make_room(step, entries, num_entries, timeout_ms);
    }
    if (status == AULE_OK)
        status = make_rows(step, num_entries, num_tokens);
    if (status == AULE_OK)
        fill_rows(step, entries, num_entries);
    return status;
}

static enum aule_status give_up(struct aule_step *step, enum aule_status status)
{
    end_batch(step);
    step->num_rows = 0;
    return status;
}

static enum aule_status finish(struct aule_step *step, struct aule_step_entry *entries,
                               uint32_t num_entries, enum aule_status status)
{
    if (status == AULE_OK)
        count_as_computed(step, entries, num_entries);
    else
        give_up(step, status);
    entries_leave(entries, num_entries);
    return status;
}

enum aule_status aule_step_make(struct aule_step *step, struct aule_step_entry *entries,
                                uint32_t num_entries, int timeout_ms)
{
    USE(step);
    if (num_entries > 0)
        REQUIRE(entries);
    enum aule_status status = entries_enter(entries, num_entries);
    if (status != AULE_OK)
        return give_up(step, status);
    status = prepare(step, entries, num_entries, timeout_ms);
    if (status == AULE_OK)
        status = may_advance(step, entries, num_entries) ? advance_batch(step, entries, num_entries)
                                                         : create_batch(step, entries, num_entries);
    return finish(step, entries, num_entries, status);
}

// ---- steps for the caller's own kernels ----

enum aule_status aule_step_plan(struct aule_step *step, struct aule_step_entry *entries,
                                uint32_t num_entries, int timeout_ms)
{
    USE(step);
    if (num_entries > 0)
        REQUIRE(entries);
    end_batch(step);
    enum aule_status status = entries_enter(entries, num_entries);
    if (status != AULE_OK)
        return give_up(step, status);
    status = prepare(step, entries, num_entries, timeout_ms);
    if (status == AULE_OK)
        status = fill_table(step, entries, num_entries);
    return finish(step, entries, num_entries, status);
}

enum aule_status aule_step_tables_sized(const struct aule_step *step,
                                        struct aule_step_tables *tables, size_t tables_size)
{
    USE(step);
    REQUIRE(tables);
    if (!step->num_rows)
        return fail(AULE_INVALID, "the tables of a step that is not made");
    const struct aule_step_tables whole = {
        .num_seqs = step->num_rows,
        .max_blocks = step->columns,
        .num_tokens = (uint32_t)step->cu_seqlens[step->num_rows],
        .cu_seqlens_q = step->cu_seqlens,
        .seq_lens_kv = step->seq_lens,
        .block_table = step->table,
        .slot_mapping = step->slots,
    };
    GIVE(tables, tables_size, whole);
    return AULE_OK;
}
