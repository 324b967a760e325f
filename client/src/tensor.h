// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// tensor.h - how far a call reaches into a tensor. The wire has no number of rows: a tensor's end
// is the client's own claim about its own arena, and the daemon guards the arena as a whole.

#ifndef AULE_CLIENT_TENSOR_H
#define AULE_CLIENT_TENSOR_H

#include "aule/aule.h"

// The rows that a call uses of a tensor. `num_rows` are those of the last sequence or block that
// has any; 0: the tensor is not used.
struct tensor_use {
    const char *name;
    const struct aule_tensor *tensor;
    uint64_t num_rows;
    uint64_t num_before; // sequences or blocks before the last, an outer stride each
    uint64_t num_heads;  // a head stride each
    uint64_t layers_before, layer_stride;
};
// AULE_OUT_OF_RANGE: the tensor has fewer rows.
enum aule_status tensor_check_rows(const struct tensor_use *use);

#endif
