// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// layout.c - holds the C compiler to the scalar layout that the shaders are compiled with: no padding beyond the fields
// of layout.h. Nothing here runs.

#include "layout.h"

#include <stddef.h>

_Static_assert(offsetof(struct gpu_run, q_token_stride) == 16 * 8, "addresses come first");
_Static_assert(offsetof(struct gpu_run, reserved) == 16 * 8 + 21 * 4, "then 32-bit words");
_Static_assert(sizeof(struct gpu_run) == 16 * 8 + 22 * 4, "no tail padding: runs stand in an array");
_Static_assert(sizeof(struct gpu_item) == 8, "items stand in an array");
_Static_assert(sizeof(struct gpu_range) == 16, "ranges stand in an array");
_Static_assert(sizeof(struct gpu_dispatch) == 24, "push constants");
_Static_assert(sizeof(struct gpu_zero) == 16, "push constants");
