// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// variant.h - lists of attention kernels, of which an engine uses one; and the shaders beside them.

#ifndef AULE_ENGINE_VARIANT_H
#define AULE_ENGINE_VARIANT_H

#include "engine/vulkan/adapter.h"
#include "kernel.h"

enum { MOST_KERNELS = 10 }; // of one variant

struct variant {
    const char *name;
    const char *needs;                          // of the device, as a sentence for people
    const struct kernel *kernels[MOST_KERNELS]; // a sequence goes to the first that serves it; the
                                                // last one serves all
    uint32_t num_kernels;
    bool only_by_name; // for tests: never chosen by itself
    // What else it needs and `adapter` lacks, as words behind "lacks"; "" = nothing. NULL = it
    // needs nothing else.
    void (*missing)(const struct adapter *adapter, char *text, size_t size);
};

extern const struct variant variants[]; // table.c; best first
extern const uint32_t num_variants;

extern const struct shader shader_splits, shader_kv_write, shader_gather, shader_copy, shader_merge;
extern const struct shader shader_matrix_probe_emulated, shader_matrix_probe_emulated_bf16;
#ifdef AULE_HAVE_MATRIX
extern const struct shader shader_matrix_probe, shader_matrix_probe_bf16;
#endif

// Number `index` of the table, best first; NULL: there are no more.
const struct variant *variant_at(uint32_t index);
// Fills `text` with what `adapter` lacks to run `variant`, whether it would be chosen or not; "" =
// it runs there.
void variant_missing(const struct variant *variant, const struct adapter *adapter, char *text,
                     size_t size);
// The one with that name, or without a name (NULL, "") the first that runs on `adapter`. NOT_FOUND
// lists the names, UNSUPPORTED says what is missing.
enum status variant_choose(const struct adapter *adapter, const char *name,
                           const struct variant **out, struct error *error);
uint32_t variant_least_shared_memory(void); // bytes a workgroup, without which none runs

// Which kernels of the list serve `geometry`: bit i is kernel i's.
uint32_t variant_serving(const struct variant *variant, const struct geometry *geometry);
// Of those, the number of the one that a sequence of `rows` rows of queries a KV head and `kv_len`
// keys goes to.
uint32_t variant_kernel(const struct variant *variant, uint32_t serving, uint64_t rows,
                        uint64_t kv_len);
// And the number of the one that helps that one with what its sequences share. It stands behind it
// in the list.
#define NO_KERNEL UINT32_MAX
uint32_t variant_helper(const struct variant *variant, uint32_t serving, uint32_t kernel);

#endif
