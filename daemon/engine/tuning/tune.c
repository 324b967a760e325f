// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// tune.c - see tune.h.

#include "tune.h"

#include "base/hash.h"

#include <stdlib.h>
#include <string.h>

struct tune_row {
    struct tune_entry entry;
    UT_hash_handle hh;
};

_Static_assert(sizeof(struct tune_key) ==
                   sizeof(uint64_t) + (SPEC_CONSTANTS + 3) * sizeof(uint32_t),
               "keys are compared byte by byte");

uint32_t tune_size(uint64_t number, uint32_t most)
{
    uint64_t size = 1;
    while (size * 2 <= number && size * 2 <= most)
        size *= 2;
    return (uint32_t)size;
}

enum status tune_init(struct tune *tune, bool enabled, uint32_t max_entries, struct error *error)
{
    *tune = (struct tune){.enabled = enabled, .max_entries = max_entries};
    tune->lock_made = pthread_mutex_init(&tune->lock, NULL) == 0;
    tune->changed_made = tune->lock_made && pthread_cond_init(&tune->changed, NULL) == 0;
    if (tune->changed_made)
        return STATUS_OK;
    tune_finish(tune);
    return error_set(error, STATUS_NO_MEMORY, "no memory for a lock");
}

static void drop_all(struct tune_row **table)
{
    struct tune_row *row, *next;
    HASH_ITER(hh, *table, row, next) {
        HASH_DEL(*table, row);
        free(row);
    }
}

static void drop_rows(struct tune *tune)
{
    drop_all(&tune->by_key);
    drop_all(&tune->spare);
}

void tune_finish(struct tune *tune)
{
    drop_rows(tune);
    free(tune->rows);
    tune->rows = NULL;
    if (tune->changed_made)
        pthread_cond_destroy(&tune->changed);
    if (tune->lock_made)
        pthread_mutex_destroy(&tune->lock);
    tune->changed_made = tune->lock_made = false;
}

// ---- rows; with the lock held ----

static struct tune_row *find(struct tune *tune, const struct tune_key *key)
{
    struct tune_row *row = NULL;
    HASH_FIND(hh, tune->by_key, key, sizeof *key, row);
    return row;
}

// Room for one more.
static bool reserve(struct tune *tune)
{
    uint32_t count = HASH_COUNT(tune->by_key), wanted = count < 16 ? 16 : 2 * count;
    tune->full |= count >= tune->max_entries;
    if (count >= tune->max_entries || count < tune->capacity)
        return count < tune->max_entries;
    struct tune_row **rows = realloc(tune->rows, wanted * sizeof *rows);
    if (rows) {
        tune->rows = rows;
        tune->capacity = wanted;
    }
    return rows;
}

// NULL without memory.
static struct tune_row *add_row(struct tune_row **table, const struct tune_entry *entry)
{
    struct tune_row *row = calloc(1, sizeof *row);
    if (!row)
        return NULL;
    row->entry = *entry;
    HASH_ADD(hh, *table, entry.key, sizeof row->entry.key, row);
    if (HASH_ADDED(row))
        return row;
    free(row);
    return NULL;
}

static struct tune_row *insert(struct tune *tune, const struct tune_entry *entry)
{
    struct tune_row *row = reserve(tune) ? add_row(&tune->by_key, entry) : NULL;
    if (row)
        tune->rows[HASH_COUNT(tune->by_key) - 1] = row;
    return row;
}

static bool set_aside(struct tune *tune, const struct tune_entry *entry)
{
    struct tune_row *row = NULL;
    HASH_FIND(hh, tune->spare, &entry->key, sizeof entry->key, row);
    return !row && tune->full && add_row(&tune->spare, entry);
}

static struct tune_row *first_waiting(struct tune *tune)
{
    for (uint32_t i = 0; i < HASH_COUNT(tune->by_key); i++)
        if (tune->rows[i]->entry.state == ENGINE_TUNE_WAITING)
            return tune->rows[i];
    return NULL;
}

// ---- choosing ----

// Where the rule won, it stays in charge: a key stands for a range of dispatches, and the rule may
// choose different sizes within that range.
static uint32_t choice(const struct tune_entry *entry)
{
    return entry->local_size == entry->rule_local_size ? 0 : entry->local_size;
}

uint32_t tune_choice(struct tune *tune, const struct tune_key *key)
{
    pthread_mutex_lock(&tune->lock);
    const struct tune_row *row = tune->enabled ? find(tune, key) : NULL;
    uint32_t local_size = row ? choice(&row->entry) : 0;
    pthread_mutex_unlock(&tune->lock);
    return local_size;
}

bool tune_lacks(struct tune *tune, const struct tune_key *key)
{
    pthread_mutex_lock(&tune->lock);
    bool lacks = tune->enabled && !find(tune, key);
    pthread_mutex_unlock(&tune->lock);
    return lacks;
}

void tune_want(struct tune *tune, const struct tune_entry *entry)
{
    struct tune_row *row;
    pthread_mutex_lock(&tune->lock);
    if (tune->enabled && !tune->stopping && !find(tune, &entry->key) &&
        (row = insert(tune, entry))) {
        row->entry.state = ENGINE_TUNE_WAITING;
        pthread_cond_signal(&tune->changed);
    }
    pthread_mutex_unlock(&tune->lock);
}

enum tune_added tune_add(struct tune *tune, const struct tune_entry *entry)
{
    enum tune_added added = TUNE_UNUSED;
    pthread_mutex_lock(&tune->lock);
    if (!find(tune, &entry->key))
        added = insert(tune, entry)      ? TUNE_ADDED
                : set_aside(tune, entry) ? TUNE_SPARE
                                         : TUNE_UNUSED;
    pthread_mutex_unlock(&tune->lock);
    return added;
}

// ---- measuring ----

bool tune_wait(struct tune *tune, struct tune_task *task)
{
    struct tune_row *row = NULL;
    pthread_mutex_lock(&tune->lock);
    while (!tune->unsaved && !tune->stopping && !(tune->enabled && (row = first_waiting(tune))))
        pthread_cond_wait(&tune->changed, &tune->lock);
    *task = (struct tune_task){.save = tune->unsaved, .clear = tune->cleared};
    if (row && !tune->unsaved && !tune->stopping) {
        task->measure = true;
        task->entry = row->entry;
    }
    if (task->save)
        tune->unsaved = tune->failed = tune->cleared = false;
    pthread_mutex_unlock(&tune->lock);
    return task->save || task->measure;
}

bool tune_goes_on(struct tune *tune, const struct tune_key *key)
{
    pthread_mutex_lock(&tune->lock);
    const struct tune_row *row = find(tune, key);
    bool goes_on =
        tune->enabled && !tune->stopping && row && row->entry.state == ENGINE_TUNE_WAITING;
    pthread_mutex_unlock(&tune->lock);
    return goes_on;
}

void tune_done(struct tune *tune, const struct tune_entry *entry)
{
    pthread_mutex_lock(&tune->lock);
    struct tune_row *row = find(tune, &entry->key);
    if (row && entry->state == ENGINE_TUNE_MEASURED) {
        row->entry = *entry;
        tune->unsaved = true;
    } else if (row) {
        row->entry.state = row->entry.local_size ? ENGINE_TUNE_MEASURED
                                                 : entry->state; // the old choice is still good
    }
    tune->unsaved |= tune->failed;
    pthread_mutex_unlock(&tune->lock);
}

void tune_stop(struct tune *tune)
{
    if (!tune->changed_made)
        return;
    pthread_mutex_lock(&tune->lock);
    tune->stopping = true;
    tune->unsaved |= tune->failed;
    pthread_cond_signal(&tune->changed);
    pthread_mutex_unlock(&tune->lock);
}

// ---- what an operator does ----

void tune_enable(struct tune *tune, bool enabled)
{
    pthread_mutex_lock(&tune->lock);
    tune->enabled = enabled;
    pthread_cond_signal(&tune->changed);
    pthread_mutex_unlock(&tune->lock);
}

void tune_renew(struct tune *tune)
{
    pthread_mutex_lock(&tune->lock);
    for (uint32_t i = 0; i < HASH_COUNT(tune->by_key); i++)
        if (tune->rows[i]->entry.ours)
            tune->rows[i]->entry.state = ENGINE_TUNE_WAITING;
    pthread_cond_signal(&tune->changed);
    pthread_mutex_unlock(&tune->lock);
}

void tune_clear(struct tune *tune)
{
    pthread_mutex_lock(&tune->lock);
    drop_rows(tune);
    tune->full = false;
    tune->unsaved = tune->cleared = true;
    pthread_cond_signal(&tune->changed);
    pthread_mutex_unlock(&tune->lock);
}

// ---- looking ----

bool tune_at(struct tune *tune, uint32_t index, struct tune_entry *out)
{
    pthread_mutex_lock(&tune->lock);
    bool there = index < HASH_COUNT(tune->by_key);
    if (there)
        *out = tune->rows[index]->entry;
    pthread_mutex_unlock(&tune->lock);
    return there;
}

struct tune_entry *tune_copy(struct tune *tune, uint32_t *count)
{
    pthread_mutex_lock(&tune->lock);
    const uint32_t num_rows = HASH_COUNT(tune->by_key);
    *count = num_rows + HASH_COUNT(tune->spare);
    struct tune_entry *entries = calloc((size_t)*count + 1, sizeof *entries);
    for (uint32_t i = 0; entries && i < num_rows; i++)
        entries[i] = tune->rows[i]->entry;
    uint32_t at = num_rows;
    for (const struct tune_row *row = tune->spare; entries && row; row = row->hh.next)
        entries[at++] = row->entry;
    pthread_mutex_unlock(&tune->lock);
    return entries;
}

void tune_not_saved(struct tune *tune)
{
    pthread_mutex_lock(&tune->lock);
    tune->failed = true;
    pthread_mutex_unlock(&tune->lock);
}

struct tune_counts tune_count(struct tune *tune)
{
    pthread_mutex_lock(&tune->lock);
    struct tune_counts counts = {
        .enabled = tune->enabled, .full = tune->full, .num_entries = HASH_COUNT(tune->by_key)};
    for (uint32_t i = 0; i < counts.num_entries; i++)
        counts.num_waiting += tune->rows[i]->entry.state == ENGINE_TUNE_WAITING;
    pthread_mutex_unlock(&tune->lock);
    return counts;
}
