// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// zero - one workgroup fills one range of memory with zeroes: a block of a layer that changes its tenant.
//
// Bindings: none; the ranges are reached by address. The workgroup's number is gl_WorkGroupID.x.
// Push constants: struct gpu_zero. Specialisation constants: LOCAL_SIZE.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference2 : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require

#include "layout.h"

layout(local_size_x = 128, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = AULE_SPEC_LOCAL_SIZE) in;

layout(buffer_reference, scalar, buffer_reference_align = 8) readonly buffer Ranges { gpu_range at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) writeonly buffer Zeroes { uvec4 at[]; };
layout(push_constant, scalar) uniform Push { gpu_zero push; };

void main()
{
    if (gl_WorkGroupID.x >= push.num_ranges)
        return;
    const gpu_range range = Ranges(push.ranges).at[gl_WorkGroupID.x];
    Zeroes zeroes = Zeroes(range.address);
    const uint units = uint(range.bytes / 16);
    for (uint i = gl_LocalInvocationID.x; i < units; i += gl_WorkGroupSize.x)
        zeroes.at[i] = uvec4(0);
}
