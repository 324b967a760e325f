// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// clocks.c - GPU time of each run, from timestamps. A wave has two: before its first dispatch and
// after its last. Timestamps between dispatches would keep them from overlapping. So a wave's time
// is divided among its groups, and a group's time among its runs, by the bytes that each moves. The
// submitter records timestamps, the completer reads them.

#include "clocks.h"

#include "engine/plan/check.h"
#include "engine/state/state.h"
#include "engine/vulkan/vk.h"

#include <math.h>

enum {
    CLOCKS = 2, // timestamps of a wave; those of wave w begin at w * CLOCKS
    // Rows whose products with a key take about as long as loading the key. For 16-bit elements on
    // tensor cores, 300 TFLOP/s and 4.3 TB/s give 70.
    ROWS_A_LOAD = 64,
};

uint32_t clocks_count(const struct submission *s)
{
    return s->num_waves * CLOCKS;
}

void clocks_begin(const struct submission *s)
{
    // On the CPU: as a command, the reset would make the GPU wait.
    if (s->slot->queries && s->num_waves)
        vkResetQueryPool(s->engine->device.handle, s->slot->queries, 0, clocks_count(s));
}

// Recorded after a wave's barrier. The specification lets a driver write the timestamp before
// the preceding wave has ended.
void clock_begin(const struct submission *s, uint32_t wave)
{
    if (s->slot->queries)
        vkCmdWriteTimestamp(s->slot->commands, VK_PIPELINE_STAGE_TOP_OF_PIPE_BIT, s->slot->queries,
                            wave * CLOCKS);
}

void clock_end(const struct submission *s, uint32_t wave)
{
    if (s->slot->queries)
        vkCmdWriteTimestamp(s->slot->commands, VK_PIPELINE_STAGE_BOTTOM_OF_PIPE_BIT,
                            s->slot->queries, wave * CLOCKS + 1);
}

// ---- bytes moved ----

// Elements of K and V of one token, all KV heads.
static double token_elements(const struct engine_kv *kv)
{
    return (double)kv->num_kv_heads * (kv->head_dim_k + (kv->v_is_k_prefix ? 0 : kv->head_dim_v));
}

static double token_bytes(const struct engine_kv *kv)
{
    double v_bytes = kv->v_is_k_prefix ? 0 : kv->head_dim_v * dtype_size(kv->v_dtype);
    return kv->num_kv_heads * (kv->head_dim_k * dtype_size(kv->k_dtype) + v_bytes);
}

// Bytes of a key for one tile. If its products with all rows take longer than loading it, as many
// bytes as would take that long.
static double key_bytes(const struct engine_kv *kv, double tile_rows)
{
    double products = tile_rows / ROWS_A_LOAD * token_elements(kv) * 2;
    return fmax(token_bytes(kv), products);
}

// Keys that all tiles of `work` read, an estimate. A window closed on both sides limits the keys of
// each tile.
static double keys_seen(const struct engine_run *run, const struct work *work, double tile_rows)
{
    double right = run->causal ? 0 : run->window_right;
    if (!run->windowed || run->window_left < 0 || right < 0)
        return work->tile_keys;
    double queries = ceil(tile_rows * run->batch->kv.num_kv_heads / run->num_heads);
    return fmin(work->tile_keys, work->num_tiles * (run->window_left + queries + right));
}

// Rows of a work item that are multiplied with a loaded key.
static uint32_t rows_at_once(const struct submission *s, const struct engine_kv *kv,
                             const struct geometry *geometry)
{
    const struct kernel *kernel = s->engine->pipelines.variant->kernels[geometry->kernel];
    return kernel->helps ? kernel->crowd_rows(kv) : geometry->spec[AULE_SPEC_TILE_ROWS];
}

// Bytes that the share moves, an estimate. Arithmetic that takes longer counts as bytes, too.
static double share_bytes(const struct submission *s, const struct engine_run *run,
                          const struct share *share)
{
    const struct geometry *geometry = &s->groups[share->group].geometry;
    if (run->kind == ENGINE_COPY)
        return 2.0 * (double)run_span(run).count * (double)run->cache->layer_block_bytes;
    if (run->kind == ENGINE_MERGE)
        return (double)run_num_tokens(run) * run->num_heads * run->head_dim * (run->num_parts + 1) *
               dtype_size(run->out.dtype);
    const struct engine_kv *kv = &run->batch->kv;
    double rows = rows_at_once(s, kv, geometry);
    double bytes = share->writes || run->kind == ENGINE_GATHER
                       ? 2.0 * run_num_tokens(run) * token_bytes(kv)
                       : 0;
    return run->kind == ENGINE_ATTEND
               ? bytes + keys_seen(run, &share->work, rows) * key_bytes(kv, rows)
               : bytes;
}

static void weigh_groups(struct submission *s)
{
    for (uint32_t i = 0; i < s->num_groups; i++)
        s->groups[i].bytes = 0;
    for (uint32_t i = 0; i < s->num_runs; i++)
        for (uint32_t j = 0; j < s->planned[i].num_shares; j++) {
            struct share *share = &s->planned[i].shares[j];
            share->bytes = share_bytes(s, &s->runs[i], share);
            s->groups[share->group].bytes += share->bytes;
        }
}

// A part of a sum. If nothing is moved, all parts are equal.
static double part_of(double bytes, double all, uint32_t count)
{
    return all > 0 ? bytes / all : 1.0 / count;
}

static void divide_wave(struct submission *s, uint32_t wave)
{
    uint32_t first = s->wave_groups[wave], end = s->wave_groups[wave + 1];
    double all = 0;
    for (uint32_t i = first; i < end; i++)
        all += s->groups[i].bytes;
    for (uint32_t i = first; i < end; i++)
        s->groups[i].part = part_of(s->groups[i].bytes, all, end - first);
}

void clocks_estimate(struct submission *s)
{
    weigh_groups(s);
    for (uint32_t wave = 0; wave < s->num_waves; wave++)
        divide_wave(s, wave);
}

// ---- reading ----

// Ticks from `a` to `b`; negative if `b` is earlier. The counter wraps at its width.
static int64_t ticks_between(const struct device *device, uint64_t a, uint64_t b)
{
    uint32_t unused = 64 - device->adapter.timestamp_bits;
    return (int64_t)((b - a) << unused) >> unused;
}

// GPU time of a wave in ns; 0: unknown.
static double wave_ns(const struct submission *s, uint32_t wave)
{
    const struct device *device = &s->engine->device;
    uint64_t ticks[CLOCKS];
    VkResult result =
        vkGetQueryPoolResults(device->handle, s->slot->queries, wave * CLOCKS, CLOCKS, sizeof ticks,
                              ticks, sizeof *ticks, VK_QUERY_RESULT_64_BIT);
    if (result != VK_SUCCESS)
        return 0;
    return fmax(0,
                (double)ticks_between(device, ticks[0], ticks[1]) * device->adapter.timestamp_ns);
}

static void read_run(struct submission *s, uint32_t run)
{
    double ns = 0, own_ns = 0;
    for (uint32_t i = 0; i < s->planned[run].num_shares; i++) {
        const struct share *share = &s->planned[run].shares[i];
        const struct group *group = &s->groups[share->group];
        ns += group->ns;
        own_ns += group->ns * part_of(share->bytes, group->bytes, group->num_runs);
    }
    s->results[run].gpu_ns = (uint64_t)ns;
    s->results[run].own_ns = (uint64_t)own_ns;
}

void clocks_read(struct submission *s)
{
    for (uint32_t wave = 0; s->slot->queries && wave < s->num_waves; wave++) {
        double ns = s->wave_groups[wave] < s->wave_groups[wave + 1] ? wave_ns(s, wave) : 0;
        for (uint32_t i = s->wave_groups[wave]; i < s->wave_groups[wave + 1]; i++)
            s->groups[i].ns = ns * s->groups[i].part;
    }
    for (uint32_t i = 0; s->slot->queries && i < s->num_runs; i++)
        read_run(s, i);
}
