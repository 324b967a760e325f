// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// joint.h - the work lists of several batches whose sequences share keys with each other. A cascade
// computes shared parts for the sequences of all these batches. The engine keeps the last few
// joints, so that the layers of a step use the same one. Submitter only.

#ifndef AULE_ENGINE_JOINT_H
#define AULE_ENGINE_JOINT_H

#include "engine/memory/batch.h"

struct joint {
    struct slabs *slabs;
    struct cutting cutting;
    uint64_t *serials; // [num_batches], as in struct engine_batch; owned, like `works`
    uint32_t num_batches;
    bool shares; // sequences of different batches share a part; else there are no lists
    struct work (*works)[MOST_KERNELS]; // [num_batches]
    struct piece piece;                 // the lists; owned
    uint64_t last_sequence;             // of the last submission that uses it
    struct job end;
    struct joint *prev, *next;
};

// The joint of these batches, which have a cache and a layer, or the block tensors, in common. It
// stays valid until submission `sequence` completes. NULL: there is no memory, or too much work.
const struct joint *joint_get(struct engine *engine, struct engine_batch *const *batches,
                              uint32_t num_batches, const struct cutting *cutting,
                              uint64_t sequence);
void joints_finish(struct engine *engine); // frees all now: no submission uses them

#endif
