// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// tuning.c - see tuning.h. The caller's answer never waits for a measurement: what is not known yet is computed as the kernel's own rule
// has it, and bits do not tell the difference.

#include "tuning.h"

#include "layout.h"
#include "probe.h"
#include "trial.h"
#include "tune_store.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    DEFAULT_TIME_MS = 200,
    DEFAULT_ENTRIES = 256,
    IDLE_MS = 5, // a measurement waits so long for the device to have nothing else to do
};

static const uint64_t default_memory = UINT64_C(256) << 20;

struct tuning {
    struct engine *engine;
    struct tune table;
    struct tune_store store;
    uint32_t time_ms;
    uint64_t memory_bytes; // of what a measurement makes up
    bool has_candidates;   // some kernel of the variant
    struct probe probe;    // its thread only
    pthread_t thread;
    bool runs;
};

// ---- choosing ----

static struct tune_key key_of(const struct tuning *tuning, const struct engine_run *run,
                              const struct geometry *geometry, uint64_t num_workgroups)
{
    uint64_t num_seqs = run->batch->num_seqs ? run->batch->num_seqs : 1;
    struct tune_key key = {
        .shader = tuning->store.kernels[geometry->kernel],
        .num_workgroups = tune_size(num_workgroups, MOST_WORKGROUPS),
        .num_keys = tune_size(run->batch->num_keys / num_seqs, MOST_KEYS),
        .num_splits = run->num_splits ? tune_size(run->num_splits, MOST_SPLITS) : 0,
    };
    memcpy(key.spec, geometry->spec, sizeof key.spec);
    key.spec[AULE_SPEC_LOCAL_SIZE] = 0;
    return key;
}

// What the table shall say of such a dispatch, but for results.
static struct tune_entry entry_of(const struct engine *engine, const struct kernel *kernel, const struct tune_key *key)
{
    struct tune_entry entry = {
        .key = *key,
        .rule_local_size =
            kernel_local_size(kernel, key->spec, key->num_workgroups, engine->device.adapter.num_multiprocessors),
        .ours = true,
    };
    snprintf(entry.kernel, sizeof entry.kernel, "%s", kernel->shader.name);
    return entry;
}

uint32_t tuning_local_size(const struct submission *s, const struct engine_run *run, const struct geometry *geometry,
                           uint64_t num_workgroups)
{
    const struct engine *engine = s->engine;
    const struct kernel *kernel = engine->pipelines.variant->kernels[geometry->kernel];
    uint32_t rule =
        kernel_local_size(kernel, geometry->spec, num_workgroups, engine->device.adapter.num_multiprocessors);
    if (!kernel->candidates)
        return rule;
    if (s->probe)
        return s->probe->local_size;
    if (num_workgroups >= UINT32_MAX)
        return rule;
    struct tune_key key = key_of(engine->tuning, run, geometry, num_workgroups);
    uint32_t chosen = tune_choice(&engine->tuning->table, &key);
    return chosen ? chosen : rule;
}

void tuning_want(const struct submission *s, const struct engine_run *run, const struct geometry *geometry,
                 uint64_t num_workgroups)
{
    const struct engine *engine = s->engine;
    const struct kernel *kernel = engine->pipelines.variant->kernels[geometry->kernel];
    if (!kernel->candidates)
        return;
    struct tune_key key = key_of(engine->tuning, run, geometry, num_workgroups);
    if (s->probe) {
        probe_note(s->probe, &key, geometry->spec[AULE_SPEC_LOCAL_SIZE]);
    } else if (tune_lacks(&engine->tuning->table, &key)) {
        struct tune_entry entry = entry_of(engine, kernel, &key);
        tune_want(&engine->tuning->table, &entry);
    }
}

// ---- measuring ----

// Other work is measured along with ours, and ours holds it up: better when there is none.
static void wait_for_rest(struct engine *engine)
{
    struct timespec deadline = deadline_in(IDLE_MS);
    int rc = 0;
    pthread_mutex_lock(&engine->lock);
    while ((engine->waiting || engine->flying) && !engine->lost && !engine->stopping && rc != ETIMEDOUT)
        rc = pthread_cond_timedwait(&engine->changed, &engine->lock, &deadline);
    pthread_mutex_unlock(&engine->lock);
}

// So that the submitter, who holds everybody's work, finds them in the driver's cache.
static enum status compile_candidates(struct tuning *tuning, const struct tune_entry *entry, uint32_t number,
                                      struct error *error)
{
    struct pipelines *pipelines = &tuning->engine->pipelines;
    const struct kernel *kernel = pipelines->variant->kernels[number];
    struct geometry geometry = {.kernel = number};
    enum status status = STATUS_OK;
    memcpy(geometry.spec, entry->key.spec, sizeof geometry.spec);
    for (const uint32_t *at = kernel->candidates; *at && status == STATUS_OK; at++) {
        geometry.spec[AULE_SPEC_LOCAL_SIZE] = *at;
        if (*at <= kernel->shader.local_size && tune_goes_on(&tuning->table, &entry->key))
            status = pipeline_warm(pipelines, &geometry, error);
    }
    return status;
}

static enum status try_candidates(struct tuning *tuning, const struct tune_entry *entry, struct trial *trial,
                                  struct error *error)
{
    enum status status = STATUS_OK;
    uint32_t local_size;
    while (status == STATUS_OK && (local_size = trial_next(trial, engine_now_ns())) &&
           tune_goes_on(&tuning->table, &entry->key)) {
        uint64_t gpu_ns;
        wait_for_rest(tuning->engine);
        status = probe_time(&tuning->probe, local_size, &gpu_ns, error);
        if (status == STATUS_OK)
            trial_add(trial, gpu_ns);
    }
    return status;
}

static enum status measure_with(struct tuning *tuning, struct tune_entry *entry, uint32_t number, struct error *error)
{
    const struct kernel *kernel = tuning->engine->pipelines.variant->kernels[number];
    struct trial trial;
    enum status status = probe_open(&tuning->probe, tuning->engine, &entry->key, tuning->memory_bytes, error);
    if (status == STATUS_OK)
        status = compile_candidates(tuning, entry, number, error);
    if (status != STATUS_OK)
        return status;
    trial_begin(&trial, kernel->candidates, kernel->shader.local_size, engine_now_ns(),
                tuning->time_ms * UINT64_C(1000000));
    status = try_candidates(tuning, entry, &trial, error);
    if (status == STATUS_OK && !trial_end(&trial, entry))
        status = error_set(error, STATUS_LIMIT, "--tune-time %u ms were too short", tuning->time_ms);
    return status;
}

static void tell(struct tuning *tuning, const struct tune_entry *entry, const struct error *error)
{
    char text[200];
    struct device *device = &tuning->engine->device;
    geometry_text(entry->key.spec, text, sizeof text);
    if (error->status != STATUS_OK)
        device_log(device, 1, "tuning: %s %s keeps to its rule: %s", entry->kernel, text, error->text);
    else
        device_log(device, 2,
                   "tuning: %s %s, %u workgroups, %u keys: %u invocations, %" PRIu64 " ns; by its rule %u, %" PRIu64
                   " ns",
                   entry->kernel, text, entry->key.num_workgroups, entry->key.num_keys, entry->local_size,
                   entry->gpu_ns, entry->rule_local_size, entry->rule_gpu_ns);
}

// Without the results of an earlier time.
static struct tune_entry blank(const struct tuning *tuning, const struct tune_entry *entry, uint32_t number)
{
    const struct engine *engine = tuning->engine;
    struct tune_entry out = *entry;
    out.local_size = out.num_candidates = out.num_samples = 0;
    out.gpu_ns = out.rule_gpu_ns = 0;
    if (number < MOST_KERNELS)
        out.rule_local_size = kernel_local_size(engine->pipelines.variant->kernels[number], entry->key.spec,
                                                entry->key.num_workgroups, engine->device.adapter.num_multiprocessors);
    return out;
}

// false: the device is lost, and what the GPU was given stays as it is until the engine ends.
static bool measure(struct tuning *tuning, const struct tune_entry *waiting)
{
    struct error error = {.status = STATUS_OK};
    uint32_t number = tune_store_kernel(&tuning->store, waiting->key.shader);
    struct tune_entry entry = blank(tuning, waiting, number);
    error.status = number < MOST_KERNELS ? measure_with(tuning, &entry, number, &error)
                                         : error_set(&error, STATUS_NOT_FOUND, "it is of another variant");
    if (engine_lost(tuning->engine))
        return false;
    probe_close(&tuning->probe);
    if (!tune_goes_on(&tuning->table, &waiting->key)) // it may wait for another time, or was forgotten
        return true;
    entry.state = error.status == STATUS_OK ? ENGINE_TUNE_MEASURED : ENGINE_TUNE_FAILED;
    tell(tuning, &entry, &error);
    tune_done(&tuning->table, &entry);
    return true;
}

static void *tuning_thread(void *argument)
{
    struct tuning *tuning = argument;
    struct engine *engine = tuning->engine;
    struct tune_task task;
    while (tune_wait(&tuning->table, &task)) {
        if (task.save)
            tune_store_save(&tuning->store, task.clear);
        if (task.measure && !measure(tuning, &task.entry))
            break;
    }
    pthread_mutex_lock(&engine->lock);
    engine->tuning_gone = true;
    pthread_cond_broadcast(&engine->changed);
    pthread_mutex_unlock(&engine->lock);
    return NULL;
}

// ---- life ----

static bool enabled(const struct engine *engine, enum engine_tune tune)
{
    return tune == ENGINE_TUNE_ON || (tune == ENGINE_TUNE_AUTO && !engine->device.adapter.info.software);
}

enum status tuning_init(struct engine *engine, const struct engine_params *params, struct error *error)
{
    const struct variant *variant = engine->pipelines.variant;
    struct tuning *tuning = engine->tuning = calloc(1, sizeof *tuning);
    if (!tuning)
        return error_set(error, STATUS_NO_MEMORY, "no memory for tuning");
    tuning->engine = engine;
    tuning->time_ms = params->tune_time_ms ? params->tune_time_ms : DEFAULT_TIME_MS;
    tuning->memory_bytes = params->tune_memory_bytes ? params->tune_memory_bytes : default_memory;
    for (uint32_t i = 0; i < variant->num_kernels; i++)
        tuning->has_candidates |= variant->kernels[i]->candidates != NULL;
    enum status status = tune_init(&tuning->table, enabled(engine, params->tune),
                                   params->max_tuned ? params->max_tuned : DEFAULT_ENTRIES, error);
    if (status == STATUS_OK)
        status = tune_store_init(&tuning->store, engine, &tuning->table, params->cache_folder, error);
    return status;
}

bool tuning_start(struct engine *engine)
{
    struct tuning *tuning = engine->tuning;
    tuning->runs = pthread_create(&tuning->thread, NULL, tuning_thread, tuning) == 0;
    return tuning->runs;
}

void tuning_stop(struct engine *engine)
{
    if (engine->tuning)
        tune_stop(&engine->tuning->table);
}

bool tuning_runs(const struct engine *engine)
{
    return engine->tuning && engine->tuning->runs;
}

void tuning_join(struct engine *engine)
{
    if (!tuning_runs(engine))
        return;
    pthread_join(engine->tuning->thread, NULL);
    engine->tuning->runs = false;
}

void tuning_finish(struct engine *engine)
{
    struct tuning *tuning = engine->tuning;
    if (!tuning)
        return;
    probe_close(&tuning->probe);
    tune_finish(&tuning->table);
    tune_store_finish(&tuning->store);
    free(tuning);
    engine->tuning = NULL;
}

// ---- engine.h ----

static void put_note(const struct tuning *tuning, const struct tune_counts *counts, struct engine_tuning *out)
{
    const struct engine *engine = tuning->engine;
    if (!tuning->has_candidates)
        snprintf(out->note, sizeof out->note,
                 "nothing can be tuned: no kernel of the attention shader %s has more than one way to the same bits",
                 engine_variant(engine));
    else if (counts->full)
        snprintf(out->note, sizeof out->note,
                 "the table is full (--max-tuned %u): further kinds of dispatches keep to their kernels' rules",
                 out->max_entries);
    else if (engine->device.adapter.info.software)
        snprintf(out->note, sizeof out->note, "on a software device tuning is off by default: it buys nothing there");
    else if (!tuning->store.path)
        snprintf(out->note, sizeof out->note, "nothing is kept: there is no folder for files");
}

void engine_tuning(const struct engine *engine, struct engine_tuning *out)
{
    struct tuning *tuning = engine->tuning;
    struct tune_counts counts = tune_count(&tuning->table);
    *out = (struct engine_tuning){
        .enabled = counts.enabled,
        .num_entries = counts.num_entries,
        .num_waiting = counts.num_waiting,
        .time_ms = tuning->time_ms,
        .max_entries = tuning->table.max_entries,
        .path = tuning->store.path ? tuning->store.path : "",
    };
    put_note(tuning, &counts, out);
}

bool engine_tuned_at(const struct engine *engine, uint32_t index, struct engine_tuned *out)
{
    struct tune_entry entry;
    if (!tune_at(&engine->tuning->table, index, &entry))
        return false;
    *out = (struct engine_tuned){
        .state = entry.state,
        .num_workgroups = entry.key.num_workgroups,
        .num_keys = entry.key.num_keys,
        .local_size = entry.local_size ? entry.local_size : entry.rule_local_size,
        .rule_local_size = entry.rule_local_size,
        .gpu_ns = entry.gpu_ns,
        .rule_gpu_ns = entry.rule_gpu_ns,
        .num_candidates = entry.num_candidates,
        .num_samples = entry.num_samples,
    };
    memcpy(out->kernel, entry.kernel, sizeof out->kernel);
    geometry_text(entry.key.spec, out->geometry, sizeof out->geometry);
    return true;
}

void engine_tune(struct engine *engine, enum engine_tune_action action)
{
    struct tune *table = &engine->tuning->table;
    switch (action) {
    case ENGINE_TUNE_RENEW: tune_renew(table); break;
    case ENGINE_TUNE_CLEAR: tune_clear(table); break;
    case ENGINE_TUNE_DISABLE: tune_enable(table, false); break;
    case ENGINE_TUNE_ENABLE: tune_enable(table, true); break;
    }
}
