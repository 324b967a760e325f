// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// main.c - aule-bench: attention's speed on named workloads, one after the other: check, measure,
// check again, print.

#include "base/exit_code.h"
#include "base/process.h"
#include "tools/bench/gpu/ceiling.h"
#include "tools/bench/rig/client.h"
#include "tools/bench/study/study.h"
#include "wrong.h"

#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LEAST_RUNS = 3 };

struct bench {
    struct options options;
    struct selection selection;
    bool software, people, bar;
    struct engine_device device;
    char variant[64];
    struct ceiling *ceiling; // NULL: not wanted
    struct rig rig;
};

static void list(void)
{
    for (uint32_t i = 0; i < num_workloads && !workloads[i].is_study; i++)
        printf("%-4s %s (%u/%u heads, head_dim %u, blocks of %u)\n", workloads[i].name,
               workloads[i].what, workloads[i].num_heads, workloads[i].num_kv_heads,
               workloads[i].head_dim, workloads[i].block_size);
    for (uint32_t i = 0; i < num_workloads; i++) {
        if (workloads[i].is_study)
            printf("%-8s %s\n", workloads[i].name, workloads[i].what);
    }
    puts("all, sharing, decode:NxLENGTH, prefill:NxLENGTH, shared:NxPREFIX+OWN: see --help");
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
                       struct figure *figure)
{
    struct verdict now = {0};
    bool right = world_check(world, set, &now);
    if (b->bar)
        hide_progress();
    return worse(&figure->verdict, &now, right);
}

// The second check uses the other set of inputs, so the order of the sets is checked, too.
static bool time_world(struct bench *b, struct world *world, struct figure *figure)
{
    struct samples samples = {0};
    const struct lane lane = world_lane(world);
    bool ok =
        measure(&lane, b->options.seconds, LEAST_RUNS, b->bar ? show_progress : NULL, &samples);
    if (b->bar)
        hide_progress();
    samples_times(&samples, false, &figure->times);
    samples_finish(&samples);
    figure->checked = ok && check_once(b, world, lane.num_sets - 1, figure);
    return ok;
}

static void describe_world(const struct bench *b, const struct world *world, const char *kernels)
{
    if (!b->options.verbose)
        return;
    fprintf(
        stderr,
        "%s: %u sequences, %u queries, %u blocks of %u tokens; %u sets of K and V (%.2f GiB), %u "
        "of Q\n",
        world->workload->name, world->shape.num_seqs, world->shape.num_tokens,
        world->shape.num_blocks, world->workload->block_size, world->num_sets,
        2.0 * (double)world->kv_bytes * world->num_sets / 0x1p30, world->num_q_sets);
    fprintf(stderr, "%s: served by %s\n", world->workload->name, kernels);
}

static bool run_engine(struct bench *b, const struct workload *workload, enum dtype kv_dtype,
                       struct figure *figure)
{
    const struct world_params params = {
        .dtype = b->options.dtype,
        .kv_dtype = kv_dtype,
        .pool_bytes = (uint64_t)(b->options.pool_gib * 0x1p30),
        .num_splits = b->options.splits,
        .progress = b->bar ? show_progress : NULL,
    };
    struct world world = {0};
    bool ok = world_open(&world, b->rig.engine, workload, &params);
    if (ok) {
        world_kernels(&world, figure->kernels, sizeof figure->kernels);
        describe_world(b, &world, figure->kernels);
    }
    ok = ok && check_once(b, &world, 0, figure);
    figure->checked = ok;
    if (ok && !b->options.check)
        ok = time_world(b, &world, figure);
    world_close(&world);
    return ok;
}

// The default of --pool.
static double default_pool_gib(const struct bench *b)
{
    return b->software ? 0.05 : 4;
}

static double known(double number)
{
    return number > 0 ? number : NAN;
}

// The facts about a workload that are known before it runs.
static struct figure figure_of(struct bench *b, const struct workload *w, enum dtype kv_dtype)
{
    const struct options *o = &b->options;
    struct figure figure = {.study = w->name,
                            .via = via_name(o->via),
                            .bytes = workload_bytes(w, kv_dtype),
                            .flops = workload_flops(w),
                            .measured = !o->check};
    snprintf(figure.dtype, sizeof figure.dtype, "%s/%s", dtype_name((int)o->dtype),
             dtype_name((int)kv_dtype));
    if (b->ceiling && w->bound_by_memory) {
        figure.ceiling_gb_per_s = ceiling_gb_per_s(b->ceiling);
        figure_add(&figure, "read_gb_per_s", figure.ceiling_gb_per_s, NULL);
        figure_add(&figure, "floor_us", known(ceiling_floor_us(b->ceiling, figure.bytes)), "us");
    }
    figure_add_given(&figure, "head_dim", w->head_dim, NULL);
    figure_add_given(&figure, "seqs", workload_num_seqs(w), NULL);
    figure_add_given(&figure, "clients", o->clients, NULL);
    figure_add_given(&figure, "splits", o->splits, NULL);
    return figure;
}

static bool run_one(struct bench *b, const struct workload *workload)
{
    const struct options *options = &b->options;
    const bool engine = options->via == VIA_ENGINE;
    const enum dtype kv_dtype = workload_kv_dtype(workload, options->dtype, options->kv_dtype);
    const struct figure_device device = {
        engine ? b->device.name : b->rig.device,
        engine ? b->device.driver : b->rig.driver,
        engine ? b->variant : b->rig.variant,
    };
    struct figure figure = figure_of(b, workload, kv_dtype);
    bool ok = engine ? run_engine(b, workload, kv_dtype, &figure)
                     : rig_run(&b->rig, workload, kv_dtype, &figure.times, &figure.verdict);
    if (!engine)
        figure.checked = ok;
    if (options->clients > 1)
        figure.rate_us = figure.times.wall_us; // rates include the process border where times do
    figure_add(&figure, "wall_us", figure.times.wall_us, "us");
    figure_add(&figure, "gpu_us", known(figure.times.gpu_us), NULL);
    if (ok && options->check && !options->json)
        figure_print_check(&figure);
    else if (ok)
        ok = figure_print(&figure, &device, b->people);
    return ok && figure.checked;
}

static bool run_study(const struct bench *b, const char *name)
{
    const struct study study = {
        .name = name,
        .options = b->options,
        .device = {b->device.name, b->device.driver, b->variant},
        .software = b->software,
        .people = b->people,
    };
    return study_run(&study);
}

static bool run(struct bench *b, const struct workload *asked)
{
    double asked_gib = b->options.pool_gib;
    if (!(asked_gib > 0))
        b->options.pool_gib = default_pool_gib(b);
    bool ok = asked->is_study ? run_study(b, asked->name) : run_one(b, asked);
    b->options.pool_gib = asked_gib;
    return ok;
}

// ---- all of them ----

// Whether something else than studies is measured. Studies open what they need themselves.
static bool any_workload(const struct bench *b)
{
    for (uint32_t i = 0; i < b->selection.count; i++) {
        if (!b->selection.list[i].is_study)
            return true;
    }
    return false;
}

static bool prepare(struct bench *b)
{
    const struct options *options = &b->options;
    b->people = !options->json && isatty(STDOUT_FILENO);
    b->bar = isatty(STDERR_FILENO);
    if (!rig_engine(&b->rig, options))
        return false;
    b->device = *engine_device(b->rig.engine);
    b->software = b->device.software;
    snprintf(b->variant, sizeof b->variant, "%s", engine_variant(b->rig.engine));
    if (options->via != VIA_ENGINE || !any_workload(b))
        rig_close(&b->rig); // the daemon or the studies own the device
    if (!any_workload(b))
        return true;
    if (!options->check) {
        b->ceiling = ceiling_open(options->device, b->software);
        if (!b->ceiling)
            return false;
    }
    return options->via == VIA_ENGINE || rig_daemon(&b->rig, options, NULL);
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
    selection_shape(&b->selection, b->options.head_dim);
    if (!prepare(b))
        return EXIT_CODE_GONE;
    for (uint32_t i = 0; i < b->selection.count; i++)
        ok &= run(b, &b->selection.list[i]);
    return code_of(ok);
}

// A process that rig/clients.c started.
static enum exit_code run_client(struct bench *b)
{
    if (!selection_add(&b->selection, b->options.names[0]))
        return EXIT_CODE_GONE;
    selection_shape(&b->selection, b->options.head_dim);
    return code_of(client_run(&b->options, b->selection.list));
}

static enum exit_code run_command(struct bench *b)
{
    if (strcmp(b->options.command, "run") == 0)
        return run_selected(b);
    if (strcmp(b->options.command, "client") == 0)
        return run_client(b);
    list();
    return EXIT_CODE_DONE;
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
    rig_close(&b.rig);
    ceiling_close(b.ceiling);
    selection_finish(&b.selection);
    return code;
}
