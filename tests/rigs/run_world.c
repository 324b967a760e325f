// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// run_world.c - see run_world.h.

#include "run_world.h"

#include "core/state.h"

#include <string.h>

struct world world;
struct worker a;
int32_t blocks[8], tokens[64];

void open_one(void)
{
    world_open(&world, NULL);
    worker_open(&a, &world, 1, "");
    count_tokens(tokens, 64, 1);
    worker_lease(&a, 8, blocks);
}

void close_one(void)
{
    world_check(&world);
    world_close(&world);
}

struct wire_tensor tensor(uint64_t offset, uint64_t outer_stride)
{
    return (struct wire_tensor){.dtype = DTYPE_F16,
                                .offset = offset,
                                .token_stride = 16,
                                .head_stride = 16,
                                .outer_stride = outer_stride};
}

struct core_run_params run_of(uint64_t batch, enum engine_kind kind)
{
    return (struct core_run_params){
        .entry =
            {
                .kind = kind,
                .batch = batch,
                .num_heads = 1,
                .q = tensor(AT_Q, 0),
                .k = tensor(AT_K, 0),
                .v = tensor(AT_V, 0),
                .out = tensor(AT_OUT, 0),
                .window_left = -1,
                .window_right = -1,
            },
    };
}

uint64_t create(const struct core_batch_params *params)
{
    return worker_create(&a, params);
}

struct core_layout layout_of(uint32_t block_size)
{
    struct core_layout layout = {.kv = world_identity("").kv, .num_blocks = block_size ? 64 : 0};
    layout.kv.block_size = block_size;
    return layout;
}

uint64_t local_blocks(const struct core_layout *layout, bool writes)
{
    static const int32_t cu[] = {0, 3, 5}, lens[] = {10, 4}, table[] = {6, 2, 4, -1};
    static const int64_t slots[] = {55, 16, 17, 34, 35};
    struct core_batch_params params = sequences_over(0, 2, cu, lens, table, 2);
    params.layout = layout;
    params.slot_mapping = slots;
    params.num_slot_mapping = writes ? 5 : 0;
    return create(&params);
}

uint64_t local_rows(const struct core_layout *layout, bool ragged)
{
    static const int32_t cu[] = {0, 3, 5}, lens[] = {10, 4}, starts[] = {0, 10};
    struct core_batch_params params = sequences_over(0, 2, cu, lens, NULL, 0);
    params.layout = layout;
    params.kv_starts = starts;
    params.num_kv_starts = ragged ? 2 : 0;
    return create(&params);
}

uint64_t writer(uint32_t seqs)
{
    static const int32_t cu[] = {0, 3, 5};
    const int64_t slots[] = {blocks[0] * 8, blocks[0] * 8 + 1, -1, blocks[0] * 8 + 4,
                             blocks[0] * 8 + 3};
    return create(&(struct core_batch_params){.cache = a.cache,
                                              .num_seqs = seqs,
                                              .cu_seqlens_q = cu,
                                              .num_cu_seqlens_q = seqs ? 3 : 0,
                                              .slot_mapping = slots,
                                              .num_slot_mapping = 5});
}

struct core_run_params over_blocks(uint64_t batch, enum engine_kind kind)
{
    struct core_run_params p = run_of(batch, kind);
    p.entry.keys = tensor(AT_KEYS, 128);
    p.entry.values = tensor(AT_VALUES, 128);
    return p;
}

int32_t number_at(uint64_t offset)
{
    int32_t number;
    memcpy(&number, a.memory + offset, sizeof(number));
    return number;
}

void put_numbers(uint64_t offset, uint32_t count, int32_t first)
{
    for (uint32_t i = 0; i < count; i++) {
        int32_t number = first + (int32_t)i;
        memcpy(a.memory + offset + 16ull * i, &number, sizeof(number));
    }
}
