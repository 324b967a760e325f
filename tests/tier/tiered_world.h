// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// tiered_world.h - a core over the fake engine whose blocks leave the GPU for a host tier and come
// back. The host tier is the real one, behind a tier that does harm. Two workers of one tenant, and
// what a test does with their blocks. Asserts (check).

#ifndef AULE_TESTS_TIERED_WORLD_H
#define AULE_TESTS_TIERED_WORLD_H

#include "core/errands/errand.h"
#include "core/state.h"
#include "rigs/check_main.h"
#include "rigs/ownership_world.h"
#include "tier/fault.h"
#include "tier/host.h"

enum { BLOCK = WORLD_BLOCK, POOL = 16, AREA = 64 * 4096 };

extern struct engine *engine;
extern struct tier *tier;                 // the host tier
extern struct tier *further[2];           // tiers behind it; NULL: there is none
extern struct tier_backend *host, *fault; // fault: does harm to the host tier
extern uint64_t load_id;                  // of the last load()

// A test sets these before it opens the world.
extern uint64_t cached_of_all; // limit of each tenant
extern uint64_t area;          // bytes of the host tier
extern bool hauls;             // the engine has hauls

// A backend of files in a folder of its own, for a tier behind the host tier.
struct tier_backend *make_files(char folder[64], uint64_t limit_bytes);
void remove_folder(const char *folder);

void open_world(uint64_t tenant_blocks);
void open_free(void); // without a limit for tenants
void close_world(void);
void close_hauling(void); // while there are hauls, or after the device was lost

// Finishes all submissions and the jobs of the tiers, but those that the tier of harm holds.
void settle(void);
struct fake_submission *first_copy(void); // the oldest of the copies that are under way
void order(enum fault_kind kind, enum tier_kind jobs, enum stored_reason reason, uint32_t times);

// Computes and publishes the first blocks of the text, and lets them go.
void compute(struct worker *worker, const int32_t *text, uint32_t count);
void evict_all(struct worker *worker); // all that is cached
// Returns how many blocks a load has begun to bring.
uint32_t load(struct worker *worker, const int32_t *text, uint32_t count, enum core_load rule);
struct core_claim claim(struct worker *worker, const int32_t *text, uint32_t count);
// Loads what the tiers have of the text, and lets it go. It has the numbers of its tokens.
void fetch(struct worker *worker, const int32_t *text, uint32_t count);
// The `count` blocks in `found` have the numbers of these tokens in all layers.
void expect_numbers(const struct worker *worker, const int32_t *text, uint32_t count);
// Of `asked` blocks the worker finds the first `count`, with their contents. It lets them go.
void expect_found(struct worker *worker, uint32_t asked, uint32_t count);
// Takes `count` blocks that have come, which have the numbers of their tokens.
void take(struct worker *worker, const struct core_claim *own, const int32_t *text, uint32_t count);
uint64_t metric(enum metric which);

// A case with copies among the runs, and one with hauls; and one with hauls alone.
void add_ways(Suite *suite, const char *const names[2], SFun open, SFun close,
              const TTest *const *tests);
void add_hauls(Suite *suite, const char *name, SFun open, SFun close, const TTest *const *tests);

#endif
