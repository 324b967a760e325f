// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// tier_world.h - helpers for tests of a tier: a space, chains, jobs and their ends. Asserts with
// check.

#ifndef AULE_TESTS_TIER_WORLD_H
#define AULE_TESTS_TIER_WORLD_H

#include "tier/tier.h"

#include <check.h>

struct stored_space tier_space(uint64_t block_bytes, const char *salt);
struct stored_chain tier_chain(uint32_t number);
// A job of `count` blocks whose chains have the numbers from `first` on, without deadlines.
struct tier_job *tier_world_job(enum tier_kind kind, const struct stored_space *space,
                                uint32_t first, uint32_t count);
// Waits for the tier's next event.
struct tier_event tier_world_wait(struct tier *tier);
// Starts the job and waits until it is done.
void tier_world_do(struct tier *tier, struct tier_job *job);
// Bytes that tell blocks from each other; `bytes` is a multiple of 8.
void tier_world_fill(uint8_t *data, uint64_t bytes, uint32_t number);
bool tier_world_holds(const uint8_t *data, uint64_t bytes, uint32_t number);

#endif
