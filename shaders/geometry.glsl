// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// geometry.glsl - the specialisation constants of a pipeline, numbered in layout.h (host: struct
// geometry), and what follows from them alone. The host sets all of them; the defaults only make
// the module valid.

#ifndef AULE_GEOMETRY_GLSL
#define AULE_GEOMETRY_GLSL

#include "layout.h"

layout(local_size_x = 128, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = AULE_SPEC_LOCAL_SIZE) in;
layout(constant_id = AULE_SPEC_HEAD_DIM_K) const uint HEAD_DIM_K = 64; // multiple of 8, up to 576
layout(constant_id = AULE_SPEC_HEAD_DIM_V) const uint HEAD_DIM_V = 64; // multiple of 8, up to 512
layout(constant_id = AULE_SPEC_NUM_KV_HEADS) const uint NUM_KV_HEADS = 1;
layout(constant_id = AULE_SPEC_BLOCK_SIZE) const uint BLOCK_SIZE = 32;     // power of two
layout(constant_id = AULE_SPEC_K_DTYPE) const uint K_DTYPE = 1;
layout(constant_id = AULE_SPEC_V_DTYPE) const uint V_DTYPE = 1;
layout(constant_id = AULE_SPEC_IO_DTYPE) const uint IO_DTYPE = 1;
layout(constant_id = AULE_SPEC_FEATURES) const uint FEATURES = 0;
layout(constant_id = AULE_SPEC_PLACE) const uint PLACE = AULE_PLACE_POOL;
layout(constant_id = AULE_SPEC_V_IN_K) const uint V_IN_K = 0;
layout(constant_id = AULE_SPEC_SCALE_MODE) const uint SCALE_MODE = AULE_SCALE_NONE_MODE;

// Bytes of an element; dtypes as in schema/dtypes.h. A macro, because constants need it.
#define DTYPE_BYTES(DTYPE) ((DTYPE) == 1 ? 4 : (DTYPE) <= 3 ? 2 : 1)

const bool POSITIONS = (FEATURES & AULE_FEATURE_POSITIONS) != 0;
const bool ROPE = (FEATURES & AULE_FEATURE_ROPE) != 0;
const bool ROPE_PAIRS = (FEATURES & AULE_FEATURE_ROPE_PAIRS) != 0;

// Only 8-bit elements are scaled: the dtypes above bf16. If V lies in K, it has K's dtype and
// scales. (For glslang 12 a conditional below && is no constant, and the module is not valid.)
const bool K_SCALED = SCALE_MODE != AULE_SCALE_NONE_MODE && K_DTYPE > 3;
const bool V_SCALED = SCALE_MODE != AULE_SCALE_NONE_MODE && V_DTYPE > 3;
// The scales lie in the block, behind the elements.
const bool K_SCALES = K_SCALED && SCALE_MODE == AULE_SCALE_TOKEN_HEAD_MODE;
const bool V_SCALES = V_SCALED && SCALE_MODE == AULE_SCALE_TOKEN_HEAD_MODE;
const bool V_FACTOR = V_SCALED && SCALE_MODE == AULE_SCALE_TENSOR_MODE; // one factor for all of V

#endif
