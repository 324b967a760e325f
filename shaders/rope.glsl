// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// rope.glsl - rotary embedding: the angle of a pair of elements, as exact as f32 allows for every
// 32-bit position. The host gives each pair's turn for one position in units of 2^-64. The product
// with the position modulo 2^64 is the phase: whole turns drop out without rounding. GLSL's own sin
// and cos promise only 2^-11. Knows no tensors.

#ifndef AULE_ROPE_GLSL
#define AULE_ROPE_GLSL

layout(buffer_reference, scalar, buffer_reference_align = 8) readonly buffer Rotations {
    uint64_t at[];
};

// Angle in radians, -pi / 4 to pi / 4, of a signed part of an eighth of a turn in units of 2^-31.
// Rounded once.
float eighth_angle(int part)
{
    uint high, low;
    umulExtended(uint(abs(part)), 3373259426u, high, low); // pi / 4 * 2^32
    const float angle = float(high) * 4.656612873077393e-10; // 2^-31
    return part < 0 ? -angle : angle;
}

// Minimax polynomials from Cephes' sinf and cosf.
float sin_eighth(float x)
{
    const float z = x * x;
    const float series = fma(z, fma(z, -1.9515295891e-4, 8.3321608736e-3), -1.6666654611e-1);
    return fma(x * z, series, x);
}

float cos_eighth(float x)
{
    const float z = x * x;
    const float series =
        fma(z, fma(z, 2.443315711809948e-5, -1.388731625493765e-3), 4.166664568298827e-2);
    return fma(z * z, series, fma(z, -0.5, 1.0));
}

// (cos, sin) of pair `n` at `position`. `rotations` is gpu_run.rotations.
vec2 rope_rotation(uint64_t rotations, int position, uint n)
{
    const uint64_t phase = uint64_t(int64_t(position)) * Rotations(rotations).at[n];
    const uint64_t eighth = 1ul << 61;
    const uint quarters = uint(phase + eighth >> 62);
    const int64_t rest = int64_t(phase - (uint64_t(quarters) << 62)); // -1 / 8 to 1 / 8 turn
    const float x = eighth_angle(int(rest >> 30)), sine = sin_eighth(x), cosine = cos_eighth(x);
    const vec2 turn = (quarters & 1u) != 0 ? vec2(-sine, cosine) : vec2(cosine, sine);
    return (quarters & 2u) != 0 ? -turn : turn;
}

// Rotates one element of a pair: the first becomes x cos - y sin, the second y cos + x sin. `other`
// is its partner.
float rope_rotate(float self, float other, vec2 turn, bool second)
{
    return fma(self, turn.x, second ? other * turn.y : -other * turn.y);
}

// The place of an element in its pair: pairs are (2n, 2n + 1), or (n, n + pairs).
struct RopePlace {
    uint pair, partner;
    bool second;
};

RopePlace rope_place(uint dim, uint pairs, bool interleaved)
{
    if (interleaved)
        return RopePlace(dim / 2, dim ^ 1u, (dim & 1u) != 0);
    return dim < pairs ? RopePlace(dim, dim + pairs, false)
                       : RopePlace(dim - pairs, dim - pairs, true);
}

#endif
