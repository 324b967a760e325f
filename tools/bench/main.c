// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// main.c - aule-bench: attention's speed on named workloads, one after the other: check, measure,
// check again, print.

#include "base/exit_code.h"
#include "base/process.h"
#include "plot.h"
#include "result.h"
#include "tools/bench/fleet/client.h"
#include "tools/bench/fleet/fleet.h"
#include "tools/bench/share/worker.h"
#include "tools/bench/study/heed.h"
#include "tools/bench/study/study.h"
#include "wrong.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LEAST_RUNS = 3 };

// What all workloads of a run share.
struct bench {
    struct options options;
    struct selection selection;
    bool software, people, bar;
    struct engine_device device;
    char variant[64];
    struct ceiling *ceiling; // NULL: not wanted
    struct engine *engine;   // --via engine
    struct fleet fleet;      // --via nng, ring
};

static void list(void)
{
    for (uint32_t i = 0; i < num_workloads && workloads[i].kind != WORKLOAD_STUDY; i++)
        printf("%-4s %s (%u/%u heads, head_dim %u, blocks of %u)\n", workloads[i].name,
               workloads[i].what, workloads[i].num_heads, workloads[i].num_kv_heads,
               workloads[i].head_dim, workloads[i].block_size);
    for (uint32_t i = 0; i < num_workloads; i++) {
        if (workloads[i].kind == WORKLOAD_STUDY)
            printf("%-8s %s\n", workloads[i].name, workloads[i].what);
    }
    puts("all, sharing, lengths, batches, decode:NxLENGTH, prefill:NxLENGTH, shared:NxPREFIX+OWN: "
         "see --help");
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

// ---- one workload ----

static bool worse(struct verdict *verdict, const struct verdict *other, bool right)
{
    verdict->num_rows = other->num_rows;
    verdict->worst = fmax(verdict->worst, other->worst);
    return right;
}

static bool check_once(const struct bench *b, struct world *world, uint32_t set,
                       struct result *result)
{
    struct verdict now = {0};
    bool right = world_check(world, set, &now);
    if (b->bar)
        hide_progress();
    return worse(&result->verdict, &now, right);
}

// The second check uses the other set of inputs, so the order of the sets is checked, too.
static bool time_world(struct bench *b, struct world *world, struct result *result)
{
    struct samples samples = {0};
    const struct lane lane = world_lane(world);
    bool ok =
        measure(&lane, b->options.seconds, LEAST_RUNS, b->bar ? show_progress : NULL, &samples);
    if (b->bar)
        hide_progress();
    samples_times(&samples, false, &result->times);
    samples_finish(&samples);
    if (ok && world->workload->kind == WORKLOAD_GROWTH)
        ok = growth_measure(world, b->options.seconds, &result->growth);
    result->checked = ok && check_once(b, world, lane.num_sets - 1, result);
    return ok;
}

static void describe_world(const struct bench *b, const struct world *world,
                           const struct result *result)
{
    if (!b->options.verbose)
        return;
    fprintf(stderr,
            "%s: %u sequences, %u queries, %u keys in %u blocks of %u; %u sets of K and V (%.2f "
            "GiB), %u of Q\n",
            world->workload->name, world->shape.num_seqs, world->shape.num_tokens,
            world->shape.num_keys, world->params.rows ? 0 : world->shape.num_blocks,
            world->num_chunks * world->chunk_blocks, world->num_sets,
            2.0 * (double)world->kv_bytes * world->num_sets / 0x1p30, world->num_q_sets);
    fprintf(stderr, "%s: served by %s\n", world->workload->name, result->kernels);
}

static bool run_engine(struct bench *b, const struct workload *workload, struct result *result)
{
    const struct world_params params = {
        .dtype = result->dtype,
        .kv_dtype = result->kv_dtype,
        .pool_bytes = (uint64_t)(b->options.pool_gib * 0x1p30),
        .num_splits = b->options.splits,
        .rows = b->options.contiguous,
        .progress = b->bar ? show_progress : NULL,
    };
    struct world world = {0};
    result->device = engine_device(b->engine)->name;
    result->driver = engine_device(b->engine)->driver;
    result->variant = engine_variant(b->engine);
    bool ok = world_open(&world, b->engine, workload, &params);
    if (ok) {
        world_kernels(&world, result->kernels, sizeof result->kernels);
        describe_world(b, &world, result);
    }
    ok = ok && check_once(b, &world, 0, result);
    result->checked = ok;
    if (ok && !b->options.check)
        ok = time_world(b, &world, result);
    world_close(&world);
    return ok;
}

static bool run_fleet(struct bench *b, const struct workload *workload, struct result *result)
{
    result->device = b->fleet.device;
    result->driver = b->fleet.driver;
    result->variant = b->fleet.variant;
    result->checked =
        fleet_run(&b->fleet, workload, result->kv_dtype, &result->times, &result->verdict);
    return result->checked;
}

// E1: its batch fills the pool.
static bool fit(const struct bench *b, struct workload *workload, struct result *result)
{
    uint64_t bytes = (uint64_t)(b->options.pool_gib * 0x1p30);
    uint32_t paged = workload_longest(workload, bytes, result->kv_dtype, true);
    uint32_t contiguous = workload_longest(workload, bytes, result->kv_dtype, false);
    if (!paged || !contiguous) {
        fprintf(stderr, "aule-bench: %s: %.2f GiB hold no batch of %u\n", workload->name,
                (double)bytes / 0x1p30, workload_num_seqs(workload));
        return false;
    }
    result->longest_paged = paged;
    result->longest_contiguous = contiguous;
    workload_fit(workload, b->options.contiguous ? contiguous : paged);
    return true;
}

// The default of --pool.
static double default_pool_gib(const struct bench *b, const struct workload *workload)
{
    if (workload->kind == WORKLOAD_LONGEST)
        return b->software ? 0.25 : 8;
    return b->software ? 0.05 : 4;
}

static bool say(const struct bench *b, const struct result *result)
{
    if (b->options.check && !b->options.json)
        result_print_check(result);
    else if (b->people)
        result_print_text(result);
    else
        return result_print_json(result);
    return true;
}

// The workload as it is, or E1's batch that fits the pool.
static bool run_one(struct bench *b, struct workload *workload)
{
    const struct options *options = &b->options;
    struct result result = {
        .workload = workload,
        .dtype = options->dtype,
        .kv_dtype = workload_kv_dtype(workload, options->dtype, options->kv_dtype),
        .via = via_name(options->via),
        .contiguous = options->contiguous,
        .clients = options->clients,
        .splits = options->splits,
    };
    if (workload->kind == WORKLOAD_LONGEST && !fit(b, workload, &result))
        return false;
    if (b->ceiling) {
        result.ceilings = *ceiling_values(b->ceiling);
        if (workload->bound_by_memory)
            result.floor_us = ceiling_floor_us(
                b->ceiling, workload_bytes(workload, result.dtype, result.kv_dtype));
    }
    bool ok = options->via == VIA_ENGINE ? run_engine(b, workload, &result)
                                         : run_fleet(b, workload, &result);
    if (ok && options->baseline && !options->check)
        ok = baseline_measure(workload, options->seconds, &result.baseline);
    return ok && say(b, &result) && result.checked;
}

static bool run_study(const struct bench *b, const char *name)
{
    const struct study study = {
        .name = name,
        .options = b->options,
        .device = {b->device.name, b->device.driver, b->variant},
        .heap_bytes = b->device.heap_bytes,
        .software = b->software,
        .people = b->people,
    };
    return study_run(&study);
}

static bool run(struct bench *b, const struct workload *asked)
{
    struct workload workload = *asked;
    double asked_gib = b->options.pool_gib;
    if (!(asked_gib > 0))
        b->options.pool_gib = default_pool_gib(b, asked);
    bool ok = asked->kind == WORKLOAD_STUDY ? run_study(b, asked->name) : run_one(b, &workload);
    b->options.pool_gib = asked_gib;
    return ok;
}

// ---- all of them ----

// Whether something else than studies is measured. Studies open what they need themselves.
static bool any_workload(const struct bench *b)
{
    for (uint32_t i = 0; i < b->selection.count; i++) {
        if (b->selection.list[i].kind != WORKLOAD_STUDY)
            return true;
    }
    return false;
}

static bool prepare(struct bench *b)
{
    const struct options *options = &b->options;
    b->people = !options->json && isatty(STDOUT_FILENO);
    b->bar = isatty(STDERR_FILENO);
    b->engine = world_engine(options);
    if (!b->engine)
        return false;
    b->device = *engine_device(b->engine);
    b->software = b->device.software;
    snprintf(b->variant, sizeof b->variant, "%s", engine_variant(b->engine));
    if (options->via != VIA_ENGINE ||
        !any_workload(b)) { // the daemon or the studies own the device
        engine_destroy(b->engine);
        b->engine = NULL;
    }
    if (!any_workload(b))
        return true;
    if (!options->check) {
        b->ceiling = ceiling_open(options->device, b->software);
        if (!b->ceiling)
            return false;
    }
    return options->via == VIA_ENGINE || fleet_open(&b->fleet, options, true);
}

static enum exit_code code_of(bool ok)
{
    if (ok)
        return EXIT_CODE_DONE;
    return wrong_noted() ? EXIT_CODE_FAILED : EXIT_CODE_GONE;
}

static enum exit_code run_selected(struct bench *b)
{
    bool ok = true;
    for (int i = 0; i < b->options.num_names; i++) {
        if (!selection_add(&b->selection, b->options.names[i]))
            return EXIT_CODE_USAGE;
    }
    if (!all_heed(&b->selection, &b->options))
        return EXIT_CODE_USAGE;
    selection_shape(&b->selection, b->options.head_dim, b->options.token_scales);
    if (!prepare(b))
        return EXIT_CODE_GONE;
    for (uint32_t i = 0; i < b->selection.count; i++)
        ok &= run(b, &b->selection.list[i]);
    return code_of(ok);
}

// A process that fleet.c started.
static enum exit_code run_client(struct bench *b)
{
    if (!selection_add(&b->selection, b->options.names[0]))
        return EXIT_CODE_GONE;
    if (strcmp(b->options.names[0], "share") == 0)
        return code_of(share_worker_run(&b->options));
    selection_shape(&b->selection, b->options.head_dim, b->options.token_scales);
    return code_of(client_run(&b->options, b->selection.list));
}

static enum exit_code run_command(struct bench *b)
{
    const struct options *options = &b->options;
    bool ok = true;
    if (strcmp(options->command, "run") == 0)
        return run_selected(b);
    if (strcmp(options->command, "client") == 0)
        return run_client(b);
    if (strcmp(options->command, "list") == 0)
        list();
    else
        ok = plot(options->names, options->num_names, options->output);
    return ok ? EXIT_CODE_DONE : EXIT_CODE_FAILED;
}

// SIGPIPE is ignored, so a closed pipe shows only here.
static bool said(void)
{
    if (fflush(stdout) == 0 && !ferror(stdout))
        return true;
    fprintf(stderr, "aule-bench: standard output could not be written\n");
    return false;
}

int main(int argc, char **argv)
{
    struct bench b = {0};
    process_begin();
    signal(SIGPIPE, SIG_IGN); // a dead client must be an error message, and its daemon must be
                              // stopped
    switch (options_parse(argc, argv, &b.options)) {
    case OPTIONS_DONE: return EXIT_CODE_DONE;
    case OPTIONS_BAD: return EXIT_CODE_USAGE;
    case OPTIONS_RUN: break;
    }
    enum exit_code code = run_command(&b);
    if (!said() && code == EXIT_CODE_DONE)
        code = EXIT_CODE_FAILED;
    fleet_close(&b.fleet);
    engine_destroy(b.engine);
    ceiling_close(b.ceiling);
    selection_finish(&b.selection);
    return code;
}
