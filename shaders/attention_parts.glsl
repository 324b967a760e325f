// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// attention_parts.glsl - how sums that count from different maxima become one, and how the parts of a tile's rows become its rows. One
// formula everywhere, always from the left, so that it does not matter who does it, and in how many steps: with M the larger maximum,
//   sums = 2^(m_1 - M) sums_1 + 2^(m_2 - M) sums_2,   weights alike.
// Whoever includes it may define PARTS_COHERENT: the parts are other workgroups' of the same dispatch.

#ifndef AULE_ATTENTION_PARTS_GLSL
#define AULE_ATTENTION_PARTS_GLSL

#include "attention_rows.glsl"

#include "numbers.glsl"

#ifndef PARTS_COHERENT
#define PARTS_COHERENT
#endif

layout(buffer_reference, scalar, buffer_reference_align = 8) PARTS_COHERENT buffer PartSums { vec4 at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) PARTS_COHERENT buffer PartFloats { float at[]; };

struct Fold {
    float maximum, first, second; // what the sums of both are multiplied with
};

Fold fold_begin(float first, float second)
{
    const float maximum = max(first, second);
    return Fold(maximum, exp2(first - maximum), exp2(second - maximum));
}

float fold(Fold f, float first, float second)
{
    precise float kept = first * f.first;
    return fma(second, f.second, kept);
}

vec4 fold(Fold f, vec4 first, vec4 second)
{
    precise vec4 kept = first * f.first;
    return fma(second, vec4(f.second), kept);
}

// What a part has of a row, of eight dims.
struct Part {
    float maximum, weights;
    vec4 low, high;
};

Part part_join(Part a, Part b)
{
    const Fold f = fold_begin(a.maximum, b.maximum);
    return Part(f.maximum, fold(f, a.weights, b.weights), fold(f, a.low, b.low), fold(f, a.high, b.high));
}

const uint V_OCTS = HEAD_DIM_V / 8;
const uint PARTS_BATCH = 8; // whose loads are in flight together; even

Part part_load(uint number, uint row, uint oct)
{
    const uint64_t address = partial_address(number);
    const uint at = (row * V_OCTS + oct) * 2;
    return Part(PartFloats(address).at[PARTIAL_MAXIMA + row], PartFloats(address).at[PARTIAL_WEIGHTS + row],
                PartSums(address).at[at], PartSums(address).at[at + 1]);
}

// All partial results [first, first + count) of a row; of the first `halved`, each two neighbours are one part's.
Part parts_join(uint first, uint count, uint halved, uint row, uint oct)
{
    if (count == 2) // often so, and where little is to do it should be quick
        return part_join(part_load(first, row, oct), part_load(first + 1, row, oct));
    Part all = Part(NO_MAXIMUM, 0, vec4(0), vec4(0)), half_part = all;
    [[dont_unroll]] for (uint begin = 0; begin < count; begin += PARTS_BATCH) {
        Part parts[PARTS_BATCH];
        [[unroll]] for (uint n = 0; n < PARTS_BATCH; n++)
            parts[n] = part_load(first + min(begin + n, count - 1), row, oct);
        [[unroll]] for (uint n = 0; n < PARTS_BATCH; n++) {
            const uint number = begin + n;
            if (number >= count)
                continue;
            Part part = parts[n];
            if (number < halved) {
                if (n % 2 == 0) {
                    half_part = part;
                    continue;
                }
                part = part_join(half_part, part);
            }
            if (number == (halved > 0 ? 1 : 0))
                all = part;
            else
                all = part_join(all, part);
        }
    }
    return all;
}

// Eight dims of a row of the tile. Whoever has a row's first dims stores its LSE, too.
void part_end(uint first, uint count, uint halved, uint row, uint oct)
{
    const Part all = parts_join(first, count, halved, row, oct);
    const float maximum = ALIBI ? true_maximum(row_begin(row), all.maximum) : all.maximum;
    const vec2 end = row_end(row, all.weights, maximum);
    if (LSE && oct == 0)
        lse_store(row, end.y);
    oct_store(out_address(row) + oct * 8 * DTYPE_BYTES(IO_DTYPE), IO_DTYPE,
              oct_convert(Oct(plus_zero(all.low * end.x), plus_zero(all.high * end.x)), DTYPE_F32, IO_DTYPE));
}

// The rows of the tile, by all threads of the workgroup.
void parts_end(uint first, uint count, uint halved)
{
    for (uint i = gl_LocalInvocationID.x; i < num_rows * V_OCTS; i += gl_WorkGroupSize.x)
        part_end(first, count, halved, i / V_OCTS, i % V_OCTS);
}

#endif
