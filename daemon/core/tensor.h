// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// tensor.h - do the tensors of a run lie inside the arena, aligned, of one element type, and is `out` free to be written?
// Arithmetic only: knows no session.

#ifndef AULE_CORE_TENSOR_H
#define AULE_CORE_TENSOR_H

#include "core.h"

struct tensor_use {
    const char *name;
    const struct core_tensor *tensor; // [num_tokens, heads, head_dim]
    uint32_t heads, head_dim;
    enum dtype dtype; // that it must have; 0 = that of the first tensor, one that q, k, v and out may have
    bool written;     // by the run
};

// The rows of a tensor that is written must nest: one stride steps over all rows of the other dimension. They must not
// overlap any other tensor: this is exact if both have the same strides (slices of one fused tensor interleave) or one of the
// two fills its range without gaps; any other pair is refused only if shown to overlap by that, and else is the client's
// own affair, since nothing outside its arena can be touched.
enum status tensor_check_run(const struct tensor_use *uses, uint32_t count, uint32_t num_tokens, uint64_t arena_size,
                             struct error *error);

#endif
