// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// copy - copies or zeroes ranges of memory: a block of one layer each. The workgroups with the same
// x share range gl_WorkGroupID.x, however many y there are. Ranges of one dispatch do not overlap,
// read or written.
//
// Grid: x = range, y = any number. Bindings: none; ranges are reached by address. Push constants:
// struct gpu_copy, with struct gpu_range[num_ranges]. Specialisation constants: LOCAL_SIZE.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference2 : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require

#include "layout.h"

layout(local_size_x = 128, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = AULE_SPEC_LOCAL_SIZE) in;

layout(buffer_reference, scalar, buffer_reference_align = 8) readonly buffer Ranges {
    gpu_range at[];
};
layout(buffer_reference, scalar, buffer_reference_align = 16) buffer Units { uvec4 at[]; };
layout(push_constant, scalar) uniform Push { gpu_copy push; };

void main()
{
    if (gl_WorkGroupID.x >= push.num_ranges)
        return;
    const gpu_range range = Ranges(push.ranges).at[gl_WorkGroupID.x];
    Units from = Units(range.from), to = Units(range.to);
    const uint units = uint(range.bytes / 16), step = gl_NumWorkGroups.y * gl_WorkGroupSize.x;
    for (uint i = gl_WorkGroupID.y * gl_WorkGroupSize.x + gl_LocalInvocationID.x; i < units;
         i += step)
        to.at[i] = range.from != 0 ? from.at[i] : uvec4(0);
}
