// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// pace.h - how long workers take to compute a token of a prompt, so that slower loads are declined.
// It is learnt from each look-up that lacked blocks: from its answer until these blocks are
// published, or, with a claim, until the claim is over. What a worker generates does not count,
// because no look-up asked for it. Dispatcher thread only.

#ifndef AULE_CORE_PACE_H
#define AULE_CORE_PACE_H

#include <stdint.h>

struct cache;

enum { PACE_LOOKS = 16 }; // of a session, whose blocks are not published yet; older ones are lost

struct pace_look {
    uint64_t key;        // of its first missing block
    int64_t at_ns;       // when it was answered
    uint32_t num_blocks; // missing; 0: there is no such look-up
};

struct pace {
    struct pace_look looks[PACE_LOOKS]; // a ring
    uint32_t next;
};

// A look-up lacks `num_blocks` from block number `first` on, whose tokens follow.
void pace_look(struct pace *pace, const struct cache *cache, uint32_t first, uint32_t num_blocks,
               const int32_t *tokens);
// Blocks from number `first` on are published, and were not there.
void pace_publish(struct pace *pace, struct cache *cache, uint32_t first, uint32_t num_blocks,
                  const int32_t *tokens);
// A worker took so long for so many blocks.
void pace_learn(struct cache *cache, uint32_t num_blocks, int64_t took_ns);

#endif
