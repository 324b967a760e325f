// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// served.c - see served.h.

#include "served.h"

#include "cut.h"
#include "variant.h"

#include <stdio.h>

void served_text(const struct engine *engine, const struct engine_run *run, const struct shape *shape, char *text,
                 size_t size)
{
    const struct variant *variant = engine->pipelines.variant;
    const struct geometry geometry = geometry_of_run(run);
    uint32_t serving = variant_serving(variant, &geometry), counts[MOST_KERNELS] = {0};
    uint32_t group = shape->workload->num_heads / shape->workload->num_kv_heads;
    size_t used = 0;
    text[0] = 0;
    for (uint32_t s = 0; s < shape->num_seqs; s++) {
        uint64_t q_len = (uint64_t)(shape->cu_seqlens_q[s + 1] - shape->cu_seqlens_q[s]);
        counts[variant_kernel(variant, serving, q_len * group, (uint64_t)shape->seq_lens_kv[s])]++;
    }
    for (uint32_t i = 0; i < variant->num_kernels && used < size; i++) {
        if (counts[i])
            used += (size_t)snprintf(text + used, size - used, "%s%s %u", used ? ", " : "",
                                     variant->kernels[i]->shader.name, counts[i]);
    }
    struct cutting cutting = cutting_of_run(run);
    struct cuts cuts;
    if (!cuts_make(&cuts, run->batch, &cutting))
        return;
    if (cuts.crowds.num_crowds && used < size)
        snprintf(text + used, size - used, ", %s %u shared parts", variant->kernels[cuts.helper]->shader.name,
                 cuts.crowds.num_crowds);
    cuts_finish(&cuts);
}
