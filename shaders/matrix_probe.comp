// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// matrix_probe - checks how the driver lays out cooperative matrices. Each warp computes one
// product. The engine fills the lanes' elements as matrix.glsl expects them, and compares each
// lane's results (kernels/matrix.c). A second product, made together with another, must give the
// same; else nothing is written. It also computes a sum that is too large, by the conversion that
// prefill uses.
//
// Grid: 1 workgroup. Bindings: none. Push constants: struct gpu_matrix_probe, with struct
// gpu_matrix_lane[LOCAL_SIZE]. Specialisation constants: LOCAL_SIZE, a multiple of 32.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require

#include "halves.glsl"

#include "matrix.glsl"

layout(push_constant, scalar) uniform Push { gpu_matrix_probe probe; };
layout(buffer_reference, scalar, buffer_reference_align = 4) buffer Lanes { gpu_matrix_lane at[]; };

void main()
{
    Lanes lanes = Lanes(probe.lanes);
    const uint lane = warp_number() * WARP + warp_lane();
    if (!matrix_sizes_fit())
        return;
// A copy of the struct would have memory layout, which newer validators reject.
#define GIVEN lanes.at[lane]
    const MatrixA a = matrix_a(uvec4(GIVEN.a[0], GIVEN.a[1], GIVEN.a[2], GIVEN.a[3]));
    const MatrixB b = matrix_b(uvec2(GIVEN.b[0], GIVEN.b[1]));
    const MatrixC c = matrix_c(vec4(GIVEN.c[0], GIVEN.c[1], GIVEN.c[2], GIVEN.c[3]));
    MatrixC left = matrix_c(vec4(0)), right = c;
    const vec4 sums = matrix_elements(matrix_multiply(a, b, c));
    matrix_multiply_two(a, matrix_b(uvec2(0)), b, left, right);
    const uint large = halves_round(vec2(GIVEN.large, 1));
    const MatrixB times = matrix_b(uvec2(GIVEN.times[0], GIVEN.times[1]));
    const uvec4 beyond = floatBitsToUint(
        matrix_elements(matrix_multiply(matrix_a(uvec4(large)), times, matrix_c(vec4(0)))));
    if (matrix_elements(left) != vec4(0) || matrix_elements(right) != sums)
        return; // after all products, which the whole warp must make
    for (uint i = 0; i < 4; i++) {
        GIVEN.sums[i] = sums[i];
        GIVEN.beyond[i] = beyond[i];
    }
}
