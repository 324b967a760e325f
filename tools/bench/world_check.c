// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// world_check.c - is what a step left in a world right?

#include "world.h"

#include <stdlib.h>

// The slot that a sequence's last token went to, in one layer.
static bool check_slot(struct world *world, uint32_t layer, uint32_t seq, const char *block)
{
    const struct workload *w = world->workload;
    uint32_t last = ((uint32_t)world->shape.seq_lens_kv[seq] - 1) % w->block_size;
    for (uint32_t i = 0; i < 2 * w->num_kv_heads; i++) {
        uint32_t head = i % w->num_kv_heads;
        uint64_t from = ((uint64_t)seq * w->num_kv_heads + head) * w->head_dim;
        uint64_t at = ((uint64_t)i * w->block_size + last) * w->head_dim * dtype_size(world->params.kv_dtype);
        enum shape_part part = i < w->num_kv_heads ? SHAPE_K : SHAPE_V;
        if (!check_elements(world->params.kv_dtype, shape_stream(layer, part), from, w->head_dim, block + at))
            return false;
    }
    return true;
}

static bool check_append(struct world *world, uint32_t set, struct verdict *verdict)
{
    const struct shape *shape = &world->shape;
    uint64_t bytes = 2 * shape_block_elements(shape) * dtype_size(world->params.kv_dtype);
    char *block = malloc(bytes);
    uint32_t first = set * world_step_runs(world), end = first + world_step_runs(world);
    bool ok = block != NULL;
    *verdict = (struct verdict){0};
    for (uint32_t layer = first; ok && layer < end; layer++) {
        for (uint32_t seq = 0; ok && seq < shape->num_seqs; seq++) {
            uint32_t last = ((uint32_t)shape->seq_lens_kv[seq] - 1) / world->workload->block_size;
            int32_t number = shape->block_table[(size_t)seq * shape->max_blocks + last];
            ok = engine_block_read(world->cache, layer, number, block) == STATUS_OK &&
                 check_slot(world, layer, seq, block);
            verdict->num_rows += 2 * world->workload->num_kv_heads;
        }
    }
    free(block);
    return ok;
}

bool world_check(struct world *world, uint32_t set, struct verdict *verdict)
{
    const struct lane lane = world_lane(world);
    uint64_t gpu_ns, sequence;
    if (!store_poison(&world->store, world->out_at, world->q_bytes))
        return false;
    sequence = lane.submit(world, set, 1);
    if (!sequence || !lane.wait(world, sequence, 1, &gpu_ns))
        return false;
    if (world_appends(world))
        return check_append(world, set, verdict);
    const struct check check = {
        .shape = &world->shape,
        .dtype = world->params.dtype,
        .kv_dtype = world->params.kv_dtype,
        .q_set = set % world->num_q_sets,
        .kv_set = set,
        .out = store_read(&world->store, world->out_at, world->q_bytes),
    };
    return check.out && check_rows(&check, verdict);
}
