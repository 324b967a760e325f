// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// geometry.c - see geometry.h. Knows no pipeline and no kernel. Any thread; no state.

#include "geometry.h"

#include "shaders/layout.h"

#include <stdio.h>

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
