// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// redis_world.h - real redis-servers on free ports with a temporary folder each, a tier on them,
// and jobs whose blocks have bytes that follow from their number. A server ends with its test.

#ifndef AULE_REDIS_WORLD_H
#define AULE_REDIS_WORLD_H

#include "base/clock.h"
#include "rigs/check_main.h"
#include "tier/redis/redis.h"

#include <hiredis/hiredis.h>
#include <sys/types.h>

enum { WORLD_SERVERS = 4, WORLD_BLOCKS = 64 };

struct redis_server {
    pid_t pid; // 0: it does not run
    int port;
    char folder[32];
};

struct redis_world {
    struct redis_server servers[WORLD_SERVERS];
    struct tier *tier;
    struct record_space space;
    char said[4096]; // what the tier told, a line each; guarded by a lock of redis_world.c
};
extern struct redis_world world;

bool redis_server_is_there(void); // the program

// Starts servers[i]; `arguments` end with NULL, or are NULL. It answers when this returns.
void world_serve(int i, const char *const *arguments);
void world_serve_again(int i, const char *const *arguments); // on the port that it had
void world_kill(int i);
void world_signal(int i, int signal);
void world_make_cluster(int num); // of servers 0 .. num - 1, which run with --cluster-enabled yes

// Runs a command on servers[i] and returns its reply, never NULL.
redisReply *world_ask(int i, const char *format, ...);
// The same; the reply is not looked at.
void world_tell(int i, const char *format, ...);
long world_number(int i, const char *section, const char *key); // of INFO

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
uint32_t world_count(const struct tier_job *job, enum record_reason reason); // blocks
// Runs it; all blocks end with this reason.
void world_expect(enum tier_kind kind, uint32_t first, uint32_t count, enum record_reason reason);
// Runs look-ups of block `block` until its reason is `reason`: the test's timeout ends the wait.
void world_await(uint32_t block, enum record_reason reason);

struct record_chain world_chain(uint32_t block);
void world_name(uint32_t block, uint32_t part, char name[RECORD_NAME_ROOM]);

#endif
