// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// store.h - the arena of a world: in the GPU's own memory, where q and out do not cross the bus, or
// in host memory, as a client's is. It uses the engine's parts below engine.h. One thread.

#ifndef AULE_BENCH_STORE_H
#define AULE_BENCH_STORE_H

#include "engine/measuring.h"
#include "fill.h"

struct store {
    struct engine *engine;
    struct engine_arena *arena; // for runs
    uint64_t size;
    const struct buffer *own; // the arena's, on the device; NULL: the arena is in host memory
    void *memory; // host memory as large as the arena, which the engine imports or mirrors; NULL:
                  // the arena is on the device
    struct fill fill;
    struct buffer staging; // of the last copy
};

// False: standard error says why. store_finish() takes a zeroed or half-made store; no run may be
// in flight.
bool store_init(struct store *store, struct engine *engine, uint64_t arena_size, bool host);
void store_finish(struct store *store);

// Anywhere on the device, not only in the arena. False: standard error says why.
bool store_fill(struct store *store, const struct fill_params *params);

// Bytes of the arena: fills them with ones (NaN); copies them, valid until the next call (NULL:
// standard error says why).
bool store_poison(struct store *store, uint64_t offset, uint64_t size);
const void *store_read(struct store *store, uint64_t offset, uint64_t size);

#endif
