// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// cut.h - how the sequences of a batch, or of several batches, are cut. Each sequence goes to one
// kernel; its rows are cut into that kernel's tiles, and the keys of a tile into parts (split-KV).
// The cut depends only on the sequence's own q_len and kv_len and on the run's parameters. So its
// rows get the same bits in any batch. Which parts a cascade computes for several sequences does
// depend on the batches, but changes no bit.

#ifndef AULE_ENGINE_CUT_H
#define AULE_ENGINE_CUT_H

#include "engine/memory/batch.h"
#include "engine/memory/crowds.h"

struct gpu_item;

// How one sequence is cut.
struct cut {
    uint32_t kernel;            // index in the variant's list
    uint32_t tile_rows;         // of that kernel
    uint64_t tiles, live_tiles; // tiles of all rows; tiles that have a query
    uint64_t rows;              // of queries, for one KV head
    uint64_t length, parts;     // keys of one part; number of parts
    bool halves;                // each part is two items
    bool whole;                 // all parts are one item, unless some are shared
    // Leading parts that are in crowds, each as two halves. Never all parts; 0 with several tiles.
    uint32_t shared;
};

// Index in the variant's list of the first kernel that serves a sequence with `rows` rows for each
// KV head. On a software device its loops must also be long enough for kv_len keys.
uint32_t cut_kernel(const struct engine_batch *batch, const struct cutting *cutting, uint64_t rows,
                    uint64_t kv_len);
uint64_t cut_num_partials(const struct cut *cut); // partial results of one tile; 1 = not split
struct cut cut_sequence(const struct engine_batch *batch, uint32_t seq,
                        const struct cutting *cutting);

#define NO_MEMBERS UINT32_MAX

// All sequences of some batches, numbered one after another.
struct cuts {
    struct engine_batch *const *batches; // [num_batches]; of one cache, or of equal block tensors
    uint32_t num_batches;
    uint32_t *first; // [num_batches + 1]: the number of each batch's first sequence, and of all;
                     // owned, like the next two
    struct cut *of;  // [first[num_batches]]
    // [first[num_batches]]: for each sequence with shared parts the item of its whole tile, from
    // which crowds make theirs; set when the work lists are filled. NULL = nothing is shared.
    struct gpu_item *tiles;
    struct crowds crowds; // the sequences that share parts
    // [num_batches]: each batch's number among those that have members of crowds; NO_MEMBERS; owned
    uint32_t *numbers;
    uint32_t helper; // index of the cascade kernel; NO_KERNEL = nothing is shared
    uint32_t rows;   // rows of one of its work items
};

uint32_t cuts_batch_of(const struct cuts *cuts, uint32_t seq); // index of its batch

// Rows of each member in a work item: the most that a member has, rounded up to a power of two.
uint32_t cuts_crowd_width(const struct cuts *cuts, const struct crowd *crowd);
// Work items for one half of the crowd's part.
uint32_t cuts_crowd_items(const struct cuts *cuts, const struct crowd *crowd);

// `batches` stays the caller's, and must outlive `cuts`. false: no memory.
bool cuts_make(struct cuts *cuts, struct engine_batch *const *batches, uint32_t num_batches,
               const struct cutting *cutting);
void cuts_finish(struct cuts *cuts); // takes a zeroed one

#endif
