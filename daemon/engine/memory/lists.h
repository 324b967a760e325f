// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// lists.h - the work lists that a batch keeps on the GPU, one for each recent way of cutting it.
// plan/items.h fills them. Knows nothing of their contents.

#ifndef AULE_ENGINE_LISTS_H
#define AULE_ENGINE_LISTS_H

#include "engine/kernels/variant.h"
#include "engine/state/maker.h"
#include "engine/vulkan/slab.h"

#include <stdatomic.h>

// The parts of a run that decide how its sequences are cut into work items.
struct cutting {
    uint32_t group;      // query heads for one KV head
    uint32_t num_splits; // as in struct engine_run
    uint32_t serving;    // bit i: kernel i serves the run's geometry; see variant_serving()
    uint32_t halves;     // bit i: kernel i gets its parts cut into halves
    // The lists are cut into so many slices of about equal work, where a tile goes over most_keys
    // keys at most; 0: they are whole, and most_keys is 0, too.
    uint32_t num_slices, most_keys;
    bool alone; // no cascade: shared keys are read once for each sequence
};
bool cutting_same(const struct cutting *a, const struct cutting *b);

// Partial results of a run, summed over all kernels. UINT64_MAX: the number overflows.
struct partials {
    uint64_t count, bytes;
};

// One kernel's part of a run.
struct work {
    // Addresses of struct gpu_item[] (gpu_crowd[] for a cascade) and of gpu_merge_item[]; 0 = none.
    uint64_t items, merges;
    uint32_t num_items, num_merges, num_partials; // num_merges: tiles that are split
    uint32_t first_merge, first_partial;          // of a slice: numbers in its items begin here
    // Shader addresses of partial result 0 and of counter 0, if the slice is a part of one tile,
    // whose results are kept; else 0.
    uint64_t kept_partials, kept_counters;
    uint32_t num_members; // cascade: members of all its items
    // Items with at least about half as many keys as the first one; the others stand behind them.
    // 0: a cascade's.
    uint32_t num_large;
    bool joins;            // cascade of several runs: the run is one of them, even without items
    uint32_t num_doubtful; // items that the first pass may note for the second
    // Tiles with queries (cascade: work items), and the keys of all of them together; estimates.
    double num_tiles, tile_keys;
};

// Where a slice begins in the lists of one kernel.
struct slice_begin {
    uint32_t item, merge, partial;
    // The slice is a part of one tile, of which `merge` is the number. Its partial results are
    // kept.
    bool is_kept;
    uint32_t tile_partial, tile_partials; // the first one of the tile, and how many it has
};

// The work lists for one cutting.
struct items {
    struct slabs *slabs;
    struct cutting cutting;
    struct work works[MOST_KERNELS];
    // For each kernel struct gpu_item[num_items], then gpu_merge_item[num_merges]. For a cascade
    // struct gpu_crowd[num_items], then AULE_MEMBER_BYTES for each of num_members. Owned.
    struct piece piece;
    // [MOST_KERNELS, num_slices + 1]: the last one is the lists' end; NULL: they are whole; owned.
    struct slice_begin *slices;
    // Partial results and counters of tiles that are cut, equal parts for all kernels; owned.
    struct buffer kept;
    struct piece counters;
    atomic_ullong *kept_total; // the engine's; has kept.size. NULL: no tile is cut
    uint32_t num_taken;        // slices of the run that uses them now
    bool broken;               // one of these has failed
    uint64_t last_sequence;    // of the last submission that uses it
    struct job end;
    struct items *prev, *next;
};

struct lists {
    struct items *items; // most recently used first; owned
};

// Returns the lists for `cutting` and makes them the most recent; NULL: there are none. Submitter
// only, like lists_add().
struct items *lists_find(struct lists *lists, const struct cutting *cutting);
// Takes ownership of `items` as the most recent. If there are too many, the least recently used one
// is freed when the GPU has finished with it.
void lists_add(struct lists *lists, struct engine *engine, struct items *items);
void lists_finish(struct lists *lists); // frees all now: no submission uses them

#endif
