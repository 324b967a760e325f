// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// ledger.h - what all folders of core share: counters for ids, the metrics, the log, and whether
// the device is lost. Knows no cache, session or run. Dispatcher thread only.

#ifndef AULE_CORE_LEDGER_H
#define AULE_CORE_LEDGER_H

#include "core/core.h"

struct ledger {
    const struct core_params *params; // core's own copy
    struct engine *engine;            // lent
    uint64_t last_id;    // last id of a cache, batch, salt, root or node; no id is used twice
    uint64_t last_use;   // the use counter: grows with each use of a block or cache, for LRU order
    uint64_t last_stamp; // last value for `stamp` fields; each check or count takes a new one
    uint64_t looks;      // blocks at which reads.c and unpinning have looked, for tests
    bool news;           // core_step() will return true: something came free or finished
    struct core_wait *woken; // a list; core_next_ready() takes its first one
    int64_t now_ns;          // the caller's time at the last core_step() or core_slept()
    bool lost;               // the device is lost
    struct error lost_why;   // if `lost`
    // Hashes a key with hash_seed: prefixes, and a batch's slots. Tests set it to force collisions.
    uint64_t (*hash)(uint64_t seed, const void *key, size_t size);

    uint64_t metrics[NUM_METRICS]; // by enum metric
};

// core_next_ready() will name the wait. Takes NULL.
void ledger_name(struct ledger *ledger, struct core_wait *wait);
void ledger_wake(struct ledger *ledger, struct core_wait *wait);   // likewise; and that is news
void ledger_unwake(struct ledger *ledger, struct core_wait *wait); // it does not wait any more

// free(), or core_params.free_later() if that is given and the memory is large. Takes NULL.
void ledger_free(const struct ledger *ledger, void *memory);

enum { CORE_LOG_ERROR, CORE_LOG_WARNING, CORE_LOG_INFO, CORE_LOG_DEBUG };
void ledger_log(const struct ledger *ledger, int level, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
uint64_t ledger_hash64(const struct ledger *ledger, const void *key, size_t size);
unsigned ledger_hash(const struct ledger *ledger, const void *key, size_t size); // 32 bits of it

#endif
