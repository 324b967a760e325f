// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// kv_write - one workgroup writes one token's new K and V, [NUM_KV_HEADS, HEAD_DIM] each, to the
// slot of the token (block * BLOCK_SIZE + offset; -1 = nowhere). K is rotated by the token's
// position (ROPE). If the cache's dtype is not that of the tensors, K and V are scaled and rounded.
// The host refuses duplicate slots in one dispatch, so no order is needed. The workgroup's number
// is gl_WorkGroupID.y + gl_WorkGroupID.z * items_y. Its run is the last one whose first_token is at
// most this number.
//
// Bindings: none; everything is reached by address.
// Push constants: struct gpu_dispatch, num_items = tokens of all runs.
// Specialisation constants: LOCAL_SIZE, HEAD_DIM_K, HEAD_DIM_V, NUM_KV_HEADS, BLOCK_SIZE, K_DTYPE,
// V_DTYPE, IO_DTYPE, PLACE, V_IN_K, SCALE_MODE, and of FEATURES: ROPE, ROPE_PAIRS, POSITIONS.
// Shared memory: 2 KiB with scales per token and head.
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

#include "rope.glsl"

layout(push_constant, scalar) uniform Push { gpu_dispatch dispatch; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Words { uint at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) writeonly buffer Scale { float value; };

const uint K_OCTS = HEAD_DIM_K / 8;
const uint V_OCTS = HEAD_DIM_V / 8;
const uint IO_OCT_BYTES = 8 * DTYPE_BYTES(IO_DTYPE);
const uint K_OCT_BYTES = 8 * DTYPE_BYTES(K_DTYPE);
const uint V_OCT_BYTES = 8 * DTYPE_BYTES(V_DTYPE);

// Heads of a group. Shared memory has two words for each head of a group, so with scales per token
// and head a group has at most 256.
const uint HEADS =
    SCALE_MODE == AULE_SCALE_TOKEN_HEAD_MODE && NUM_KV_HEADS > 256 ? 256 : NUM_KV_HEADS;

// Scales per token and head: bits of the largest finite magnitude of a head's row. From
// scales_store() on, bits of the inverse scale.
shared uint k_largest[K_SCALES ? HEADS : 1];
shared uint v_largest[V_SCALES ? HEADS : 1];

// What this workgroup is to do, the same in every thread.
uint64_t slot, k_from, v_from;
uint first_head, num_heads; // of the group
int position; // of the token in its sequence: ROPE

// ---- K and V as f32, before they are rounded ----

// One element of a row as f32.
float element(uint64_t address, uint index)
{
    if (IO_DTYPE == DTYPE_F32)
        return uintBitsToFloat(Words(address).at[index]);
    const uint word = Words(address).at[index / 2];
    return uintBitsToFloat(widen16((index & 1u) != 0 ? word >> 16 : word & 0xffffu, IO_DTYPE));
}

// Rotates the elements of an oct of K that RoPE covers. An element's partner may be in another oct.
Oct oct_rotate(uint64_t address, uint oct, Oct f32)
{
    uint bits[8] = uint[8](f32.first.x, f32.first.y, f32.first.z, f32.first.w, f32.second.x, f32.second.y, f32.second.z,
                           f32.second.w);
    for (uint i = 0; i < 8; i++) {
        if (oct * 8 + i >= run.rope_dim)
            break;
        const RopePlace place = rope_place(oct * 8 + i, run.rope_dim / 2, ROPE_PAIRS);
        const vec2 turn = rope_rotation(run.rotations, position, place.pair);
        bits[i] = floatBitsToUint(
            rope_rotate(uintBitsToFloat(bits[i]), element(address, place.partner), turn, place.second));
    }
    return Oct(uvec4(bits[0], bits[1], bits[2], bits[3]), uvec4(bits[4], bits[5], bits[6], bits[7]));
}

uint64_t k_address(uint head)
{
    return k_from + uint64_t(head) * run.k_head_stride * 16;
}

uint64_t v_address(uint head)
{
    return v_from + uint64_t(head) * run.v_head_stride * 16;
}

Oct k_oct(uint head, uint oct)
{
    const uint64_t address = k_address(head);
    const Oct f32 = oct_widen(oct_load(address + oct * IO_OCT_BYTES, IO_DTYPE), IO_DTYPE);
    if (ROPE && oct * 8 < run.rope_dim)
        return oct_rotate(address, oct, f32);
    return f32;
}

Oct v_oct(uint head, uint oct)
{
    return oct_widen(oct_load(v_address(head) + oct * IO_OCT_BYTES, IO_DTYPE), IO_DTYPE);
}

// ---- scales: from here on, `head` counts within the group ----

void scales_find()
{
    for (uint head = gl_LocalInvocationID.x; head < num_heads; head += gl_WorkGroupSize.x) {
        if (K_SCALES)
            k_largest[head] = 0;
        if (V_SCALES)
            v_largest[head] = 0;
    }
    barrier();
    if (K_SCALES)
        [[dont_unroll]] for (uint i = gl_LocalInvocationID.x; i < num_heads * K_OCTS; i += gl_WorkGroupSize.x)
            atomicMax(k_largest[i / K_OCTS], oct_largest(0, k_oct(first_head + i / K_OCTS, i % K_OCTS)));
    if (V_SCALES && V_IN_K == 0)
        [[dont_unroll]] for (uint i = gl_LocalInvocationID.x; i < num_heads * V_OCTS; i += gl_WorkGroupSize.x)
            atomicMax(v_largest[i / V_OCTS], oct_largest(0, v_oct(first_head + i / V_OCTS, i % V_OCTS)));
    barrier();
}

// Stores all scales that the block has room for. The scale of a type without scales is 1.
void scales_store()
{
    for (uint head = gl_LocalInvocationID.x; head < num_heads; head += gl_WorkGroupSize.x) {
        uint k_scale = floatBitsToUint(1.0), v_scale = k_scale;
        if (K_SCALES) {
            k_scale = row_scale(k_largest[head], K_DTYPE);
            k_largest[head] = row_inverse(k_largest[head], K_DTYPE);
        }
        if (V_SCALES) {
            v_scale = row_scale(v_largest[head], V_DTYPE);
            v_largest[head] = row_inverse(v_largest[head], V_DTYPE);
        }
        Scale(slot_key_scale(slot, first_head + head)).value = uintBitsToFloat(k_scale);
        if (V_IN_K == 0)
            Scale(slot_value_scale(slot, first_head + head)).value = uintBitsToFloat(v_scale);
    }
    barrier();
}

Oct k_scaled(uint head, Oct f32)
{
    if (K_SCALES)
        return oct_scale(f32, k_largest[head]);
    return K_SCALED ? oct_scale(f32, floatBitsToUint(run.k_inverse)) : f32;
}

Oct v_scaled(uint head, Oct f32)
{
    if (V_SCALES)
        return oct_scale(f32, v_largest[head]);
    return V_SCALED ? oct_scale(f32, floatBitsToUint(run.v_inverse)) : f32;
}

// ---- the copy ----

// Elements that are not rotated and do not change their type keep their bits.
void k_store(uint head, uint oct)
{
    const uint64_t to = slot_key(slot, first_head + head) + oct * K_OCT_BYTES;
    if (K_DTYPE == IO_DTYPE && !(ROPE && oct * 8 < run.rope_dim))
        oct_store(to, K_DTYPE, oct_load(k_address(first_head + head) + oct * IO_OCT_BYTES, IO_DTYPE));
    else
        oct_store(to, K_DTYPE, oct_narrow(k_scaled(head, k_oct(first_head + head, oct)), K_DTYPE));
}

void v_store(uint head, uint oct)
{
    const uint64_t to = slot_value(slot, first_head + head) + oct * V_OCT_BYTES;
    if (V_DTYPE == IO_DTYPE)
        oct_store(to, V_DTYPE, oct_load(v_address(first_head + head) + oct * IO_OCT_BYTES, IO_DTYPE));
    else
        oct_store(to, V_DTYPE, oct_narrow(v_scaled(head, v_oct(first_head + head, oct)), V_DTYPE));
}

void heads_write()
{
    if (K_SCALES || V_SCALES)
        scales_find();
    if (SCALE_MODE == AULE_SCALE_TOKEN_HEAD_MODE)
        scales_store();
    [[dont_unroll]] for (uint i = gl_LocalInvocationID.x; i < num_heads * K_OCTS; i += gl_WorkGroupSize.x)
        k_store(i / K_OCTS, i % K_OCTS);
    if (V_IN_K == 0)
        [[dont_unroll]] for (uint i = gl_LocalInvocationID.x; i < num_heads * V_OCTS; i += gl_WorkGroupSize.x)
            v_store(i / V_OCTS, i % V_OCTS);
}

// ---- whose token this is ----

// A batch that only writes may have no sequences. Then it has no outer strides, and ROPE only with
// positions.
void token_begin(uint token, uint row)
{
    uint seq = 0, index = token;
    if (run.num_seqs != 0) {
        seq = find_seq(run.cu_seqlens_q, run.num_seqs, token);
        index = token - uint(Ints(run.cu_seqlens_q).at[seq]);
    }
    k_from = run.k + (run.k_outer != 0 ? seq * run.k_outer + uint64_t(index) * run.k_token_stride * 16
                                       : uint64_t(row) * run.k_token_stride * 16);
    v_from = run.v + (run.v_outer != 0 ? seq * run.v_outer + uint64_t(index) * run.v_token_stride * 16
                                       : uint64_t(row) * run.v_token_stride * 16);
    if (!ROPE)
        return;
    if (POSITIONS) {
        position = Ints(run.positions).at[row];
        return;
    }
    Ints cu_seqlens = Ints(run.cu_seqlens_q);
    const int all = cu_seqlens.at[seq + 1] - cu_seqlens.at[seq];
    const int q_len = run.q_len_step != 0 ? Ints(run.q_lens).at[seq * run.q_len_step] : all;
    position = Ints(run.seq_lens_kv).at[seq] - q_len + int(index);
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
    const uint token = number - run.first_token;
    if (run.slot_step == 0 || token >= run.num_tokens)
        return;
    const uint row = token_row(token);
    const int64_t where = Longs(run.slot_mapping).at[row * run.slot_step];
    if (where < 0)
        return;
    slot = uint64_t(where);
    token_begin(token, row);
    for (first_head = 0; first_head < NUM_KV_HEADS; first_head += HEADS) {
        num_heads = min(HEADS, NUM_KV_HEADS - first_head);
        heads_write();
        if (HEADS < NUM_KV_HEADS)
            barrier();
    }
}
