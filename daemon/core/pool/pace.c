// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// pace.c - see pace.h. The lower quartile is robust: batches that wait for pipelines, for other
// tenants or for a worker that was stopped take much longer than the others.

#include "pace.h"

#include <string.h>

void pace_learn(struct pace *pace, uint64_t num_tokens, int64_t took_ns)
{
    int64_t sorted[PACE_TIMES];
    uint64_t count = 0;
    if (!num_tokens || took_ns <= 0)
        return;
    pace->times_ns[pace->num_learnt++ % PACE_TIMES] = took_ns / (int64_t)num_tokens + 1;
    for (; count < PACE_TIMES && count < pace->num_learnt; count++) {
        uint64_t at = count;
        for (; at > 0 && sorted[at - 1] > pace->times_ns[count]; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = pace->times_ns[count];
    }
    pace->token_ns = sorted[(count - 1) / 4];
}
