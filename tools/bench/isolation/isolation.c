// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// isolation.c - study "isolation": how long a light neighbour's decode takes, alone and while
// another session does heavy work of each kind (load.h). Each case has a daemon of its own. Their
// caches of compiled shaders are empty at the start, so the first kind, new shapes, compiles all of
// them. Other kinds have compiled theirs before they are measured. The heavy work runs in a thread
// of this process.

#include "load.h"
#include "tools/bench/rig/caller.h"
#include "tools/bench/study/study.h"

#include <ftw.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LEAST_RUNS = 100, FEW_CHECKED = 32 };

// The neighbour's round trips.
struct trips {
    struct samples samples;
    double p50_us, p99_us, worst_us;
};

struct scene {
    const struct study *study;
    const struct load_kind *kind;
    struct rig rig;
    struct caller neighbour;
    struct load load;
    atomic_bool stops, ended; // the load is to end; it has ended
    atomic_uint acts;         // that have ended
    bool fine;                // all of them succeeded
    double acts_us;           // time of all actions
    struct trips alone, beside;
    struct verdict verdict;
};

// ---- a daemon that has compiled nothing ----

// Drivers keep compiled shaders, too.
static void use_cold_caches(const char *folder)
{
    static const char *const names[] = {"MESA_SHADER_CACHE_DIR", "__GL_SHADER_DISK_CACHE_PATH",
                                        "XDG_CACHE_HOME"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        setenv(names[i], folder, 1);
}

static int remove_one(const char *path, const struct stat *stat, int kind, struct FTW *place)
{
    (void)stat;
    (void)kind;
    (void)place;
    return remove(path);
}

static bool make_folder(char *folder, size_t size)
{
    const char *base = getenv("TMPDIR");
    if ((size_t)snprintf(folder, size, "%s/aule-cold.XXXXXX", base ? base : "/tmp") < size &&
        mkdtemp(folder))
        return true;
    fprintf(stderr, "aule-bench: no folder for compiled shaders in '%s'\n", base ? base : "/tmp");
    return false;
}

static uint32_t least_size(const struct load_kind *kind)
{
    return kind->once ? 2 : kind->few / FEW_CHECKED;
}

static uint32_t size_of(const struct scene *s)
{
    const struct options *o = &s->study->options;
    if (o->check)
        return least_size(s->kind);
    return o->full || !s->study->software ? s->kind->full : s->kind->few;
}

// So that the shaders of a load are compiled before it is measured, unless it is about them.
static bool compile_load(struct scene *s)
{
    struct load load = {0};
    const bool ok =
        s->kind->once || s->study->options.check ||
        (load_open(&load, s->kind, s->rig.socket, least_size(s->kind)) && load_act(&load));
    load_close(&load);
    return ok;
}

static bool scene_open(struct scene *s, const char *folder, const struct workload *workload)
{
    const char *const more[] = {"--cache-folder", folder, "--log-level", "error", NULL};
    if (!rig_daemon(&s->rig, &s->study->options, more))
        return false;
    const struct caller_params neighbour = {.socket = s->rig.socket,
                                            .lane = via_name(VIA_RING),
                                            .workload = workload,
                                            .dtype = s->study->options.dtype,
                                            .kv_dtype = s->study->options.dtype,
                                            .count = workload_num_seqs(workload),
                                            .append = true};
    return caller_open(&s->neighbour, &neighbour) && compile_load(s) &&
           load_open(&s->load, s->kind, s->rig.socket, size_of(s));
}

static void scene_close(struct scene *s)
{
    caller_close(&s->neighbour);
    load_close(&s->load);
    rig_close(&s->rig);
    samples_finish(&s->alone.samples);
    samples_finish(&s->beside.samples);
}

// ---- the load's thread ----

static bool goes_on(const struct scene *s)
{
    return s->kind->once ? s->load.acts < s->load.size : !atomic_load(&s->stops);
}

static void *run_load(void *argument)
{
    struct scene *s = argument;
    const double begin_us = now_us();
    do {
        s->fine = load_act(&s->load);
        atomic_store(&s->acts, s->load.acts);
    } while (s->fine && goes_on(s));
    s->acts_us = now_us() - begin_us;
    atomic_store(&s->ended, true);
    return NULL;
}

// ---- the neighbour ----

static bool trip(struct scene *s, struct samples *samples)
{
    const struct lane lane = caller_lane(&s->neighbour);
    const double begin_us = now_us();
    uint64_t gpu_ns;
    if (!lane.run(lane.context, 0, 1, &gpu_ns))
        return false;
    const double us = now_us() - begin_us;
    samples->elapsed_us += us;
    return samples_add(samples, (double)gpu_ns * 1e-3, us);
}

static void summarise(struct trips *trips)
{
    struct samples *samples = &trips->samples;
    trips->p50_us = quantile(samples->wall_us, samples->count, 0.5);
    trips->p99_us = quantile(samples->wall_us, samples->count, 0.99);
    trips->worst_us = quantile(samples->wall_us, samples->count, 1);
}

static bool run_alone(struct scene *s)
{
    const double end_us = now_us() + s->study->options.seconds * 1e6;
    struct samples *samples = &s->alone.samples;
    bool ok = true;
    while (ok && (now_us() < end_us || samples->count < LEAST_RUNS))
        ok = trip(s, samples);
    if (ok)
        summarise(&s->alone);
    return ok;
}

// The load does one action at least while the neighbour goes on.
static bool run_beside(struct scene *s)
{
    const double end_us = now_us() + s->study->options.seconds * 1e6;
    pthread_t thread;
    bool ok = true;
    if (pthread_create(&thread, NULL, run_load, s) != 0)
        return false;
    while (ok && !atomic_load(&s->ended) &&
           (s->kind->once || now_us() < end_us || !atomic_load(&s->acts)))
        ok = trip(s, &s->beside.samples);
    atomic_store(&s->stops, true);
    pthread_join(thread, NULL);
    if (ok && s->beside.samples.count)
        summarise(&s->beside);
    return ok && s->fine;
}

static bool check_neighbour(struct scene *s)
{
    struct verdict now = {0};
    const bool right = caller_check(&s->neighbour, 0, &now);
    s->verdict.num_rows += now.num_rows;
    s->verdict.worst = fmax(s->verdict.worst, now.worst);
    return right;
}

// The last result that came beside the load is looked at, too.
static bool measure_scene(struct scene *s)
{
    struct verdict now = {0};
    if (!check_neighbour(s))
        return false;
    if (s->study->options.check)
        return load_act(&s->load) && load_right(&s->load) && check_neighbour(s);
    return run_alone(s) && caller_poison(&s->neighbour) && run_beside(s) &&
           caller_look(&s->neighbour, 0, &now) && load_right(&s->load) && check_neighbour(s);
}

// ---- figures ----

static bool say(struct scene *s)
{
    const struct trips *alone = &s->alone, *beside = &s->beside;
    struct figure figure = study_figure(s->study, via_name(VIA_RING), NULL, 0);
    snprintf(figure.name, sizeof figure.name, "beside %s", s->kind->name);
    figure.times = (struct times){
        .median_us = beside->p50_us, .p99_us = beside->p99_us, .runs = beside->samples.count};
    figure.verdict = s->verdict;
    figure.checked = true;
    figure_add_given(&figure, "size", s->load.size, s->kind->unit);
    figure_add(&figure, "worst_us", beside->worst_us, "us");
    figure_add(&figure, "alone_us", alone->p50_us, "us");
    figure_add(&figure, "alone_p99_us", alone->p99_us, "us");
    figure_add(&figure, "alone_worst_us", alone->worst_us, "us");
    figure_add(&figure, "p99_over_alone", beside->p99_us / alone->p99_us, "x");
    figure_add(&figure, "acts", s->load.acts, "acts");
    figure_add(&figure, "act_us", s->acts_us / s->load.acts, "us");
    return study_say(s->study, &figure);
}

// A case that fails does not end the study: the others tell as much.
static bool run_case(const struct study *study, const struct load_kind *kind,
                     const struct workload *workload, const char *folder)
{
    struct scene scene = {.study = study, .kind = kind};
    const bool ok = scene_open(&scene, folder, workload) && measure_scene(&scene) && say(&scene);
    if (!ok)
        fprintf(stderr, "aule-bench: isolation beside %s was not measured\n", kind->name);
    scene_close(&scene);
    return ok;
}

bool study_isolation(const struct study *study)
{
    struct subject subject;
    char folder[64];
    if (!make_folder(folder, sizeof folder))
        return false;
    use_cold_caches(folder);
    bool ok = study_subject(study, "decode:1x128", NULL, &subject), right = ok;
    for (uint32_t i = 0; ok && i < num_load_kinds; i++)
        right &= run_case(study, &load_kinds[i], subject.workload, folder);
    subject_finish(&subject);
    nftw(folder, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    return right;
}
