// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// variant.h - the attention shaders that there are, and the shaders beside them.

#ifndef AULE_ENGINE_VARIANT_H
#define AULE_ENGINE_VARIANT_H

#include "adapter.h"

struct shader {
    const char *name;
    const uint32_t *code; // SPIR-V
    size_t size;          // bytes
    uint32_t local_size;  // invocations a workgroup
    bool full_subgroups;  // all subgroups full, of the adapter's usual size where the device lets us ask for it
};

struct variant {
    struct shader shader;
    const char *needs;                                 // of the device, as a sentence for people
    uint32_t (*tile_rows)(const struct engine_kv *kv); // rows of one work item
    uint32_t shared_memory;                            // bytes that its largest pipeline needs of a workgroup
    uint32_t split_keys;                               // num_splits 0: a part of a sequence that is cut
    uint32_t split_rows;                               // num_splits 0: sequences of more rows a KV head are not cut
    // What else it needs and `adapter` lacks, as words behind "lacks"; "" = nothing. NULL = it needs nothing else.
    void (*missing)(const struct adapter *adapter, char *text, size_t size);
};

extern const struct shader shader_splits, shader_kv_write, shader_gather, shader_copy, shader_merge;

// Number `index` of the table, best first; NULL: there are no more.
const struct variant *variant_at(uint32_t index);
// Fills `text` with what `adapter` lacks for `variant`; "" = it runs there.
void variant_missing(const struct variant *variant, const struct adapter *adapter, char *text, size_t size);
// The one with that name, or without a name (NULL, "") the first that runs on `adapter`. NOT_FOUND lists the names, UNSUPPORTED says
// what is missing.
enum status variant_choose(const struct adapter *adapter, const char *name, const struct variant **out,
                           struct error *error);
uint32_t variant_least_shared_memory(void); // bytes a workgroup, without which none runs

#endif
