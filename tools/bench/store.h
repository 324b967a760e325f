// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// store.h - an arena in the GPU's own memory, where q and out do not wait for the bus. Uses the engine's parts below engine.h. One thread.

#ifndef AULE_BENCH_STORE_H
#define AULE_BENCH_STORE_H

#include "arena.h"
#include "fill.h"

struct store {
    struct engine *engine;
    struct engine_arena arena; // for runs; nothing of it is staged
    struct fill fill;
    struct buffer staging; // what store_read() gave last
};

// False: standard error says why. store_finish() takes a zeroed and a half-made one; no run is under way.
bool store_init(struct store *store, struct engine *engine, uint64_t arena_size);
void store_finish(struct store *store);

// Anywhere on the device, not only in the arena. False: standard error says why.
bool store_fill(struct store *store, const struct fill_params *params);

// Bytes of the arena: all ones, which are no numbers; a copy, valid until the next (NULL: standard error says why).
bool store_poison(struct store *store, uint64_t offset, uint64_t size);
const void *store_read(struct store *store, uint64_t offset, uint64_t size);

#endif
