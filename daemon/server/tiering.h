// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// tiering.h - opens and closes the tiers that the options name, and their memory. Knows backends
// and the engine's arenas, not what is stored. Thread: dispatcher, before and after the loop.

#ifndef AULE_SERVER_TIERING_H
#define AULE_SERVER_TIERING_H

#include "core/core.h"
#include "params.h"

struct tiering {
    struct core_tiers core;
    uint64_t size; // of the memory, bytes
    uint8_t *key;  // of --tier-key; owned
};

// INVALID: a --tier is no URL that tiering_open() knows.
enum status tiering_check(const struct server_params *params, struct error *error);
// Takes a zeroed one, after tiering_check(). After an error call tiering_close().
enum status tiering_open(struct tiering *tiering, struct engine *engine,
                         const struct server_params *params, struct error *error);
// Core has ended. False: a transfer goes on, so the memory and the engine stay.
bool tiering_close(struct tiering *tiering, int64_t deadline_ns);

#endif
