// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// coop_multiply - C = A B + C by one subgroup, all three row by row in memory: the least that a device with cooperative matrices can do.
// Specialisation constants: 0 M, 1 N, 2 K of the matrices, 3 invocations of the workgroup, which is one subgroup.
// Push constants: where A, B (f16) and C (f32) lie. Mirrored by test_coop.c.
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_16bit_storage : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require

layout(constant_id = 0) const uint M = 8;
layout(constant_id = 1) const uint N = 8;
layout(constant_id = 2) const uint K = 8;
layout(local_size_x_id = 3) in;

layout(buffer_reference, scalar, buffer_reference_align = 16) readonly buffer Halves { float16_t at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 16) buffer Floats { float at[]; };
layout(push_constant, scalar) uniform Push { Halves a; Halves b; Floats c; };

void main()
{
    coopmat<float16_t, gl_ScopeSubgroup, M, K, gl_MatrixUseA> left;
    coopmat<float16_t, gl_ScopeSubgroup, K, N, gl_MatrixUseB> right;
    coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator> sum;
    coopMatLoad(left, a.at, 0, K, gl_CooperativeMatrixLayoutRowMajor);
    coopMatLoad(right, b.at, 0, N, gl_CooperativeMatrixLayoutRowMajor);
    coopMatLoad(sum, c.at, 0, N, gl_CooperativeMatrixLayoutRowMajor);
    coopMatStore(coopMatMulAdd(left, right, sum), c.at, 0, N, gl_CooperativeMatrixLayoutRowMajor);
}
