// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// dtypes.h - the element types of tensors: the one list that daemon, client, wire, shaders and
// native kernels share. Only macros, because GLSL includes it, too. aule.h has the same values;
// client/src/status.c asserts it.

// Laid out by hand, one entry a line.
// clang-format off
#ifndef AULE_SCHEMA_DTYPES_H
#define AULE_SCHEMA_DTYPES_H

// X(NAME, value on the wire, name, bytes an element, largest finite number of an 8-bit type).
// Append; never renumber. Those above BF16 have 8 bits.
#define AULE_DTYPE_MAP(X)                                                                          \
    X(F32,      1, f32,      4, 0)                                                                 \
    X(F16,      2, f16,      2, 0)                                                                 \
    X(BF16,     3, bf16,     2, 0)                                                                 \
    X(FP8_E4M3, 4, fp8_e4m3, 1, 448)                                                               \
    X(FP8_E5M2, 5, fp8_e5m2, 1, 57344)                                                             \
    X(INT8,     6, int8,     1, 127)

#endif
