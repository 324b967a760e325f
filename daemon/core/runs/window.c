// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// window.c - see window.h.

#include "window.h"

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

bool window_is_causal(const struct core_run_params *p)
{
    return p->entry.flags & WIRE_RUN_CAUSAL;
}

struct span window_keys(const struct core_run_params *p, struct span positions, int64_t num_keys)
{
    const int64_t left = p->entry.window_left, right = p->entry.window_right;
    struct span keys = {0, num_keys};
    if (left >= 0 && positions.begin > left)
        keys.begin = positions.begin - left;
    if (right >= 0)
        keys.end = least(keys.end, positions.end + right);
    if (window_is_causal(p))
        keys.end = least(keys.end, positions.end);
    return keys;
}

uint64_t window_most(const struct core_run_params *p, bool causal)
{
    const int64_t left = p->entry.window_left, right = causal ? 0 : p->entry.window_right;
    return left >= 0 && right >= 0 ? (uint64_t)(left + right + 1) : UINT64_MAX;
}

bool window_hides_first(const struct core_run_params *p)
{
    return p->entry.window_left >= 0;
}
