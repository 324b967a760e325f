// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// crowd.c - study "clients": processes that share one daemon, compared with as many processes that
// each own a Vulkan device and are time-sliced.

#include "study.h"

#include <stdio.h>
#include <stdlib.h>

enum { MOST_CLIENTS = 8 };

// Clients that run at the same time, and the samples of each.
struct crowd {
    const struct study *study;
    const struct rig *rig;
    uint32_t count;
    struct rig_job jobs[MOST_CLIENTS];
    struct samples samples[MOST_CLIENTS];
    struct verdict verdict;
};

static uint32_t seqs_of(const struct rig_job *job)
{
    uint64_t all = workload_num_seqs(job->workload);
    return (uint32_t)(all * (job->part + 1) / job->clients - all * job->part / job->clients);
}

// Sequences a second for which the clients decoded a token.
static double tokens_per_s(const struct crowd *c)
{
    double sum = 0;
    for (uint32_t i = 0; i < c->count; i++) {
        const struct samples *s = &c->samples[i];
        sum += s->elapsed_us > 0 ? 1e6 * s->count * seqs_of(&c->jobs[i]) / s->elapsed_us : 0;
    }
    return sum;
}

// Times of the round trips of all clients together.
static bool times_of(const struct crowd *c, struct times *times)
{
    struct samples all = {0};
    bool ok = true;
    for (uint32_t i = 0; i < c->count; i++)
        for (uint32_t j = 0; ok && j < c->samples[i].count; j++)
            ok = samples_add(&all, 0, c->samples[i].wall_us[j]);
    samples_times(&all, true, times);
    samples_finish(&all);
    return ok;
}

struct sharing {
    enum via via;
    uint32_t clients, in_flight; // of each client
};

static bool crowd_measure(struct crowd *c, const struct sharing *sharing,
                          const struct subject *subject)
{
    for (uint32_t i = 0; i < c->count; i++)
        c->jobs[i] = (struct rig_job){.workload = subject->workload,
                                      .via = sharing->via,
                                      .part = i,
                                      .clients = c->count,
                                      .in_flight = sharing->in_flight,
                                      .kv_dtype = c->study->options.dtype,
                                      .append = true};
    return rig_measure(c->rig, c->jobs, c->count, c->samples, &c->verdict);
}

static bool share(const struct study *study, const struct rig *rig, const struct subject *subject,
                  const struct sharing *sharing, struct figure *figure, double *throughput)
{
    struct crowd crowd = {.study = study, .rig = rig, .count = sharing->clients};
    *figure = study_figure(study, via_name(sharing->via), NULL, 0);
    snprintf(figure->name, sizeof figure->name, "%s among %u, %s%s", subject->name, crowd.count,
             sharing->via == VIA_ENGINE ? "an engine each" : "one daemon",
             sharing->in_flight > 1 ? ", 2 in flight" : "");
    bool ok = crowd_measure(&crowd, sharing, subject) && times_of(&crowd, &figure->times);
    *throughput = tokens_per_s(&crowd);
    figure->verdict = crowd.verdict;
    figure->checked = true;
    figure_add_given(figure, "clients", crowd.count, "");
    figure_add(figure, "tokens_per_s", *throughput, "/s");
    for (uint32_t i = 0; i < crowd.count; i++)
        samples_finish(&crowd.samples[i]);
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

bool study_clients(const struct study *study)
{
    struct subject subject;
    struct rig rig = {0};
    bool ok = study_subject(study, "D1", "decode:16x128", &subject) &&
              rig_daemon(&rig, &study->options, NULL) && share_out(study, &rig, &subject);
    rig_close(&rig);
    subject_finish(&subject);
    return ok;
}
