// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// room.h - blocks for the tokens that sequences will compute next.

#ifndef AULE_CLIENT_ROOM_H
#define AULE_CLIENT_ROOM_H

#include "sequence.h"

// Tokens that the entry computes: num_tokens, or all that its sequence has left if that is 0.
static inline uint32_t entry_tokens(const struct aule_step_entry *entry)
{
    const struct aule_sequence *sequence = entry->sequence;
    return entry->num_tokens ? entry->num_tokens : sequence->num_tokens - sequence->num_computed;
}

// Checks that each sequence belongs to `cache` and occurs once (AULE_INVALID), and has at most
// INT32_MAX tokens after its next num_tokens (AULE_LIMIT).
enum aule_status room_check_entries(const struct aule_cache *cache,
                                    const struct aule_step_entry *entries, uint32_t num_entries);

// Enters every sequence until entries_leave(). AULE_INVALID: one is NULL, or was destroyed; then
// none is entered.
enum aule_status entries_enter(const struct aule_step_entry *entries, uint32_t num_entries);
void entries_leave(const struct aule_step_entry *entries, uint32_t num_entries);

// Gives every sequence writable blocks for its next num_tokens tokens: all of them or none.
enum aule_status room_make(struct aule_cache *cache, const struct aule_step_entry *entries,
                           uint32_t num_entries, int timeout_ms);

#endif
