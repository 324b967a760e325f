// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// layout.h - the structs that the host writes and the shaders read, included by both languages.
// Scalar layout: no padding but what stands here. The host owns all this memory; nothing in it is
// ever writable by a client. Laid out by hand, one thought a line.
// clang-format off

#ifndef AULE_SHADERS_LAYOUT_H
#define AULE_SHADERS_LAYOUT_H

#ifdef GL_core_profile
#define AULE_U32 uint
#define AULE_U64 uint64_t
#define AULE_F32 float
#define AULE_OUT result             // `out` is a word of GLSL
#define AULE_STRUCT(NAME) NAME
#else
#include <stdint.h>
#define AULE_U32 uint32_t
#define AULE_U64 uint64_t
#define AULE_F32 float
#define AULE_OUT out
#define AULE_STRUCT(NAME) struct NAME
#endif

// One run (a batch and a layer) inside a ragged dispatch. Addresses are buffer device addresses.
// Outer strides are bytes, the other strides count 16-byte units.
//
// Sequence s has the tokens cu_seqlens_q[s] .. cu_seqlens_q[s + 1]. Token t of them, the i-th of
// its sequence, lies in q, k, v and out at  base + row(t) * token_stride,  where row(t) is t or
// token_rows[t]. With an outer stride it lies at  base + s * outer + i * token_stride.
//
// A software device loads from an address that all lanes share, even if no lane is active. So an
// array of the batch that a run may lack leads to a zero of the engine's. If the array has a step,
// that is a factor of its index: 1, or 0 if there is no array. Any other address may be 0 in a run
// that does not need it: only pipelines made for its feature, place or kind of run have code that
// loads from there, and all their runs need it.
struct gpu_run {
    AULE_U64 q, k, v, AULE_OUT;     // element (token 0, head 0, dim 0); the gather writes k and v
    AULE_U64 keys, values;          // PLACE_BLOCKS, PLACE_ROWS: element (block or row 0, head 0,
                                    //   dim 0)
    // PLACE_POOL: u64[]. Entry [chunk * chunk_stride] is the address of this layer's part of the
    // chunk. For each block that part has K [num_kv_heads, block_size, head_dim], then V likewise.
    // With scales per token and head, f32 [num_kv_heads, block_size] of K and then of V follow.
    AULE_U64 chunks;
    AULE_U64 cu_seqlens_q;          // i32[num_seqs + 1]
    AULE_U64 seq_lens_kv;           // i32[num_seqs]
    AULE_U64 block_table;           // i32[num_seqs, max_blocks]
    AULE_U64 slot_mapping;          // i64[num_tokens] by row, -1 = write nowhere; slot_step 0:
                                    //   nothing is written
    AULE_U64 items;                 // struct gpu_item[num_items]; for the merge of splits struct
                                    //   gpu_merge_item[], for the cascade struct gpu_crowd[]
    AULE_U64 q_lens;                // i32[num_seqs]: rows from there on see no key; q_len_step 0:
                                    //   all rows are queries
    AULE_U64 token_rows;            // i32[num_tokens]; token_row_step 0: token t is row t
    AULE_U64 kv_starts;             // PLACE_ROWS without an outer stride: i32[num_seqs], the
                                    //   sequence's first row in keys and values; kv_start_step
    AULE_U64 kv_offsets;            // gather: i32[num_seqs + 1], prefix sums of seq_lens_kv
    // A field that begins with a feature's name is read only by pipelines that have this feature in
    // AULE_SPEC_FEATURES.
    AULE_U64 positions;             // POSITIONS: i32[num_tokens] by row: the query's position
                                    //   among the keys of its sequence
    AULE_U64 mask;                  // MASK: bytes. Bit i * kv_len + j of a sequence's part, LSB
                                    //   first, lets query i see key j
    AULE_U64 mask_starts;           // MASK: u64[num_seqs]: the byte of `mask` where the sequence's
                                    //   part begins
    AULE_U64 slopes;                // ALIBI: f32[num_heads]
    AULE_U64 sinks;                 // SINKS: f32[num_heads], natural logarithms
    AULE_U64 lse;                   // LSE: f32[num_tokens, num_heads] by row, in lse_unit, heads
                                    //   contiguous
    AULE_U64 rotations;             // ROPE: u64[rope_dim / 2], turns a position in units of 2^-64
    AULE_U64 partials;              // SPLIT: see gpu_item
    AULE_U64 counters;              // SPLIT, a shader that merges splits itself: u32[num_merges,
                                    //   num_kv_heads]: how many splits of a tile are done. All 0
                                    //   when the dispatch begins and when it ends
    AULE_U64 q_outer, k_outer, v_outer, out_outer;   // bytes a sequence; 0 = none
    // Bytes from block to block (PLACE_BLOCKS), or from sequence to sequence (PLACE_ROWS; 0: see
    // kv_starts).
    AULE_U64 keys_outer, values_outer;
    AULE_U32 q_token_stride, q_head_stride;
    AULE_U32 k_token_stride, k_head_stride;
    AULE_U32 v_token_stride, v_head_stride;
    AULE_U32 out_token_stride, out_head_stride;
    AULE_U32 keys_token_stride, keys_head_stride;
    AULE_U32 values_token_stride, values_head_stride;
    AULE_U32 num_seqs;
    AULE_U32 num_tokens;            // of the gather: rows of k and v
    AULE_U32 num_heads;
    AULE_U32 max_blocks;            // columns of the block table
    AULE_U32 chunk_stride;          // entries between two chunks in `chunks`: the cache's layers
    AULE_U32 chunk_shift;           // log2 of the blocks of a chunk
    AULE_U32 first_item;            // of this run in the dispatch: an item's run is found by it
    AULE_U32 first_token;           // the same for the K/V write and for the gather, which have one
                                    //   workgroup for each token
    AULE_U32 first_merge;           // the same for the merge of splits
    AULE_U32 causal;                // 0 or 1; 0 with a mask
    AULE_F32 scale_log2e;           // softmax scale * log2(e), with one scale for the tensor also
                                    //   times K's scale
    AULE_F32 k_scale, v_scale;      // one scale for the tensor: the factor of stored elements;
                                    //   else 1
    AULE_F32 k_inverse, v_inverse;  // the factor of an element before it is rounded and stored:
                                    //   1 / scale, rounded to f32 by the host
    AULE_U32 lse_token_stride;      // LSE: in floats
    AULE_F32 lse_unit;              // LSE: what 1 in base-2 logarithms is: ln(2) for natural ones
    AULE_U32 window_left;           // WINDOW: a query at p sees keys j >= p - left; 0x7fffffff:
                                    //   unbounded
    AULE_U32 window_right;          // WINDOW: and keys j <= p + right; 0x7fffffff: unbounded
    AULE_F32 soft_cap;              // SOFT_CAP: s = cap * tanh(s / cap)
    AULE_U32 rope_dim;              // ROPE: even, at most HEAD_DIM_K
    AULE_U32 slot_step, q_len_step; // of the arrays above
    AULE_U32 token_row_step, kv_start_step;
    AULE_U32 attention_chunk;       // CHUNK: a query at p sees keys j with j / chunk == p / chunk,
                                    //   both rounded down
};

// Rows [first_row, first_row + tile rows) of one sequence, for each KV head. Row r of a sequence is
// query token r / group and head kv_head * group + r % group, where group is num_heads /
// num_kv_heads. The lengths stand here, too, so that no load waits for another one.
struct gpu_tile {
    AULE_U32 seq, first_row;
    AULE_U32 first_token;           // of the sequence, among the run's tokens
    AULE_U32 num_tokens, q_len;     // of the sequence; rows of tokens from q_len on are idle
    AULE_U32 kv_len;
};

// One tile of attention, against the keys [first_key, end_key) of its sequence.
// - With partial == AULE_NO_PARTIAL these are all its keys, and the tile stores its rows.
// - Otherwise (SPLIT) it leaves a partial result at partials + (partial * num_kv_heads + kv_head) *
//   AULE_PARTIAL_FLOATS(..) * 4. For each row of the tile this has the unnormalised sums
//   f32[tile rows, HEAD_DIM_V]. Two arrays f32[tile rows] follow: the maxima of the scores times
//   log2(e), and the sums of the weights 2^(score - maximum).
// - A shader that divides a part among its warps does so by `span`, so the sequence's end changes
//   nothing. The span is end_key - first_key of a sequence with enough keys. Without a split it is
//   kv_len, rounded up to a multiple of AULE_SPAN_GRAIN, and never 0.
// - A shader that knows halves computes `which_half` of the part: 0, 1 or AULE_BOTH_HALVES. The
//   shader decides which keys are in which half.
// - A shader that merges splits itself finds the tile's partial results by the last fields. They
//   are as in struct gpu_merge_item.
struct gpu_item {
    AULE_STRUCT(gpu_tile) tile;
    AULE_U32 first_key, end_key, span;
    AULE_U32 partial, which_half;
    AULE_U32 merge;                 // number of the tile among the run's tiles that are split
    AULE_U32 first_partial, num_partials;
    AULE_U32 num_halved;            // the first num_halved partial results are of half a part each
};
#define AULE_SPAN_GRAIN 256u
#define AULE_BOTH_HALVES 2u
#define AULE_NO_PARTIAL 0xffffffffu
#define AULE_PARTIAL_FLOATS(TILE_ROWS, HEAD_DIM_V) ((TILE_ROWS) * ((HEAD_DIM_V) + 2u))

// Items of several tiles whose keys [first_key, end_key) are the same ones, in the same blocks, and seen by all their rows: members
// [0, num_members), each as it would be alone, with a partial result of its own. None has more rows than `width`, a power of two up to the
// rows of a tile; num_members * width is at most 16 rows a warp. With COMPANY the members belong to several runs of the dispatch, which stand one
// after another. Behind the items stand the numbers of the members' runs, counted from the crowd's run.
#define AULE_MOST_MEMBERS 128u
#define AULE_MEMBER_BYTES 64u       // of an item and a run's number
struct gpu_crowd {
    AULE_U64 members;               // struct gpu_item[num_members], then u32[num_members]
    AULE_U32 num_members, width;
};

// The splits of one tile, merged in their order: partial results [first_partial, first_partial +
// num_partials).
struct gpu_merge_item {
    AULE_STRUCT(gpu_tile) tile;
    AULE_U32 first_partial, num_partials;
};

// Copying (from != 0) or zeroing of blocks: one entry a block and layer.
struct gpu_range { AULE_U64 from, to; AULE_U64 bytes; };   // bytes: a multiple of 16

// Merging of a caller's partial results, [num_tokens, num_heads, head_dim] each.
struct gpu_part {
    AULE_U64 AULE_OUT, lse;
    AULE_U32 out_token_stride, out_head_stride, lse_token_stride, reserved;
};
struct gpu_merge {
    AULE_U64 parts;                 // struct gpu_part[num_parts]
    AULE_U64 AULE_OUT, lse;         // lse 0 = not wanted
    AULE_U32 out_token_stride, out_head_stride, lse_token_stride;
    AULE_U32 num_parts;             // 1 at least
    AULE_U32 num_tokens, num_heads, head_dim;
    AULE_F32 lse_unit, lse_log2;    // what 1 in base-2 logarithms is in an LSE, and the reverse:
                                    //   ln(2) and log2(e) for natural logarithms, else 1 and 1
    AULE_U32 reserved;
};

#define AULE_RUN_WAYS 16u           // runs among which a shader finds one in one round of loads
// Push constants of attention, merge of splits, K/V write and gather. A workgroup's item is
// gl_WorkGroupID.y + gl_WorkGroupID.z * items_y.
struct gpu_dispatch {
    AULE_U64 runs;                  // struct gpu_run[num_runs]
    AULE_U32 num_runs;
    AULE_U32 num_items;             // of all runs; K/V write, gather: tokens of all runs
    AULE_U32 items_y;               // y size of the grid
    AULE_U32 each;                  // entries of each run, if all have as many: then entry n is of
                                    //   run n / each; 0: the run is searched
    AULE_U64 items;                 // attention, if the first run has all items: its `items`, so
                                    //   that loading them does not wait for the run; else 0
    AULE_U64 redo;                  // struct gpu_redo of a shader that may compute items twice; 0:
                                    //   none of these items needs it
};

// The items that the first pass notes for the second one (REDO). Behind the struct stand
// u32[count][2]: KV head and number of each item. The host writes {0, 1, 1, 0} before the first
// pass. In the second pass, workgroup (i, j) computes entry i + j * AULE_REDO_WIDTH.
struct gpu_redo {
    AULE_U32 x, y, z;               // workgroups of the second pass, a VkDispatchIndirectCommand:
                                    //   x grows up to AULE_REDO_WIDTH, then y
    AULE_U32 count;
};
#define AULE_REDO_WIDTH 32768u

// What a native kernel (shaders/hopper) writes beside its results: the tickets that it has handed
// out. Elsewhere it has u32[num_items * num_kv_heads][2], its notes of what it computes twice. The
// host zeroes the struct before the dispatch, and not the notes.
struct gpu_tickets { AULE_U32 taken, reserved0, reserved1, reserved2; };
#define AULE_TICKET_NOTES 8u            // bytes of an item and KV head
#define AULE_REDO_ENTRY 8u          // bytes

// Up to this head dim of K and V, attention_decode.comp and attention_prefill.comp have registers
// for whole rows. They accept head dims of up to twice as much.
#define AULE_NARROW_HEAD_DIM 128u

// attention_prefill.comp: keys of a tile up to this head dim; beyond it a tile has half as many.
#define AULE_PREFILL_KEYS          64u
#define AULE_PREFILL_KEYS_EMULATED 32u
// A sequence with fewer keys than so many tiles has no second pass: its items are never noted.
#define AULE_PREFILL_DOUBTFUL_TILES 3u
// The bits of 2^127. A sum of at least this magnitude is wrong. It is infinite, NaN, or a number
// that was too large and that tensor cores rounded toward zero.
#define AULE_PREFILL_NO_SUM        0x7f000000u

// Push constants of copying and zeroing, and of merging a caller's results. In the merge, a
// workgroup's token is y + z * items_y, and its head is x.
struct gpu_copy { AULE_U64 ranges; AULE_U32 num_ranges; AULE_U32 reserved; };
struct gpu_merging { AULE_U64 merge; AULE_U32 items_y; AULE_U32 reserved; };

// Push constants of haul.comp. A range has `num_tiles` tiles; its last one may be shorter.
struct gpu_haul { AULE_U64 ranges; AULE_U32 num_ranges, num_tiles; };
#define AULE_HAUL_LOCAL_SIZE 128u   // invocations of a workgroup
#define AULE_HAUL_UNITS      8u     // of 16 bytes, that an invocation copies of a tile
#define AULE_HAUL_TILE       (AULE_HAUL_LOCAL_SIZE * AULE_HAUL_UNITS * 16u) // bytes

// matrix_probe.comp: what one lane has of a product of matrices, in the layout of matrix.glsl. In a
// second product, pairs of `large` and 1, rounded to elements, are multiplied by `times`.
struct gpu_matrix_lane {
    AULE_U32 a[4], b[2];
    AULE_F32 c[4], sums[4];
    AULE_F32 large;
    AULE_U32 times[2];
    AULE_U32 beyond[4];             // bits of the second product's sums
};
struct gpu_matrix_probe { AULE_U64 lanes; }; // its push constants

// Specialisation constants, by id; all pipelines share the numbering.
#define AULE_SPEC_LOCAL_SIZE   0    // invocations a workgroup
#define AULE_SPEC_HEAD_DIM_K   1
#define AULE_SPEC_HEAD_DIM_V   2
#define AULE_SPEC_NUM_KV_HEADS 3
#define AULE_SPEC_BLOCK_SIZE   4    // PLACE_ROWS: 32, the keys whose addresses are found at once
#define AULE_SPEC_K_DTYPE      5    // schema/dtypes.h
#define AULE_SPEC_V_DTYPE      6
#define AULE_SPEC_IO_DTYPE     7    // of q, k, v and out
#define AULE_SPEC_TILE_ROWS    8    // rows of a gpu_item
#define AULE_SPEC_FEATURES     9    // bits below: the features that the pipeline's runs use
#define AULE_SPEC_PLACE        10   // engine.h, enum engine_place
#define AULE_SPEC_V_IN_K       11   // 1: V is the first HEAD_DIM_V elements of K
#define AULE_SPEC_SCALE_MODE   12   // status.h, enum scale_mode
// What the device is like. Set only for shaders that ask for it.
#define AULE_SPEC_MATRIX_ROWS    13 // of its matrices: A is ROWS x DEPTH, B is DEPTH x COLUMNS
#define AULE_SPEC_MATRIX_COLUMNS 14
#define AULE_SPEC_MATRIX_DEPTH   15
#define AULE_SPEC_SUBGROUP       16 // invocations of a subgroup
#define AULE_SPEC_SOFTWARE       17 // 1: software, which compiles unrolled loops for minutes

#define AULE_PLACE_POOL        0
#define AULE_PLACE_BLOCKS      1
#define AULE_PLACE_ROWS        2

#define AULE_SCALE_NONE_MODE       0
#define AULE_SCALE_TENSOR_MODE     1
#define AULE_SCALE_TOKEN_HEAD_MODE 2

#define AULE_FEATURE_SOFT_CAP  1u
#define AULE_FEATURE_ALIBI     2u
#define AULE_FEATURE_WINDOW    4u
#define AULE_FEATURE_MASK      8u
#define AULE_FEATURE_POSITIONS 16u
#define AULE_FEATURE_SINKS     32u
#define AULE_FEATURE_LSE       64u
#define AULE_FEATURE_ROPE      128u   // of Q by attention, of K by the write
#define AULE_FEATURE_ROPE_PAIRS 256u  // pairs are (2n, 2n + 1); else (n, n + rope_dim / 2)
#define AULE_FEATURE_SPLIT     512u   // some items leave partial results
#define AULE_FEATURE_REDO      1024u  // a second pass: see gpu_redo
#define AULE_FEATURE_CHUNK     4096u  // with WINDOW: keys of the query's own chunk
#define AULE_FEATURE_COMPANY   2048u  // a cascade over several runs: see gpu_crowd

#endif
