// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// lists.c - a short LRU list of work lists. Knows nothing of their contents. The submitter adds,
// the maker frees when the GPU has finished.

#include "lists.h"

#include "base/container_of.h"
#include "base/list.h"
#include "engine/state/state.h"

#include <stdlib.h>

// A model has one number of query heads, and a draft model may have another. With more ways of
// cutting than this, lists are made again.
enum { MOST_LISTS = 4 };

bool cutting_same(const struct cutting *a, const struct cutting *b)
{
    return a->group == b->group && a->num_splits == b->num_splits && a->serving == b->serving &&
           a->halves == b->halves && a->alone == b->alone && a->num_slices == b->num_slices &&
           a->most_keys == b->most_keys;
}

struct items *lists_find(struct lists *lists, const struct cutting *cutting)
{
    struct items *items;
    LIST_EACH(lists->items, items)
        if (cutting_same(&items->cutting, cutting))
            break;
    if (!items)
        return NULL;
    LIST_DELETE(lists->items, items);
    LIST_PREPEND(lists->items, items);
    return items;
}

static void items_free(struct items *items)
{
    slab_give(items->slabs, &items->piece);
    free(items->slices);
    slab_give(items->slabs, &items->counters);
    if (items->kept_total)
        atomic_fetch_sub(items->kept_total, items->kept.size);
    buffer_finish(items->slabs->device, &items->kept);
    free(items);
}

static void run_items_end(struct engine *engine, struct job *job)
{
    (void)engine;
    items_free(container_of(job, struct items, end));
}

void lists_add(struct lists *lists, struct engine *engine, struct items *items)
{
    struct items *each, *oldest;
    int count = 0;
    LIST_PREPEND(lists->items, items);
    LIST_EACH(lists->items, each)
        count++;
    if (count <= MOST_LISTS)
        return;
    oldest = lists->items->prev;
    LIST_DELETE(lists->items, oldest);
    oldest->end = (struct job){.after = oldest->last_sequence, .run = run_items_end};
    pthread_mutex_lock(&engine->lock);
    job_post(engine, &oldest->end);
    pthread_mutex_unlock(&engine->lock);
}

void lists_finish(struct lists *lists)
{
    while (lists->items) {
        struct items *items = lists->items;
        LIST_DELETE(lists->items, items);
        items_free(items);
    }
}
