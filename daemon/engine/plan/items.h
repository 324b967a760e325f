// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// items.h - work lists: how the sequences of a batch are cut into the work of kernels.

#ifndef AULE_ENGINE_ITEMS_H
#define AULE_ENGINE_ITEMS_H

#include "engine/memory/batch.h"

struct cutting cutting_of_run(const struct engine_run *run); // which attends; no halves
// About how many parts there are, times KV heads: how much there is to share out.
uint64_t batch_workgroups(const struct engine_batch *batch);

// The work lists for `cutting`, one for each kernel of the variant, good for submission `sequence`.
// Made on first use; a batch keeps but a few. Submitter only. LIMIT: more items than a dispatch can
// count. NO_MEMORY.
enum status batch_work(struct engine_batch *batch, const struct cutting *cutting, uint64_t sequence,
                       struct work works[MOST_KERNELS], struct error *error);
// Without a list: what the partial results come to. Any thread.
struct partials batch_partials(const struct engine_batch *batch, const struct cutting *cutting);
// Bytes that so many partial results of kernel number `kernel` take.
uint64_t batch_partial_bytes(const struct engine_batch *batch, uint32_t kernel,
                             uint64_t num_partials);

#endif
