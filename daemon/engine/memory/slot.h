// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// slot.h - makes, grows and frees struct slot (state.h): what one submission needs on the GPU.
// Submitter only, except at the engine's start and end.

#ifndef AULE_ENGINE_SLOT_H
#define AULE_ENGINE_SLOT_H

#include "engine/state/state.h"

enum status slot_init(struct engine *engine, struct slot *slot, struct error *error);
void slot_finish(struct engine *engine, struct slot *slot); // takes a zeroed and a half-built one
// Makes room for `size` bytes of metadata and `num_queries` timestamps. The caller has the slot.
enum status slot_reserve(struct engine *engine, struct slot *slot, uint64_t size,
                         uint32_t num_queries, struct error *error);
// Makes room for `count` counters, all 0.
enum status slot_reserve_counters(struct engine *engine, struct slot *slot, uint64_t count,
                                  struct error *error);
// Makes room for `size` bytes of partial results.
enum status slot_reserve_scratch(struct engine *engine, struct slot *slot, uint64_t size,
                                 struct error *error);

#endif
