// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// items.h - work lists: the tiles and parts of a batch as items that a workgroup computes. Knows
// the cut of each sequence; nothing of pipelines or recording.

#ifndef AULE_ENGINE_ITEMS_H
#define AULE_ENGINE_ITEMS_H

#include "cut.h"

struct cutting cutting_of_run(const struct engine_run *run); // of an ENGINE_ATTEND; `halves` is 0
// An estimate of the workgroups of an attention: parts of all sequences times KV heads.
uint64_t batch_workgroups(const struct engine_batch *batch);

// Sets works[] to the work lists for `cutting`, one for each kernel of the variant. The lists stay
// valid until submission `sequence` completes. They are made on first use; a batch keeps the last
// few. Submitter only. LIMIT: more items than a dispatch can count. NO_MEMORY.
enum status batch_work(struct engine_batch *batch, const struct cutting *cutting, uint64_t sequence,
                       struct work works[MOST_KERNELS], struct error *error);
// The same for one slice of a cutting with slices. INTERNAL: an earlier slice is missing.
enum status batch_slice(struct engine_batch *batch, const struct cutting *cutting, uint32_t slice,
                        uint64_t sequence, struct work works[MOST_KERNELS], struct error *error);
// Makes the work lists of all batches of `cuts` in one piece of memory, `*piece`. works[i] are
// those of batch i. The lists of the cascade belong to the first batch with members of crowds, and
// name the members' runs by the numbers of their batches. `slices` is NULL, or as in struct items;
// then there is one batch, and no cascade. Submitter only. LIMIT, NO_MEMORY: *piece stays as it
// was.
enum status items_make(struct cuts *cuts, const struct cutting *cutting,
                       struct work (*works)[MOST_KERNELS], struct slice_begin *slices,
                       struct piece *piece, struct error *error);
// Number and bytes of the partial results, without making a list. Any thread.
struct partials batch_partials(const struct engine_batch *batch, const struct cutting *cutting);
// Bytes of `num_partials` partial results of kernel `kernel`.
uint64_t batch_partial_bytes(const struct engine_batch *batch, uint32_t kernel,
                             uint64_t num_partials);

#endif
