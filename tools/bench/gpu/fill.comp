// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// fill - computes the pseudo-random elements of values.h in place. An invocation makes four
// elements at a time and then advances by the size of the grid. Memory is a row of pairs of parts;
// each part has part_quads * 4 elements. The first part of a pair is the next piece of stream k,
// the second one of stream v (with parts = 1: only pieces of k).
// Bindings: none. Push constants mirror struct push of fill.c.
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference2 : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#extension GL_GOOGLE_include_directive : require

#include "schema/dtypes.h"

layout(local_size_x = 256) in;
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer Words { uint at[]; };
layout(push_constant, scalar) uniform Push
{
    uint64_t to, first_quad, k_stream, v_stream;
    uint quads, part_quads, parts, dtype;
};

#define DTYPE(NAME, number, name, size, max) const uint NAME = number;
AULE_DTYPE_MAP(DTYPE)
#undef DTYPE

uint64_t mixed(uint64_t stream, uint64_t number)
{
    uint64_t x = (stream << 40) + number * 0x9e3779b97f4a7c15ul + 0x9e3779b97f4a7c15ul;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ul;
    x = (x ^ x >> 27) * 0x94d049bb133111ebul;
    return x ^ x >> 31;
}

float even(uint bits)
{
    return float(int(bits >> 5) - 1024) * 0.0009765625;
}

uint bf16(uint bits)
{
    uint wide = floatBitsToUint(even(bits));
    return wide + 0x7fff + (wide >> 16 & 1) >> 16;
}

uint narrow(uint bits)
{
    if (dtype == FP8_E4M3 || dtype == FP8_E5M2)
        return bits & 0x80 | (bits >> 8) % (dtype == FP8_E4M3 ? 0x38 : 0x3c);
    return uint(int((bits >> 8) % 255) - 127) & 0xff;
}

void main()
{
    Words words = Words(to);
    for (uint n = gl_GlobalInvocationID.x; n < quads;
         n += gl_NumWorkGroups.x * gl_WorkGroupSize.x) {
        const uint part = n / part_quads, within = n % part_quads;
        const uint64_t quad = first_quad + uint64_t(part / parts) * part_quads + within;
        const uint64_t mix = mixed(part % parts == 0 ? k_stream : v_stream, quad);
        const uvec4 bits = uvec4(uint(mix) & 0xffff, uint(mix >> 16) & 0xffff,
                                 uint(mix >> 32) & 0xffff, uint(mix >> 48));
        if (dtype == F32) {
            for (uint i = 0; i < 4; i++)
                words.at[n * 4 + i] = floatBitsToUint(even(bits[i]));
        } else if (dtype == F16) {
            words.at[n * 2] = packHalf2x16(vec2(even(bits.x), even(bits.y)));
            words.at[n * 2 + 1] = packHalf2x16(vec2(even(bits.z), even(bits.w)));
        } else if (dtype == BF16) {
            words.at[n * 2] = bf16(bits.x) | bf16(bits.y) << 16;
            words.at[n * 2 + 1] = bf16(bits.z) | bf16(bits.w) << 16;
        } else {
            words.at[n] = narrow(bits.x) | narrow(bits.y) << 8 | narrow(bits.z) << 16 |
                          narrow(bits.w) << 24;
        }
    }
}
