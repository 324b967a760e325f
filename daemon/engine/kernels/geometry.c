// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// geometry.c - see geometry.h. Knows no pipeline and no kernel. Any thread; no state.

#include "geometry.h"

#include "shaders/layout.h"

#include <stdio.h>

struct engine_kv geometry_kv(const uint32_t spec[SPEC_CONSTANTS])
{
    bool rows = spec[AULE_SPEC_PLACE] == AULE_PLACE_ROWS;
    return (struct engine_kv){
        .num_kv_heads = spec[AULE_SPEC_NUM_KV_HEADS],
        .head_dim_k = spec[AULE_SPEC_HEAD_DIM_K],
        .head_dim_v = spec[AULE_SPEC_HEAD_DIM_V],
        .block_size = rows ? 0 : spec[AULE_SPEC_BLOCK_SIZE],
        .k_dtype = (enum dtype)spec[AULE_SPEC_K_DTYPE],
        .v_dtype = (enum dtype)spec[AULE_SPEC_V_DTYPE],
        .v_is_k_prefix = spec[AULE_SPEC_V_IN_K],
        .scale_mode = (enum scale_mode)spec[AULE_SPEC_SCALE_MODE],
    };
}

void geometry_text(const uint32_t spec[SPEC_CONSTANTS], char *text, size_t size)
{
    int used =
        snprintf(text, size, "d%u/%u heads%u block%u k%s v%s%s io%s place%u scales%u features%x",
                 spec[AULE_SPEC_HEAD_DIM_K], spec[AULE_SPEC_HEAD_DIM_V],
                 spec[AULE_SPEC_NUM_KV_HEADS], spec[AULE_SPEC_BLOCK_SIZE],
                 dtype_name((int)spec[AULE_SPEC_K_DTYPE]), dtype_name((int)spec[AULE_SPEC_V_DTYPE]),
                 spec[AULE_SPEC_V_IN_K] ? " (in k)" : "", dtype_name((int)spec[AULE_SPEC_IO_DTYPE]),
                 spec[AULE_SPEC_PLACE], spec[AULE_SPEC_SCALE_MODE], spec[AULE_SPEC_FEATURES]);
    if (spec[AULE_SPEC_LOCAL_SIZE] && used > 0 && (size_t)used < size)
        snprintf(text + used, size - (size_t)used, " local%u", spec[AULE_SPEC_LOCAL_SIZE]);
}
