// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// layout.h - the structs that the host writes and the shaders read, included by both languages. Scalar layout: no padding
// but what stands here. The host owns all this memory; nothing in it is ever writable by a client.
// Laid out by hand, one thought a line.
// clang-format off

#ifndef AULE_SHADERS_LAYOUT_H
#define AULE_SHADERS_LAYOUT_H

#ifdef GL_core_profile
#define AULE_U32 uint
#define AULE_U64 uint64_t
#define AULE_F32 float
#define AULE_OUT result             // `out` is a word of GLSL
#else
#include <stdint.h>
#define AULE_U32 uint32_t
#define AULE_U64 uint64_t
#define AULE_F32 float
#define AULE_OUT out
#endif

// One run (a batch and a layer) inside a ragged dispatch. Addresses are buffer device addresses; strides count 16-byte units.
struct gpu_run {
    AULE_U64 q, k, v, AULE_OUT;     // element (token 0, head 0, dim 0) of [num_tokens, heads, dim]
    AULE_U64 chunks;                // u64[]: entry [chunk * chunk_stride] is the address of this layer's part of that chunk,
                                    //   [chunk_blocks, K then V, num_kv_heads, block_size, head_dim]
    AULE_U64 cu_seqlens_q;          // i32[num_seqs + 1]
    AULE_U64 seq_lens_kv;           // i32[num_seqs]
    AULE_U64 block_table;           // i32[num_seqs, max_blocks]
    AULE_U64 slot_mapping;          // i64[num_tokens], -1 = write nowhere; address 0 = none
    AULE_U64 items;                 // struct gpu_item[num_items]
    // The next six, and the last few of the words, are read only by pipelines whose AULE_SPEC_FEATURES has their bit.
    AULE_U64 positions;             // POSITIONS: i32[num_tokens], where each query stands among its sequence's keys
    AULE_U64 mask;                  // MASK: bytes; bit i * kv_len + j of a sequence's part, LSB first, lets query i see key j
    AULE_U64 mask_starts;           // MASK: u64[num_seqs], the byte of `mask` where the sequence's part begins
    AULE_U64 slopes;                // ALIBI: f32[num_heads]
    AULE_U64 sinks;                 // SINKS: f32[num_heads], natural logarithms as the caller gave them
    AULE_U64 lse;                   // LSE: f32[num_tokens, num_heads] natural log, heads contiguous
    AULE_U32 q_token_stride, q_head_stride;
    AULE_U32 k_token_stride, k_head_stride;
    AULE_U32 v_token_stride, v_head_stride;
    AULE_U32 out_token_stride, out_head_stride;
    AULE_U32 num_tokens;
    AULE_U32 num_heads;
    AULE_U32 max_blocks;            // columns of the block table
    AULE_U32 chunk_stride;          // entries between two chunks in `chunks`: the cache's number of layers
    AULE_U32 chunk_shift;           // log2 of blocks a chunk
    AULE_U32 first_item;            // of this run in the whole dispatch: runs are found by searching it
    AULE_U32 first_token;           // the same for the K/V write, which has one workgroup a token
    AULE_U32 causal;                // 0 or 1; 0 with a mask
    AULE_F32 scale_log2e;           // softmax scale * log2(e)
    AULE_U32 lse_token_stride;      // LSE: in floats
    AULE_U32 window_left;           // WINDOW: query at p sees keys j >= p - left; 0x7fffffff = unbounded
    AULE_U32 window_right;          // WINDOW: and keys j <= p + right; 0x7fffffff = unbounded
    AULE_F32 soft_cap;              // SOFT_CAP: s = cap * tanh(s / cap)
    AULE_U32 reserved;
};

// One tile of attention: rows [first_row, first_row + tile rows) of one sequence, for each KV head. Row r of a sequence is
// query token r / group, head kv_head * group + r % group, where group = num_heads / num_kv_heads.
struct gpu_item { AULE_U32 seq, first_row; };

// Zeroing of blocks: one entry a block and layer.
struct gpu_range { AULE_U64 address; AULE_U64 bytes; };   // bytes: a multiple of 16

// Push constants of attention and of the K/V write. Item number = gl_WorkGroupID.y + gl_WorkGroupID.z * items_y.
struct gpu_dispatch {
    AULE_U64 runs;                  // struct gpu_run[num_runs]
    AULE_U32 num_runs;
    AULE_U32 num_items;             // of all runs (attention), or tokens of all runs (K/V write)
    AULE_U32 items_y;               // y size of the grid
    AULE_U32 reserved;
};

// Push constants of the zeroing.
struct gpu_zero { AULE_U64 ranges; AULE_U32 num_ranges; AULE_U32 reserved; };

// Specialisation constants, by id; all pipelines share the numbering.
#define AULE_SPEC_LOCAL_SIZE   0    // invocations a workgroup
#define AULE_SPEC_HEAD_DIM_K   1
#define AULE_SPEC_HEAD_DIM_V   2
#define AULE_SPEC_NUM_KV_HEADS 3
#define AULE_SPEC_BLOCK_SIZE   4
#define AULE_SPEC_K_DTYPE      5    // status.h, AULE_DTYPE_MAP
#define AULE_SPEC_V_DTYPE      6
#define AULE_SPEC_IO_DTYPE     7    // of q, k, v and out
#define AULE_SPEC_TILE_ROWS    8    // rows of a gpu_item
#define AULE_SPEC_FEATURES     9    // bits below; a pipeline is made for the features that its runs use

#define AULE_FEATURE_SOFT_CAP  1u
#define AULE_FEATURE_ALIBI     2u
#define AULE_FEATURE_WINDOW    4u
#define AULE_FEATURE_MASK      8u
#define AULE_FEATURE_POSITIONS 16u
#define AULE_FEATURE_SINKS     32u
#define AULE_FEATURE_LSE       64u

#endif
