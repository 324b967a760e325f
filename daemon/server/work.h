// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// work.h - a command that queues GPU work (a run, a copy of blocks, a merge) as one thing that can
// be tried, and kept while the session has no free ticket. Knows core's calls, nothing of the wire
// or of waiting. Dispatcher thread.

#ifndef AULE_SERVER_WORK_H
#define AULE_SERVER_WORK_H

#include "core/core.h"

enum work_kind { WORK_RUN, WORK_COPY, WORK_MERGE };

struct work_copy {
    uint64_t cache;
    const int32_t *from, *to; // [count]
    uint32_t count;
    bool detached;
};

struct work {
    enum work_kind kind;
    union {
        struct core_run_params run;
        struct work_copy copy;
        struct core_merge_params merge;
    };
    void *
        kept; // owned: what the pointers above lead to after work_keep(); NULL: the caller's memory
};

// BUSY: the session has no free ticket; try again with the same.
enum status work_submit(struct core_session *session, const struct work *work, uint64_t *ticket,
                        struct error *error);

uint64_t work_size(const struct work *work); // bytes that work_keep() copies
// Makes *work independent of the memory that its arrays lie in; work_finish() ends it. False: no
// memory, and *work is as it was.
bool work_keep(struct work *work);
void work_finish(struct work *work);

#endif
