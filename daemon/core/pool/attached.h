// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// attached.h - an attached session: its process has mapped the memory of a cache, and its own
// kernels read and write the blocks that it holds. The daemon cannot see when these kernels end. So
// a block that the session releases lingers: the session still names it, and it is not free, until
// the session says that its kernels have passed, or until its process is proven dead. Dispatcher
// thread only.
//
// A mark divides the releases of a table: what lingers has the mark of its time, and
// attached_pass(mark) lets go of what has this mark or an earlier one.

#ifndef AULE_CORE_POOL_ATTACHED_H
#define AULE_CORE_POOL_ATTACHED_H

#include "schema/status.h"

#include <stdbool.h>
#include <stdint.h>

struct block;
struct core_session;
struct hold_table;

struct attached;

// NO_MEMORY. The table is not attached.
enum status attached_begin(struct hold_table *table, struct error *error);
// Call this when the last hold of the block ends: the block lingers with the current mark.
void attached_linger(struct hold_table *table, const struct block *block);
bool attached_lingers(const struct hold_table *table, int32_t id);
uint32_t attached_num(const struct hold_table *table); // blocks that linger
// Ends the current mark and returns it. The next releases get the next one.
uint64_t attached_mark(struct hold_table *table);
uint64_t attached_last_mark(const struct hold_table *table); // 0 = none was returned yet
void attached_pass(struct hold_table *table, uint64_t mark); // UINT64_MAX: whatever lingers
// An attached process can read the whole pool, so nothing is zeroed for it. Zeroes that come later
// would overwrite what its kernels have written. So blocks that it gets are taken off the list of
// blocks to zero, and it gets no block whose zeroes are in flight. It does not wait for the
// zeroes of other blocks. So another tenant that keeps blocks being zeroed cannot starve it.
void attached_forgo_zeroes(const struct hold_table *table, struct block *block);
// Before a lease: lets block_take() give `count` blocks that may be had. NO_BLOCKS: there are not
// so many until zeroes have ended. There are `count` free blocks; the table may be one that is not
// attached.
enum status attached_choose(const struct hold_table *table, uint32_t count, struct error *error);
// Before a take. BUSY: zeroes of one of these blocks are in flight.
enum status attached_check_zeroes(const struct hold_table *table, const int32_t *blocks,
                                  uint32_t count, struct error *error);
// All that lingers goes, and the table is attached no more. Takes one that is not attached.
void attached_end(struct hold_table *table);

#endif
