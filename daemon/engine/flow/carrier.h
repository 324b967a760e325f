// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// carrier.h - the threads of hauls (engine_haul()), one for each stream. A thread records a haul,
// gives it to its stream, and waits for the oldest one there. Knows blocks and arenas, not runs.

#ifndef AULE_ENGINE_CARRIER_H
#define AULE_ENGINE_CARRIER_H

#include "engine/state/state.h"

// Does nothing where the device has no streams for hauls, as all functions here.
enum status carriers_init(struct engine *engine, struct error *error);
bool carriers_start(struct engine *engine); // false: a thread cannot be started
// With the lock held: a submission has completed, so a haul may begin.
void carriers_notice(struct engine *engine);
// With the lock held: the device is lost.
void carriers_lose(struct engine *engine);
// With the lock held: the threads end when their hauls have ended, or the device is lost.
void carriers_stop(struct engine *engine);
bool carriers_gone(const struct engine *engine); // with the lock held; also if they never began
void carriers_join(struct engine *engine);       // they are gone
// After a loss: waits until the GPU has finished what it was given.
VkResult carriers_wait(const struct engine *engine, uint64_t timeout_ns);
void carriers_finish(struct engine *engine);
const char *carriers_name(const struct engine *engine); // where hauls run, for the log

#endif
