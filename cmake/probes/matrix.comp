// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// A compiler that takes this can compile shaders/matrix.glsl. Nothing runs it.

#version 450
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require

layout(local_size_x = 32) in;
layout(binding = 0) buffer Sums { float sums[]; };

#define A coopmat<float16_t, gl_ScopeSubgroup, 16, 16, gl_MatrixUseA>
#define B coopmat<float16_t, gl_ScopeSubgroup, 16, 8, gl_MatrixUseB>
#define C coopmat<float, gl_ScopeSubgroup, 16, 8, gl_MatrixUseAccumulator>

void main()
{
    const C c = coopMatMulAdd(A(float16_t(1.0)), B(float16_t(1.0)), C(0.0));
    sums[gl_LocalInvocationID.x] = c[0];
}
