// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// served.c - see served.h.

#include "served.h"

#include <stdio.h>

enum { MOST_KERNELS = 16 }; // a variant has fewer

void served_text(const struct engine *engine, const struct engine_run *run,
                 const struct shape *shape, char *text, size_t size)
{
    uint32_t counts[MOST_KERNELS] = {0}, num_parts;
    const char *name;
    size_t used = 0;
    text[0] = 0;
    for (uint32_t s = 0; s < shape->num_seqs; s++) {
        uint64_t q_len = (uint64_t)(shape->cu_seqlens_q[s + 1] - shape->cu_seqlens_q[s]);
        uint32_t kernel = measuring_kernel_of(run, q_len, (uint64_t)shape->seq_lens_kv[s]);
        counts[kernel < MOST_KERNELS ? kernel : MOST_KERNELS - 1]++;
    }
    for (uint32_t i = 0; i < MOST_KERNELS && used < size && (name = measuring_kernel(engine, i));
         i++) {
        if (counts[i])
            used += (size_t)snprintf(text + used, size - used, "%s%s %u", used ? ", " : "", name,
                                     counts[i]);
    }
    if ((num_parts = measuring_shared_parts(run, &name)) && used < size)
        snprintf(text + used, size - used, ", %s %u shared parts", name, num_parts);
}
