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

static uint64_t rotation_of(long double frequency)
{
    long double rotations = frequency / two_pi;
    rotations -= floorl(rotations);
    rotations = rintl(ldexpl(rotations, 64));
    return rotations < ldexpl(1, 64) ? (uint64_t)rotations : 0;
}

static void rotations_of_theta(uint32_t dim, float theta, uint64_t *rotations)
{
    for (uint32_t n = 0; n < dim / 2; n++)
        rotations[n] = rotation_of(powl(theta, -2.0L * n / dim));
}

void rope_rotations(struct rope_memory *memory, const struct engine_rope *rope, uint64_t *rotations)
{
    for (uint32_t n = 0; rope->frequencies && n < rope->dim / 2; n++)
        rotations[n] = rotation_of(rope->frequencies[n]);
    if (rope->frequencies)
        return;
    if (memory->dim != rope->dim || memory->theta != rope->theta) {
        rotations_of_theta(rope->dim, rope->theta, memory->rotations);
        memory->dim = rope->dim;
        memory->theta = rope->theta;
    }
    memcpy(rotations, memory->rotations, rope->dim / 2 * sizeof *rotations);
}
