// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// ledger.h - what core numbers and counts, whether the device is lost, and the log: what every room
// writes to. Holds no object.

#ifndef AULE_CORE_LEDGER_H
#define AULE_CORE_LEDGER_H

#include "core/core.h"

struct ledger {
    const struct core_params *params; // core's own copy
    struct engine *engine;
    uint64_t last_id;  // of caches, batches, salts, roots, nodes: never used twice
    uint64_t last_use; // the use counter
    uint64_t last_stamp;
    bool news;      // something came free or finished since core_step() last said so
    int64_t now_ns; // the caller's clock, at the last core_step() or core_slept()
    bool lost;
    struct error lost_why;
    // Of prefix keys, with the params' hash_seed; tests force collisions through it.
    unsigned (*hash)(uint64_t seed, const void *key, size_t size);

    uint64_t metrics[NUM_METRICS]; // by enum metric
};

enum { CORE_LOG_ERROR, CORE_LOG_WARNING, CORE_LOG_INFO, CORE_LOG_DEBUG };
void ledger_log(const struct ledger *ledger, int level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
unsigned ledger_hash(const struct ledger *ledger, const void *key, size_t size);

#endif
