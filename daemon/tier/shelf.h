// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// shelf.h - which blocks a tier keeps, and for which tenants: an index by key, and an order of use
// for each tenant. It chooses the block to drop when room is short, so that the tenants' floors and
// caps hold. Knows not where the bytes are. No lock: the caller has one.

#ifndef AULE_TIER_SHELF_H
#define AULE_TIER_SHELF_H

#include "base/hash.h"
#include "tier.h"

struct shelf_key {
    uint8_t fingerprint[STORED_ID_BYTES], salt[STORED_ID_BYTES], chain[STORED_ID_BYTES];
};

struct shelf_tenant {
    UT_hash_handle hh; // by share.tenant
    struct tier_share share;
    struct shelf_item *items; // a list, the least recently used one first
    uint64_t num_items, bytes;
};

struct shelf_item {
    UT_hash_handle hh; // by key
    struct shelf_key key;
    struct shelf_tenant *tenant;
    struct shelf_item *prev, *next; // tenant->items
    uint64_t bytes;
    // The caller's.
    void *place;
    int64_t used_ns;
    bool spoilt; // its bytes count, but it is not to be loaded
};

struct shelf {
    struct shelf_item *items;     // by key; owned
    struct shelf_tenant *tenants; // owned; those without items go
    uint64_t num_items, bytes;
    // Dropping an item for which this is true makes no room. NULL: there is none.
    bool (*is_used)(const struct shelf_item *item);
};

struct shelf_key shelf_key_of(const struct stored_space *space, const struct stored_chain *chain);
struct shelf_item *shelf_find(const struct shelf *shelf, const struct shelf_key *key);
// Adds an item as the most recently used one of its tenant. The key is not there yet. NULL: the
// daemon has no memory.
struct shelf_item *shelf_add(struct shelf *shelf, const struct shelf_key *key,
                             const struct tier_share *share, uint64_t bytes);
void shelf_touch(struct shelf_item *item); // it is the most recently used one now
// The item becomes another tenant's, and the most recently used one. Without memory it stays.
void shelf_move(struct shelf *shelf, struct shelf_item *item, const struct tier_share *share);
// All items of nobody (tenant 0) with this salt become the tenant's, in the order of their use.
void shelf_adopt(struct shelf *shelf, const uint8_t salt[STORED_ID_BYTES],
                 const struct tier_share *share);
void shelf_remove(struct shelf *shelf, struct shelf_item *item); // frees it
// The item to drop to make room for the tenant `asking`: the least recently used one of the tenant
// with the most bytes. A tenant goes below its own floor for itself alone. NULL: there is none.
struct shelf_item *shelf_victim(const struct shelf *shelf, uint64_t asking);
// The item to drop because its tenant has more than its cap, even if somebody uses it. NULL: there
// is none.
struct shelf_item *shelf_excess(const struct shelf_tenant *tenant);
void shelf_finish(struct shelf *shelf); // frees all items

#endif
