// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// fleet.c - see fleet.h. Clients are this very program (client.h), so that none inherits anything of ours.

#include "fleet.h"

#include <aule/aule.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { START_MS = 30000, STEP_MS = 20 };

// ---- the daemon ----

static bool start_daemon(struct fleet *fleet)
{
    const struct options *o = fleet->options;
    char path[4096];
    const char *argv[16] = {o->daemon};
    int n = 1;
    if (!o->daemon && !process_find("aule-daemon", path, sizeof path))
        return false;
    argv[0] = o->daemon ? o->daemon : path;
    const char *const options[][2] = {{"--socket", fleet->socket},  {"--device", o->device}, {"--variant", o->variant},
                                      {"--memory-fraction", "0.9"}, {"--max-arena", "4G"},   {"--log-level", "warn"}};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        if (!options[i][1])
            continue;
        argv[n++] = options[i][0];
        argv[n++] = options[i][1];
    }
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

bool fleet_open(struct fleet *fleet, const struct options *options)
{
    const char *base = getenv("TMPDIR");
    *fleet = (struct fleet){.options = options};
    if ((size_t)snprintf(fleet->folder, sizeof fleet->folder, "%s/aule-bench.XXXXXX", base ? base : "/tmp") >=
            sizeof fleet->folder ||
        !mkdtemp(fleet->folder)) {
        fprintf(stderr, "aule-bench: no folder for a socket in '%s'\n", base ? base : "/tmp");
        fleet->folder[0] = 0;
        return false;
    }
    snprintf(fleet->socket, sizeof fleet->socket, "%s/sock", fleet->folder);
    if (!start_daemon(fleet))
        return false;
    enum aule_status status = AULE_DAEMON_GONE;
    for (int ms = 0; ms < START_MS && status == AULE_DAEMON_GONE; ms += STEP_MS) {
        usleep(STEP_MS * 1000);
        status = ask(fleet);
    }
    if (status != AULE_OK)
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

static bool start_client(const struct fleet *fleet, const struct workload *workload, enum dtype kv_dtype, uint32_t part,
                         struct process *process)
{
    const struct options *o = fleet->options;
    char self[4096], number[4][32];
    if (!process_find("aule-bench", self, sizeof self))
        return false;
    snprintf(number[0], sizeof *number, "%u", part);
    snprintf(number[1], sizeof *number, "%u", o->clients);
    snprintf(number[2], sizeof *number, "%g", o->seconds);
    snprintf(number[3], sizeof *number, "%g", o->pool_gib);
    char splits[32];
    snprintf(splits, sizeof splits, "%u", o->splits);
    const char *const argv[] = {self,
                                "client",
                                workload->name,
                                "--via",
                                via_name(o->via),
                                "--socket",
                                fleet->socket,
                                "--part",
                                number[0],
                                "--clients",
                                number[1],
                                "--seconds",
                                number[2],
                                "--pool",
                                number[3],
                                "--splits",
                                splits,
                                "--dtype",
                                dtype_name((int)o->dtype),
                                "--kv-dtype",
                                dtype_name((int)kv_dtype),
                                o->check ? "--check" : NULL,
                                NULL};
    return process_start(process, argv);
}

static bool expect_ready(struct process *process)
{
    char line[64];
    return fgets(line, sizeof line, process->out) && strcmp(line, "ready\n") == 0;
}

// Of one client: its steps join `samples`, whose elapsed time becomes that of the slowest.
static bool hear(struct process *process, struct samples *samples, double *step_us, struct verdict *verdict)
{
    char line[128];
    double wall, gpu, elapsed, worst;
    uint32_t rows, steps = 0;
    while (fgets(line, sizeof line, process->out)) {
        if (sscanf(line, "done %lf %u %lf", &elapsed, &rows, &worst) == 3) {
            verdict->num_rows += rows;
            verdict->worst = fmax(verdict->worst, worst);
            *step_us = fmax(*step_us, steps ? elapsed / steps : 0);
            return true;
        }
        if (sscanf(line, "%lf %lf", &wall, &gpu) != 2 || !samples_add(samples, gpu, wall))
            return false;
        steps++;
    }
    return false;
}

static bool run_all(struct fleet *fleet, const struct workload *workload, enum dtype kv_dtype, struct process *clients,
                    struct samples *samples, double *step_us, struct verdict *verdict)
{
    uint32_t count = fleet->options->clients;
    for (uint32_t i = 0; i < count; i++)
        if (!start_client(fleet, workload, kv_dtype, i, &clients[i]))
            return false;
    for (uint32_t i = 0; i < count; i++)
        if (!expect_ready(&clients[i]))
            return false;
    for (uint32_t i = 0; i < count; i++)
        if (fputs("go\n", clients[i].in) < 0 || fflush(clients[i].in) != 0)
            return false;
    for (uint32_t i = 0; i < count; i++)
        if (!hear(&clients[i], samples, step_us, verdict))
            return false;
    return true;
}

static bool can_run(const struct fleet *fleet, const struct workload *workload)
{
    uint32_t count = fleet->options->clients;
    if (workload->kind != WORKLOAD_ATTEND)
        fprintf(stderr, "aule-bench: %s is measured with --via engine only\n", workload->name);
    else if (workload_num_seqs(workload) < count)
        fprintf(stderr, "aule-bench: %s has %u sequences, too few for %u clients\n", workload->name,
                workload_num_seqs(workload), count);
    else if (workload->shared_prefix && count > 1)
        fprintf(stderr, "aule-bench: the sequences of %s share blocks, so that it wants one client, not %u\n",
                workload->name, count);
    else
        return true;
    return false;
}

bool fleet_run(struct fleet *fleet, const struct workload *workload, enum dtype kv_dtype, struct times *times,
               struct verdict *verdict)
{
    struct samples samples = {0};
    double step_us = 0;
    *verdict = (struct verdict){0};
    if (!can_run(fleet, workload))
        return false;
    struct process *clients = calloc(fleet->options->clients, sizeof *clients);
    bool ok = clients && run_all(fleet, workload, kv_dtype, clients, &samples, &step_us, verdict);
    for (uint32_t i = 0; clients && i < fleet->options->clients; i++)
        ok &= process_end(&clients[i], !ok);
    if (!ok)
        fprintf(stderr, "aule-bench: %s: a client failed\n", workload->name);
    samples_times(&samples, true, times);
    times->wall_us = step_us;
    samples_finish(&samples);
    free(clients);
    return ok;
}
