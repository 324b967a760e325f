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

const uint BATCH = 8; // partial results whose loads are in flight together

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

// A row's sums over the partial results so far, of eight dims, counted from the largest maximum.
struct Total {
    float maximum, weights;
    vec4 low, high;
};

// Partial results [first, first + BATCH) join; those beyond the last one count nothing.
void batch_add(gpu_merge_item item, uint first, uint row, uint i, inout Total total)
{
    float maxima[BATCH], weights[BATCH];
    vec4 low[BATCH], high[BATCH];
    for (uint n = 0; n < BATCH; n++) {
        const uint64_t partial = partial_address(item.first_partial + min(first + n, item.num_partials - 1));
        maxima[n] = Floats(partial).at[PARTIAL_MAXIMA + row];
        weights[n] = Floats(partial).at[PARTIAL_WEIGHTS + row];
        low[n] = Sums(partial).at[i * 2];
        high[n] = Sums(partial).at[i * 2 + 1];
    }
    float larger = total.maximum;
    for (uint n = 0; n < BATCH; n++)
        larger = max(larger, maxima[n]);
    const float keep = exp2(total.maximum - larger);
    total.weights *= keep;
    total.low *= keep;
    total.high *= keep;
    for (uint n = 0; n < BATCH; n++) {
        const float factor = first + n < item.num_partials ? exp2(maxima[n] - larger) : 0.0;
        total.weights = fma(weights[n], factor, total.weights);
        total.low = fma(vec4(factor), low[n], total.low);
        total.high = fma(vec4(factor), high[n], total.high);
    }
    total.maximum = larger;
}

// Eight dims of one row. Whoever has the first ones stores the row's LSE, too.
void oct_merge(gpu_merge_item item, uint row, uint oct)
{
    Total total = Total(NO_MAXIMUM, 0, vec4(0), vec4(0));
    [[dont_unroll]] for (uint first = 0; first < item.num_partials; first += BATCH)
        batch_add(item, first, row, row * V_OCTS + oct, total);
    const float maximum = ALIBI ? true_maximum(row_begin(row), total.maximum) : total.maximum;
    const vec2 end = row_end(row, total.weights, maximum);
    if (LSE && oct == 0)
        lse_store(row, end.y);
    oct_store(out_address(row) + oct * 8 * DTYPE_BYTES(IO_DTYPE), IO_DTYPE,
              oct_convert(Oct(plus_zero(total.low * end.x), plus_zero(total.high * end.x)), DTYPE_F32, IO_DTYPE));
}

void main()
{
    gpu_merge_item item;
    if (!item_find(item))
        return;
    work_begin(item.seq, item.first_row);
    for (uint i = gl_LocalInvocationID.x; i < num_rows * V_OCTS; i += gl_WorkGroupSize.x)
        oct_merge(item, i / V_OCTS, i % V_OCTS);
}
