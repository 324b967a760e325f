// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// pace.h - how long a tenant's workers take to compute a token of a prompt, so that slower loads
// are declined. It is learnt from batches that write whole blocks: from their first run's request
// to the end of the run of their last layer. A batch that generates writes only a few slots of a
// block, so it does not count. Idle time between batches does not count either. Dispatcher thread
// only.

#ifndef AULE_CORE_PACE_H
#define AULE_CORE_PACE_H

#include <stdint.h>

enum { PACE_TIMES = 16 };

// Zeroed: nothing is known.
struct pace {
    int64_t token_ns;             // the lower quartile of times_ns; 0 = unknown
    int64_t times_ns[PACE_TIMES]; // of the last batches, for a token; a ring
    uint64_t num_learnt;          // batches
};

// A batch took so long for so many tokens.
void pace_learn(struct pace *pace, uint64_t num_tokens, int64_t took_ns);

#endif
