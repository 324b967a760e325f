// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// slices.h - cuts the work lists of a batch into slices of about equal work, which submissions of
// their own compute. A slice ends with a tile. But a tile with much more work than one slice should
// have is cut between its parts: its partial results are kept between its slices, and the last one
// merges them. No bit depends on where a slice ends. Submitter only.

#ifndef AULE_ENGINE_SLICES_H
#define AULE_ENGINE_SLICES_H

#include "engine/memory/batch.h"

// How the list of one kernel is cut, while it is filled in the order of tiles: once to count, once
// more to place.
struct slicing {
    struct slice_begin *begins; // [num_slices + 1]; NULL: the list is whole
    uint32_t num_slices, next, most_keys;
    uint64_t work, all_work; // keys of the items so far, and of all items
    bool in_tile;            // the tile in hand is cut between its parts
    struct slice_begin tile; // where it begins
};

// `slices` as in struct items; NULL: the lists are whole.
struct slicing slicing_of(const struct cutting *cutting, struct slice_begin *slices,
                          uint32_t kernel);
void slicing_place(struct slicing *slicing); // counting has ended
// Before each tile: `at` is where its items begin. `num_partials` 1: it is not split.
void slicing_tile(struct slicing *slicing, struct slice_begin at, uint32_t kv_len,
                  uint64_t num_partials);
// Before each item; `at` is the item's place.
void slicing_item(struct slicing *slicing, struct slice_begin at, uint64_t keys);
void slicing_end(struct slicing *slicing, struct slice_begin at); // `at` is the list's end

// Makes memory for the tiles of `items` that are cut, as far as --max-scratch allows for all
// batches together. Without it, these tiles stay whole.
void slices_keep(struct engine_batch *batch, struct items *items);
// Narrows works[], which are those of `items`, to a slice. INTERNAL: an earlier slice has failed,
// or was planned with other lists, so the run would lack some tiles.
enum status slices_take(const struct engine_batch *batch, struct items *items, uint32_t slice,
                        struct work works[MOST_KERNELS], struct error *error);
// False: an earlier run ended within a cut tile, so its counters are not 0.
bool slices_are_sound(const struct items *items);
void slices_break(struct engine_batch *batch); // a slice of the batch will not run

#endif
