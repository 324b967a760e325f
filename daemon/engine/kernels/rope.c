// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// rope.c - frequencies as integers. f32 has 24 bits, too few for the angle of position 100000. As a
// 64-bit fraction of a turn a frequency is exact to 2^-64, and its product with a position wraps by
// itself. Submitter only.

#include "rope.h"

#include <math.h>
#include <string.h>

static const long double two_pi = 6.283185307179586476925286766559005768L;

static uint64_t turn_of(long double frequency)
{
    long double turns = frequency / two_pi;
    turns -= floorl(turns);
    turns = rintl(ldexpl(turns, 64));
    return turns < ldexpl(1, 64) ? (uint64_t)turns : 0;
}

static void turns_of_theta(uint32_t dim, float theta, uint64_t *turns)
{
    for (uint32_t n = 0; n < dim / 2; n++)
        turns[n] = turn_of(powl(theta, -2.0L * n / dim));
}

void rope_turns(struct rope_memory *memory, const struct engine_rope *rope, uint64_t *turns)
{
    for (uint32_t n = 0; rope->frequencies && n < rope->dim / 2; n++)
        turns[n] = turn_of(rope->frequencies[n]);
    if (rope->frequencies)
        return;
    if (memory->dim != rope->dim || memory->theta != rope->theta) {
        turns_of_theta(rope->dim, rope->theta, memory->turns);
        memory->dim = rope->dim;
        memory->theta = rope->theta;
    }
    memcpy(turns, memory->turns, rope->dim / 2 * sizeof *turns);
}
