// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// fault.h - a tier that wraps another one and does it harm, as told: for tests. Without orders it
// passes everything on. An order is used up by `times` blocks or jobs.

#ifndef AULE_TIER_FAULT_H
#define AULE_TIER_FAULT_H

#include "tier.h"

enum fault_kind {
    FAULT_FAIL,     // the next jobs end at once with `reason` and do not reach the inner tier
    FAULT_HOLD,     // their ends are held until fault_let_go(), so the transfers seem to go on
    FAULT_FLIP,     // one bit of the next parts that a load reads is flipped before the check
    FAULT_TRUNCATE, // the next parts that a load reads are `bytes` long, if that is less
    FAULT_NUM_KINDS
};
struct fault_order {
    enum fault_kind kind;
    enum tier_kind jobs;       // FAIL, HOLD: which jobs
    enum stored_reason reason; // FAIL
    uint64_t bytes;            // TRUNCATE; FLIP: the bit's byte, modulo the part's length
    uint32_t times;
};

// Takes over the inner backend. NULL: no memory, and the caller still has it.
struct tier_backend *fault_open(const struct tier_ops *inner, struct tier_backend *backend,
                                const struct tier_ops **ops);
// A later order of the same kind replaces an earlier one. Any thread.
void fault_order(struct tier_backend *fault, const struct fault_order *order);
// Ends all jobs that are held, and holds no more. Any thread.
void fault_let_go(struct tier_backend *fault);
uint32_t fault_num_held(struct tier_backend *fault);

#endif
