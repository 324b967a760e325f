// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// haul - copies ranges between host memory and a cache, on a compute queue of its own. A few
// workgroups share all tiles of all ranges, because few fill the bus: each workgroup copies one
// tile at a time. All ranges are equally long, and none overlaps another one.
//
// Grid: x = any number. Bindings: none; ranges are reached by address. Push constants: struct
// gpu_haul, with struct gpu_range[num_ranges]. Specialisation constants: none.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference2 : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require

#include "layout.h"

layout(local_size_x = int(AULE_HAUL_LOCAL_SIZE)) in;

layout(buffer_reference, scalar, buffer_reference_align = 8) readonly buffer Ranges {
    gpu_range at[];
};
layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer From { uvec4 at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) writeonly buffer To { uvec4 at[]; };
layout(push_constant, scalar) uniform Push { gpu_haul push; };

const uint tile_units = AULE_HAUL_LOCAL_SIZE * AULE_HAUL_UNITS;

void copy_tile(const gpu_range range, const uint first)
{
    From from = From(range.from);
    To to = To(range.to);
    const uint units = uint(range.bytes / 16), mine = first + gl_LocalInvocationID.x;
    uvec4 loaded[AULE_HAUL_UNITS];
    if (first + tile_units <= units) {
        for (uint i = 0; i < AULE_HAUL_UNITS; i++)
            loaded[i] = from.at[mine + i * AULE_HAUL_LOCAL_SIZE];
        for (uint i = 0; i < AULE_HAUL_UNITS; i++)
            to.at[mine + i * AULE_HAUL_LOCAL_SIZE] = loaded[i];
    } else {
        for (uint i = mine; i < units; i += AULE_HAUL_LOCAL_SIZE)
            to.at[i] = from.at[i];
    }
}

void main()
{
    const uint count = push.num_ranges * push.num_tiles;
    for (uint item = gl_WorkGroupID.x; item < count; item += gl_NumWorkGroups.x)
        copy_tile(Ranges(push.ranges).at[item / push.num_tiles],
                  item % push.num_tiles * tile_units);
}
