// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// matrix.h - whether a device's cooperative matrices are what shaders/matrix.glsl counts on.

#ifndef AULE_ENGINE_MATRIX_H
#define AULE_ENGINE_MATRIX_H

#include "engine/vulkan/shader.h"
#include "engine/vulkan/transfer.h"

// What `adapter` lacks, as words behind "lacks"; "" = nothing. `lanes` is counted in only if
// somebody has looked.
void matrix_missing(const struct adapter *adapter, char *text, size_t size);
// What it lacks for attention_coop.comp, which takes other sizes, too, and does not care for lanes.
void matrix_shared_missing(const struct adapter *adapter, char *text, size_t size);
// What it lacks to have matrices of bf16, too.
void matrix_bfloat_missing(const struct adapter *adapter, char *text, size_t size);
// Runs products with matrix_probe.comp, compiled as `shader` for f16 or bf16: *found says whether
// every lane has what it should, and what is too large is no number. The device is open.
enum status matrix_probe(struct transfer *transfer, const struct shader *shader, enum dtype dtype,
                         enum matrix_lanes *found, struct error *error);
// Fills lanes and bfloat_lanes of device->adapter.matrices, if the device lacks nothing else. A
// probe that fails is logged: then they lie elsewhere.
void matrix_look(struct device *device, struct transfer *transfer);

#endif
