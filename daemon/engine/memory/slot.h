// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// slot.h - what a submission needs on the GPU: struct slot (state.h), made, grown and ended.

#ifndef AULE_ENGINE_SLOT_H
#define AULE_ENGINE_SLOT_H

#include "engine/state/state.h"

enum status slot_init(struct engine *engine, struct slot *slot, struct error *error);
void slot_finish(struct engine *engine, struct slot *slot); // takes a zeroed and a half-built one
// Room for `size` bytes of metadata and for so many timestamps. The slot is the caller's.
enum status slot_reserve(struct engine *engine, struct slot *slot, uint64_t size,
                         uint32_t num_queries, struct error *error);
// Room for so many counters.
enum status slot_reserve_counters(struct engine *engine, struct slot *slot, uint64_t count,
                                  struct error *error);
// Room for `size` bytes of partial results.
enum status slot_reserve_scratch(struct engine *engine, struct slot *slot, uint64_t size,
                                 struct error *error);

#endif
