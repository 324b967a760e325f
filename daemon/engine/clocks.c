// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// clocks.c - how long each run of a submission took, by the GPU's clock. A wave has two readings, before its first dispatch and behind its last:
// a reading between two dispatches would keep them from overlapping. So what a group took is a part of its wave's time, as large as
// its part of the bytes that the wave moves. Begin and end: submitter. Reading: completer.

#include "submission.h"

#include "vk.h"

#include <math.h>

enum {
    CLOCKS = 2, // of a wave: from CLOCKS * its number on
    // Rows whose products with a key take about as long as loading the key does, if it has elements of 16 bits, on a GPU with matrix units
    // (shaders/NOTES.md: 300 TFLOP/s beside 4.3 TB/s are 70).
    ROWS_A_LOAD = 64,
};

uint32_t clocks_count(const struct submission *s)
{
    return s->num_waves * CLOCKS;
}

void clocks_begin(const struct submission *s)
{
    if (s->slot->queries && s->num_waves)
        vkResetQueryPool(s->engine->device.handle, s->slot->queries, 0,
                         clocks_count(s)); // by a command the GPU would wait
}

// Behind a wave's barrier; a driver may take the reading before the wave before has ended, as far as the specification goes.
void clock_begin(const struct submission *s, uint32_t wave)
{
    if (s->slot->queries)
        vkCmdWriteTimestamp(s->slot->commands, VK_PIPELINE_STAGE_TOP_OF_PIPE_BIT, s->slot->queries, wave * CLOCKS);
}

void clock_end(const struct submission *s, uint32_t wave)
{
    if (s->slot->queries)
        vkCmdWriteTimestamp(s->slot->commands, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT, s->slot->queries,
                            wave * CLOCKS + 1);
}

// ---- what a group moves ----

// Of K and V, all KV heads of a token.
static double token_elements(const struct engine_kv *kv)
{
    return (double)kv->num_kv_heads * (kv->head_dim_k + (kv->v_is_k_prefix ? 0 : kv->head_dim_v));
}

static double token_bytes(const struct engine_kv *kv)
{
    double v_bytes = kv->v_is_k_prefix ? 0 : kv->head_dim_v * dtype_size(kv->v_dtype);
    return kv->num_kv_heads * (kv->head_dim_k * dtype_size(kv->k_dtype) + v_bytes);
}

static double copied_bytes(const struct submission *s, const struct group *group)
{
    double bytes = 0;
    for (uint32_t i = group->first_range; i < group->first_range + group->num_ranges; i++)
        bytes += 2 * (double)s->ranges[i].bytes;
    return bytes;
}

// Of a tile's key, or what its products with all the tile's rows take as long as.
static double key_bytes(const struct engine_kv *kv, double tile_rows)
{
    double products = tile_rows / ROWS_A_LOAD * token_elements(kv) * 2;
    return fmax(token_bytes(kv), products);
}

// About, in bytes or in what takes as long.
static double group_bytes(const struct submission *s, const struct group *group)
{
    const struct engine_run *run = &s->runs[group->run];
    if (group->num_runs == 0)
        return 0;
    if (group->kind == ENGINE_COPY)
        return copied_bytes(s, group);
    if (group->kind == ENGINE_MERGE)
        return (double)group->num_tokens * run->num_heads * run->head_dim * (run->num_parts + 1) *
               dtype_size(run->out.dtype);
    const struct engine_kv *kv = &run->batch->kv;
    double bytes = 2.0 * group->num_tokens * token_bytes(kv); // written, gathered
    if (group->kind == ENGINE_ATTEND)
        bytes += group->tile_keys * key_bytes(kv, group->geometry.spec[AULE_SPEC_TILE_ROWS]);
    return bytes;
}

// Of a wave whose groups move nothing each has as much.
static void share_wave(struct submission *s, uint32_t wave)
{
    uint32_t first = s->wave_groups[wave], end = s->wave_groups[wave + 1];
    double all = 0;
    for (uint32_t i = first; i < end; i++)
        all += s->groups[i].part = group_bytes(s, &s->groups[i]);
    for (uint32_t i = first; i < end; i++)
        s->groups[i].part = all > 0 ? s->groups[i].part / all : 1.0 / (end - first);
}

void clocks_share(struct submission *s)
{
    for (uint32_t wave = 0; wave < s->num_waves; wave++)
        share_wave(s, wave);
}

// ---- reading ----

// Ticks from `a` to `b`, which may lie before it: the counter wraps at its width.
static int64_t ticks_between(const struct device *device, uint64_t a, uint64_t b)
{
    uint32_t unused = 64 - device->adapter.timestamp_bits;
    return (int64_t)((b - a) << unused) >> unused;
}

// 0: not known.
static double wave_ns(const struct submission *s, uint32_t wave)
{
    const struct device *device = &s->engine->device;
    uint64_t ticks[CLOCKS];
    VkResult result = vkGetQueryPoolResults(device->handle, s->slot->queries, wave * CLOCKS, CLOCKS, sizeof ticks,
                                            ticks, sizeof *ticks, VK_QUERY_RESULT_64_BIT);
    if (result != VK_SUCCESS)
        return 0;
    return fmax(0, (double)ticks_between(device, ticks[0], ticks[1]) * device->adapter.timestamp_ns);
}

void clocks_read(struct submission *s)
{
    for (uint32_t wave = 0; s->slot->queries && wave < s->num_waves; wave++) {
        double ns = s->wave_groups[wave] < s->wave_groups[wave + 1] ? wave_ns(s, wave) : 0;
        for (uint32_t i = s->wave_groups[wave]; i < s->wave_groups[wave + 1]; i++)
            s->groups[i].ns = ns * s->groups[i].part;
    }
    for (uint32_t i = 0; i < s->num_runs; i++) {
        double ns = 0;
        for (uint32_t j = 0; s->slot->queries && j < MOST_KERNELS; j++)
            if (s->planned[i].shares[j].group != NO_GROUP)
                ns += s->groups[s->planned[i].shares[j].group].ns;
        s->results[i].gpu_ns = (uint64_t)ns;
    }
}
