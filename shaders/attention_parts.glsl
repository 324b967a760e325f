// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// attention_parts.glsl - merges sums that are relative to different maxima, and so the parts of a
// tile's rows. There is one formula everywhere, applied from the left, so it does not matter which
// shader merges and in how many steps. With M the larger maximum:
//   sums = 2^(m_1 - M) sums_1 + 2^(m_2 - M) sums_2, and weights alike.
// Define PARTS_COHERENT if other workgroups of the same dispatch write the parts. Knows no keys.

#ifndef AULE_ATTENTION_PARTS_GLSL
#define AULE_ATTENTION_PARTS_GLSL

#include "attention_rows.glsl"

#include "numbers.glsl"

#ifndef PARTS_COHERENT
#define PARTS_COHERENT
#endif

layout(buffer_reference, scalar, buffer_reference_align = 8) PARTS_COHERENT buffer PartSums {
    vec4 at[];
};
layout(buffer_reference, scalar, buffer_reference_align = 4) PARTS_COHERENT buffer PartFloats {
    float at[];
};

struct Fold {
    float maximum, first, second; // factors of the two sums; `maximum` is the new one
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

// A part's result for four dims of a row.
struct Part {
    float maximum, weights;
    vec4 sums;
};

Part part_join(Part a, Part b)
{
    const Fold f = fold_begin(a.maximum, b.maximum);
    return Part(f.maximum, fold(f, a.weights, b.weights), fold(f, a.sums, b.sums));
}

const uint V_QUADS = HEAD_DIM_V / 4;
const uint PARTS_BATCH = 4; // parts whose loads are in flight together

Part part_load(uint number, uint row, uint quad)
{
    const uint64_t address = partial_address(number);
    const float maximum = PartFloats(address).at[PARTIAL_MAXIMA + row],
                weights = PartFloats(address).at[PARTIAL_WEIGHTS + row];
    return Part(maximum, weights,
                sums_weighed(PartSums(address).at[row * V_QUADS + quad], weights));
}

// The two halves of one part, or one whole part in `first`.
struct Halved {
    Part first, second;
};

Halved halved_load(uint first, uint pairs, uint number, uint row, uint quad)
{
    const uint at = first + number + min(number, pairs);
    return Halved(part_load(at, row, quad), part_load(number < pairs ? at + 1 : at, row, quad));
}

// Joins the partial results [first, first + count) of a row. The first `halved` are halves of
// parts: two neighbours are one part.
Part parts_join(uint first, uint count, uint halved, uint row, uint quad)
{
    const uint pairs = halved / 2, last = count - pairs - 1;
    Part all = Part(NO_MAXIMUM, 0, vec4(0));
    [[dont_unroll]] for (uint begin = 0; begin <= last; begin += PARTS_BATCH) {
        Halved batch[PARTS_BATCH];
        [[unroll]] for (uint n = 0; n < PARTS_BATCH; n++)
            batch[n] = halved_load(first, pairs, min(begin + n, last), row, quad);
        [[unroll]] for (uint n = 0; n < PARTS_BATCH; n++) {
            const uint number = begin + n;
            if (number > last)
                break;
            Part part = batch[n].first;
            if (number < pairs)
                part = part_join(part, batch[n].second);
            if (number > 0)
                part = part_join(all, part);
            all = part;
        }
    }
    return all;
}

// Rounds and stores four elements of a row's result. All kernels use it, so that the bits do not
// depend on which one ends a row.
void quad_end(uint row, uint quad, vec4 values)
{
    const uvec4 bits = mean_bounded(plus_zero(values));
    const uint64_t address = out_address(row) + quad * 4 * DTYPE_BYTES(IO_DTYPE);
    if (IO_DTYPE == DTYPE_F32)
        Units(address).at[0] = bits;
    else
        Bytes8(address).bytes =
            uvec2(pair16(bits.x, bits.y, IO_DTYPE), pair16(bits.z, bits.w, IO_DTYPE));
}

// Four dims of a row of the tile, from its parts. The thread that has the row's first dims also
// stores its LSE.
void part_end(uint first, uint count, uint halved, uint row, uint quad)
{
    const Part all = parts_join(first, count, halved, row, quad);
    const float maximum = ALIBI ? true_maximum(row_begin(row), all.maximum) : all.maximum;
    const vec2 end = row_end(row, all.weights, maximum);
    if (LSE && quad == 0)
        lse_store(row, end.y);
    quad_end(row, quad, all.sums * end.x);
}

// All rows of the tile, by all threads of the workgroup.
void parts_end(uint first, uint count, uint halved)
{
    for (uint i = gl_LocalInvocationID.x; i < num_rows * V_QUADS; i += gl_WorkGroupSize.x)
        part_end(first, count, halved, i / V_QUADS, i % V_QUADS);
}

#endif
