// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// redis_world.h - a tier on real redis-servers, and jobs whose blocks have bytes that follow from
// their number.

#ifndef AULE_REDIS_WORLD_H
#define AULE_REDIS_WORLD_H

#include "base/clock.h"
#include "redis_server.h"
#include "rigs/check_main.h"
#include "tier/redis/redis.h"

enum { WORLD_BLOCKS = 64 };

struct redis_world {
    struct tier *tier;
    struct stored_space space;
    char said[4096]; // what the tier told, a line each; guarded by a lock of redis_world.c
};
extern struct redis_world world;

// A tier on servers 0 .. num - 1. `params` may be NULL; its URL is set unless it has one, and it
// is patient with servers unless it says otherwise.
void world_open(int num, const struct redis_params *params, uint64_t block_bytes);
void world_close(void);                // the tier, if there is one, and all servers
bool world_was_told(const char *part); // the tier has said something with this in it

// ---- jobs on the blocks first .. first + count - 1 ----

struct tier_job *world_start(enum tier_kind kind, uint32_t first, uint32_t count, int timeout_ms);
// Waits for its end. Loaded blocks have their bytes, or the test fails.
void world_end(struct tier_job *job);
// Both. The caller frees the job with world_free().
struct tier_job *world_run(enum tier_kind kind, uint32_t first, uint32_t count);
void world_free(struct tier_job *job);
uint32_t world_count(const struct tier_job *job, enum stored_reason reason); // blocks
// Runs it; all blocks end with this reason.
void world_expect(enum tier_kind kind, uint32_t first, uint32_t count, enum stored_reason reason);
// Blocks 0 to 7 are absent, are stored, found and loaded; then 0 to 3 are deleted.
void world_expect_round_trip(void);
// Runs look-ups of block `block` until its reason is `reason`: the test's timeout ends the wait.
void world_await(uint32_t block, enum stored_reason reason);

struct stored_chain world_chain(uint32_t block);
void world_name(uint32_t block, uint32_t part, char name[STORED_NAME_ROOM]);

#endif
