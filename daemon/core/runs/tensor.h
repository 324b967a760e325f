// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// tensor.h - do the tensors of a run lie inside the arena, aligned, of the right element type, and
// is what the run writes free to be written? Arithmetic only: knows no session, and not what a
// tensor is for.

#ifndef AULE_CORE_TENSOR_H
#define AULE_CORE_TENSOR_H

#include "core/core.h"

struct tensor_use {
    const char *name;
    const struct wire_tensor *tensor; // [num_outer, num_tokens, heads, head_dim]; num_outer above 1
                                      // only with an outer stride
    uint64_t num_outer, num_tokens;   // below 2^33
    uint32_t heads, head_dim;
    enum dtype
        dtype; // that it must have; 0 = that of the first tensor, one that q, k, v and out may have
    bool written;         // by the run
    bool counts_elements; // its offset and strides are multiples of one, in which the engine
                          // counts; else of 16 bytes
    const struct wire_tensor *twin; // it may be written in place of this one; NULL = of none
    uint64_t layer_stride; // bytes to the same tensor of the next layer, if there are several
};

// What all checks for one run share.
struct tensor_check {
    uint64_t arena_size;
    uint32_t steps;      // of looking for an overlap that are left; begin with TENSOR_STEPS
    uint32_t num_layers; // 0 = 1
    bool chained;        // found: one layer writes what another one reads or writes, or may do so
};

// Bytes of the arena, of all layers; begin = end: none.
struct tensor_extent {
    uint64_t begin, end;
    bool written;
};

// Rows of nested tensors are compared in some ten steps. Only strides that make no sense need more,
// and a client that gives such shall not keep the dispatcher busy.
enum { TENSOR_STEPS = 1 << 16 };

// The rows of a tensor that is written must nest: one stride steps over all rows of the other
// dimensions. They must not overlap any other tensor: this is exact if both have the same strides
// (slices of one fused tensor interleave) or one of the two fills its range without gaps; any other
// pair is refused only if shown to overlap by that, and else is the client's own affair, since
// nothing outside its arena can be touched. So in each layer; between layers an overlap is no
// error, but makes the run `chained`, for which a doubt is enough.
enum status tensor_check_all(struct tensor_check *check, const struct tensor_use *uses,
                             uint32_t count, struct error *error);
// Of one that was checked with so many layers.
struct tensor_extent tensor_extent(const struct tensor_use *use, uint32_t num_layers);

#endif
