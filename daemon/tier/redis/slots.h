// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// slots.h - which server has which block. As in a Redis cluster, a block's chain hash, which is the
// hash tag of its names, gives one of 16384 slots, and a table gives the slot's server. A cluster
// tells its table. Servers that are none share the slots by rendezvous hashing of their addresses:
// the order in the URL does not matter, and one more server takes over only its share. Knows no
// connections. Not locked.

#ifndef AULE_TIER_REDIS_SLOTS_H
#define AULE_TIER_REDIS_SLOTS_H

#include "tier/stored.h"

#include <stdint.h>

enum { NUM_SLOTS = 16384 };

// The slot of all parts of a block.
uint16_t slot_of(const struct stored_chain *chain);
// The same of any text without a hash tag: CRC-16 (XMODEM) modulo 16384.
uint16_t slot_of_text(const char *text, size_t size);

// Gives each slot to one of `num` addresses, as "host:port".
void slots_share(uint8_t slots[NUM_SLOTS], const char *const *addresses, uint32_t num);

#endif
