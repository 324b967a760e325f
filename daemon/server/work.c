// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// work.c - see work.h. keep_arrays() names the arrays of each kind of command.

#include "work.h"

#include "base/keep.h"

#include <stdlib.h>

enum status work_submit(struct core_session *session, const struct gpu_command *work,
                        uint64_t *ticket, struct error *error)
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

static void keep_arrays(struct keeper *keeper, struct gpu_command *work)
{
    struct core_run_params *run = &work->run;
    struct work_copy *copy = &work->copy;
    struct core_merge_params *merge = &work->merge;
    struct core_move_params *move = &work->move;
    switch (work->kind) {
    case WORK_RUN:
#define X(array, length) KEEP(keeper, array, length);
        CORE_RUN_ARRAYS(X, run)
#undef X
        break;
    case WORK_COPY:
        KEEP(keeper, copy->from, copy->count);
        KEEP(keeper, copy->to, copy->count);
        break;
    case WORK_MOVE: KEEP(keeper, move->blocks, move->count); break;
    case WORK_MERGE: KEEP(keeper, merge->parts, merge->num_parts); break;
    }
}

uint64_t work_size(const struct gpu_command *work)
{
    struct gpu_command seen = *work;
    struct keeper keeper = {0};
    keep_arrays(&keeper, &seen);
    return keeper.size;
}

bool work_keep(struct gpu_command *work)
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

void work_finish(struct gpu_command *work)
{
    free(work->kept);
    work->kept = NULL;
}
