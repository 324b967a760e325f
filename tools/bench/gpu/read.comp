// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// read - a plain read of memory in 16-byte pieces, each piece once: the ceiling of every kernel
// that reading K and V bounds. Invocations share the pieces in teams. A team reads adjacent pieces
// in turn. A GPU is fastest with all invocations in one team. A CPU finishes one subgroup before it
// begins the next, so it is fastest with one team for each subgroup.
// Bindings: none. Push constants: address, number of pieces (a multiple of 8 * threads of the
// grid), where to write a sum so that no compiler removes the loads, invocations of a team.
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference2 : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require

layout(local_size_x = 256) in;
layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Pieces {
    uvec4 at[];
};
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer Sum { uint at; };
layout(push_constant, scalar) uniform Push { uint64_t from, sum; uint pieces, team; };

void main()
{
    Pieces data = Pieces(from);
    const uint each = pieces / (gl_NumWorkGroups.x * gl_WorkGroupSize.x);
    const uint id = gl_GlobalInvocationID.x;
    const uint first = id / team * team * each + id % team;
    uvec4 folded = uvec4(0);
    for (uint i = 0; i < each; i += 8) {
        uvec4 loaded[8];
        for (uint j = 0; j < 8; j++)
            loaded[j] = data.at[first + (i + j) * team];
        for (uint j = 0; j < 8; j++)
            folded ^= loaded[j];
    }
    if ((folded.x ^ folded.y ^ folded.z ^ folded.w) == 0x12345678)
        Sum(sum).at = 1;
}
