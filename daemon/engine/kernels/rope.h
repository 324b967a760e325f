// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// rope.h - how far each pair of dims turns from one position to the next.

#ifndef AULE_ENGINE_ROPE_H
#define AULE_ENGINE_ROPE_H

#include "kv.h"

// The turns of the last rope that was made of a theta: a model's layers ask for the same ones.
// Zeroed = none.
struct rope_memory {
    uint32_t dim;
    float theta;
    uint64_t turns[KV_MOST_HEAD_DIM_K / 2];
};

// turns[rope->dim / 2], in units of 2^-64 of a whole turn: whole turns drop out, so that any
// position's turn is one product of integers.
void rope_turns(struct rope_memory *memory, const struct engine_rope *rope, uint64_t *turns);

#endif
