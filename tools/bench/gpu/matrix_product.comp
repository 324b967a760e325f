// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// matrix_product - only products of cooperative matrices: the ceiling of every kernel that
// coopMatMulAdd bounds. Each subgroup multiplies one A with COLUMNS different B, `rounds` times,
// into as many sums, which stay in registers.
// Specialisation constants: 0 M, 1 N, 2 K of the device's matrices, 3 invocations of a workgroup.
// Push constants: where to write a sum if a comparison succeeds, which never does, so that no
// compiler removes the products; a seed, so that no compiler computes them itself. Mirrored by
// matrix_product.c.
#version 460
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_control_flow_attributes : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types_float16 : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#extension GL_KHR_cooperative_matrix : require
#extension GL_KHR_memory_scope_semantics : require

layout(constant_id = 0) const uint M = 16;
layout(constant_id = 1) const uint N = 16;
layout(constant_id = 2) const uint K = 16;
layout(local_size_x_id = 3) in;
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer Sum { float at; };
layout(push_constant, scalar) uniform Push { uint64_t sum; float seed; uint rounds; };

const uint COLUMNS = 8;

// The elements differ: a matrix of equal ones takes less power, so clocks would be higher than with
// real work.
float16_t element(uint number)
{
    return float16_t(seed * (float((gl_GlobalInvocationID.x * 7 + number * 13) % 31) - 15));
}

void main()
{
    coopmat<float16_t, gl_ScopeSubgroup, M, K, gl_MatrixUseA> a;
    coopmat<float16_t, gl_ScopeSubgroup, K, N, gl_MatrixUseB> b[COLUMNS];
    coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator> c[COLUMNS];
    for (uint i = 0; i < a.length(); i++)
        a[i] = element(i);
    for (uint j = 0; j < COLUMNS; j++) {
        for (uint i = 0; i < b[j].length(); i++)
            b[j][i] = element(i + 5 * j);
        c[j] = coopmat<float, gl_ScopeSubgroup, M, N, gl_MatrixUseAccumulator>(0.0);
    }
    for (uint round = 0; round < rounds; round++)
        [[unroll]] for (uint j = 0; j < COLUMNS; j++)
            c[j] = coopMatMulAdd(a, b[j], c[j]);
    float total = 0;
    for (uint j = 0; j < COLUMNS; j++)
        for (uint i = 0; i < c[j].length(); i++)
            total += c[j][i];
    if (total == 12345.678)
        Sum(sum).at = total;
}
