// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// geometry.glsl - the specialisation constants that fix a pipeline, numbered in layout.h. The defaults only make the module
// valid; the host sets every one of them.

#ifndef AULE_GEOMETRY_GLSL
#define AULE_GEOMETRY_GLSL

#include "layout.h"

layout(local_size_x = 128, local_size_y = 1, local_size_z = 1) in;
layout(local_size_x_id = AULE_SPEC_LOCAL_SIZE) in;
layout(constant_id = AULE_SPEC_HEAD_DIM_K) const uint HEAD_DIM_K = 64;     // multiple of 8, up to 256
layout(constant_id = AULE_SPEC_HEAD_DIM_V) const uint HEAD_DIM_V = 64;     // multiple of 8, up to 512
layout(constant_id = AULE_SPEC_NUM_KV_HEADS) const uint NUM_KV_HEADS = 1;
layout(constant_id = AULE_SPEC_BLOCK_SIZE) const uint BLOCK_SIZE = 32;     // power of two
layout(constant_id = AULE_SPEC_K_DTYPE) const uint K_DTYPE = 1;
layout(constant_id = AULE_SPEC_V_DTYPE) const uint V_DTYPE = 1;
layout(constant_id = AULE_SPEC_IO_DTYPE) const uint IO_DTYPE = 1;

#endif
