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

// The keys of the chunks that the positions are in. Before position 0 there is no chunk.
static struct span in_chunks(int64_t chunk, struct span positions, struct span keys)
{
    if (chunk == 0)
        return keys;
    const int64_t first = positions.begin > 0 ? positions.begin / chunk * chunk : 0;
    const int64_t end = positions.end > 0 ? (positions.end - 1) / chunk * chunk + chunk : 0;
    return (struct span){first > keys.begin ? first : keys.begin, least(keys.end, end)};
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
    return in_chunks(p->options.attention_chunk, positions, keys);
}

uint64_t window_most(const struct core_run_params *p, bool causal)
{
    const int64_t left = p->entry.window_left, right = causal ? 0 : p->entry.window_right;
    const uint64_t chunk = p->options.attention_chunk,
                   most = left >= 0 && right >= 0 ? (uint64_t)(left + right + 1) : UINT64_MAX;
    return causal && chunk && chunk < most ? chunk : most;
}

bool window_hides_first(const struct core_run_params *p)
{
    return p->entry.window_left >= 0 || p->options.attention_chunk;
}
