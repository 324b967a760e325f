// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// attention_query.glsl - rows of Q as floats, rotated by their positions if the run has RoPE. A
// rotated element is rounded to Q's dtype. So a worker that rotates Q itself gets the same numbers,
// and so do tensor cores and scalar products. Knows addresses of rows; nothing of K and V.

#ifndef AULE_ATTENTION_QUERY_GLSL
#define AULE_ATTENTION_QUERY_GLSL

#include "attention_work.glsl"

#include "attention_elements.glsl"

#include "rope.glsl"

const uint IO_OCT_BYTES = 8 * DTYPE_BYTES(IO_DTYPE);

uint64_t q_address(uint row)
{
    return row_address(run.q, run.q_outer, run.q_token_stride, run.q_head_stride, row);
}

float io_rounded(float value)
{
    if (IO_DTYPE == DTYPE_F32)
        return value;
    return uintBitsToFloat(widen16(narrow16(floatBitsToUint(value), IO_DTYPE), IO_DTYPE));
}

// Rotates eight elements of a row of Q. An element's partner may lie in another oct (eight
// elements), so it is read from memory again.
Eight q_rotated(uint64_t address, uint oct, int position, Eight q)
{
    float values[8] =
        float[8](q.low.x, q.low.y, q.low.z, q.low.w, q.high.x, q.high.y, q.high.z, q.high.w);
    const uint pairs = run.rope_dim / 2;
    for (uint i = 0; i < 8; i++) {
        const uint dim = oct * 8 + i;
        if (dim < run.rope_dim) {
            const RopePlace place = rope_place(dim, pairs, ROPE_PAIRS);
            const float other = one_load(address, place.partner, IO_DTYPE);
            const vec2 turn = rope_rotation(run.rotations, position, place.pair);
            values[i] = io_rounded(rope_rotate(values[i], other, turn, place.second));
        }
    }
    return Eight(vec4(values[0], values[1], values[2], values[3]),
                 vec4(values[4], values[5], values[6], values[7]));
}

// Elements [8 * oct, 8 * oct + 8) of row `row` of the tile, which must be a query.
Eight q_oct(uint row, uint oct)
{
    const uint64_t address = q_address(row);
    Eight q = eight_load(address + oct * IO_OCT_BYTES, IO_DTYPE);
    if (ROPE)
        q = q_rotated(address, oct, row_position(row), q);
    return q;
}

#endif
