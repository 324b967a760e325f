// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// attention_merge - merges the results of split-KV. One workgroup computes the rows of one tile
// from the results of its parts, in the order of the parts. struct gpu_item says what a part
// leaves. Sink, V's scale and LSE follow as in a tile that was not split. attention_parts.glsl has
// the formula.
//
// Grid: x = KV head; item number = gl_WorkGroupID.y + gl_WorkGroupID.z * items_y. The item belongs
// to the last run whose first_merge is not beyond it; the run's `items` are struct gpu_merge_item.
// Bindings: none. Push constants: struct gpu_dispatch. Specialisation constants: those of the
// attention pipeline that wrote the partial results (host: struct geometry).
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference2 : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require

#include "attention_parts.glsl"

bool item_find(out gpu_merge_item item)
{
    const uint number = gl_WorkGroupID.y + gl_WorkGroupID.z * dispatch.items_y;
    if (number >= dispatch.num_items)
        return false;
    Runs runs = Runs(dispatch.runs);
    uint index;
    RUN_FIND(runs, dispatch.num_runs, dispatch.each, first_merge, number, index)
    run = runs.at[index];
    item = MergeItems(run.items).at[number - run.first_merge];
    return true;
}

void main()
{
    gpu_merge_item item;
    if (!item_find(item))
        return;
    work_begin(item.tile);
    parts_end(item.first_partial, item.num_partials, 0);
}
