// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// absent.h - the filter: which blocks a server has lately said it does not have. A look-up of such
// a block sends no request. The filter answers "absent" for `age_ns` after the server's answer,
// unless this daemon stores the block. So a block that another machine stores is seen at most
// `age_ns` late. Two blocks with equal 64-bit hashes could make a false "absent".
//
// A table of sets of four entries, each set one cache line; the oldest entry of a set gives way.
// Knows no servers. Any thread.

#ifndef AULE_TIER_REDIS_ABSENT_H
#define AULE_TIER_REDIS_ABSENT_H

#include "tier/stored.h"

#include <stdbool.h>
#include <stdint.h>

struct absent;

// Rounds the number of entries, 16 bytes each, up to a power of two. NULL: no memory.
struct absent *absent_create(uint32_t num_entries, int64_t age_ns);
void absent_destroy(struct absent *absent); // takes NULL

uint64_t absent_hash(const struct stored_space *space, const struct stored_chain *chain);
// A server was asked at `asked_ns` and does not have the block.
void absent_note_missing(struct absent *absent, uint64_t hash, int64_t asked_ns);
// A server has the block since `stored_ns`: the answer to a question before does not count.
void absent_note_stored(struct absent *absent, uint64_t hash, int64_t stored_ns);
bool absent_has(struct absent *absent, uint64_t hash, int64_t now_ns);

#endif
