// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// cut.h - how the sequences of a batch are cut: each goes to one kernel, its rows into that
// kernel's tiles, the keys of a tile into parts. This depends on the sequence's own q_len and
// kv_len and on the run's parameters only, so that its rows get the same bits whoever is beside it.
// Which parts are computed together with other sequences' depends on those, and no bit does on
// that.

#ifndef AULE_ENGINE_CUT_H
#define AULE_ENGINE_CUT_H

#include "engine/memory/batch.h"

struct gpu_item;

struct cut {
    uint32_t kernel;            // number in the variant's list
    uint32_t tile_rows;         // of that one
    uint64_t tiles, live_tiles; // of all its rows; of those with a query
    uint64_t rows;              // of queries, for one KV head
    uint64_t length, parts;     // keys of one part
    bool halves;                // each part is two items
    uint32_t shared; // so many leading parts are in crowds, by halves: never all, and only if there
                     // is one tile
};

// Number of the kernel in the variant's list that a sequence of so many rows a KV head goes to: the
// first that serves it, and on a software device whose loops end.
uint32_t cut_kernel(const struct engine_batch *batch, const struct cutting *cutting, uint64_t rows,
                    uint64_t kv_len);
uint64_t cut_num_partials(const struct cut *cut); // of a tile; 1 = it is not cut
struct cut cut_sequence(const struct engine_batch *batch, uint32_t seq,
                        const struct cutting *cutting);

// All sequences of a batch.
struct cuts {
    struct cut *of;         // [num_seqs]; owned, as the next
    struct gpu_item *tiles; // [num_seqs]: of those with shared parts, all but the part, once they
                            // are filled; NULL = there are none
    struct crowds crowds;   // of the parts that are shared
    uint32_t helper;        // number of the kernel that computes them; NO_KERNEL = none are
    uint32_t rows;          // of one work item of its
};

// How many rows each member has in a work item: those of the one that has the most, made a power of
// two. And how many work items half of the crowd's part is.
uint32_t cuts_crowd_width(const struct cuts *cuts, const struct crowd *crowd);
uint32_t cuts_crowd_items(const struct cuts *cuts, const struct crowd *crowd);

bool cuts_make(struct cuts *cuts, const struct engine_batch *batch,
               const struct cutting *cutting); // false: no memory
void cuts_finish(struct cuts *cuts);           // takes a zeroed one

#endif
