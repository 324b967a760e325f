// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// kv_write - one workgroup copies one token's new K and V, [NUM_KV_HEADS, HEAD_DIM] each, to the slot that the run's slot
// mapping gives it (block * BLOCK_SIZE + offset; -1 = nowhere), converting when the tensors' dtype is not the cache's. Slots of one
// dispatch are distinct (the host refuses duplicates), so no order is needed. The workgroup's number is
// gl_WorkGroupID.y + gl_WorkGroupID.z * items_y; the run is the one whose first_token is the last not beyond it.
//
// Bindings: none; everything is reached by address.
// Push constants: struct gpu_dispatch, num_items = tokens of all runs.
// Specialisation constants: LOCAL_SIZE, HEAD_DIM_K, HEAD_DIM_V, NUM_KV_HEADS, BLOCK_SIZE, K_DTYPE, V_DTYPE, IO_DTYPE.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference2 : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require

#include "geometry.glsl"

#include "numbers.glsl"

#include "paging.glsl"

layout(push_constant, scalar) uniform Push { gpu_dispatch dispatch; };

const uint K_OCTS = HEAD_DIM_K / 8;
const uint V_OCTS = HEAD_DIM_V / 8;

void copy_oct(uint64_t from, uint64_t to, uint to_dtype)
{
    oct_store(to, to_dtype, oct_convert(oct_load(from, IO_DTYPE), IO_DTYPE, to_dtype));
}

void main()
{
    const uint number = gl_WorkGroupID.y + gl_WorkGroupID.z * dispatch.items_y;
    if (number >= dispatch.num_items)
        return;
    Runs runs = Runs(dispatch.runs);
    uint index;
    RUN_FIND(runs, dispatch.num_runs, first_token, number, index)
    const gpu_run run = runs.at[index];
    const uint token = number - run.first_token;
    if (run.slot_mapping == 0 || token >= run.num_tokens)
        return;
    const int64_t slot = Longs(run.slot_mapping).at[token];
    if (slot < 0)
        return;
    const uint64_t block = block_address(run.chunks, run.chunk_stride, run.chunk_shift, uint(slot / BLOCK_SIZE));
    const uint row = uint(slot) & BLOCK_SIZE - 1;

    const uint64_t k_from = run.k + uint64_t(token) * run.k_token_stride * 16;
    const uint64_t k_to = block + row * K_ROW_BYTES;
    for (uint i = gl_LocalInvocationID.x; i < NUM_KV_HEADS * K_OCTS; i += gl_WorkGroupSize.x) {
        const uint head = i / K_OCTS, oct = i % K_OCTS;
        copy_oct(k_from + (uint64_t(head) * run.k_head_stride + oct * oct_units(IO_DTYPE)) * 16,
                 k_to + uint64_t(head) * K_HEAD_BYTES + oct * oct_units(K_DTYPE) * 16, K_DTYPE);
    }
    const uint64_t v_from = run.v + uint64_t(token) * run.v_token_stride * 16;
    const uint64_t v_to = block + NUM_KV_HEADS * K_HEAD_BYTES + row * V_ROW_BYTES;
    for (uint i = gl_LocalInvocationID.x; i < NUM_KV_HEADS * V_OCTS; i += gl_WorkGroupSize.x) {
        const uint head = i / V_OCTS, oct = i % V_OCTS;
        copy_oct(v_from + (uint64_t(head) * run.v_head_stride + oct * oct_units(IO_DTYPE)) * 16,
                 v_to + uint64_t(head) * V_HEAD_BYTES + oct * oct_units(V_DTYPE) * 16, V_DTYPE);
    }
}
