// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// draft_step.c - see draft_step.h. `used` is the number of columns of a row that its sequence
// reaches. A block may be in both lists, adds and drops; it stays named, because advance.c adds
// first.

#include "draft_step.h"

#include "core/pool/session.h"
#include "draft.h"
#include "draft_blocks.h"

#include <stdlib.h>

static enum status pile_add(struct draft_step *step, struct draft_pile *pile, int32_t id)
{
    if (pile->count == pile->capacity) {
        size_t capacity = pile->capacity ? 2 * pile->capacity : 64;
        int32_t *blocks = realloc(pile->blocks, capacity * sizeof *blocks);
        if (!blocks)
            return draft_no_memory(step->draft);
        pile->blocks = blocks;
        pile->capacity = capacity;
    }
    pile->blocks[pile->count++] = id;
    return STATUS_OK;
}

static const int32_t *row_of(const struct draft_step *step, uint32_t s)
{
    const struct core_batch_params *p = step->draft->params;
    return p->block_table + (size_t)s * p->max_blocks;
}

static enum status name_entry(struct draft_step *step, uint32_t s, uint32_t column)
{
    int32_t id = row_of(step, s)[column];
    if (!hold_has(step->draft->table, id))
        return draft_entry_error(step->draft, draft_entry_status(step->draft, id), s, column, id);
    return pile_add(step, &step->adds, id);
}

static enum status name_entries(struct draft_step *step, uint32_t s, uint32_t from, uint32_t to)
{
    enum status status = STATUS_OK;
    for (uint32_t column = from; status == STATUS_OK && column < to; column++)
        status = name_entry(step, s, column);
    return status;
}

// ---- the changes of one sequence ----

// Sorted by column. If a column has several, the first one knows what was there in the step before.
struct changes {
    const struct draft_change *of; // [count]
    uint32_t count;
};

static struct changes take_changes(struct draft_step *step, uint32_t s)
{
    struct changes changes = {.of = step->changes + step->next_change};
    while (step->next_change < step->num_changes && step->changes[step->next_change].seq == s) {
        step->next_change++;
        changes.count++;
    }
    return changes;
}

static bool is_first(const struct changes *changes, uint32_t i)
{
    return i == 0 || changes->of[i].column != changes->of[i - 1].column;
}

// Drops the mentions that columns [from, to) had in the step before.
static enum status drop_entries(struct draft_step *step, uint32_t s, const struct changes *changes,
                                uint32_t from, uint32_t to)
{
    enum status status = STATUS_OK;
    uint32_t at = 0;
    for (uint32_t column = from; status == STATUS_OK && column < to; column++) {
        while (at < changes->count && changes->of[at].column < column)
            at++;
        bool changed = at < changes->count && changes->of[at].column == column;
        status =
            pile_add(step, &step->drops, changed ? changes->of[at].was : row_of(step, s)[column]);
    }
    return status;
}

// ---- a sequence with queries ----

// How many entries of -1 the row begins with now; `before`: in the step before.
static uint32_t count_missing(const struct draft_step *step, uint32_t s,
                              const struct changes *changes, uint32_t before, uint32_t used)
{
    const int32_t *row = row_of(step, s);
    uint32_t missing = before < used ? before : used;
    for (uint32_t i = 0; i < changes->count && changes->of[i].column < missing; i++) {
        if (row[changes->of[i].column] != -1)
            return changes->of[i].column;
    }
    while (missing < used && row[missing] == -1)
        missing++;
    return missing;
}

// Exchanges the mentions of columns that were named before and are still within `used`.
static enum status change_named(struct draft_step *step, uint32_t s, const struct changes *changes,
                                const struct named_columns *old, const struct named_columns *now)
{
    enum status status = STATUS_OK;
    for (uint32_t i = 0; status == STATUS_OK && i < changes->count; i++) {
        uint32_t column = changes->of[i].column;
        if (!is_first(changes, i) || column < old->from || column >= old->to || column >= now->to)
            continue; // check_queried() handles whole ranges of the other columns
        status = pile_add(step, &step->drops, changes->of[i].was);
        if (status == STATUS_OK && column >= now->from)
            status = name_entry(step, s, column);
    }
    return status;
}

static uint32_t max_of(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static uint32_t min_of(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static enum status check_queried(struct draft_step *step, uint32_t s, const struct changes *changes,
                                 uint32_t used)
{
    const struct named_columns *old = &step->old->named_columns[s];
    struct named_columns *now = &step->named_columns[s];
    *now = (struct named_columns){count_missing(step, s, changes, old->from, used), used, true};
    enum status status = now->from ? draft_check_missing(step->draft, s, now->from) : STATUS_OK;
    if (status == STATUS_OK) // were -1 before, have blocks now
        status = name_entries(step, s, now->from, min_of(old->from, used));
    if (status == STATUS_OK)
        status = change_named(step, s, changes, old, now);
    if (status == STATUS_OK) // the sequence grew to them
        status = name_entries(step, s, max_of(old->to, now->from), used);
    if (status == STATUS_OK) // behind the sequence's end now
        status = drop_entries(step, s, changes, max_of(used, old->from), old->to);
    return status;
}

// ---- a sequence without queries ----

// Names the entries of the row up to the first whose block the session may not read.
static enum status look_at_unseen(struct draft_step *step, uint32_t s, uint32_t used)
{
    struct named_columns *now = &step->named_columns[s];
    enum status status = STATUS_OK;
    for (*now = (struct named_columns){0}; status == STATUS_OK && now->to < used; now->to++) {
        int32_t id = row_of(step, s)[now->to];
        if (!hold_has(step->draft->table, id))
            break;
        status = pile_add(step, &step->adds, id);
    }
    return status;
}

// Names the whole row again if anything of it changes, or if an entry could not be read before.
static enum status check_unqueried(struct draft_step *step, uint32_t s,
                                   const struct changes *changes, uint32_t used)
{
    const struct named_columns *old = &step->old->named_columns[s];
    uint32_t was_used = draft_num_used(step->draft, step->old->kept_lens[s]);
    enum status status = STATUS_OK;
    step->named_columns[s] = *old;
    bool had_hole = old->to < was_used; // the session may have got that block since
    if (changes->count || used != was_used || had_hole) {
        status = drop_entries(step, s, changes, 0, old->to);
        if (status == STATUS_OK)
            status = look_at_unseen(step, s, used);
    }
    if (status == STATUS_OK && step->named_columns[s].to < used)
        draft_note_hole(step->draft, s, step->named_columns[s].to,
                        row_of(step, s)[step->named_columns[s].to]);
    return status;
}

static enum status check_sequence(struct draft_step *step, uint32_t s)
{
    const struct changes changes = take_changes(step, s);
    enum status status = draft_check_seq_len(step->draft, s);
    if (status != STATUS_OK)
        return status;
    uint32_t used = draft_num_used(step->draft, step->draft->params->seq_lens_kv[s]);
    status = step->old->named_columns[s].is_query ? check_queried(step, s, &changes, used)
                                                  : check_unqueried(step, s, &changes, used);
    return status == STATUS_OK ? draft_end_sequence(step->draft, s) : status;
}

// ---- the whole step ----

// Each written block has one mention for that. A block that both steps write keeps it.
static enum status exchange_writes(struct draft_step *step)
{
    const struct batch *now = step->draft->batch, *old = step->old;
    enum status status = STATUS_OK;
    for (uint32_t i = 0; status == STATUS_OK && i < old->num_writes; i++) {
        struct block *block = old->writes[i];
        if (block->stamp == step->draft->stamp && block->mark)
            block->mark = 0;
        else
            status = pile_add(step, &step->drops, block->id);
    }
    for (uint32_t i = 0; status == STATUS_OK && i < now->num_writes; i++) {
        if (now->writes[i]->mark)
            status = pile_add(step, &step->adds, now->writes[i]->id);
    }
    return status;
}

enum status draft_check_step(struct draft_step *step)
{
    struct draft *d = step->draft;
    enum status status = draft_check_step_numbers(d);
    for (uint32_t s = 0; status == STATUS_OK && s < d->params->num_seqs; s++)
        status = check_sequence(step, s);
    if (status == STATUS_OK && d->batch->has_slots)
        status = draft_check_slots(d);
    if (status == STATUS_OK)
        status = draft_check_written(d, d->table);
    if (d->batch->attended == 0)
        d->batch->attended = 1;
    return status == STATUS_OK ? exchange_writes(step) : status;
}
