// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// state.h - struct core: what the rooms behind core.h share. Dispatcher thread only.

#ifndef AULE_CORE_STATE_H
#define AULE_CORE_STATE_H

#include "cache.h"
#include "core.h"
#include "pool.h"
#include "salt.h"
#include "scheduler.h"
#include "session.h"

struct core {
    struct core_params params;
    struct engine *engine;
    struct pool pool;
    struct scheduler scheduler;

    struct core_session *sessions, *leaving; // open; closed with work in flight
    uint32_t num_sessions;                   // open
    struct salt *salts;

    struct cache **caches; // [num_caches], in order of creation; owned
    uint32_t num_caches, cache_capacity;
    struct cache *caches_by_name;

    struct engine_zero *zeroes; // to be submitted before the next run; owned
    struct block **zero_blocks; // whose they are; owned
    uint32_t num_zeroes, zero_capacity;

    uint64_t last_id;  // of caches, batches, salts, roots, nodes: never used twice
    uint64_t last_use; // the use counter
    uint64_t last_stamp;
    bool news; // something came free or finished since core_step() last said so
    bool lost;
    struct error lost_why;
    // Of prefix keys, with the params' hash_seed; tests force collisions through it.
    unsigned (*hash)(uint64_t seed, const void *key, size_t size);

    uint64_t runs_done, runs_failed, dispatches, submissions, tokens_attended;
    uint64_t lookups, lookup_tokens, hit_tokens, evictions, session_deaths;
    uint32_t max_sessions_per_dispatch;
    uint64_t sessions_served, served[CORE_SERVED]; // as in struct core_totals
};

enum { CORE_LOG_ERROR, CORE_LOG_WARNING, CORE_LOG_INFO, CORE_LOG_DEBUG };
void core_log(const struct core *core, int level, const char *format, ...) __attribute__((format(printf, 3, 4)));

// The blocks that are zeroed before anything else runs.
bool zeroes_reserve(struct core *core, uint32_t more); // room in the list; false: no memory
void zeroes_add(struct core *core, struct cache *cache, struct block *block);
void zeroes_forget(struct core *core, const struct cache *cache, const struct chunk *chunk); // its memory goes
uint32_t zeroes_slice(const struct core *core);      // how many of them one submission may take; 0: there are none
void zeroes_drop(struct core *core, uint32_t count); // the first ones are submitted

#endif
