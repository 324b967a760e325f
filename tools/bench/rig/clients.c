// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// clients.c - client processes, see rig.h. They are new processes of this program (client.h), so
// that they inherit no state.

#include "base/exit_code.h"
#include "rig.h"
#include "tools/bench/wrong.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ARGUMENTS = 40 };

static bool start_client(const struct rig *rig, const struct rig_job *job, struct process *process)
{
    const struct options *o = rig->options;
    char self[4096], part[16], clients[16], in_flight[16], seconds[32], pool[32], splits[16],
        head_dim[16];
    const char *argv[MOST_ARGUMENTS] = {self, "client", job->workload->name};
    int n = 3;
    if (!process_find("aule-bench", self, sizeof self))
        return false;
    snprintf(part, sizeof part, "%u", job->part);
    snprintf(clients, sizeof clients, "%u", job->clients);
    snprintf(in_flight, sizeof in_flight, "%u", job->in_flight);
    snprintf(seconds, sizeof seconds, "%g", o->seconds);
    snprintf(pool, sizeof pool, "%g", o->pool_gib);
    snprintf(splits, sizeof splits, "%u", o->splits);
    snprintf(head_dim, sizeof head_dim, "%u", o->head_dim);
    const char *const options[][2] = {
        {"--via", via_name(job->via)},
        {"--socket", job->via == VIA_ENGINE ? NULL : rig->socket},
        {"--device", o->device},
        {"--variant", o->variant},
        {"--part", part},
        {"--clients", clients},
        {"--in-flight", in_flight},
        {"--seconds", seconds},
        {"--pool", pool},
        {"--splits", splits},
        {"--head-dim", head_dim},
        {"--dtype", dtype_name((int)o->dtype)},
        {"--kv-dtype", dtype_name((int)job->kv_dtype)},
    };
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        if (!options[i][1])
            continue;
        argv[n++] = options[i][0];
        argv[n++] = options[i][1];
    }
    if (o->check)
        argv[n++] = "--check";
    if (job->append)
        argv[n++] = "--append";
    return process_start(process, argv);
}

static bool expect_ready(struct process *process)
{
    char line[64];
    return fgets(line, sizeof line, process->out) && strcmp(line, "ready\n") == 0;
}

static bool hear(struct process *process, struct samples *samples, struct verdict *verdict)
{
    char line[128];
    double wall, gpu, worst;
    uint32_t rows;
    while (fgets(line, sizeof line, process->out)) {
        if (sscanf(line, "done %lf %u %lf", &samples->elapsed_us, &rows, &worst) == 3) {
            verdict->num_rows += rows;
            verdict->worst = fmax(verdict->worst, worst);
            return true;
        }
        if (sscanf(line, "%lf %lf", &wall, &gpu) != 2 || !samples_add(samples, gpu, wall))
            return false;
    }
    return false;
}

static bool measure_all(const struct rig *rig, const struct rig_job *jobs, uint32_t count,
                        struct process *clients, struct samples *samples, struct verdict *verdict)
{
    for (uint32_t i = 0; i < count; i++)
        if (!start_client(rig, &jobs[i], &clients[i]))
            return false;
    for (uint32_t i = 0; i < count; i++)
        if (!expect_ready(&clients[i]))
            return false;
    for (uint32_t i = 0; i < count; i++)
        if (fputs("go\n", clients[i].in) < 0 || fflush(clients[i].in) != 0)
            return false;
    for (uint32_t i = 0; i < count; i++)
        if (!hear(&clients[i], &samples[i], verdict))
            return false;
    return true;
}

bool rig_measure(const struct rig *rig, const struct rig_job *jobs, uint32_t count,
                 struct samples *samples, struct verdict *verdict)
{
    struct process *clients = calloc(count, sizeof *clients);
    bool ok = clients && measure_all(rig, jobs, count, clients, samples, verdict);
    for (uint32_t i = 0; clients && i < count; i++) {
        int code = process_end(&clients[i], !ok);
        ok &= code == EXIT_CODE_DONE;
        if (code == EXIT_CODE_FAILED)
            wrong_note();
    }
    if (!ok)
        fprintf(stderr, "aule-bench: %s: a client failed\n", jobs[0].workload->name);
    free(clients);
    return ok;
}

// ---- a workload among equals ----

// The steps of all clients together; the mean of the slowest client.
static bool add_up(const struct samples *samples, uint32_t count, struct times *times)
{
    struct samples all = {0};
    double step_us = 0;
    bool ok = true;
    for (uint32_t i = 0; i < count; i++) {
        for (uint32_t j = 0; ok && j < samples[i].count; j++)
            ok = samples_add(&all, samples[i].gpu_us[j], samples[i].wall_us[j]);
        step_us = fmax(step_us, samples[i].count ? samples[i].elapsed_us / samples[i].count : 0);
    }
    samples_times(&all, true, times);
    times->wall_us = step_us;
    samples_finish(&all);
    return ok;
}

bool rig_run(struct rig *rig, const struct workload *workload, enum dtype kv_dtype,
             struct times *times, struct verdict *verdict)
{
    uint32_t count = rig->options->clients;
    *verdict = (struct verdict){0};
    struct rig_job *jobs = calloc(count, sizeof *jobs);
    struct samples *samples = calloc(count, sizeof *samples);
    for (uint32_t i = 0; jobs && i < count; i++)
        jobs[i] = (struct rig_job){.workload = workload,
                                   .via = rig->options->via,
                                   .part = i,
                                   .clients = count,
                                   .in_flight = 1,
                                   .kv_dtype = kv_dtype};
    bool ok = jobs && samples && rig_measure(rig, jobs, count, samples, verdict) &&
              add_up(samples, count, times);
    for (uint32_t i = 0; samples && i < count; i++)
        samples_finish(&samples[i]);
    free(samples);
    free(jobs);
    return ok;
}
