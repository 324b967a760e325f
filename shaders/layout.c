// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// layout.c - checks at compile time that C lays out the structs of layout.h without padding, as the
// shaders' scalar layout does. Nothing here runs.

#include "layout.h"

#include <stddef.h>

_Static_assert(offsetof(struct gpu_run, q_token_stride) == 31 * 8,
               "addresses and outer strides come first");
_Static_assert(offsetof(struct gpu_run, scale_log2e) == 31 * 8 + 22 * 4, "then words");
_Static_assert(offsetof(struct gpu_run, kv_start_step) == 31 * 8 + 36 * 4, "the last of them");
_Static_assert(sizeof(struct gpu_run) == 31 * 8 + 38 * 4,
               "no tail padding: runs stand in an array");
_Static_assert(sizeof(struct gpu_item) == 60, "items stand in an array");
_Static_assert(sizeof(struct gpu_crowd) == 16, "no padding");
_Static_assert(sizeof(struct gpu_merge_item) == 32, "items stand in an array");
_Static_assert(sizeof(struct gpu_range) == 24, "ranges stand in an array");
_Static_assert(sizeof(struct gpu_part) == 32, "parts stand in an array");
_Static_assert(offsetof(struct gpu_merge, out_token_stride) == 3 * 8, "addresses come first");
_Static_assert(sizeof(struct gpu_merge) == 3 * 8 + 10 * 4, "no tail padding");
_Static_assert(sizeof(struct gpu_matrix_lane) == 84, "lanes stand in an array");
_Static_assert(sizeof(struct gpu_dispatch) == 40, "push constants");
_Static_assert(sizeof(struct gpu_redo) == 16, "entries stand behind it");
_Static_assert(sizeof(struct gpu_copy) == 16, "push constants");
_Static_assert(sizeof(struct gpu_merging) == 16, "push constants");
_Static_assert(sizeof(struct gpu_haul) == 16, "push constants");
