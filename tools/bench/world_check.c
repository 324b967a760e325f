// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// world_check.c - checks what a step wrote in a world.

#include "world.h"
#include "wrong.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { POISON = 0xff };

// A block of one layer, K and V as [KV heads, tokens, dim] each, into which an append writes one
// token.
struct touched {
    uint32_t layer, seq;
    int32_t number;
    char *bytes; // a copy of the block
    uint64_t size;
};

static struct touched touched(const struct world *world, uint32_t layer, uint32_t seq, char *bytes)
{
    const struct shape *shape = &world->shape;
    uint32_t last = ((uint32_t)shape->seq_lens_kv[seq] - 1) / world->workload->block_size;
    return (struct touched){
        .layer = layer,
        .seq = seq,
        .number = shape->block_table[(size_t)seq * shape->max_blocks + last],
        .bytes = bytes,
        .size = 2 * shape_block_elements(shape) * dtype_size(world->params.kv_dtype),
    };
}

static bool write_block(struct world *world, const struct touched *t)
{
    if (engine_block_write(world->cache, t->layer, t->number, t->bytes) == STATUS_OK)
        return true;
    fprintf(stderr, "aule-bench: block %d of layer %u could not be poisoned\n", t->number,
            t->layer);
    return false;
}

static bool read_block(struct world *world, const struct touched *t)
{
    if (engine_block_read(world->cache, t->layer, t->number, t->bytes) == STATUS_OK)
        return true;
    fprintf(stderr, "aule-bench: block %d of layer %u could not be read\n", t->number, t->layer);
    return false;
}

static bool poison_block(struct world *world, const struct touched *t)
{
    memset(t->bytes, POISON, t->size);
    return write_block(world, t);
}

static uint64_t row_bytes(const struct world *world)
{
    return (uint64_t)world->workload->head_dim * dtype_size(world->params.kv_dtype);
}

// The row of K of the last token for head 0; rows follow for all heads of K, then of V.
static char *slot_row(const struct world *world, const struct touched *t, uint32_t i)
{
    uint32_t size = world->workload->block_size,
             last = ((uint32_t)world->shape.seq_lens_kv[t->seq] - 1) % size;
    return t->bytes + ((uint64_t)i * size + last) * row_bytes(world);
}

static void poison_rows(const struct world *world, const struct touched *t)
{
    for (uint32_t i = 0; i < 2 * world->workload->num_kv_heads; i++)
        memset(slot_row(world, t, i), POISON, row_bytes(world));
}

// For a block whose other tokens are attended to.
static bool poison_slot(struct world *world, const struct touched *t)
{
    if (!read_block(world, t))
        return false;
    poison_rows(world, t);
    return write_block(world, t);
}

// Checks the written token's rows, and poisons them again.
static bool check_slot(struct world *world, const struct touched *t)
{
    const struct workload *w = world->workload;
    for (uint32_t i = 0; i < 2 * w->num_kv_heads; i++) {
        uint64_t from = ((uint64_t)t->seq * w->num_kv_heads + i % w->num_kv_heads) * w->head_dim;
        enum shape_part part = i < w->num_kv_heads ? SHAPE_K : SHAPE_V;
        if (!check_elements(world->params.kv_dtype, shape_stream(t->layer, part), from, w->head_dim,
                            slot_row(world, t, i)))
            return false;
    }
    poison_rows(world, t);
    return true;
}

static bool check_block(struct world *world, const struct touched *t)
{
    if (!read_block(world, t) || !check_slot(world, t))
        return false;
    for (uint64_t i = 0; i < t->size; i++) {
        if ((unsigned char)t->bytes[i] != POISON) {
            wrong_say(
                "%s is wrong: byte %llu of block %d of layer %u was written, and is no token's",
                world->workload->name, (unsigned long long)i, t->number, t->layer);
            return false;
        }
    }
    return true;
}

// Calls `each` for all blocks that step `set` touches.
static bool for_touched(struct world *world, uint32_t set,
                        bool (*each)(struct world *world, const struct touched *t))
{
    uint32_t first = set * world_step_runs(world), end = first + world_step_runs(world);
    char *bytes = malloc(touched(world, first, 0, NULL).size);
    bool ok = bytes != NULL;
    if (!ok)
        fprintf(stderr, "aule-bench: no host memory\n");
    for (uint32_t layer = first; ok && layer < end; layer++) {
        for (uint32_t seq = 0; ok && seq < world->shape.num_seqs; seq++) {
            const struct touched t = touched(world, layer, seq, bytes);
            ok = each(world, &t);
        }
    }
    free(bytes);
    return ok;
}

static bool one_step(struct world *world, uint32_t set)
{
    const struct lane lane = world_lane(world);
    uint64_t gpu_ns, sequence = lane.submit(world, set, 1);
    return sequence && lane.wait(world, sequence, 1, &gpu_ns);
}

// Poisons the blocks before the step, so that a missing or misplaced write shows.
static bool check_append(struct world *world, uint32_t set, struct verdict *verdict)
{
    *verdict = (struct verdict){.num_rows = 2 * world->workload->num_kv_heads *
                                            world->shape.num_seqs * world_step_runs(world)};
    return for_touched(world, set, poison_block) && one_step(world, set) &&
           for_touched(world, set, check_block);
}

bool world_check(struct world *world, uint32_t set, struct verdict *verdict)
{
    if (world_appends(world))
        return check_append(world, set, verdict);
    return world_poison(world) && one_step(world, set) && world_look(world, set, verdict);
}

// With `append`, poisons the slots that runs write, in every layer: a write that is missing or late
// makes `out` NaN.
bool world_poison(struct world *world)
{
    bool ok = store_poison(&world->store, world->out_at, world->num_out_sets * world->q_bytes);
    for (uint32_t set = 0; ok && world->params.append && set < world->num_sets; set++)
        ok = for_touched(world, set, poison_slot);
    return ok;
}

bool world_look(struct world *world, uint32_t set, struct verdict *verdict)
{
    const struct check check = {
        .shape = &world->shape,
        .dtype = world->params.dtype,
        .kv_dtype = world->params.kv_dtype,
        .q_set = set % world->num_q_sets,
        .kv_set = set,
        .out = store_read(&world->store, world_out_at(world, set), world->q_bytes),
        .progress = world->params.progress,
    };
    return check.out && check_rows(&check, verdict);
}
