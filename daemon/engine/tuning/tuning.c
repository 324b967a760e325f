// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// tuning.c - see tuning.h. A caller's answer never waits for a measurement: until then the kernel's
// own rule holds, and the bits are the same.

#include "tuning.h"

#include "engine/memory/batch.h"
#include "engine/state/state.h"
#include "shaders/layout.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_TIME_MS = 200, DEFAULT_ENTRIES = 256 };

// ---- choosing ----

uint32_t tuning_keys(const struct engine_run *run)
{
    uint64_t num_seqs = run->batch->num_seqs ? run->batch->num_seqs : 1;
    return tune_size(run->batch->num_keys / num_seqs, MOST_KEYS);
}

static struct tune_key key_of(const struct tuning *tuning, const struct engine_run *run,
                              const struct geometry *geometry, uint64_t num_workgroups)
{
    struct tune_key key = {
        .shader = tuning->store.kernels[geometry->kernel],
        .num_workgroups = tune_size(num_workgroups, MOST_WORKGROUPS),
        .num_keys = tuning_keys(run),
        .num_splits = run->num_splits ? tune_size(run->num_splits, MOST_SPLITS) : 0,
    };
    memcpy(key.spec, geometry->spec, sizeof key.spec);
    key.spec[AULE_SPEC_LOCAL_SIZE] = 0;
    return key;
}

// The table's entry for such a dispatch, without results.
static struct tune_entry entry_of(const struct engine *engine, const struct kernel *kernel,
                                  const struct tune_key *key)
{
    struct tune_entry entry = {
        .key = *key,
        .rule_local_size = kernel_local_size(kernel, key->spec, key->num_workgroups,
                                             engine->device.adapter.info.num_multiprocessors),
        .ours = true,
    };
    snprintf(entry.kernel, sizeof entry.kernel, "%s", kernel->shader.name);
    return entry;
}

uint32_t tuning_local_size(const struct engine *engine, const struct sample *sample,
                           const struct engine_run *run, const struct geometry *geometry,
                           uint64_t num_workgroups)
{
    const struct kernel *kernel = engine->pipelines.variant->kernels[geometry->kernel];
    uint32_t rule = kernel_local_size(kernel, geometry->spec, num_workgroups,
                                      engine->device.adapter.info.num_multiprocessors);
    if (!kernel->candidates)
        return rule;
    if (sample)
        return sample->local_size;
    if (num_workgroups >= UINT32_MAX)
        return rule;
    struct tune_key key = key_of(engine->tuning, run, geometry, num_workgroups);
    uint32_t chosen = tune_choice(&engine->tuning->table, &key);
    return chosen ? chosen : rule;
}

// A plan may have had to take another local size than the sample asks for.
static void note_sample(struct sample *sample, const struct tune_key *key, uint32_t local_size)
{
    sample->is_kind = local_size == sample->local_size && key->shader == sample->key.shader &&
                      memcmp(key->spec, sample->key.spec, sizeof key->spec) == 0;
}

void tuning_want(const struct engine *engine, struct sample *sample, const struct engine_run *run,
                 const struct geometry *geometry, uint64_t num_workgroups)
{
    const struct kernel *kernel = engine->pipelines.variant->kernels[geometry->kernel];
    if (!kernel->candidates)
        return;
    struct tune_key key = key_of(engine->tuning, run, geometry, num_workgroups);
    if (sample) {
        note_sample(sample, &key, geometry->spec[AULE_SPEC_LOCAL_SIZE]);
    } else if (tune_lacks(&engine->tuning->table, &key)) {
        struct tune_entry entry = entry_of(engine, kernel, &key);
        tune_want(&engine->tuning->table, &entry);
    }
}

// ---- life ----

static bool enabled(const struct engine *engine, enum engine_tune tune)
{
    return tune == ENGINE_TUNE_ON ||
           (tune == ENGINE_TUNE_AUTO && !engine->device.adapter.info.software);
}

enum status tuning_init(struct engine *engine, const struct engine_params *params,
                        struct error *error)
{
    const struct variant *variant = engine->pipelines.variant;
    struct tuning *tuning = engine->tuning = calloc(1, sizeof *tuning);
    if (!tuning)
        return error_set(error, STATUS_NO_MEMORY, "no memory for tuning");
    tuning->time_ms = params->tune_time_ms ? params->tune_time_ms : DEFAULT_TIME_MS;
    for (uint32_t i = 0; i < variant->num_kernels; i++)
        tuning->has_candidates |= variant->kernels[i]->candidates != NULL;
    enum status status = tune_init(&tuning->table, enabled(engine, params->tune),
                                   params->max_tuned ? params->max_tuned : DEFAULT_ENTRIES, error);
    if (status == STATUS_OK)
        status =
            tune_store_init(&tuning->store, engine, &tuning->table, params->cache_folder, error);
    return status;
}

void tuning_finish(struct engine *engine)
{
    struct tuning *tuning = engine->tuning;
    if (!tuning)
        return;
    tune_finish(&tuning->table);
    tune_store_finish(&tuning->store);
    free(tuning);
    engine->tuning = NULL;
}

// ---- engine.h ----

static void put_note(const struct engine *engine, const struct tune_counts *counts,
                     struct engine_tuning *out)
{
    const struct tuning *tuning = engine->tuning;
    if (!tuning->has_candidates)
        snprintf(out->note, sizeof out->note,
                 "nothing can be tuned: no kernel of the attention shader %s has more than one way "
                 "to the same bits",
                 engine_variant(engine));
    else if (counts->full)
        snprintf(out->note, sizeof out->note,
                 "the table is full (--max-tuned %u): further kinds of dispatches keep to their "
                 "kernels' rules",
                 out->max_entries);
    else if (engine->device.adapter.info.software)
        snprintf(out->note, sizeof out->note,
                 "on a software device tuning is off by default: it buys nothing there");
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
    put_note(engine, &counts, out);
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
