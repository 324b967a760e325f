// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// kv_gather - copies K and V of a batch's sequences into contiguous tensors. One workgroup copies
// one key and its value, for all KV heads, to one row of the run's k and v. Rows are the keys of
// all sequences in order (kv_offsets). Scaled elements are multiplied by their scale; equal types
// keep their bits.
//
// Grid: number = gl_WorkGroupID.y + gl_WorkGroupID.z * items_y. It belongs to the last run whose
// first_token is not beyond it. Bindings: none; all memory is reached by address. Push constants:
// struct gpu_dispatch; num_items is the number of rows of all runs. Specialisation constants (host:
// struct geometry): LOCAL_SIZE, HEAD_DIM_K, HEAD_DIM_V, NUM_KV_HEADS, BLOCK_SIZE, K_DTYPE, V_DTYPE,
// IO_DTYPE, PLACE, V_IN_K, SCALE_MODE.
#version 460
#extension GL_GOOGLE_include_directive : require
#extension GL_EXT_buffer_reference : require
#extension GL_EXT_buffer_reference2 : require
#extension GL_EXT_scalar_block_layout : require
#extension GL_EXT_shader_explicit_arithmetic_types_int64 : require
#extension GL_EXT_control_flow_attributes : require

#include "geometry.glsl"

#include "paging.glsl"

#include "quantise.glsl"

layout(push_constant, scalar) uniform Push { gpu_dispatch dispatch; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Scale { uint bits; };

const uint K_OCTS = HEAD_DIM_K / 8;
const uint V_OCTS = HEAD_DIM_V / 8;
const uint IO_OCT_BYTES = 8 * DTYPE_BYTES(IO_DTYPE);
const uint K_OCT_BYTES = 8 * DTYPE_BYTES(K_DTYPE);
const uint V_OCT_BYTES = 8 * DTYPE_BYTES(V_DTYPE);

Oct unscaled(Oct stored, uint dtype, uint scale)
{
    return oct_narrow(oct_scale(oct_widen(stored, dtype), scale), IO_DTYPE);
}

Oct k_oct(uint seq, uint key, uint head, uint oct)
{
    const Oct stored = oct_load(key_row(seq, key, head) + oct * K_OCT_BYTES, K_DTYPE);
    if (K_SCALES)
        return unscaled(stored, K_DTYPE, Scale(key_scale_of(seq, key, head)).bits);
    return K_SCALED ? unscaled(stored, K_DTYPE, floatBitsToUint(run.k_scale))
                    : oct_convert(stored, K_DTYPE, IO_DTYPE);
}

Oct v_oct(uint seq, uint key, uint head, uint oct)
{
    const Oct stored = oct_load(value_row(seq, key, head) + oct * V_OCT_BYTES, V_DTYPE);
    if (V_SCALES)
        return unscaled(stored, V_DTYPE, Scale(value_scale_of(seq, key, head)).bits);
    return V_SCALED ? unscaled(stored, V_DTYPE, floatBitsToUint(run.v_scale))
                    : oct_convert(stored, V_DTYPE, IO_DTYPE);
}

void main()
{
    const uint number = gl_WorkGroupID.y + gl_WorkGroupID.z * dispatch.items_y;
    if (number >= dispatch.num_items)
        return;
    Runs runs = Runs(dispatch.runs);
    uint index;
    RUN_FIND(runs, dispatch.num_runs, dispatch.each, first_token, number, index)
    run = runs.at[index];
    const uint row = number - run.first_token;
    if (row >= run.num_tokens)
        return;
    const uint seq = find_seq(run.kv_offsets, run.num_seqs, row),
               key = row - uint(Ints(run.kv_offsets).at[seq]);
    const uint64_t k_to = run.k + uint64_t(row) * run.k_token_stride * 16;
    [[dont_unroll]] for (uint i = gl_LocalInvocationID.x; i < NUM_KV_HEADS * K_OCTS;
                         i += gl_WorkGroupSize.x) {
        const uint head = i / K_OCTS, oct = i % K_OCTS;
        oct_store(k_to + uint64_t(head) * run.k_head_stride * 16 + oct * IO_OCT_BYTES, IO_DTYPE,
                  k_oct(seq, key, head, oct));
    }
    if (V_IN_K != 0)
        return;
    const uint64_t v_to = run.v + uint64_t(row) * run.v_token_stride * 16;
    [[dont_unroll]] for (uint i = gl_LocalInvocationID.x; i < NUM_KV_HEADS * V_OCTS;
                         i += gl_WorkGroupSize.x) {
        const uint head = i / V_OCTS, oct = i % V_OCTS;
        oct_store(v_to + uint64_t(head) * run.v_head_stride * 16 + oct * IO_OCT_BYTES, IO_DTYPE,
                  v_oct(seq, key, head, oct));
    }
}
