// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// matrix.h - whether a device's cooperative matrices are as shaders/matrix.glsl requires. Knows
// nothing of attention. The thread that opens the device.

#ifndef AULE_ENGINE_MATRIX_H
#define AULE_ENGINE_MATRIX_H

#include "engine/vulkan/shader.h"
#include "engine/vulkan/transfer.h"

// Writes what `adapter` lacks for f16 matrices, as words behind "lacks"; "" = nothing. `lanes`
// counts only after matrix_look().
void matrix_missing(const struct adapter *adapter, char *text, size_t size);
// The same for attention_coop.comp, which takes other sizes and any assignment of elements to
// lanes.
void matrix_shared_missing(const struct adapter *adapter, char *text, size_t size);
// The same for bf16 matrices in addition to f16.
void matrix_bfloat_missing(const struct adapter *adapter, char *text, size_t size);
// A whole number as an element: f16, below 2^10, or bf16, below 2^8.
uint32_t matrix_element(int value, enum dtype dtype);
// Runs products with matrix_probe.comp, compiled as `shader` for f16 or bf16. *found: whether every
// lane has the expected elements, and whether too large a sum becomes Inf or NaN. The device is
// open.
enum status matrix_probe(struct transfer *transfer, const struct shader *shader, enum dtype dtype,
                         enum matrix_lanes *found, struct error *error);
// Sets `lanes` and `bfloat_lanes` of device->adapter.matrices, if the device lacks nothing else. A
// probe that fails is logged and counts as MATRIX_LANES_DIFFER.
void matrix_look(struct device *device, struct transfer *transfer);

#endif
