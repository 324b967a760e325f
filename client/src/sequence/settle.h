// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// settle.h - the end of an offer that this session has taken. Knows caches, no sequence. Any
// thread.

#ifndef AULE_CLIENT_SETTLE_H
#define AULE_CLIENT_SETTLE_H

#include "client/src/cache.h"

// On AULE_OK the caller must finish *answer.
enum aule_status settle_offer(struct aule_cache *cache, uint64_t offer, bool accept,
                              struct answer *answer);
// Tells the daemon that others may take the offer. This session has released the blocks.
void settle_give_back(struct aule_cache *cache, uint64_t offer);

#endif
