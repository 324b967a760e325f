// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// paging.glsl - the host's structs as buffer references, the search for the run that owns a workgroup, and the way from a
// block number to an address. Needs the geometry constants HEAD_DIM_K ... of the shader that includes it.

#ifndef AULE_PAGING_GLSL
#define AULE_PAGING_GLSL

#include "layout.h"

layout(buffer_reference, scalar, buffer_reference_align = 8) readonly buffer Runs { gpu_run at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) readonly buffer Items { gpu_item at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 4) readonly buffer Ints { int at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) readonly buffer Longs { int64_t at[]; };
layout(buffer_reference, scalar, buffer_reference_align = 8) readonly buffer Addresses { uint64_t at[]; };

// Runs are found by halving: the last one whose first entry is not beyond `number`. A run without entries begins where the
// next one does, so it is never the last. FIELD is first_item or first_token.
#define RUN_FIND(RUNS, NUM_RUNS, FIELD, NUMBER, FOUND)                                                                 \
    {                                                                                                                  \
        uint low = 0, high = (NUM_RUNS);                                                                               \
        while (high - low > 1) {                                                                                       \
            const uint middle = (low + high) / 2;                                                                      \
            if ((RUNS).at[middle].FIELD <= (NUMBER))                                                                   \
                low = middle;                                                                                          \
            else                                                                                                       \
                high = middle;                                                                                         \
        }                                                                                                              \
        FOUND = low;                                                                                                   \
    }

const uint K_ROW_BYTES = HEAD_DIM_K * (K_DTYPE == DTYPE_F32 ? 4 : 2);
const uint V_ROW_BYTES = HEAD_DIM_V * (V_DTYPE == DTYPE_F32 ? 4 : 2);
const uint K_HEAD_BYTES = BLOCK_SIZE * K_ROW_BYTES; // one KV head of one block
const uint V_HEAD_BYTES = BLOCK_SIZE * V_ROW_BYTES;
const uint BLOCK_BYTES = NUM_KV_HEADS * (K_HEAD_BYTES + V_HEAD_BYTES);

// Where block `block` of this run's layer begins: its K, then NUM_KV_HEADS * K_HEAD_BYTES further its V.
uint64_t block_address(uint64_t chunks, uint chunk_stride, uint chunk_shift, uint block)
{
    const uint64_t chunk = Addresses(chunks).at[(block >> chunk_shift) * chunk_stride];
    return chunk + uint64_t(block & (1u << chunk_shift) - 1u) * BLOCK_BYTES;
}

#endif
