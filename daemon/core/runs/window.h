// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// window.h - which keys a run's queries see by their positions. Knows no custom mask, which hides
// more and replaces causality. Any thread; no state.

#ifndef AULE_CORE_WINDOW_H
#define AULE_CORE_WINDOW_H

#include "core/core.h"

struct span {
    int64_t begin, end; // [begin, end)
};

bool window_is_causal(const struct core_run_params *params);
// The keys, of `num_keys`, that some query at the positions sees: from the first one to the last.
struct span window_keys(const struct core_run_params *params, struct span positions,
                        int64_t num_keys);
// The most keys that one query sees; UINT64_MAX: no bound is known. `causal`: causality applies.
uint64_t window_most(const struct core_run_params *params, bool causal);
// Whether a query may not see the first keys of its sequence.
bool window_hides_first(const struct core_run_params *params);

#endif
