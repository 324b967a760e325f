// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// stream_copy - a plain copy of memory in 16-byte pieces, each piece once: the ceiling of kernels
// that write as much as they read. A driver's own copy may be slower. Pieces are shared as in
// read.comp.
// Bindings: none. Push constants mirror struct push of ceiling.c: from, to, number of pieces (a
// multiple of 8 * threads of the grid), invocations of a team.
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference2 : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require

layout(local_size_x = 256) in;
layout(buffer_reference, scalar, buffer_reference_align = 16) readonly restrict buffer Pieces {
    uvec4 at[];
};
layout(buffer_reference, scalar, buffer_reference_align = 16) writeonly restrict buffer Copies {
    uvec4 at[];
};
layout(push_constant, scalar) uniform Push { uint64_t from, to; uint pieces, team; };

void main()
{
    Pieces data = Pieces(from);
    Copies copy = Copies(to);
    const uint each = pieces / (gl_NumWorkGroups.x * gl_WorkGroupSize.x);
    const uint id = gl_GlobalInvocationID.x;
    const uint first = id / team * team * each + id % team;
    for (uint i = 0; i < each; i += 8) {
        uvec4 loaded[8];
        for (uint j = 0; j < 8; j++)
            loaded[j] = data.at[first + (i + j) * team];
        for (uint j = 0; j < 8; j++)
            copy.at[first + (i + j) * team] = loaded[j];
    }
}
