// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// lists.h - the work lists that a batch keeps on the GPU, one for each way it was cut lately.
// plan/items.h makes them.

#ifndef AULE_ENGINE_LISTS_H
#define AULE_ENGINE_LISTS_H

#include "engine/kernels/variant.h"
#include "engine/state/maker.h"
#include "engine/vulkan/slab.h"

// What of a run decides how its sequences are cut into work.
struct cutting {
    uint32_t group;      // query heads a KV head
    uint32_t num_splits; // as the caller wants it
    uint32_t serving;    // kernels that serve the run's geometry: variant_serving()
    uint32_t halves;     // kernels, bit by bit, whose parts are cut into halves
    bool alone;          // what sequences share is computed for each of them
};
bool cutting_same(const struct cutting *a, const struct cutting *b);

// Partial results of a run, all kernels'. UINT64_MAX: more than can be counted.
struct partials {
    uint64_t count, bytes;
};

// What one kernel has to do of a run.
struct work {
    uint64_t items,
        merges; // addresses of struct gpu_item[] or gpu_crowd[], and gpu_merge_item[]; 0 = none
    uint32_t num_items, num_merges, num_partials; // num_merges: tiles that are cut
    uint32_t num_members;                         // of items that are struct gpu_crowd, in all
    uint32_t num_doubtful;                        // items that may be noted for a second pass
    double num_tiles,
        tile_keys; // of queries, or of a helper's items; and keys of all of them together, about
};

// The lists of one cutting.
struct items {
    struct slabs *slabs;
    struct cutting cutting;
    struct work works[MOST_KERNELS];
    struct piece
        piece; // for each kernel struct gpu_item[num_items], then gpu_merge_item[num_merges]; owned
               // of one that helps struct gpu_crowd[num_items], then gpu_item[num_members]
    uint64_t last_sequence; // of a submission that uses it
    struct job end;
    struct items *prev, *next;
};

struct lists {
    struct items *items; // the latest first; owned
};

// The list for `cutting`, which becomes the latest; NULL: there is none. Submitter only, as the
// next one.
struct items *lists_find(struct lists *lists, const struct cutting *cutting);
// Takes `items` over as the latest. The one that was not used for longest ends when the GPU is past
// it, if there are too many.
void lists_add(struct lists *lists, struct engine *engine, struct items *items);
void lists_finish(struct lists *lists); // ends all now: no submission uses them

#endif
