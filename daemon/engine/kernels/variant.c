// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// variant.c - finds the variant that a device can run, and the kernel that a sequence goes to. Also
// the shaders that all variants use beside attention. Any thread; no state.

#include "variant.h"

#include "attention_merge_spv.h"
#include "copy_spv.h"
#include "kv_gather_spv.h"
#include "kv_write_spv.h"
#include "matrix_probe_emulated_bf16_spv.h"
#include "matrix_probe_emulated_spv.h"
#include "merge_spv.h"
#ifdef AULE_HAVE_MATRIX
#include "matrix_probe_bf16_spv.h"
#include "matrix_probe_matrix_spv.h"
#endif

#include <stdio.h>
#include <string.h>

const struct shader shader_splits = {"attention_merge", attention_merge_spv,
                                     sizeof attention_merge_spv, 128, false};
const struct shader shader_kv_write = {"kv_write", kv_write_spv, sizeof kv_write_spv, 128, false};
const struct shader shader_gather = {"kv_gather", kv_gather_spv, sizeof kv_gather_spv, 128, false};
const struct shader shader_copy = {"copy", copy_spv, sizeof copy_spv, 128, false};
const struct shader shader_merge = {"merge", merge_spv, sizeof merge_spv, 128, false};
const struct shader shader_matrix_probe_emulated = {"matrix_probe_emulated",
                                                    matrix_probe_emulated_spv,
                                                    sizeof matrix_probe_emulated_spv, 64, false};
const struct shader shader_matrix_probe_emulated_bf16 = {
    "matrix_probe_emulated_bf16", matrix_probe_emulated_bf16_spv,
    sizeof matrix_probe_emulated_bf16_spv, 64, false};
#ifdef AULE_HAVE_MATRIX
const struct shader shader_matrix_probe = {"matrix_probe", matrix_probe_matrix_spv,
                                           sizeof matrix_probe_matrix_spv, 64, true};
const struct shader shader_matrix_probe_bf16 = {"matrix_probe_bf16", matrix_probe_bf16_spv,
                                                sizeof matrix_probe_bf16_spv, 64, true};
#endif

const struct variant *variant_at(uint32_t index)
{
    return index < num_variants ? &variants[index] : NULL;
}

static uint32_t shared_memory(const struct variant *variant)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < variant->num_kernels; i++)
        if (variant->kernels[i]->shared_memory > most)
            most = variant->kernels[i]->shared_memory;
    return most;
}

static uint32_t invocations(const struct variant *variant)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < variant->num_kernels; i++)
        if (variant->kernels[i]->shader.local_size > most)
            most = variant->kernels[i]->shader.local_size;
    return most;
}

void variant_missing(const struct variant *variant, const struct adapter *adapter, char *text,
                     size_t size)
{
    text[0] = '\0';
    // First: without these, more shared memory would not help.
    if (variant->missing)
        variant->missing(adapter, text, size);
    if (text[0])
        return;
    if (adapter->info.shared_memory_bytes < shared_memory(variant))
        snprintf(text, size, "shared memory: a workgroup needs %u bytes, it has %u",
                 shared_memory(variant), adapter->info.shared_memory_bytes);
    else if (adapter->max_invocations < invocations(variant))
        snprintf(text, size, "workgroups of %u invocations (it has %u)", invocations(variant),
                 adapter->max_invocations);
}

static enum status unknown(const char *name, struct error *error)
{
    char names[128];
    size_t used = 0;
    for (uint32_t i = 0; i < num_variants && used < sizeof names; i++)
        used += (size_t)snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "",
                                 variants[i].name);
    return error_set(error, STATUS_NOT_FOUND, "no attention variant is \"%.64s\"; there are %s",
                     name, names);
}

enum status variant_choose(const struct adapter *adapter, const char *name,
                           const struct variant **out, struct error *error)
{
    char missing[256] = "";
    const struct variant *tried = NULL; // the last one is the least demanding
    bool any = !name || !name[0];
    for (uint32_t i = 0; i < num_variants; i++) {
        if (any ? variants[i].only_by_name : strcmp(variants[i].name, name) != 0)
            continue;
        tried = &variants[i];
        variant_missing(&variants[i], adapter, missing, sizeof missing);
        if (missing[0] == '\0') {
            *out = &variants[i];
            return STATUS_OK;
        }
    }
    if (!tried)
        return unknown(name, error);
    return error_set(error, STATUS_UNSUPPORTED,
                     "attention variant %s does not run on %.100s, which lacks %.160s", tried->name,
                     adapter->info.name, missing);
}

uint32_t variant_least_shared_memory(void)
{
    uint32_t least = UINT32_MAX;
    for (uint32_t i = 0; i < num_variants; i++)
        if (shared_memory(&variants[i]) < least)
            least = shared_memory(&variants[i]);
    return least;
}

// ---- which kernel serves a sequence ----

uint32_t variant_serving(const struct variant *variant, const struct geometry *geometry)
{
    uint32_t serving = 0;
    for (uint32_t i = 0; i < variant->num_kernels; i++)
        if (!variant->kernels[i]->serves || variant->kernels[i]->serves(geometry))
            serving |= 1u << i;
    return serving;
}

uint32_t variant_helper(const struct variant *variant, uint32_t serving, uint32_t kernel)
{
    for (uint32_t i = kernel + 1; i < variant->num_kernels; i++)
        if (serving & 1u << i && variant->kernels[i]->helps == variant->kernels[kernel])
            return i;
    return NO_KERNEL;
}

// A sequence without queries may have tiles that need zeros; only the last kernel writes them.
uint32_t variant_kernel(const struct variant *variant, uint32_t serving, uint64_t rows,
                        uint64_t kv_len)
{
    uint32_t last = variant->num_kernels - 1;
    for (uint32_t i = 0; rows > 0 && i < last; i++)
        if (serving & 1u << i && kernel_takes(variant->kernels[i], rows, kv_len))
            return i;
    return last;
}
