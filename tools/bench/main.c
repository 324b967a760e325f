// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// aule-bench: attention's speed on workloads with names. main.c runs each in a world of its own: check, measure, check again, say.

#include "ceiling.h"
#include "check.h"
#include "measure.h"
#include "options.h"

#include <cjson/cJSON.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LEAST_RUNS = 3 };

struct result {
    const struct world *world;
    const struct ceiling *ceiling;
    struct times times;
    double worst;      // of both checks
    uint32_t num_rows; // checked each time
};

static void list(void)
{
    for (uint32_t i = 0; i < num_workloads; i++)
        printf("%-4s %s (%u/%u heads, head_dim %u, blocks of %u)\n", workloads[i].name, workloads[i].what,
               workloads[i].num_heads, workloads[i].num_kv_heads, workloads[i].head_dim, workloads[i].block_size);
}

static void show_progress(double share)
{
    static const char bar[] = "####################";
    int filled = (int)(20 * (share < 1 ? share : 1));
    fprintf(stderr, "\r[%-20.*s] %3d %%", filled, bar, 5 * filled);
}

static void hide_progress(void)
{
    fprintf(stderr, "\r%30s\r", "");
}

static double rate(const struct result *r, double amount)
{
    return amount / (r->times.median_us * 1e-6);
}

// Of the read ceiling; for what arithmetic bounds there is none yet.
static double ceiling_ratio(const struct result *r)
{
    const struct workload *workload = r->world->workload;
    if (!workload->bound_by_memory)
        return 0;
    return rate(r, workload_bytes(workload, r->world->params.kv_dtype)) / 1e9 / r->ceiling->read_gb_per_s;
}

static bool print_json(const struct result *r)
{
    const struct world *world = r->world;
    const struct engine_device *device = engine_device(world->engine);
    double bytes = workload_bytes(world->workload, world->params.kv_dtype), ratio = ceiling_ratio(r);
    char dtype[32];
    snprintf(dtype, sizeof dtype, "%s/%s", dtype_name((int)world->params.dtype),
             dtype_name((int)world->params.kv_dtype));
    cJSON *json = cJSON_CreateObject();
    bool ok = cJSON_AddStringToObject(json, "workload", world->workload->name) &&
              cJSON_AddStringToObject(json, "device", device->name) &&
              cJSON_AddStringToObject(json, "driver", device->driver) &&
              cJSON_AddStringToObject(json, "via", "engine") && cJSON_AddStringToObject(json, "dtype", dtype) &&
              cJSON_AddStringToObject(json, "variant", engine_variant(world->engine)) &&
              cJSON_AddNumberToObject(json, "median_us", r->times.median_us) &&
              cJSON_AddNumberToObject(json, "p99_us", r->times.p99_us) &&
              cJSON_AddNumberToObject(json, "wall_us", r->times.wall_us) &&
              cJSON_AddNumberToObject(json, "runs", r->times.runs) &&
              cJSON_AddNumberToObject(json, "gb_per_s", rate(r, bytes) / 1e9) &&
              cJSON_AddNumberToObject(json, "tflops", rate(r, workload_flops(world->workload)) / 1e12) &&
              cJSON_AddNumberToObject(json, "read_gb_per_s", r->ceiling->read_gb_per_s) &&
              cJSON_AddNumberToObject(json, "copy_gb_per_s", r->ceiling->copy_gb_per_s) &&
              (ratio > 0 ? cJSON_AddNumberToObject(json, "ceiling_ratio", ratio)
                         : cJSON_AddNullToObject(json, "ceiling_ratio")) &&
              cJSON_AddNumberToObject(json, "checked", r->num_rows) &&
              cJSON_AddNumberToObject(json, "worst_error", r->worst);
    char *text = ok ? cJSON_PrintUnformatted(json) : NULL;
    if (text)
        puts(text);
    else
        fprintf(stderr, "aule-bench: no host memory\n");
    fflush(stdout);
    cJSON_free(text);
    cJSON_Delete(json);
    return text != NULL;
}

static bool print_text(const struct result *r)
{
    const struct world *world = r->world;
    double ratio = ceiling_ratio(r);
    char share[32] = "";
    if (ratio > 0)
        snprintf(share, sizeof share, ", %.0f %% of a plain read", 100 * ratio);
    printf("%-4s %10.1f us (p99 %.1f, wall %.1f; %u runs)  %7.1f GB/s  %7.2f TFLOP/s%s; %s; %u rows right to %.1e\n",
           world->workload->name, r->times.median_us, r->times.p99_us, r->times.wall_us, r->times.runs,
           rate(r, workload_bytes(world->workload, world->params.kv_dtype)) / 1e9,
           rate(r, workload_flops(world->workload)) / 1e12, share, engine_variant(world->engine), r->num_rows,
           r->worst);
    return true;
}

static bool check_once(struct world *world, struct result *result)
{
    uint64_t gpu_ns, sequence = world_submit(world, 0);
    double worst;
    if (!sequence || !world_wait(world, sequence, &gpu_ns) || !check_rows(world, 0, &worst, &result->num_rows))
        return false;
    result->worst = worst > result->worst ? worst : result->worst;
    return true;
}

static bool run(const struct workload *workload, const struct options *options, const struct ceiling *ceiling)
{
    const struct world_params params = {
        .device = options->device,
        .variant = options->variant,
        .dtype = options->dtype,
        .kv_dtype = options->kv_dtype,
        .pool_bytes = (uint64_t)(options->pool_gib * 0x1p30),
    };
    struct world world = {0};
    struct result result = {.world = &world, .ceiling = ceiling};
    bool people = !options->json && isatty(STDOUT_FILENO), bar = isatty(STDERR_FILENO) && !options->check;
    bool ok = world_open(&world, workload, &params) && check_once(&world, &result);
    if (ok && options->check)
        printf("%-4s %u rows right to %.1e (%s)\n", workload->name, result.num_rows, result.worst,
               engine_variant(world.engine));
    if (ok && !options->check) {
        ok = measure(&world, options->seconds, LEAST_RUNS, bar ? show_progress : NULL, &result.times);
        if (bar)
            hide_progress();
        ok = ok && check_once(&world, &result) && (people ? print_text(&result) : print_json(&result));
    }
    world_close(&world);
    return ok;
}

static bool is_named(const struct options *options, const char *name)
{
    for (int i = 0; i < options->num_names; i++) {
        if (strcmp(options->names[i], name) == 0 || strcmp(options->names[i], "all") == 0)
            return true;
    }
    return false;
}

static bool check_names(const struct options *options)
{
    for (int i = 0; i < options->num_names; i++) {
        if (strcmp(options->names[i], "all") != 0 && !workload_find(options->names[i])) {
            fprintf(stderr, "aule-bench: there is no workload '%s'; aule-bench list has them\n", options->names[i]);
            return false;
        }
    }
    return true;
}

// What fits the device: the software's memory is the machine's, and slow.
static bool device_prepare(struct options *options, struct ceiling *ceiling)
{
    static const double gpu_pool_gib = 1, software_pool_gib = 0.05;
    struct engine_device *devices = NULL;
    uint32_t count = 0;
    struct error error = {0};
    if (engine_list_devices(&devices, &count, &error) != STATUS_OK) {
        fprintf(stderr, "aule-bench: %s\n", error.text);
        return false;
    }
    bool software = count && devices[0].software;
    free(devices);
    if (!(options->pool_gib > 0))
        options->pool_gib = software ? software_pool_gib : gpu_pool_gib;
    return options->check || ceiling_measure(options->device, software ? 256u << 20 : UINT64_C(3584) << 20, ceiling);
}

int main(int argc, char **argv)
{
    struct options options;
    struct ceiling ceiling = {0};
    switch (options_parse(argc, argv, &options)) {
    case OPTIONS_DONE: return 0;
    case OPTIONS_BAD: return 2;
    case OPTIONS_RUN: break;
    }
    if (strcmp(options.command, "list") == 0) {
        list();
        return 0;
    }
    if (!check_names(&options))
        return 2;
    if (!device_prepare(&options, &ceiling))
        return 1;
    bool ok = true;
    for (uint32_t i = 0; i < num_workloads; i++) {
        if (is_named(&options, workloads[i].name))
            ok &= run(&workloads[i], &options, &ceiling);
    }
    return ok ? 0 : 1;
}
