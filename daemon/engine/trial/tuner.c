// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// tuner.c - see tuner.h. A client's answer never waits for a measurement: what is not known yet
// runs as the kernel's own rule says. The result changes no bit.

#include "tuner.h"

#include "engine/tuning/tuning.h"
#include "probe.h"
#include "shaders/layout.h"
#include "trial.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { IDLE_MS = 5 }; // most time that a measurement waits for the device to be idle

static const uint64_t default_memory = UINT64_C(256) << 20;

struct tuner {
    struct engine *engine;
    struct tuning *tuning; // the engine's
    uint64_t memory_bytes; // most device memory of a measurement
    struct probe probe;    // tuning thread only
    bool too_short;        // tuning thread only: the time of the last measurement was
    pthread_t thread;
    bool runs;
};

// Waits for an idle device: other work would lengthen the measured time, and the measurement would
// delay that work.
static void wait_for_rest(struct engine *engine)
{
    const int64_t deadline_ns = clock_deadline_ns(IDLE_MS);
    int rc = 0;
    pthread_mutex_lock(&engine->lock);
    while ((engine->waiting || engine->flying) && !engine->lost && !engine->stopping &&
           rc != ETIMEDOUT)
        rc = clock_wait(&engine->changed, &engine->lock, deadline_ns);
    pthread_mutex_unlock(&engine->lock);
}

// Compiles all candidates first, so that the submitter, which holds all clients' work, finds them
// in the driver's cache.
static enum status compile_candidates(struct tuner *tuner, const struct tune_entry *entry,
                                      uint32_t number, struct error *error)
{
    struct pipelines *pipelines = &tuner->engine->pipelines;
    const struct kernel *kernel = pipelines->variant->kernels[number];
    struct geometry geometry = {.kernel = number};
    enum status status = STATUS_OK;
    memcpy(geometry.spec, entry->key.spec, sizeof geometry.spec);
    for (const uint32_t *at = kernel->candidates; *at && status == STATUS_OK; at++) {
        geometry.spec[AULE_SPEC_LOCAL_SIZE] = *at;
        if (*at <= kernel->shader.local_size && tune_goes_on(&tuner->tuning->table, &entry->key))
            status = pipeline_warm(pipelines, &geometry, error);
    }
    return status;
}

static enum status try_candidates(struct tuner *tuner, const struct tune_entry *entry,
                                  struct trial *trial, struct error *error)
{
    enum status status = STATUS_OK;
    uint32_t local_size;
    while (status == STATUS_OK && (local_size = trial_next(trial, (uint64_t)clock_now_ns())) &&
           tune_goes_on(&tuner->tuning->table, &entry->key)) {
        uint64_t gpu_ns;
        wait_for_rest(tuner->engine);
        status = probe_time(&tuner->probe, local_size, &gpu_ns, error);
        if (status == STATUS_OK)
            trial_add(trial, gpu_ns);
    }
    return status;
}

static enum status measure_with(struct tuner *tuner, struct tune_entry *entry, uint32_t number,
                                struct error *error)
{
    const struct kernel *kernel = tuner->engine->pipelines.variant->kernels[number];
    struct trial trial;
    enum status status =
        probe_open(&tuner->probe, tuner->engine, &entry->key, tuner->memory_bytes, error);
    if (status == STATUS_OK)
        status = compile_candidates(tuner, entry, number, error);
    if (status != STATUS_OK)
        return status;
    trial_begin(&trial, kernel->candidates, kernel->shader.local_size, (uint64_t)clock_now_ns(),
                tuner->tuning->time_ms * UINT64_C(1000000));
    status = try_candidates(tuner, entry, &trial, error);
    tuner->too_short = status == STATUS_OK && !trial_end(&trial, entry);
    if (tuner->too_short)
        status = error_set(error, STATUS_TIMEOUT, "--tune-time %u ms is too short",
                           tuner->tuning->time_ms);
    return status;
}

static void tell(struct tuner *tuner, const struct tune_entry *entry, const struct error *error)
{
    char text[200];
    struct device *device = &tuner->engine->device;
    geometry_text(entry->key.spec, text, sizeof text);
    // Too little time is common while shapes change, and the rule is a good choice.
    if (error->status != STATUS_OK)
        device_log(device, tuner->too_short ? 3 : 1, "tuning: %s %s uses its own rule: %s",
                   entry->kernel, text, error->text);
    else
        device_log(device, 2,
                   "tuning: %s %s, %u workgroups, %u keys: %u invocations, %" PRIu64
                   " ns; by its rule %u, %" PRIu64 " ns",
                   entry->kernel, text, entry->key.num_workgroups, entry->key.num_keys,
                   entry->local_size, entry->gpu_ns, entry->rule_local_size, entry->rule_gpu_ns);
}

// A copy of `entry` without results.
static struct tune_entry blank(const struct tuner *tuner, const struct tune_entry *entry,
                               uint32_t number)
{
    const struct engine *engine = tuner->engine;
    struct tune_entry out = *entry;
    out.local_size = out.num_candidates = out.num_samples = 0;
    out.gpu_ns = out.rule_gpu_ns = 0;
    if (number < MOST_KERNELS)
        out.rule_local_size = kernel_local_size(engine->pipelines.variant->kernels[number],
                                                entry->key.spec, entry->key.num_workgroups,
                                                engine->device.adapter.info.num_multiprocessors);
    return out;
}

// false: the device is lost; what the GPU has stays until the engine ends.
static bool measure(struct tuner *tuner, const struct tune_entry *waiting)
{
    struct error error = {.status = STATUS_OK};
    uint32_t number = tune_store_kernel(&tuner->tuning->store, waiting->key.shader);
    struct tune_entry entry = blank(tuner, waiting, number);
    tuner->too_short = false;
    error.status = number < MOST_KERNELS
                       ? measure_with(tuner, &entry, number, &error)
                       : error_set(&error, STATUS_NOT_FOUND, "it belongs to another variant");
    if (engine_lost(tuner->engine))
        return false;
    probe_close(&tuner->probe);
    // The entry may be measured later, or was forgotten.
    if (!tune_goes_on(&tuner->tuning->table, &waiting->key))
        return true;
    entry.state = error.status == STATUS_OK ? ENGINE_TUNE_MEASURED : ENGINE_TUNE_FAILED;
    tell(tuner, &entry, &error);
    tune_done(&tuner->tuning->table, &entry);
    return true;
}

static void *tuner_thread(void *argument)
{
    struct tuner *tuner = argument;
    struct engine *engine = tuner->engine;
    struct tune_task task;
    while (tune_wait(&tuner->tuning->table, &task)) {
        if (task.save)
            tune_store_save(&tuner->tuning->store, task.clear);
        if (task.measure && !measure(tuner, &task.entry))
            break;
    }
    pthread_mutex_lock(&engine->lock);
    engine->tuner_gone = true;
    pthread_cond_broadcast(&engine->changed);
    pthread_mutex_unlock(&engine->lock);
    return NULL;
}

// ---- creating and ending ----

enum status tuner_init(struct engine *engine, const struct engine_params *params,
                       struct error *error)
{
    struct tuner *tuner = engine->tuner = calloc(1, sizeof *tuner);
    if (!tuner)
        return error_set(error, STATUS_NO_MEMORY, "no memory for tuning");
    tuner->engine = engine;
    tuner->tuning = engine->tuning;
    tuner->memory_bytes = params->tune_memory_bytes ? params->tune_memory_bytes : default_memory;
    return STATUS_OK;
}

bool tuner_start(struct engine *engine)
{
    struct tuner *tuner = engine->tuner;
    tuner->runs = pthread_create(&tuner->thread, NULL, tuner_thread, tuner) == 0;
    return tuner->runs;
}

void tuner_stop(struct engine *engine)
{
    if (engine->tuning)
        tune_stop(&engine->tuning->table);
}

bool tuner_runs(const struct engine *engine)
{
    return engine->tuner && engine->tuner->runs;
}

void tuner_join(struct engine *engine)
{
    if (!tuner_runs(engine))
        return;
    pthread_join(engine->tuner->thread, NULL);
    engine->tuner->runs = false;
}

void tuner_finish(struct engine *engine)
{
    if (!engine->tuner)
        return;
    probe_close(&engine->tuner->probe);
    free(engine->tuner);
    engine->tuner = NULL;
}
