// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// copy.h - a queued copy or zeroing of blocks: its blocks, which it holds until it is over. In the
// queue it is a run (run.h). Dispatcher thread.

#ifndef AULE_CORE_COPY_H
#define AULE_CORE_COPY_H

#include "core/pool/hold.h"

struct copy_pair {
    struct block *from, *to; // from NULL: `to` is zeroed
};

struct copy {
    struct hold_table *table;
    uint32_t count;
    struct copy_pair pairs[]; // each block referenced once for each time that it stands here
};

void copy_destroy(struct copy *copy); // it is over; takes NULL

#endif
