// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// matrix_probe - one product of matrices a warp, from what each lane is given to what each lane has at the end. The engine fills the
// lanes as matrix.glsl says that elements lie, and sees from the results whether this driver agrees.
//
// Grid: 1. Bindings: none. Push constants: struct gpu_matrix_probe. Specialisation constants: LOCAL_SIZE, a multiple of 32.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require

#include "matrix.glsl"

layout(push_constant, scalar) uniform Push { gpu_matrix_probe probe; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Lanes { gpu_matrix_lane at[]; };

// A driver may give a lane another number of elements, beyond which there is nothing to write.
bool sizes_fit()
{
#ifdef MATRIX_EMULATED
    return true;
#else
    MatrixA a;
    MatrixB b;
    MatrixC c;
    return a.length() == 8 && b.length() == 4 && c.length() == 4;
#endif
}

void main()
{
    Lanes lanes = Lanes(probe.lanes);
    const uint lane = warp_number() * WARP + warp_lane();
    if (!sizes_fit())
        return;
    const gpu_matrix_lane given = lanes.at[lane];
    const MatrixC sums = matrix_multiply(matrix_a(uvec4(given.a[0], given.a[1], given.a[2], given.a[3])),
                                         matrix_b(uvec2(given.b[0], given.b[1])),
                                         matrix_c(vec4(given.c[0], given.c[1], given.c[2], given.c[3])));
    const vec4 elements = matrix_elements(sums);
    for (uint i = 0; i < 4; i++)
        lanes.at[lane].sums[i] = elements[i];
}
