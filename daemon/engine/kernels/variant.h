// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// variant.h - variants: lists of attention kernels, of which an engine uses one. Also the shaders
// beside attention. Knows kernels and devices, not runs. Any thread; no state.

#ifndef AULE_ENGINE_VARIANT_H
#define AULE_ENGINE_VARIANT_H

#include "engine/vulkan/adapter.h"
#include "kernel.h"

enum { MOST_KERNELS = 10 }; // of one variant

struct variant {
    const char *name;
    const char *needs; // from the device; for people
    // A sequence goes to the first kernel that serves it. The last kernel serves everything.
    const struct kernel *kernels[MOST_KERNELS];
    uint32_t num_kernels;
    bool only_by_name; // never chosen by default: for tests
    // Writes what else `adapter` lacks for this variant, as words behind "lacks"; "" = nothing.
    // NULL = it needs nothing else.
    void (*missing)(const struct adapter *adapter, char *text, size_t size);
};

extern const struct variant variants[]; // table.c; best first
extern const uint32_t num_variants;

extern const struct shader shader_splits, shader_kv_write, shader_gather, shader_copy, shader_merge;
extern const struct shader shader_matrix_probe_emulated, shader_matrix_probe_emulated_bf16;
#ifdef AULE_HAVE_MATRIX
extern const struct shader shader_matrix_probe, shader_matrix_probe_bf16;
#endif

// Variant `index` of the table, best first; NULL: there are no more.
const struct variant *variant_at(uint32_t index);
// Writes what `adapter` lacks to run `variant`; "" = it runs there.
void variant_missing(const struct variant *variant, const struct adapter *adapter, char *text,
                     size_t size);
// Finds the variant with that name. Without a name (NULL or "") it is the first one that runs on
// `adapter`. NOT_FOUND: the error lists the names. UNSUPPORTED: the error says what the device
// lacks.
enum status variant_choose(const struct adapter *adapter, const char *name,
                           const struct variant **out, struct error *error);
uint32_t variant_least_shared_memory(void); // of a workgroup, in bytes; no variant runs with less

// The kernels that serve `geometry`: bit i stands for kernel i.
uint32_t variant_serving(const struct variant *variant, const struct geometry *geometry);
// The kernel among these for a sequence of `rows` rows for one KV head and `kv_len` keys.
uint32_t variant_kernel(const struct variant *variant, uint32_t serving, uint64_t rows,
                        uint64_t kv_len);
// The cascade kernel for kernel `kernel`, among these; it stands later in the list.
// NO_KERNEL: there is none.
#define NO_KERNEL UINT32_MAX
uint32_t variant_helper(const struct variant *variant, uint32_t serving, uint32_t kernel);

#endif
