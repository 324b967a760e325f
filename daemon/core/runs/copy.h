// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// copy.h - a queued copy or zeroing of blocks: its blocks, which it holds until it is over. In the
// queue it is a run (run.h). Dispatcher thread.

#ifndef AULE_CORE_COPY_H
#define AULE_CORE_COPY_H

#include "core/pool/hold.h"

// WITHIN: among blocks of the cache. IN, OUT: from and to an imported arena: the session's own, or
// the host tier's memory, whose caller keeps it until the copy is over.
enum copy_way { COPY_WITHIN, COPY_IN, COPY_OUT };

struct copy_pair {
    struct block *from, *to; // WITHIN: from NULL: `to` is zeroed. IN: no `from`. OUT: no `to`
};

struct copy {
    struct hold_table *table;
    enum copy_way way;
    uint32_t count;
    enum status *outcome;     // of copy_move(); else NULL
    struct copy_pair pairs[]; // each block referenced once for each time that it stands here
};

void copy_destroy(struct copy *copy); // it is over; takes NULL

// A block and its bytes in an arena.
struct copy_place {
    int32_t block;
    uint64_t offset;
};
// Queues a copy of blocks that the table's session holds, to (OUT) or from (IN) an imported arena.
// IN: they are leased to it. OUT: their writes have ended. *outcome is BUSY until the copy is over,
// then what became of it; it lies still until then. The ticket is detached.
enum status copy_move(struct hold_table *table, struct engine_arena *arena, enum copy_way way,
                      const struct copy_place *places, uint32_t count, enum status *outcome,
                      struct error *error);

#endif
