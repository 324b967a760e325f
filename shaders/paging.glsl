// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// paging.glsl - the host's structs as buffer references, and searches for the run and the sequence
// that own a number. Also the address of a key and its value, from a slot or from a sequence and
// key, for every PLACE. Knows addresses, no contents. The includer sets the global `run` first.

#ifndef AULE_PAGING_GLSL
#define AULE_PAGING_GLSL

#include "geometry.glsl"

layout(buffer_reference, scalar, buffer_reference_align = 8) readonly buffer Runs { gpu_run at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Items {
    gpu_item at[];
};
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer MergeItems {
    gpu_merge_item at[];
};
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Ints { int at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) readonly buffer Longs {
    int64_t at[];
};
layout(buffer_reference, scalar, buffer_reference_align = 8) readonly buffer Addresses {
    uint64_t at[];
};

gpu_run run;

// Finds the run of entry `number`: the last run whose first entry is not beyond it. A run without
// entries begins where the next one does, so it is never found. FIELD is first_item, first_token or
// first_merge. With EACH nothing is loaded: see struct gpu_dispatch. Otherwise the loads of a round
// do not wait for each other, and up to AULE_RUN_WAYS runs take one round. A binary search waits
// for one load after the other, and each is a miss of the caches.
#define RUN_FIND(RUNS, NUM_RUNS, EACH, FIELD, NUMBER, FOUND)                                       \
    {                                                                                              \
        uint low = 0, count = (NUM_RUNS);                                                          \
        if ((EACH) != 0) {                                                                         \
            low = (NUMBER) / (EACH);                                                               \
            count = 1;                                                                             \
        }                                                                                          \
        [[dont_unroll]] while (count > 1)                                                          \
        {                                                                                          \
            const uint step = (count + AULE_RUN_WAYS - 1) / AULE_RUN_WAYS;                         \
            uint before = 0;                                                                       \
            [[unroll]] for (uint way = 1; way < AULE_RUN_WAYS; way++) {                            \
                const uint ahead = way * step;                                                     \
                const uint first = (RUNS).at[low + min(ahead, count - 1)].FIELD;                   \
                before += uint(ahead < count) & uint(first <= (NUMBER));                           \
            }                                                                                      \
            low += before * step;                                                                  \
            count = min(step, count - before * step);                                              \
        }                                                                                          \
        FOUND = low;                                                                               \
    }

// The sequence that owns entry `number`, by prefix sums i32[num_seqs + 1]; never an empty one.
uint find_seq(uint64_t offsets, uint num_seqs, uint number)
{
    uint low = 0, high = num_seqs;
    while (high - low > 1) {
        const uint middle = (low + high) / 2;
        if (uint(Ints(offsets).at[middle]) <= number)
            low = middle;
        else
            high = middle;
    }
    return low;
}

// The row of token `token`, in slot_mapping, in positions and in every tensor without an outer
// stride.
uint token_row(uint token)
{
    if (run.token_row_step == 0) // saves the load
        return token;
    return uint(Ints(run.token_rows).at[token * run.token_row_step]);
}

// ---- blocks ----

// Bytes of a row in the pool. Elsewhere the strides say how far rows are apart.
const uint K_ROW_BYTES = HEAD_DIM_K * DTYPE_BYTES(K_DTYPE);
const uint V_ROW_BYTES = HEAD_DIM_V * DTYPE_BYTES(V_DTYPE);
const uint K_HEAD_BYTES = BLOCK_SIZE * K_ROW_BYTES; // one KV head of one block
const uint V_HEAD_BYTES = V_IN_K != 0 ? 0 : BLOCK_SIZE * V_ROW_BYTES;
// Offset of the scales in a block; K's come first.
const uint SCALES_AT = NUM_KV_HEADS * (K_HEAD_BYTES + V_HEAD_BYTES);
const uint SCALES_BYTES =
    SCALE_MODE == AULE_SCALE_TOKEN_HEAD_MODE ? NUM_KV_HEADS * BLOCK_SIZE * 4 : 0;
const uint BLOCK_BYTES = SCALES_AT + (V_IN_K != 0 ? 1 : 2) * SCALES_BYTES;

// Address of block `block` of this run's layer in the pool.
uint64_t pool_block(uint block)
{
    const uint64_t chunk = Addresses(run.chunks).at[(block >> run.chunk_shift) * run.chunk_stride];
    return chunk + uint64_t(block & (1u << run.chunk_shift) - 1u) * BLOCK_BYTES;
}

// Address of key 0 of a block for one KV head; value_block(): of its value. Key j lies
// key_offset(j) further.
uint64_t key_block(uint block, uint head)
{
    if (PLACE == AULE_PLACE_POOL)
        return pool_block(block) + head * K_HEAD_BYTES;
    return run.keys + block * run.keys_outer + uint64_t(head) * run.keys_head_stride * 16;
}

uint64_t value_block(uint block, uint head)
{
    if (V_IN_K != 0)
        return key_block(block, head);
    if (PLACE == AULE_PLACE_POOL)
        return pool_block(block) + NUM_KV_HEADS * K_HEAD_BYTES + head * V_HEAD_BYTES;
    return run.values + block * run.values_outer + uint64_t(head) * run.values_head_stride * 16;
}

uint64_t key_offset(uint row)
{
    return PLACE == AULE_PLACE_POOL ? uint64_t(row * K_ROW_BYTES)
                                    : uint64_t(row) * run.keys_token_stride * 16;
}

uint64_t value_offset(uint row)
{
    if (V_IN_K != 0)
        return key_offset(row);
    return PLACE == AULE_PLACE_POOL ? uint64_t(row * V_ROW_BYTES)
                                    : uint64_t(row) * run.values_token_stride * 16;
}

// ---- slots: slot = block * BLOCK_SIZE + row; not in PLACE_ROWS ----

uint64_t slot_key(uint64_t slot, uint head)
{
    return key_block(uint(slot / BLOCK_SIZE), head) + key_offset(uint(slot) & BLOCK_SIZE - 1);
}

uint64_t slot_value(uint64_t slot, uint head)
{
    return value_block(uint(slot / BLOCK_SIZE), head) + value_offset(uint(slot) & BLOCK_SIZE - 1);
}

uint64_t slot_key_scale(uint64_t slot, uint head)
{
    return pool_block(uint(slot / BLOCK_SIZE)) + SCALES_AT +
           (head * BLOCK_SIZE + (uint(slot) & BLOCK_SIZE - 1)) * 4;
}

uint64_t slot_value_scale(uint64_t slot, uint head)
{
    return slot_key_scale(slot, head) + (V_IN_K != 0 ? 0 : SCALES_BYTES);
}

// ---- keys of a sequence ----
// `part` counts BLOCK_SIZE keys: an entry of the block table or, in PLACE_ROWS, as many rows. These
// functions read the table.

uint seq_block(uint seq, uint part)
{
    return uint(Ints(run.block_table + (uint64_t(seq) * run.max_blocks + part) * 4).at[0]);
}

// Address of row 0 of a sequence in contiguous keys or values, head 0.
uint64_t rows_begin(uint64_t base, uint64_t outer, uint token_stride, uint seq)
{
    if (outer != 0)
        return base + seq * outer;
    return base +
           uint64_t(uint(Ints(run.kv_starts).at[seq * run.kv_start_step])) * token_stride * 16;
}

uint64_t part_keys(uint seq, uint part, uint head)
{
    if (PLACE == AULE_PLACE_ROWS)
        return rows_begin(run.keys, run.keys_outer, run.keys_token_stride, seq) +
               uint64_t(part) * BLOCK_SIZE * run.keys_token_stride * 16 +
               uint64_t(head) * run.keys_head_stride * 16;
    return key_block(seq_block(seq, part), head);
}

uint64_t part_values(uint seq, uint part, uint head)
{
    if (V_IN_K != 0)
        return part_keys(seq, part, head);
    if (PLACE == AULE_PLACE_ROWS)
        return rows_begin(run.values, run.values_outer, run.values_token_stride, seq) +
               uint64_t(part) * BLOCK_SIZE * run.values_token_stride * 16 +
               uint64_t(head) * run.values_head_stride * 16;
    return value_block(seq_block(seq, part), head);
}

uint64_t key_row(uint seq, uint key, uint head)
{
    return part_keys(seq, key / BLOCK_SIZE, head) + key_offset(key & BLOCK_SIZE - 1);
}

uint64_t value_row(uint seq, uint key, uint head)
{
    return part_values(seq, key / BLOCK_SIZE, head) + value_offset(key & BLOCK_SIZE - 1);
}

// Address of the scale of key `key`; in the pool only.
uint64_t key_scale_of(uint seq, uint key, uint head)
{
    return slot_key_scale(
        uint64_t(seq_block(seq, key / BLOCK_SIZE)) * BLOCK_SIZE + (key & BLOCK_SIZE - 1), head);
}

uint64_t value_scale_of(uint seq, uint key, uint head)
{
    return key_scale_of(seq, key, head) + (V_IN_K != 0 ? 0 : SCALES_BYTES);
}

#endif
