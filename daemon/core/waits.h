// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// waits.h - how the caller's commands wait for something in core, of whatever kind. A command that
// a call has refused with NO_BLOCKS, BUSY, TIMEOUT or NOT_FOUND registers its core_wait. After
// core_step() has returned true, core_next_ready() names those that may succeed now, or that must
// be refused; the caller calls again for each. Deadlines are the caller's. Thread: dispatcher.

#ifndef AULE_CORE_WAITS_H
#define AULE_CORE_WAITS_H

#include "schema/status.h"

#include <stdbool.h>
#include <stdint.h>

struct claim;
struct core;
struct core_session;
struct queue_cache;
struct queue_line;
struct taker_queue;

enum core_wait_kind {
    CORE_WAIT_RUNS,   // the end of a run of the session, or a free ticket
    CORE_WAIT_BLOCKS, // enough free blocks, for a lease
    CORE_WAIT_CLAIM,  // a block that another session computes
    CORE_WAIT_OFFER,
    CORE_WAIT_LOAD, // the end of a load from tiers
    CORE_WAIT_NEWS, // anything
};

// Something that waits. The struct is the caller's; it lies still while it waits. The caller may
// read the first three fields; the others are core's.
struct core_wait {
    enum core_wait_kind kind;
    struct core_session *session;                // NULL: it does not wait
    uint64_t cache;                              // 0: of none
    bool woken;                                  // core_next_ready() will name it
    struct core_wait *woken_prev, *woken_next;   // those, oldest first
    struct core_wait *prev, *next;               // of its session
    struct core_wait *beside_prev, *beside_next; // of those that wait for the same, oldest first
    union {
        struct {
            uint32_t count;                              // blocks
            bool only_growth;                            // see core_wait_for_blocks()
            struct core_wait *tenant_prev, *tenant_next; // of its tenant, oldest first
            struct queue_cache *entry;                   // its cache's
            struct queue_line *line;                     // NULL: only_growth
            uint64_t age;                                // later ones have a higher number
            uint64_t tried;                              // the round that named it last
        } lease;
        struct claim *claim;        // NULL: it has ended
        struct taker_queue *takers; // of the offer's name
        uint64_t load;
    };
};

// Each call begins a wait of the session; `wait` need not be initialised. On failure it does not
// wait. A wait ends only by core_wait_end(), which comes before its session closes. It may also be
// named although nothing has changed for it. If the session closes `cache`, it is named, so that
// the command fails.
// A lease that core_blocks_lease() refused. `only_growth`: it gives up when no chunk is being made
// any more. NO_MEMORY.
enum status core_wait_for_blocks(struct core_session *session, struct core_wait *wait,
                                 uint64_t cache, uint32_t count, bool only_growth,
                                 struct error *error);
// core_claim_take(). NOT_FOUND: the claim has ended.
enum status core_wait_for_claim(struct core_session *session, struct core_wait *wait,
                                uint64_t cache, uint64_t claim, struct error *error);
// core_offer_take(). INVALID (the name), NOT_FOUND (the cache), NO_MEMORY.
enum status core_wait_for_offer(struct core_session *session, struct core_wait *wait,
                                uint64_t cache, const char *name, struct error *error);
// A look-up that core_prefix_load() may bring blocks for.
void core_wait_for_load(struct core_session *session, struct core_wait *wait, uint64_t cache,
                        uint64_t load);
// Anything: it is named after each core_step() that returned true.
void core_wait_for_news(struct core_session *session, struct core_wait *wait, uint64_t cache);
void core_wait_end(struct core_wait *wait); // takes one that does not wait, too

// The next one that may succeed now. NULL: there is none. Ask until then: each is named once, and
// leases come last, in their turn. Naming one costs O(log tenants), however many others wait. While
// leases wait it names one for each cache and one more, and those of tenants whose sessions all
// wait; and, after one of them was granted, the next ones.
struct core_wait *core_next_ready(struct core *core);
// True: core_step() will return true, so something that waits may succeed now.
bool core_has_news(const struct core *core);

#endif
