// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// ceiling.c - see ceiling.h. It uses the engine's parts below engine.h: its own device, buffers,
// commands.

#include "ceiling.h"

#include "engine/measuring.h"
#include "fill.h"
#include "program.h"
#include "stopwatch.h"

#include "read_spv.h"

#include <stdio.h>
#include <stdlib.h>

enum { LOCAL_SIZE = 256, PIECES_AT_ONCE = 8, PIECE = 16, REPEATS = 16 };

// Mirrors read.comp.
struct push {
    uint64_t from, sum;
    uint32_t pieces, team;
};

struct ceiling {
    struct device device;
    struct stopwatch watch;
    struct buffer from;
    struct program read;
    struct fill fill;
    double gb_per_s;
    // The pass over memory that is recorded next.
    uint32_t groups, repeats;
    uint64_t bytes, at; // `at` moves on through the buffer, so that no cache holds the bytes
};

// Workgroups of a pass. The best number depends on the device and on the bytes.
static const uint32_t grids[] = {1, 4, 16, 64, 264, 528, 1056, 2112, 4224, 8448};
enum { NUM_GRIDS = sizeof grids / sizeof *grids, SOFTWARE_MOST = 64 };

static void on_lost(void *owner, const char *why)
{
    (void)owner;
    fprintf(stderr, "aule-bench: the device is lost: %s\n", why);
}

static void barrier(VkCommandBuffer commands)
{
    const VkMemoryBarrier memory = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
                                    .srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT,
                                    .dstAccessMask = VK_ACCESS_SHADER_READ_BIT};
    const VkPipelineStageFlags shader = VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT;
    vkCmdPipelineBarrier(commands, shader, shader, 0, 1, &memory, 0, NULL, 0, NULL);
}

// Each repeat and each round uses other bytes, as far as the buffer reaches.
static void record_passes(void *context, VkCommandBuffer commands)
{
    struct ceiling *c = context;
    const struct engine_device *info = &c->device.adapter.info;
    for (uint32_t i = 0; i < c->repeats; i++, c->at += c->bytes) {
        if (c->at + c->bytes > c->from.size)
            c->at = 0;
        const struct push push = {
            .from = c->from.address + c->at,
            .sum = c->from.address,
            .pieces = (uint32_t)(c->bytes / PIECE),
            .team = info->software ? info->subgroup_size : c->groups * LOCAL_SIZE,
        };
        program_dispatch(&c->read, commands, &push, c->groups);
        barrier(commands);
    }
}

// The number of bytes near the wanted one that `groups` workgroups can process; 0: there is none.
static uint64_t fit(const struct ceiling *c, double bytes, uint32_t groups)
{
    uint64_t grain = (uint64_t)LOCAL_SIZE * groups * PIECES_AT_ONCE * PIECE;
    uint64_t size = (uint64_t)bytes < c->from.size ? (uint64_t)bytes : c->from.size;
    uint64_t near = (size + grain - 1) / grain * grain;
    if (near > c->from.size)
        near -= grain;
    return (double)near <= 1.25 * (double)size ? near : 0;
}

// A few workgroups cannot be the fastest for many bytes; a software device has only a core or two.
static bool is_worth_it(const struct ceiling *c, uint32_t groups)
{
    bool software = c->device.adapter.info.software, small = c->bytes <= UINT64_C(4) << 20;
    return software ? groups <= SOFTWARE_MOST && (small || groups >= 16) : small || groups >= 264;
}

// Nanoseconds of a read of about `bytes`; *exact is the real number. The best of all grids; 0
// with *error.
static double read_ns(struct ceiling *c, double bytes, uint32_t repeats, double *exact,
                      struct error *error)
{
    double best = 0;
    for (int i = 0; i < NUM_GRIDS; i++) {
        c->groups = grids[i];
        c->repeats = repeats;
        c->bytes = fit(c, bytes, grids[i]);
        if (!c->bytes || !is_worth_it(c, grids[i]))
            continue;
        double ns = stopwatch_ns(&c->watch, record_passes, c, error) / repeats;
        if (!(ns > 0))
            return 0;
        if (!(best > 0) || ns / (double)c->bytes < best / *exact) {
            best = ns;
            *exact = (double)c->bytes;
        }
    }
    if (!(best > 0))
        error_set(error, STATUS_UNSUPPORTED, "%.0f bytes are too few to time a pass over them",
                  bytes);
    return best;
}

static enum status run(struct ceiling *c, struct error *error)
{
    double exact = 0, ns = read_ns(c, (double)c->from.size, 1, &exact, error);
    if (!(ns > 0))
        return error->status;
    c->gb_per_s = exact / ns;
    return STATUS_OK;
}

// Numbers like those that attention reads, because a memory of zeroes takes less power.
static enum status fill_with_noise(struct ceiling *c, struct error *error)
{
    const struct fill_params noise = {.dtype = DTYPE_F32,
                                      .k_stream = 1,
                                      .part_elements = c->from.size / sizeof(float),
                                      .num_parts = 1,
                                      .address = c->from.address};
    enum status status = fill_init(&c->fill, &c->device, error);
    return status == STATUS_OK ? fill_run(&c->fill, &c->watch.transfer, &noise, error) : status;
}

static enum status prepare(struct ceiling *c, const char *device, uint64_t bytes,
                           struct error *error)
{
    const struct engine_params params = {.device = device};
    const struct program_params read = {
        .code = read_spv, .size = sizeof read_spv, .push_size = sizeof(struct push)};
    enum status status = measuring_device_init(&c->device, &params, error);
    if (status != STATUS_OK)
        return status;
    c->device.on_lost = on_lost;
    const struct engine_device *info = &c->device.adapter.info;
    bytes = bytes < info->max_allocation_bytes ? bytes : info->max_allocation_bytes;
    bytes = bytes < info->heap_bytes / 4 ? bytes : info->heap_bytes / 4;
    status = stopwatch_init(&c->watch, &c->device, error);
    if (status == STATUS_OK)
        status = buffer_init(&c->device, MEMORY_POOL, bytes, "read", &c->from, error);
    if (status == STATUS_OK)
        status = fill_with_noise(c, error);
    return status == STATUS_OK ? program_init(&c->read, &c->device, &read, error) : status;
}

void ceiling_close(struct ceiling *c)
{
    if (!c)
        return;
    if (c->device.handle) {
        program_finish(&c->read);
        fill_finish(&c->fill);
        buffer_finish(&c->device, &c->from);
        stopwatch_finish(&c->watch);
    }
    device_finish(&c->device);
    free(c);
}

struct ceiling *ceiling_open(const char *device, bool software)
{
    uint64_t bytes = software ? UINT64_C(128) << 20 : UINT64_C(3584) << 20;
    struct ceiling *c = calloc(1, sizeof *c);
    struct error error = {0};
    enum status status = c ? prepare(c, device, bytes, &error)
                           : error_set(&error, STATUS_NO_MEMORY, "no host memory for the ceiling");
    if (status == STATUS_OK)
        status = run(c, &error);
    if (status == STATUS_OK)
        return c;
    fprintf(stderr, "aule-bench: the ceiling was not measured: %s\n", error.text);
    ceiling_close(c);
    return NULL;
}

double ceiling_gb_per_s(const struct ceiling *ceiling)
{
    return ceiling->gb_per_s;
}

double ceiling_floor_us(struct ceiling *ceiling, double bytes)
{
    struct error error = {0};
    uint32_t repeats = ceiling->device.adapter.info.software ? 1 : REPEATS;
    double exact = 1, ns = read_ns(ceiling, bytes, repeats, &exact, &error);
    if (!(ns > 0))
        fprintf(stderr, "aule-bench: the floor was not measured: %s\n", error.text);
    return ns * bytes / exact * 1e-3;
}
