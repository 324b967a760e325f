// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// arena.h - which bytes of a session's arena are allocated.

#ifndef AULE_CLIENT_ARENA_H
#define AULE_CLIENT_ARENA_H

#include "aule/aule.h"

struct arena;

enum { ARENA_ALIGNMENT = 256 }; // bytes; of every offset, and the grain of every size

// Manages the offsets [0, size); `size` is rounded down to ARENA_ALIGNMENT. Any thread may call the
// functions below.
enum aule_status arena_create(uint64_t size, struct arena **out);
// Ends every allocation. Safe in a forked child. Takes NULL.
void arena_destroy(struct arena *arena);

// Takes the smallest gap that holds `size` bytes. AULE_INVALID: size is 0. AULE_NO_MEMORY: there is
// no such gap; the sentence says what is free.
enum aule_status arena_alloc(struct arena *arena, uint64_t size, uint64_t *offset);
// AULE_NOT_FOUND: no allocation begins at `offset`; nothing changes.
enum aule_status arena_free(struct arena *arena, uint64_t offset);
// All free bytes, and the largest gap.
void arena_room(struct arena *arena, uint64_t *free_bytes, uint64_t *largest);

#endif
