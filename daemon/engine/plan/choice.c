// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// choice.c - see choice.h. Submitter only; no state.

#include "choice.h"

#include "engine/state/state.h"
#include "items.h"
#include "run_geometry.h"
#include "submission.h"

#include <string.h>

// The local size by the kernel's rule, for a dispatch of so many workgroups.
static uint32_t size_for(const struct submission *s, const struct geometry *geometry,
                         uint64_t num_workgroups)
{
    return kernel_local_size(s->engine->pipelines.variant->kernels[geometry->kernel],
                             geometry->spec, num_workgroups,
                             s->engine->device.adapter.info.num_multiprocessors);
}

// The local size for so many workgroups in a wave. All sizes give the same bits. A run
// with a line must not wait for a pipeline because of its neighbours: unless the pipeline of that
// size is there, the size is what the run would have alone, and the other one is compiled
// beforehand.
static uint32_t size_in_wave(const struct submission *s, const struct engine_run *run,
                             const struct geometry *geometry, uint64_t num_workgroups)
{
    struct pipelines *pipelines = &s->engine->pipelines;
    const uint64_t own_workgroups = batch_workgroups(run->batch);
    struct geometry wave = *geometry, own = *geometry;
    uint32_t *wave_size = &wave.spec[AULE_SPEC_LOCAL_SIZE],
             *own_size = &own.spec[AULE_SPEC_LOCAL_SIZE];
    *wave_size = size_for(s, geometry, num_workgroups);
    if (!run->line || num_workgroups == own_workgroups ||
        pipelines->variant->kernels[geometry->kernel]->is_native)
        return *wave_size;
    *own_size = size_for(s, geometry, own_workgroups);
    if (*wave_size == *own_size || !pipeline_is_there(pipelines, &own, false, run->payer))
        return *own_size;
    return pipeline_is_there(pipelines, &wave, true, run->payer) ? *wave_size : *own_size;
}

// The geometry of the run's share for kernel number `kernel`. SPLIT depends on the run, not on its
// neighbours, so a sequence uses the same pipeline alone and in company. COMPANY changes only which
// run a cascade's member belongs to, no bit.
static struct geometry geometry_of_kernel(const struct submission *s, const struct engine_run *run,
                                          uint32_t kernel, uint64_t num_workgroups)
{
    const struct kernel *with = s->engine->pipelines.variant->kernels[kernel];
    // A size that needs halves is no choice for a run that may not be cut.
    bool whole = num_workgroups == UINT64_MAX ||
                 (with->half_local_size && !kernel_may_cut(with, run->num_splits));
    struct geometry geometry = geometry_of_run(run);
    geometry.kernel = kernel;
    geometry.spec[AULE_SPEC_TILE_ROWS] = with->tile_rows(&run->batch->kv);
    geometry.spec[AULE_SPEC_FEATURES] |=
        kernel_may_cut(with, run->num_splits) ? AULE_FEATURE_SPLIT : 0;
    geometry.spec[AULE_SPEC_LOCAL_SIZE] = whole ? size_for(s, &geometry, UINT64_MAX)
                                                : size_in_wave(s, run, &geometry, num_workgroups);
    if (with->helps && s->in_company)
        geometry.spec[AULE_SPEC_FEATURES] |= AULE_FEATURE_COMPANY;
    return geometry;
}

static struct choice_inputs inputs_of(const struct submission *s, const struct engine_run *run,
                                      const struct cutting *cutting, uint64_t num_workgroups)
{
    return (struct choice_inputs){
        .geometry = geometry_of_run(run),
        .group = cutting->group,
        .num_splits = cutting->num_splits,
        .serving = cutting->serving,
        .has_line = run->line != 0,
        .alone = cutting->alone,
        .in_company = s->in_company,
        .is_known = true,
        .num_slices = cutting->num_slices,
        .most_keys = cutting->most_keys,
        .num_workgroups = num_workgroups,
        .own_workgroups = batch_workgroups(run->batch),
    };
}

static void make(struct choice *choice, const struct submission *s, const struct engine_run *run,
                 const struct cutting *cutting, uint64_t num_workgroups)
{
    const struct variant *variant = s->engine->pipelines.variant;
    choice->cutting = *cutting;
    for (uint32_t i = 0; i < variant->num_kernels; i++) {
        // The last kernel also gets sequences without queries.
        if (!(choice->cutting.serving >> i & 1) && i != variant->num_kernels - 1) {
            choice->geometries[i] = (struct geometry){0};
            continue;
        }
        choice->geometries[i] = geometry_of_kernel(s, run, i, num_workgroups);
        if (kernel_cuts_halves(variant->kernels[i], run->num_splits,
                               choice->geometries[i].spec[AULE_SPEC_LOCAL_SIZE]))
            choice->cutting.halves |= 1u << i;
    }
}

void choice_make(struct choice *choice, struct submission *s, const struct engine_run *run,
                 uint64_t num_workgroups, bool alone)
{
    struct choice_memo *memo = &s->choice_memo;
    struct cutting cutting = cutting_of_run(run);
    cutting.alone = alone;
    const struct choice_inputs inputs = inputs_of(s, run, &cutting, num_workgroups);
    if (memcmp(&memo->inputs, &inputs, sizeof inputs) != 0) {
        make(&memo->choice, s, run, &cutting, num_workgroups);
        memo->inputs = inputs;
    }
    *choice = memo->choice;
}

bool choice_same(const struct choice *a, const struct choice *b, uint32_t num_kernels)
{
    return cutting_same(&a->cutting, &b->cutting) &&
           memcmp(a->geometries, b->geometries, num_kernels * sizeof *a->geometries) == 0;
}
