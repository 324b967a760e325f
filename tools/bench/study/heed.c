// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// heed.c - see heed.h. It knows no device: what depends on the device is checked where it is
// opened.

#include "heed.h"

#include "engine/measuring.h"
#include "study.h"

#include <stdio.h>

static bool is_study(const struct workload *workload)
{
    return workload->kind == WORKLOAD_STUDY;
}

static bool types_heed(const struct workload *workload, const struct options *options)
{
    enum dtype dtype = options->dtype, kv_dtype = options->kv_dtype;
    if (workload->kv_dtype && kv_dtype && kv_dtype != workload->kv_dtype)
        fprintf(stderr, "aule-bench: %s has K and V in %s and cannot take --kv-dtype %s\n",
                workload->name, dtype_name((int)workload->kv_dtype), dtype_name((int)kv_dtype));
    else if (workload->kind == WORKLOAD_APPEND && kv_dtype && kv_dtype != dtype)
        fprintf(stderr,
                "aule-bench: %s checks what it wrote bit for bit: K and V want the type of q, %s, "
                "not %s\n",
                workload->name, dtype_name((int)dtype), dtype_name((int)kv_dtype));
    else if (options->token_scales && dtype_size(workload_kv_dtype(workload, dtype, kv_dtype)) > 1)
        fprintf(stderr, "aule-bench: --token-scales needs K and V of 8 bits: --kv-dtype fp8_e4m3, "
                        "fp8_e5m2 or int8\n");
    else
        return true;
    return false;
}

// The check reads elements in groups of eight.
static bool dim_heeds(const struct options *options)
{
    if (options->head_dim % 8 == 0 && options->head_dim <= measuring_most_head_dim())
        return true;
    fprintf(stderr, "aule-bench: --head-dim %u is no multiple of 8 up to %u\n", options->head_dim,
            measuring_most_head_dim());
    return false;
}

// Workloads that measure blocks need blocks.
static bool place_heeds(const struct workload *workload, const struct options *options)
{
    if (!options->contiguous ||
        (workload->kind != WORKLOAD_APPEND && workload->kind != WORKLOAD_GROWTH))
        return true;
    fprintf(stderr, "aule-bench: %s measures blocks, and --contiguous has none\n", workload->name);
    return false;
}

static bool clients_heed(const struct workload *workload, const struct options *options)
{
    uint32_t count = options->clients;
    if (options->via == VIA_ENGINE)
        return true;
    if (workload->kind != WORKLOAD_ATTEND)
        fprintf(stderr, "aule-bench: %s is measured with --via engine only\n", workload->name);
    else if (workload_num_seqs(workload) < count)
        fprintf(stderr, "aule-bench: %s has %u sequences, too few for %u clients\n", workload->name,
                workload_num_seqs(workload), count);
    else
        return true;
    return false;
}

// Options of a few studies, which no workload takes.
static bool study_options_heed(const struct workload *workload, const struct options *options)
{
    static const char *const only[][2] = {
        {"prompt", "studies share and tiers"},
        {"full", "studies share, tiers and isolation"},
        {"whole-steps", "study share"},
        {"second-device", "study tiers"},
    };
    for (size_t i = 0; i < sizeof only / sizeof *only; i++) {
        if (!options_gave(options, only[i][0]))
            continue;
        fprintf(stderr, "aule-bench: --%s goes with the %s only, not with %s\n", only[i][0],
                only[i][1], workload->name);
        return false;
    }
    return true;
}

// A study names the options that it does not take itself, in clearer words.
static bool heeds(const struct workload *workload, const struct options *options)
{
    if (is_study(workload))
        return study_takes(workload->name, options);
    return types_heed(workload, options) && dim_heeds(options) && place_heeds(workload, options) &&
           clients_heed(workload, options) && study_options_heed(workload, options);
}

bool all_heed(const struct selection *selection, const struct options *options)
{
    bool daemon = options->via != VIA_ENGINE;
    for (uint32_t i = 0; i < selection->count; i++) {
        const struct workload *workload = &selection->list[i];
        if (!heeds(workload, options))
            return false;
        daemon |= is_study(workload) && study_starts_daemon(workload->name);
    }
    if (options->clients > 1 && options->via == VIA_ENGINE)
        fprintf(stderr,
                "aule-bench: --clients %u needs --via nng or ring: an engine serves one process\n",
                options->clients);
    else if (options->daemon && !daemon)
        fprintf(stderr,
                "aule-bench: --daemon does not go with --via engine, which starts no daemon\n");
    else
        return true;
    return false;
}
