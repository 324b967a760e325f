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
};

struct variant {
    struct shader shader;
    uint32_t tile_rows;     // rows of one work item
    uint32_t shared_memory; // bytes that it needs of a workgroup
    uint32_t max_head_dim;
    bool (*fits)(const struct adapter *adapter); // what else it needs; NULL = nothing
};

extern const struct shader shader_kv_write, shader_zero;

// The first of the table that runs on `adapter`; NULL if none does.
const struct variant *variant_choose(const struct adapter *adapter);
uint32_t variant_least_shared_memory(void); // bytes a workgroup, without which none does

#endif
