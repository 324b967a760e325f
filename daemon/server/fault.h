// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// fault.h - faults for tests, injected only if --fault asks for one: a test then proves that its
// comparison of results notices it. Knows core's view of caches. Thread: dispatcher.

#ifndef AULE_SERVER_FAULT_H
#define AULE_SERVER_FAULT_H

#include <stdbool.h>
#include <stdint.h>

enum fault {
    FAULT_NONE,
    // "corrupt-prefix": negates K and V of the first block that is ever published, when look-ups
    // can find it.
    FAULT_CORRUPT_PREFIX,
};

struct core;

struct fault_state {
    enum fault armed; // FAULT_NONE once it was injected
    uint64_t cache;   // cache of the noted block; 0 = no block is noted
    int32_t block;    // the noted block
};
// Notes `block`, which a publish has put into the prefix index. Only the first call counts.
void fault_note_publish(struct fault_state *state, uint64_t cache, int32_t block);
// Injects the fault if look-ups can find the noted block. Then it waits for the GPU.
void fault_step(struct fault_state *state, struct core *core);

#endif
