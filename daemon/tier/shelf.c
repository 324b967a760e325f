// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// shelf.c - see shelf.h.

#include "shelf.h"

#include "base/list.h"

#include <stdlib.h>
#include <string.h>

// Items in use that are stepped over in search of one to drop.
enum { MOST_USED = 256 };

struct shelf_key shelf_key_of(const struct stored_space *space, const struct stored_chain *chain)
{
    struct shelf_key key;
    memcpy(key.fingerprint, space->fingerprint, sizeof key.fingerprint);
    memcpy(key.salt, space->salt, sizeof key.salt);
    memcpy(key.chain, chain->id, sizeof key.chain);
    return key;
}

struct shelf_item *shelf_find(const struct shelf *shelf, const struct shelf_key *key)
{
    struct shelf_item *item;
    HASH_FIND(hh, shelf->items, key, sizeof *key, item);
    return item;
}

// ---- tenants ----

static void settle(struct shelf *shelf, struct shelf_tenant *tenant)
{
    if (tenant->num_items)
        return;
    HASH_DEL(shelf->tenants, tenant);
    free(tenant);
}

// NULL: no memory.
static struct shelf_tenant *tenant_get(struct shelf *shelf, const struct tier_share *share)
{
    struct shelf_tenant *tenant;
    HASH_FIND(hh, shelf->tenants, &share->tenant, sizeof share->tenant, tenant);
    if (!tenant && (tenant = calloc(1, sizeof *tenant))) {
        tenant->share = *share;
        HASH_ADD(hh, shelf->tenants, share.tenant, sizeof share->tenant, tenant);
        if (!HASH_ADDED(tenant)) {
            free(tenant);
            return NULL;
        }
    }
    if (tenant)
        tenant->share = *share;
    return tenant;
}

static void enter(struct shelf_tenant *tenant, struct shelf_item *item)
{
    item->tenant = tenant;
    LIST_APPEND(tenant->items, item);
    tenant->num_items++;
    tenant->bytes += item->bytes;
}

static void leave(struct shelf *shelf, struct shelf_item *item)
{
    struct shelf_tenant *tenant = item->tenant;
    LIST_DELETE(tenant->items, item);
    tenant->num_items--;
    tenant->bytes -= item->bytes;
    settle(shelf, tenant);
}

// ---- items ----

struct shelf_item *shelf_add(struct shelf *shelf, const struct shelf_key *key,
                             const struct tier_share *share, uint64_t bytes)
{
    struct shelf_tenant *tenant = tenant_get(shelf, share);
    struct shelf_item *item = tenant ? calloc(1, sizeof *item) : NULL;
    if (item) {
        item->key = *key;
        item->bytes = bytes;
        HASH_ADD(hh, shelf->items, key, sizeof item->key, item);
    }
    if (!item || !HASH_ADDED(item)) {
        free(item);
        if (tenant)
            settle(shelf, tenant);
        return NULL;
    }
    enter(tenant, item);
    shelf->num_items++;
    shelf->bytes += bytes;
    return item;
}

void shelf_touch(struct shelf_item *item)
{
    LIST_DELETE(item->tenant->items, item);
    LIST_APPEND(item->tenant->items, item);
}

void shelf_move(struct shelf *shelf, struct shelf_item *item, const struct tier_share *share)
{
    struct shelf_tenant *tenant = tenant_get(shelf, share);
    if (!tenant || tenant == item->tenant) {
        shelf_touch(item);
        return;
    }
    leave(shelf, item);
    enter(tenant, item);
}

void shelf_adopt(struct shelf *shelf, const uint8_t salt[STORED_ID_BYTES],
                 const struct tier_share *share)
{
    const uint64_t nobody = 0;
    struct shelf_tenant *tenant, *owner = NULL;
    struct shelf_item *item, *next;
    HASH_FIND(hh, shelf->tenants, &nobody, sizeof nobody, tenant);
    if (tenant && share->tenant != nobody)
        owner = tenant_get(shelf, share);
    if (!owner)
        return;
    // `tenant` goes with its last item, and then there is no next one.
    LIST_EACH_SAFE(tenant->items, item, next) {
        if (memcmp(item->key.salt, salt, STORED_ID_BYTES) != 0)
            continue;
        leave(shelf, item);
        enter(owner, item);
    }
    settle(shelf, owner);
}

void shelf_remove(struct shelf *shelf, struct shelf_item *item)
{
    HASH_DEL(shelf->items, item);
    leave(shelf, item);
    shelf->num_items--;
    shelf->bytes -= item->bytes;
    free(item);
}

// ---- what to drop ----

// The tenant's least recently used item that nobody uses. NULL: there is none among the first.
static struct shelf_item *oldest(const struct shelf *shelf, const struct shelf_tenant *tenant)
{
    struct shelf_item *item;
    int tries = 0;
    LIST_EACH(tenant->items, item) {
        if (!shelf->is_used || !shelf->is_used(item))
            return item;
        if (++tries == MOST_USED)
            return NULL;
    }
    return NULL;
}

struct shelf_item *shelf_victim(const struct shelf *shelf, uint64_t asking)
{
    struct shelf_item *best = NULL;
    for (struct shelf_tenant *tenant = shelf->tenants; tenant; tenant = tenant->hh.next) {
        if (tenant->share.tenant != asking && tenant->num_items <= tenant->share.floor)
            continue;
        struct shelf_item *item =
            !best || tenant->bytes > best->tenant->bytes ? oldest(shelf, tenant) : NULL;
        best = item ? item : best;
    }
    return best;
}

struct shelf_item *shelf_excess(const struct shelf_tenant *tenant)
{
    return tenant->share.cap && tenant->num_items > tenant->share.cap ? tenant->items : NULL;
}

void shelf_finish(struct shelf *shelf)
{
    struct shelf_item *item, *next;
    struct shelf_tenant *tenant, *after;
    HASH_ITER(hh, shelf->items, item, next) {
        HASH_DEL(shelf->items, item);
        free(item);
    }
    HASH_ITER(hh, shelf->tenants, tenant, after) {
        HASH_DEL(shelf->tenants, tenant);
        free(tenant);
    }
}
