// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// making.c - batches and next steps whose arrays another thread checks. A next step is made like a
// new batch, from what was kept of the one before, so that it shares nothing with runs in flight.
// Dispatcher thread, except core_draft_fill().

#include "making.h"

#include "advance.h"
#include "base/list.h"
#include "core/pool/ledger.h"
#include "core/pool/salt.h"
#include "core/pool/session.h"
#include "core/pool/tenant.h"

#include <stdlib.h>
#include <string.h>

static struct core_draft *draft_create(struct core_session *session,
                                       const struct core_batch_params *params)
{
    struct core_draft *making = calloc(1, sizeof *making);
    struct batch *batch = calloc(1, sizeof *batch);
    if (!making || !batch) {
        free(making);
        free(batch);
        return NULL;
    }
    batch->session = session;
    making->session = session;
    making->batch = batch;
    making->params = *params;
    LIST_APPEND(session->drafts, making);
    return making;
}

// The session may read the blocks that the step before names, whether it still holds them or not.
static void add_named(struct hold_table *sketch, const struct batch *old)
{
    const struct mentions *mentions = old->mentions;
    for (uint32_t i = 0; i < old->num_blocks; i++)
        hold_sketch_add(sketch, old->blocks[i]);
    for (int64_t id = mentions ? mentions_next(mentions, 0) : -1; id >= 0;
         id = mentions_next(mentions, id + 1))
        hold_sketch_add(sketch, (int32_t)id);
}

// The other thread gets a sketch instead of the hold table.
static enum status open_elsewhere(struct core_draft *making, struct error *error)
{
    enum status status = making_open(making, error);
    struct hold_table *table = making->batch->table;
    making->params.layout = NULL;
    if (status != STATUS_OK || !table)
        return status;
    making->sketch = hold_table_sketch(table);
    making->whole = block_whole_bits(table->cache);
    if (!making->sketch || !making->whole)
        return draft_no_memory(&making->draft);
    if (making->old)
        add_named(making->sketch, making->old);
    making->draft.table = making->sketch;
    making->table = table;
    table->num_users++;
    return STATUS_OK;
}

static enum status begin(struct core_draft *making, struct core_draft **out, struct error *error)
{
    if (!making)
        return error_set(error, STATUS_NO_MEMORY, "no host memory for the batch");
    enum status status = open_elsewhere(making, error);
    if (status == STATUS_OK)
        *out = making;
    else
        making_discard(making);
    return status;
}

enum status core_batch_begin(struct core_session *session, const struct core_batch_params *sizes,
                             struct core_draft **out, struct error *error)
{
    enum status status = batch_check_number(session, error);
    return status == STATUS_OK ? begin(draft_create(session, sizes), out, error) : status;
}

enum status core_advance_begin(struct core_session *session, const struct core_advance *sizes,
                               struct core_draft **out, struct error *error)
{
    struct batch *batch;
    enum status status = session_usable(session, error);
    if (status == STATUS_OK)
        status = batch_find(session, sizes->batch, &batch, error);
    if (status == STATUS_OK)
        status = advance_check_lengths(batch, sizes, error);
    if (status != STATUS_OK)
        return status;
    const struct core_layout layout = {.kv = batch->kv, .num_blocks = batch->num_layout_blocks};
    struct core_batch_params params = batch->kept;
    params.layout = batch->table ? NULL : &layout;
    params.num_slot_mapping = sizes->num_slot_mapping;
    struct core_draft *making = draft_create(session, &params);
    if (making) {
        making->old = batch;
        batch->users++;
    }
    return begin(making, out, error);
}

// Sets the marks of reads.c, so that the first run need not look at each entry. Only the entries of
// a hole may name what the session does not hold.
static void mark_whole(const struct core_draft *making)
{
    const struct batch *batch = making->batch;
    if (!making->whole || !batch_has_whole(batch) || batch->hole.there)
        return;
    for (uint32_t s = 0; s < batch->num_seqs; s++) {
        const int32_t *row = batch->kept_table + (size_t)s * batch->kept.max_blocks;
        const uint32_t used =
            ((uint32_t)batch->kept_lens[s] + batch->kv.block_size - 1) / batch->kv.block_size;
        uint32_t column = 0;
        while (column < used && (row[column] < 0 ||
                                 block_was_whole(making->table->cache, making->whole, row[column])))
            column++;
        batch->kept_whole[s] = column;
    }
}

// The marks hold if each block is still whole; from now on the batch references them.
static void check_whole(const struct core_draft *making)
{
    struct batch *batch = making->batch;
    const struct cache *cache = making->whole ? making->table->cache : NULL;
    uint32_t i = 0;
    if (!cache || !batch_has_whole(batch))
        return;
    while (i < batch->num_blocks && (!block_was_whole(cache, making->whole, batch->blocks[i]) ||
                                     block_is_whole(cache, batch->blocks[i])))
        i++;
    if (i < batch->num_blocks)
        memset(batch->kept_whole, 0, batch->num_seqs * sizeof *batch->kept_whole);
    batch->unwholes = making->session->salt->tenant->unwholes;
}

enum status core_draft_fill(struct core_draft *making, const struct core_batch_params *params,
                            struct error *error)
{
    making->params = *params;
    making->params.layout = NULL;
    enum status status = making_fill(making, error);
    if (status == STATUS_OK)
        mark_whole(making);
    return status;
}

enum status core_draft_fill_next(struct core_draft *making, const struct core_advance *advance,
                                 struct error *error)
{
    making->advance = *advance;
    enum status status =
        advance_fill_arrays(making->old, advance, &making->params, &making->arrays, error);
    if (status == STATUS_OK)
        status = making_fill(making, error);
    if (status == STATUS_OK)
        mark_whole(making);
    return status == STATUS_OK && making->table
               ? steps_prepare(making->batch, making->draft.writes, error)
               : status;
}

enum status core_draft_end(struct core_draft *making, uint64_t *id, uint32_t *num_tokens,
                           struct error *error)
{
    struct batch *batch = making->batch, *old = making->old;
    struct core_session *session = making->session;
    enum status status = session_usable(session, error);
    if (status == STATUS_OK)
        status = session_check_batch_memory(session, batch_bytes(batch) + steps_bytes(batch),
                                            "metadata", error);
    if (status == STATUS_OK)
        status = making_close(making, error);
    if (status != STATUS_OK)
        return status;
    check_whole(making);
    *id = batch->id;
    *num_tokens = batch->num_tokens;
    making->batch = NULL;
    steps_begin(batch);
    if (old) {
        batch_unref(old); // as the registered one; the draft's own user follows
        engine_expect(session->ledger->engine);
    }
    return STATUS_OK;
}

void making_discard(struct core_draft *making)
{
    LIST_DELETE(making->session->drafts, making);
    making->draft.table = NULL; // a sketch's marks need no clearing
    draft_finish(&making->draft);
    batch_discard(making->batch);
    if (making->old)
        batch_unref(making->old);
    if (making->table)
        hold_table_unuse(making->table);
    ledger_free(making->session->ledger, making->arrays);
    free(making->sketch);
    ledger_free(making->session->ledger, making->whole);
    free(making);
}
