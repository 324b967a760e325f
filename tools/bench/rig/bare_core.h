// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// bare_core.h - the daemon's core with one session and one cache, over an engine in this process:
// no sockets, no clients. Calls of core.h can be timed on it. One thread.

#ifndef AULE_BENCH_BARE_CORE_H
#define AULE_BENCH_BARE_CORE_H

#include "core/core.h"

struct bare_core {
    struct engine *engine;        // lent
    struct engine_arena *arena;   // owned
    void *memory;                 // of the arena; owned
    struct core *core;            // owned
    struct core_session *session; // the core's
    uint64_t cache, arena_size;
    uint32_t block_size, head_dim; // of the cache: one layer, one head, f16
    bool gone;                     // the session has ended
};

struct bare_core_params {
    uint64_t pool_bytes, arena_size; // bytes
    uint32_t max_blocks;             // of the cache; 0: as the pool allows
    uint32_t block_size, head_dim;
};

// False, here and below: standard error says why. bare_core_close() takes a zeroed or half-made
// one.
bool bare_core_open(struct bare_core *c, struct engine *engine,
                    const struct bare_core_params *params);
void bare_core_close(struct bare_core *c);
bool bare_core_failed(const struct error *error); // says it; returns false

// Steps the core until it has nothing to do.
bool bare_core_settle(struct bare_core *c);
bool bare_core_reap(struct bare_core *c, uint64_t ticket); // settles before
// Waits while the pool grows.
bool bare_core_lease(struct bare_core *c, uint32_t count, int32_t *blocks);
bool bare_core_release(struct bare_core *c, const int32_t *blocks, uint32_t count);
// Writes the first block from the arena, and makes the others copies of it.
bool bare_core_write(struct bare_core *c, int32_t block);
bool bare_core_copy(struct bare_core *c, int32_t from, const int32_t *to, uint32_t count,
                    uint64_t *ticket); // of at most BARE_CORE_COPIED blocks, queued
bool bare_core_fill(struct bare_core *c, int32_t from, const int32_t *to, uint32_t count);
enum { BARE_CORE_COPIED = 8192 };

// A row of q, k, v or out: [rows, 1, head_dim] of f16 at `offset` of the arena.
struct wire_tensor bare_core_tensor(const struct bare_core *c, uint64_t offset);

#endif
