// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// work.h - one struct for the commands that queue GPU work: a run, a copy of blocks, a merge.
// It can be submitted to core, and kept for a retry while the session has no free ticket. Knows
// core's calls, nothing of the wire or of waiting. Thread: dispatcher.

#ifndef AULE_SERVER_WORK_H
#define AULE_SERVER_WORK_H

#include "core/core.h"

enum work_kind { WORK_RUN, WORK_COPY, WORK_MOVE, WORK_MERGE };

struct work_copy {
    uint64_t cache;
    const int32_t *from, *to; // [count]
    uint32_t count;
    bool detached;
};

struct gpu_command {
    enum work_kind kind;
    union {
        struct core_run_params run;
        struct work_copy copy;
        struct core_move_params move;
        struct core_merge_params merge;
    };
    void *kept; // after work_keep(): the memory of the arrays above; owned. NULL: the caller's
};

// BUSY: the session has no free ticket; try again later.
enum status work_submit(struct core_session *session, const struct gpu_command *work,
                        uint64_t *ticket, struct error *error);

uint64_t work_size(const struct gpu_command *work); // bytes that work_keep() copies
// Copies the arrays of *work, so that the caller's may go. work_finish() frees the copies. False:
// no memory, and *work is as it was.
bool work_keep(struct gpu_command *work);
void work_finish(struct gpu_command *work);

#endif
