// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// fleet.c - see fleet.h. Clients are new processes of this program (client.h), so that they inherit
// no state.

#include "fleet.h"

#include "base/exit_code.h"
#include "engine/measuring.h"
#include "tools/bench/wrong.h"

#include <aule/aule.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { START_MS = 120000, STEP_MS = 20 };

// ---- the daemon ----

// As the daemon's option has it; NULL: the daemon's default.
static const char *poll_text(uint32_t poll_us, char *text, size_t size)
{
    snprintf(text, size, "%u", poll_us == ENGINE_NO_POLL ? 0 : poll_us);
    return poll_us ? text : NULL;
}

static bool start_daemon(struct fleet *fleet, bool tune, const char *const *more)
{
    const struct options *o = fleet->options;
    char path[4096], poll[16];
    const char *argv[20 + MOST_DAEMON_OPTIONS] = {o->daemon};
    int n = 1;
    if (!o->daemon && !process_find("aule-daemon", path, sizeof path))
        return false;
    argv[0] = o->daemon ? o->daemon : path;
    const char *const options[][2] = {
        {"--socket", fleet->socket},
        {"--device", o->device},
        {"--variant", o->variant},
        {"--completion-poll", poll_text(o->completion_poll_us, poll, sizeof poll)},
        {"--tune", tune ? NULL : "off"},
        {"--memory-fraction", "0.9"},
        {"--max-arena", "4G"},
        {"--log-level", "warn"}};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        if (!options[i][1])
            continue;
        argv[n++] = options[i][0];
        argv[n++] = options[i][1];
    }
    for (int i = 0; more[i]; i++)
        argv[n++] = more[i];
    return process_start(&fleet->daemon, argv);
}

static enum aule_status ask(struct fleet *fleet)
{
    struct aule_monitor *monitor;
    struct aule_device_state device;
    enum aule_status status = aule_monitor_open(fleet->socket, START_MS, &monitor);
    if (status != AULE_OK)
        return status;
    status = aule_monitor_device(monitor, &device);
    if (status == AULE_OK) {
        snprintf(fleet->device, sizeof fleet->device, "%s", device.name);
        snprintf(fleet->driver, sizeof fleet->driver, "%s", device.driver);
        snprintf(fleet->variant, sizeof fleet->variant, "%s", device.variant);
    }
    aule_monitor_close(monitor);
    return status;
}

bool fleet_open(struct fleet *fleet, const struct options *options, bool tune)
{
    return fleet_open_with(fleet, options, tune, (const char *const[]){NULL});
}

bool fleet_open_part(struct fleet *fleet, const struct options *options, bool tune,
                     const char *memory_fraction)
{
    const char *const more[] = {"--memory-fraction", memory_fraction, NULL};
    return fleet_open_with(fleet, options, tune, more);
}

bool fleet_open_with(struct fleet *fleet, const struct options *options, bool tune,
                     const char *const *more)
{
    const char *base = getenv("TMPDIR");
    *fleet = (struct fleet){.options = options};
    if ((size_t)snprintf(fleet->folder, sizeof fleet->folder, "%s/aule-bench.XXXXXX",
                         base ? base : "/tmp") >= sizeof fleet->folder ||
        !mkdtemp(fleet->folder)) {
        fprintf(stderr, "aule-bench: no folder for a socket in '%s'\n", base ? base : "/tmp");
        fleet->folder[0] = 0;
        return false;
    }
    snprintf(fleet->socket, sizeof fleet->socket, "%s/sock", fleet->folder);
    if (!start_daemon(fleet, tune, more))
        return false;
    enum aule_status status = AULE_DAEMON_GONE;
    bool runs = true;
    for (int ms = 0; ms < START_MS && status == AULE_DAEMON_GONE && runs; ms += STEP_MS) {
        usleep(STEP_MS * 1000);
        runs = process_runs(&fleet->daemon);
        status = runs ? ask(fleet) : status;
    }
    if (!runs)
        fprintf(stderr, "aule-bench: the daemon ended before it answered\n");
    else if (status != AULE_OK)
        fprintf(stderr, "aule-bench: the daemon does not answer: %s\n", aule_error());
    return status == AULE_OK;
}

void fleet_close(struct fleet *fleet)
{
    char lock[128];
    process_end(&fleet->daemon, true);
    if (!fleet->folder[0])
        return;
    snprintf(lock, sizeof lock, "%s.lock", fleet->socket);
    unlink(lock);
    rmdir(fleet->folder);
    fleet->folder[0] = 0;
}

// ---- the clients ----

enum { MOST_ARGUMENTS = 40 };

static bool start_client(const struct fleet *fleet, const struct fleet_job *job,
                         struct process *process)
{
    const struct options *o = fleet->options;
    char self[4096], part[16], clients[16], in_flight[16], seconds[32], pool[32], splits[16],
        head_dim[16], poll[16];
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
        {"--socket", job->via == VIA_ENGINE ? NULL : fleet->socket},
        {"--device", o->device},
        {"--variant", o->variant},
        {"--completion-poll", poll_text(o->completion_poll_us, poll, sizeof poll)},
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

static bool measure_all(const struct fleet *fleet, const struct fleet_job *jobs, uint32_t count,
                        struct process *clients, struct samples *samples, struct verdict *verdict)
{
    for (uint32_t i = 0; i < count; i++)
        if (!start_client(fleet, &jobs[i], &clients[i]))
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

bool fleet_measure(const struct fleet *fleet, const struct fleet_job *jobs, uint32_t count,
                   struct samples *samples, struct verdict *verdict)
{
    struct process *clients = calloc(count, sizeof *clients);
    bool ok = clients && measure_all(fleet, jobs, count, clients, samples, verdict);
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

bool fleet_run(struct fleet *fleet, const struct workload *workload, enum dtype kv_dtype,
               struct times *times, struct verdict *verdict)
{
    uint32_t count = fleet->options->clients;
    *verdict = (struct verdict){0};
    struct fleet_job *jobs = calloc(count, sizeof *jobs);
    struct samples *samples = calloc(count, sizeof *samples);
    for (uint32_t i = 0; jobs && i < count; i++)
        jobs[i] = (struct fleet_job){.workload = workload,
                                     .via = fleet->options->via,
                                     .part = i,
                                     .clients = count,
                                     .in_flight = 1,
                                     .kv_dtype = kv_dtype};
    bool ok = jobs && samples && fleet_measure(fleet, jobs, count, samples, verdict) &&
              add_up(samples, count, times);
    for (uint32_t i = 0; samples && i < count; i++)
        samples_finish(&samples[i]);
    free(samples);
    free(jobs);
    return ok;
}
