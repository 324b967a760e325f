// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// daemon.c - a private daemon, see rig.h.

#include "rig.h"
#include "world.h"

#include <aule/aule.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { START_MS = 120000, STEP_MS = 20 };

bool rig_engine(struct rig *rig, const struct options *options)
{
    *rig = (struct rig){.options = options, .engine = world_engine(options)};
    return rig->engine != NULL;
}

static bool start_daemon(struct rig *rig, const char *const *more)
{
    const struct options *o = rig->options;
    char path[4096];
    const char *argv[20 + MOST_DAEMON_OPTIONS] = {o->daemon};
    int n = 1;
    if (!o->daemon && !process_find("aule-daemon", path, sizeof path))
        return false;
    argv[0] = o->daemon ? o->daemon : path;
    const char *const options[][2] = {{"--socket", rig->socket}, {"--device", o->device},
                                      {"--variant", o->variant}, {"--memory-fraction", "0.9"},
                                      {"--max-arena", "4G"},     {"--log-level", "warn"}};
    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        if (!options[i][1])
            continue;
        argv[n++] = options[i][0];
        argv[n++] = options[i][1];
    }
    for (int i = 0; more && more[i]; i++)
        argv[n++] = more[i];
    return process_start(&rig->daemon, argv);
}

static enum aule_status ask(struct rig *rig)
{
    struct aule_monitor *monitor;
    struct aule_device_state device;
    enum aule_status status = aule_monitor_open(rig->socket, START_MS, &monitor);
    if (status != AULE_OK)
        return status;
    status = aule_monitor_device(monitor, &device);
    if (status == AULE_OK) {
        snprintf(rig->device, sizeof rig->device, "%s", device.name);
        snprintf(rig->driver, sizeof rig->driver, "%s", device.driver);
        snprintf(rig->variant, sizeof rig->variant, "%s", device.variant);
    }
    aule_monitor_close(monitor);
    return status;
}

bool rig_daemon(struct rig *rig, const struct options *options, const char *const *more)
{
    const char *base = getenv("TMPDIR");
    *rig = (struct rig){.options = options};
    if ((size_t)snprintf(rig->folder, sizeof rig->folder, "%s/aule-bench.XXXXXX",
                         base ? base : "/tmp") >= sizeof rig->folder ||
        !mkdtemp(rig->folder)) {
        fprintf(stderr, "aule-bench: no folder for a socket in '%s'\n", base ? base : "/tmp");
        rig->folder[0] = 0;
        return false;
    }
    snprintf(rig->socket, sizeof rig->socket, "%s/sock", rig->folder);
    if (!start_daemon(rig, more))
        return false;
    enum aule_status status = AULE_DAEMON_GONE;
    bool runs = true;
    for (int ms = 0; ms < START_MS && status == AULE_DAEMON_GONE && runs; ms += STEP_MS) {
        usleep(STEP_MS * 1000);
        runs = process_runs(&rig->daemon);
        status = runs ? ask(rig) : status;
    }
    if (!runs)
        fprintf(stderr, "aule-bench: the daemon ended before it answered\n");
    else if (status != AULE_OK)
        fprintf(stderr, "aule-bench: the daemon does not answer: %s\n", aule_error());
    return status == AULE_OK;
}

void rig_close(struct rig *rig)
{
    char lock[128];
    engine_destroy(rig->engine);
    rig->engine = NULL;
    process_end(&rig->daemon, true);
    if (!rig->folder[0])
        return;
    snprintf(lock, sizeof lock, "%s.lock", rig->socket);
    unlink(lock);
    rmdir(rig->folder);
    rig->folder[0] = 0;
}
