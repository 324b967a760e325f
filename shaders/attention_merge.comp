// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// attention_merge - one workgroup makes one tile's rows of what its splits left (struct gpu_item says how): with M the largest
// of the maxima m_n,  out = sum_n 2^(m_n - M) sums_n / sum_n 2^(m_n - M) weights_n,  in the order of the splits, then sink, scale of V and LSE
// as in a tile that was not split.
//
// Grid: x = KV head, item number = gl_WorkGroupID.y + gl_WorkGroupID.z * items_y, the run is the one whose first_merge is the
// last not beyond it; its `items` are struct gpu_merge_item. Push constants: struct gpu_dispatch. Bindings: none.
// Specialisation constants: those of the attention that left the partial results.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference2 : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require

#include "attention_rows.glsl"

#include "numbers.glsl"

layout(buffer_reference, scalar, buffer_reference_align = 8) readonly buffer Sums { vec4 at[]; };

const uint V_OCTS = HEAD_DIM_V / 8;

shared float maxima[TILE_ROWS], factors[TILE_ROWS]; // of each row: the largest maximum; what its sums are multiplied with

bool item_find(out gpu_merge_item item)
{
    const uint number = gl_WorkGroupID.y + gl_WorkGroupID.z * dispatch.items_y;
    if (number >= dispatch.num_items)
        return false;
    Runs runs = Runs(dispatch.runs);
    uint index;
    RUN_FIND(runs, dispatch.num_runs, first_merge, number, index)
    run = runs.at[index];
    item = MergeItems(run.items).at[number - run.first_merge];
    return true;
}

float partial_maximum(gpu_merge_item item, uint n, uint row)
{
    return Floats(partial_address(item.first_partial + n)).at[PARTIAL_MAXIMA + row];
}

void row_merge(gpu_merge_item item, uint row)
{
    float maximum = NO_MAXIMUM, sum = 0;
    [[dont_unroll]] for (uint n = 0; n < item.num_partials; n++)
        maximum = max(maximum, partial_maximum(item, n, row));
    [[dont_unroll]] for (uint n = 0; n < item.num_partials; n++)
        sum = fma(Floats(partial_address(item.first_partial + n)).at[PARTIAL_WEIGHTS + row],
                  exp2(partial_maximum(item, n, row) - maximum), sum);
    const vec2 end = row_end(row, sum, ALIBI ? true_maximum(row_begin(row), maximum) : maximum);
    maxima[row] = maximum;
    factors[row] = end.x;
    if (LSE)
        lse_store(row, end.y);
}

void main()
{
    gpu_merge_item item;
    if (!item_find(item))
        return;
    work_begin(item.seq, item.first_row);
    for (uint row = gl_LocalInvocationID.x; row < num_rows; row += gl_WorkGroupSize.x)
        row_merge(item, row);
    barrier();
    for (uint i = gl_LocalInvocationID.x; i < num_rows * V_OCTS; i += gl_WorkGroupSize.x) {
        const uint row = i / V_OCTS, oct = i % V_OCTS;
        vec4 low = vec4(0), high = vec4(0);
        [[dont_unroll]] for (uint n = 0; n < item.num_partials; n++) {
            const float weight = exp2(partial_maximum(item, n, row) - maxima[row]);
            Sums sums = Sums(partial_address(item.first_partial + n));
            low = fma(vec4(weight), sums.at[i * 2], low);
            high = fma(vec4(weight), sums.at[i * 2 + 1], high);
        }
        oct_store(out_address(row) + oct * 8 * DTYPE_BYTES(IO_DTYPE), IO_DTYPE,
                  oct_convert(Oct(plus_zero(low * factors[row]), plus_zero(high * factors[row])), DTYPE_F32, IO_DTYPE));
    }
}
