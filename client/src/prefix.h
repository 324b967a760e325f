// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// prefix.h - publishing with all that the daemon offers.

#ifndef AULE_CLIENT_PREFIX_H
#define AULE_CLIENT_PREFIX_H

#include "cache.h"

// aule_claim_release(), also on a cache that is closed.
enum aule_status claim_release(struct aule_cache *cache, struct aule_claim *claim,
                               uint32_t num_blocks);

struct prefix_publishing {
    struct aule_prefix prefix;
    const int32_t *parent; // the published block that the tokens follow; NULL: they begin a prompt
    bool releases;         // the daemon releases each block that an existing one replaces
    bool written; // own kernels have written all of the blocks, with `passed` as in a report
    uint64_t passed;
    uint64_t *mark; // of the report, if `written`; NULL: not wanted
};
// block_ids[i] becomes the existing block, held for the session; the block given is still held
// unless `releases`. AULE_NOT_FOUND: the parent is not in the prefix index any more.
enum aule_status prefix_publish(struct aule_cache *cache,
                                const struct prefix_publishing *publishing, int32_t *block_ids,
                                uint32_t *num_existing);

#endif
