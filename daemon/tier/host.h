// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// host.h - the tier in host memory: a bounded area that the GPU can reach, and an index of the
// blocks in it, least recently used first out. It copies nothing: a STORE takes over memory of the
// area that the caller has filled, and a LOAD lends it. Threads of its own compute the checksums.
// The area also serves the jobs of other tiers, so that what they load is in reach of the GPU.

#ifndef AULE_TIER_HOST_H
#define AULE_TIER_HOST_H

#include "tier.h"

extern const struct tier_ops host_ops;

struct host_params {
    void *base;    // page-aligned; lent until the tier has closed
    uint64_t size; // bytes
    // No block crosses a multiple of `part_bytes`. It is itself a multiple of AREA_UNIT; 0 means no
    // parts.
    uint64_t part_bytes;
    uint32_t threads; // 0 = three quarters of the cores that the process may use, 1 to 12
};
enum status host_open(const struct host_params *params, struct tier_backend **out,
                      struct error *error);
// Memory for a block of the tenant, with one reference, which ends by give_back(). Drops blocks
// that nobody uses if there is no room. NULL: there is none; see tier_share.
uint8_t *host_reserve(struct tier_backend *host, const struct tier_share *share, uint64_t bytes);
void host_ref(struct tier_backend *host, uint8_t *data); // one reference more
// The bytes of all memory that has a reference or holds a block.
uint64_t host_used_bytes(struct tier_backend *host);

#endif
