// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// rope.h - rotary embedding: how far each pair of dims turns from one position to the next. Knows
// no tensors. Submitter only.

#ifndef AULE_ENGINE_ROPE_H
#define AULE_ENGINE_ROPE_H

#include "kv.h"

// The rotations of the last rope made from a theta, since a model's layers all ask for the same.
// Zeroed: there are none.
struct rope_memory {
    uint32_t dim;
    float theta;
    uint64_t rotations[KV_MOST_HEAD_DIM_K / 2];
};

// Fills rotations[rope->dim / 2], in units of 2^-64 of a whole turn. Whole turns drop out of
// integer products, so a position's turn is one multiplication.
void rope_rotations(struct rope_memory *memory, const struct engine_rope *rope,
                    uint64_t *rotations);

#endif
