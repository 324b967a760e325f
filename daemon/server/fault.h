// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// fault.h - faults that a test asks for by --fault, so that it can prove that they would be
// noticed. Never on by itself.

#ifndef AULE_SERVER_FAULT_H
#define AULE_SERVER_FAULT_H

#include <stdbool.h>
#include <stdint.h>

enum fault {
    FAULT_NONE,
    FAULT_CORRUPT_PREFIX, // "corrupt-prefix": negate K and V of the first block that is ever
                          // published, once it is visible
};

struct core;

struct fault_state {
    enum fault armed; // FAULT_NONE once it has struck
    uint64_t cache;   // of the first published block; 0 = none yet
    int32_t block;
};
// After a publish that made `block` the first of its chain. Only the first call of a daemon's life
// counts.
void fault_note_publish(struct fault_state *state, uint64_t cache, int32_t block);
// Strike if the noted block has become visible to look-ups. Waits for the GPU.
void fault_step(struct fault_state *state, struct core *core);

#endif
