// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// work.c - see work.h. keep_arrays() is the one list of the arrays that a command has; it serves
// both for measuring and for copying them.

#include "work.h"

#include <stdlib.h>
#include <string.h>

enum status work_submit(struct core_session *session, const struct work *work, uint64_t *ticket,
                        struct error *error)
{
    const struct work_copy *copy = &work->copy;
    switch (work->kind) {
    case WORK_RUN: return core_run(session, &work->run, ticket, error);
    case WORK_COPY:
        return core_blocks_copy(session, copy->cache, copy->from, copy->to, copy->count,
                                copy->detached, ticket, error);
    case WORK_MOVE: return core_blocks_move(session, &work->move, ticket, error);
    case WORK_MERGE: return core_merge(session, &work->merge, ticket, error);
    }
    return error_set(error, STATUS_INTERNAL, "work of the unknown kind %d", (int)work->kind);
}

// ---- keeping ----

// Adds up the sizes of a command's arrays, and copies them to `place` unless it is NULL.
struct keeper {
    uint64_t size; // bytes so far, each array rounded up to 16
    uint8_t *place;
};

// Returns the copy, or `array`. The product does not overflow: counts are below 2^32, because the
// arrays came in a message or in the arena.
static const void *keep(struct keeper *keeper, const void *array, uint64_t count,
                        uint64_t element_size)
{
    if (!array)
        return NULL;
    uint64_t at = keeper->size, size = count * element_size;
    keeper->size += (size + 15) / 16 * 16;
    return keeper->place ? memcpy(keeper->place + at, array, size) : array;
}

static void keep_arrays(struct keeper *keeper, struct work *work)
{
    struct core_run_params *run = &work->run;
    struct work_copy *copy = &work->copy;
    struct core_merge_params *merge = &work->merge;
    switch (work->kind) {
    case WORK_RUN:
        run->slopes =
            keep(keeper, run->slopes, core_run_heads(run, run->layers.slopes), sizeof *run->slopes);
        run->sinks =
            keep(keeper, run->sinks, core_run_heads(run, run->layers.sinks), sizeof *run->sinks);
        run->frequencies =
            keep(keeper, run->frequencies, run->entry.rope_dim / 2, sizeof *run->frequencies);
        run->k_scales = keep(keeper, run->k_scales, core_run_layers(run), sizeof(float));
        run->v_scales = keep(keeper, run->v_scales, core_run_layers(run), sizeof(float));
        break;
    case WORK_COPY:
        copy->from = keep(keeper, copy->from, copy->count, sizeof *copy->from);
        copy->to = keep(keeper, copy->to, copy->count, sizeof *copy->to);
        break;
    case WORK_MOVE:
        work->move.blocks =
            keep(keeper, work->move.blocks, work->move.count, sizeof *work->move.blocks);
        break;
    case WORK_MERGE:
        merge->parts = keep(keeper, merge->parts, merge->num_parts, sizeof *merge->parts);
        break;
    }
}

uint64_t work_size(const struct work *work)
{
    struct work seen = *work;
    struct keeper keeper = {0};
    keep_arrays(&keeper, &seen);
    return keeper.size;
}

bool work_keep(struct work *work)
{
    struct keeper keeper = {0};
    uint64_t size = work_size(work);
    if (size == 0)
        return true;
    keeper.place = malloc(size);
    if (!keeper.place)
        return false;
    keep_arrays(&keeper, work);
    work->kept = keeper.place;
    return true;
}

void work_finish(struct work *work)
{
    free(work->kept);
    work->kept = NULL;
}
