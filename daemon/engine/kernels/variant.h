// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// variant.h - the variants: lists of attention kernels, of which an engine uses one. Also the
// shaders that all variants share.

#ifndef AULE_ENGINE_VARIANT_H
#define AULE_ENGINE_VARIANT_H

#include "engine/vulkan/adapter.h"
#include "kernel.h"

enum { MOST_KERNELS = 10 }; // of one variant

struct variant {
    const char *name;
    const char *needs; // of the device, as a sentence for people
    // A sequence goes to the first kernel that serves it. The last one serves all.
    const struct kernel *kernels[MOST_KERNELS];
    uint32_t num_kernels;
    bool only_by_name; // for tests: never chosen by itself
    // Fills `text` with what `adapter` lacks beside shared memory and invocations, as words behind
    // "lacks"; "": nothing. NULL: the variant needs nothing else.
    void (*missing)(const struct adapter *adapter, char *text, size_t size);
};

extern const struct variant variants[]; // table.c; best first
extern const uint32_t num_variants;

extern const struct shader shader_splits, shader_kv_write, shader_gather, shader_copy, shader_merge;
extern const struct shader shader_matrix_probe_emulated, shader_matrix_probe_emulated_bf16;
#ifdef AULE_HAVE_MATRIX
extern const struct shader shader_matrix_probe, shader_matrix_probe_bf16;
#endif

// Row `index` of the table, best first; NULL: there are no more.
const struct variant *variant_at(uint32_t index);
// Fills `text` with what `adapter` lacks to run `variant`; "": it runs there.
void variant_missing(const struct variant *variant, const struct adapter *adapter, char *text,
                     size_t size);
// The variant `name`, or for NULL and "" the first that runs on `adapter`. NOT_FOUND lists the
// names, UNSUPPORTED says what is missing.
enum status variant_choose(const struct adapter *adapter, const char *name,
                           const struct variant **out, struct error *error);
uint32_t variant_least_shared_memory(void); // bytes a workgroup; with less, no variant runs

// Which kernels of the list serve `geometry`: bit i is for kernel i.
uint32_t variant_serving(const struct variant *variant, const struct geometry *geometry);
// The kernel among `serving` for a sequence of `rows` rows of queries a KV head and `kv_len` keys.
uint32_t variant_kernel(const struct variant *variant, uint32_t serving, uint64_t rows,
                        uint64_t kv_len);
// The kernel among `serving` that computes what sequences of `kernel` share. It stands behind
// `kernel` in the list.
#define NO_KERNEL UINT32_MAX
uint32_t variant_helper(const struct variant *variant, uint32_t serving, uint32_t kernel);

#endif
