// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// tensor.h - checks tensors: they must lie inside one of the session's arenas, all inside the same,
// be aligned and have the right element type, and no output may overlap another tensor. Arithmetic
// only: knows no session, and not what a tensor is for. Dispatcher thread.

#ifndef AULE_CORE_TENSOR_H
#define AULE_CORE_TENSOR_H

#include "core/core.h"

// Where a tensor lies: its `memory`.
enum tensor_memory {
    TENSOR_HOST,   // the session's arena of shared memory
    TENSOR_DEVICE, // its arena of device memory
    TENSOR_MEMORIES
};
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
    uint64_t arena_sizes[TENSOR_MEMORIES]; // bytes; 0 = the session has no such arena
    uint32_t steps;      // of looking for an overlap that are left; begin with TENSOR_STEPS
    uint32_t num_layers; // 0 = 1
    bool chained;        // found: one layer writes what another one reads or writes, or may do so
};

// A range of bytes in the arena, over all layers. begin = end: no bytes.
struct tensor_extent {
    uint64_t begin, end;
    bool written;
};

// Comparing rows of nested tensors takes some ten steps. Only strides that make no sense need more;
// the limit keeps a client from occupying the dispatcher with them.
enum { TENSOR_STEPS = 1 << 16 };

// The rows of a tensor that is written must nest: one stride steps over all rows of the other
// dimensions. They must not overlap any other tensor in the same layer. The check is exact if both
// tensors have the same strides, as slices of one fused tensor have. It is also exact if one of
// them fills its range without gaps. Any other pair passes unless the check proves an overlap: a
// run can touch nothing outside its client's arena. An overlap between two layers is no error. It
// makes the run `chained`, and so does a pair of layers that only might overlap.
enum status tensor_check_all(struct tensor_check *check, const struct tensor_use *uses,
                             uint32_t count, struct error *error);
// The bytes that a tensor covers; it was checked with so many layers.
struct tensor_extent tensor_extent(const struct tensor_use *use, uint32_t num_layers);

#endif
