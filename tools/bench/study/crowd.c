// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// crowd.c - studies "clients" and "fairness": processes that share one daemon, compared with as
// many processes that each own a Vulkan device and are time-sliced.

#include "study.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

// Runs in flight of a client that saturates the daemon: more than fit in two submissions
// (SCHEDULER_BUDGET, SCHEDULER_TIME_NS), for a light client too.
enum { MOST_CLIENTS = 8, LIGHT = MOST_CLIENTS, DEPTH = 64 };

// Clients that run at the same time, and the samples of each.
struct crowd {
    const struct study *study;
    const struct rig *rig;
    uint32_t count;
    struct rig_job jobs[MOST_CLIENTS];
    struct samples samples[MOST_CLIENTS];
    struct verdict verdict;
};

static bool crowd_measure(struct crowd *c)
{
    return rig_measure(c->rig, c->jobs, c->count, c->samples, &c->verdict);
}

static void crowd_finish(struct crowd *c)
{
    for (uint32_t i = 0; i < c->count; i++)
        samples_finish(&c->samples[i]);
}

static struct rig_job job(const struct crowd *c, const struct workload *workload, enum via via,
                          uint32_t part, uint32_t clients)
{
    return (struct rig_job){.workload = workload,
                            .via = via,
                            .part = part,
                            .clients = clients,
                            .in_flight = 1,
                            .kv_dtype = c->study->options.dtype,
                            .append = true};
}

static uint32_t seqs_of(const struct rig_job *job)
{
    uint64_t all = workload_num_seqs(job->workload);
    return (uint32_t)(all * (job->part + 1) / job->clients - all * job->part / job->clients);
}

// Sequences a second for which client `i` decoded a token. If clients are equal, this is
// proportional to the tokens attended.
static double tokens_per_s(const struct crowd *c, uint32_t i)
{
    const struct samples *s = &c->samples[i];
    return s->elapsed_us > 0 ? 1e6 * s->count * seqs_of(&c->jobs[i]) / s->elapsed_us : 0;
}

static double all_tokens_per_s(const struct crowd *c)
{
    double sum = 0;
    for (uint32_t i = 0; i < c->count; i++)
        sum += tokens_per_s(c, i);
    return sum;
}

// Jain's index (Jain, Chiu, Hawe 1984): 1 if all had the same, 1 / count if one had everything.
static double jain(const struct crowd *c)
{
    double sum = 0, squares = 0;
    for (uint32_t i = 0; i < c->count; i++) {
        sum += tokens_per_s(c, i);
        squares += tokens_per_s(c, i) * tokens_per_s(c, i);
    }
    return squares > 0 ? sum * sum / (c->count * squares) : 0;
}

// Times of the round trips of clients `first` and later together.
static bool times_from(const struct crowd *c, uint32_t first, struct times *times)
{
    struct samples all = {0};
    bool ok = true;
    for (uint32_t i = first; i < c->count; i++)
        for (uint32_t j = 0; ok && j < c->samples[i].count; j++)
            ok = samples_add(&all, 0, c->samples[i].wall_us[j]);
    samples_times(&all, true, times);
    samples_finish(&all);
    return ok;
}

static bool crowd_figure(const struct crowd *c, uint32_t first, const char *name,
                         struct figure *figure)
{
    *figure = study_figure(c->study, via_name(c->jobs[0].via), NULL, 0);
    snprintf(figure->name, sizeof figure->name, "%s", name);
    figure->verdict = c->verdict;
    figure->checked = true;
    figure_add_given(figure, "clients", c->count, "");
    figure_add(figure, "tokens_per_s", all_tokens_per_s(c), "/s");
    return times_from(c, first, &figure->times);
}

// ---- clients ----

struct sharing {
    enum via via;
    uint32_t clients, in_flight; // of each client
};

static bool share(const struct study *study, const struct rig *rig, const struct subject *subject,
                  const struct sharing *sharing, struct figure *figure, double *throughput)
{
    struct crowd crowd = {.study = study, .rig = rig, .count = sharing->clients};
    char name[128];
    for (uint32_t i = 0; i < crowd.count; i++) {
        crowd.jobs[i] = job(&crowd, subject->workload, sharing->via, i, crowd.count);
        crowd.jobs[i].in_flight = sharing->in_flight;
    }
    snprintf(name, sizeof name, "%s among %u, %s%s", subject->name, crowd.count,
             sharing->via == VIA_ENGINE ? "an engine each" : "one daemon",
             sharing->in_flight > 1 ? ", 2 in flight" : "");
    bool ok = crowd_measure(&crowd) && crowd_figure(&crowd, 0, name, figure);
    *throughput = all_tokens_per_s(&crowd);
    crowd_finish(&crowd);
    return ok;
}

// The cases. First the base: one client with two runs in flight, and eight such clients. Then one
// client that waits for each run, and so leaves the GPU idle meanwhile; then several of them; then
// processes that each own an engine.
static const struct sharing sharings[] = {{VIA_RING, 1, 2},  {VIA_RING, 8, 2}, {VIA_RING, 1, 1},
                                          {VIA_RING, 2, 1},  {VIA_RING, 4, 1}, {VIA_RING, 8, 1},
                                          {VIA_ENGINE, 8, 1}};
enum { BASE, WAITING = 2, SHARED = 5, APART, NUM_SHARINGS };

static bool share_out(const struct study *study, const struct rig *rig,
                      const struct subject *subject)
{
    struct figure figure;
    double throughput[NUM_SHARINGS];
    for (int i = 0; i < NUM_SHARINGS; i++) {
        if (!share(study, rig, subject, &sharings[i], &figure, &throughput[i]))
            return false;
        figure_add(&figure, "of_one", throughput[i] / throughput[BASE], "x");
        if (i >= WAITING)
            figure_add(&figure, "of_one_waiting", throughput[i] / throughput[WAITING], "x");
        if (i == APART)
            figure_add(&figure, "shared_over_apart", throughput[SHARED] / throughput[APART], "x");
        if (!study_say(study, &figure))
            return false;
    }
    return true;
}

static bool with_fleet(const struct study *study, const char *name, const char *smaller,
                       bool (*run)(const struct study *study, const struct rig *rig,
                                   const struct subject *subject))
{
    struct subject subject;
    struct rig rig = {0};
    bool ok = study_subject(study, name, smaller, &subject) &&
              rig_daemon(&rig, &study->options, NULL) && run(study, &rig, &subject);
    rig_close(&rig);
    subject_finish(&subject);
    return ok;
}

bool study_clients(const struct study *study)
{
    return with_fleet(study, "D1", "decode:16x128", share_out);
}

// ---- fairness ----

// Each light client has an eighth of the sequences. `heavy`: the first client has all of them.
static bool light(const struct study *study, const struct rig *rig, const struct subject *subject,
                  uint32_t count, bool heavy, const char *name, struct figure *figure)
{
    struct crowd crowd = {.study = study, .rig = rig, .count = count};
    for (uint32_t i = 0; i < count; i++)
        crowd.jobs[i] = job(&crowd, subject->workload, VIA_RING, i, LIGHT);
    if (heavy)
        crowd.jobs[0] = job(&crowd, subject->workload, VIA_RING, 0, 1);
    bool ok = crowd_measure(&crowd) && crowd_figure(&crowd, heavy ? 1 : 0, name, figure);
    crowd_finish(&crowd);
    return ok;
}

// A submission ends many runs at once, so a rate is only valid over a time that covers several
// submissions.
static bool rates_hold(const struct crowd *c)
{
    for (uint32_t i = 0; i < c->count; i++)
        if (c->samples[i].elapsed_us < c->rig->options->seconds * 1e6 / 4)
            return false;
    return true;
}

// Measures for longer and longer times, because a device may be slow, until the rates are valid.
// *hold: they are.
static bool measure_rates(struct crowd *c, bool *hold)
{
    const struct rig *asked = c->rig;
    struct options options = *asked->options;
    struct rig rig = *asked;
    const double most = options.check ? 0 : 8 * options.seconds;
    rig.options = &options;
    c->rig = &rig;
    bool ok = crowd_measure(c);
    for (*hold = rates_hold(c); ok && !*hold && options.seconds < most; *hold = rates_hold(c)) {
        crowd_finish(c);
        c->verdict = (struct verdict){0};
        options.seconds *= 2;
        ok = crowd_measure(c);
    }
    if (ok && !*hold && !options.check)
        fprintf(stderr,
                "aule-bench: %s: in %g seconds a client got too few runs to tell its rate\n",
                c->jobs[0].workload->name, options.seconds);
    c->rig = asked;
    return ok;
}

// Each client asks for more than its share.
static bool saturate(const struct study *study, const struct rig *rig,
                     const struct subject *subject)
{
    struct crowd crowd = {.study = study, .rig = rig, .count = MOST_CLIENTS};
    struct figure figure;
    bool hold;
    for (uint32_t i = 0; i < crowd.count; i++) {
        crowd.jobs[i] = job(&crowd, subject->workload, VIA_RING, i, i ? LIGHT : 1);
        crowd.jobs[i].in_flight = DEPTH;
    }
    bool ok = measure_rates(&crowd, &hold) &&
              crowd_figure(&crowd, 1, "saturated: 7 light ones and one of 8 x", &figure);
    if (ok && hold) {
        figure_add(&figure, "heavy_tokens_per_s", tokens_per_s(&crowd, 0), "/s");
        figure_add(&figure, "jain", jain(&crowd), "");
    }
    crowd_finish(&crowd);
    return ok && study_say(study, &figure);
}

static bool neighbours(const struct study *study, const struct rig *rig,
                       const struct subject *subject)
{
    struct figure pair, equal, beside;
    if (!light(study, rig, subject, 2, false, "a light one and its equal", &pair) ||
        !light(study, rig, subject, MOST_CLIENTS, false, "7 light ones and their equal", &equal) ||
        !light(study, rig, subject, MOST_CLIENTS, true, "7 light ones beside one of 8 x", &beside))
        return false;
    if (!study->options.check) {
        figure_add(&beside, "p99_over_equal", beside.times.p99_us / equal.times.p99_us, "x");
        figure_add(&beside, "p99_over_pair", beside.times.p99_us / pair.times.p99_us, "x");
    }
    return study_say(study, &pair) && study_say(study, &equal) && study_say(study, &beside);
}

bool study_fairness(const struct study *study)
{
    return with_fleet(study, "decode:64x1024", "decode:8x64", neighbours) &&
           with_fleet(study, "D1", "decode:8x64", saturate);
}
