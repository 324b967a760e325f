// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// sharing_model.c - see sharing_model.h.

#include "sharing_model.h"

enum { TRIES = 8 }; // chunks that core looks at for one eviction

struct model model;

// ---- what a block is ----

uint32_t key_depth(uint32_t key)
{
    uint32_t depth = 0;
    while (depth < DEPTH && key >> (4 * depth) & 15)
        depth++;
    return depth;
}

uint32_t key_cut(uint32_t key, uint32_t depth)
{
    return key & ((1u << (4 * depth)) - 1);
}

static bool behind(const struct block_model *block, const struct block_model *top)
{
    return block->published && block->tenant == top->tenant &&
           key_cut(block->key, key_depth(top->key)) == top->key;
}

int model_find(int cache, int tenant, uint32_t key)
{
    for (int id = 0; id < IDS; id++) {
        const struct block_model *block = &model.blocks[cache][id];
        if (block->published && block->tenant == tenant && block->key == key)
            return id;
    }
    return NONE;
}

bool model_is_held(const struct block_model *block)
{
    for (int s = 0; s < SESSIONS; s++) {
        if (block->holds[s])
            return true;
    }
    return false;
}

static bool kept(int cache, const struct block_model *top, int keep)
{
    for (int id = 0; id < IDS; id++) {
        if (behind(&model.blocks[cache][id], top) && model.blocks[cache][id].keep == keep)
            return true;
    }
    return false;
}

bool model_is_pinned(int cache, const struct block_model *block)
{
    return block->published && kept(cache, block, CORE_KEEP_PINNED);
}

bool model_may_go(int cache, const struct block_model *block)
{
    return block->published && !model_is_held(block) && !kept(cache, block, CORE_KEEP_PINNED);
}

bool model_is_used(int cache, const struct block_model *block)
{
    return model_is_held(block) || model_is_pinned(cache, block);
}

static bool has_children(int cache, const struct block_model *top)
{
    for (int id = 0; id < IDS; id++) {
        if (&model.blocks[cache][id] != top && behind(&model.blocks[cache][id], top))
            return true;
    }
    return false;
}

uint64_t model_count(int tenant, int cache, bool (*is)(int, const struct block_model *))
{
    uint64_t count = 0;
    for (int c = 0; c < CACHES; c++) {
        for (int id = 0; id < IDS && (cache == NONE || cache == c); id++)
            count += model.blocks[c][id].tenant == tenant && is(c, &model.blocks[c][id]);
    }
    return count;
}

static uint64_t surplus(int tenant)
{
    uint64_t cached = model_count(tenant, NONE, model_may_go),
             floor = model.tenants[tenant].limits.floor;
    return cached > floor ? cached - floor : 0;
}

uint64_t model_distinct(int s)
{
    uint64_t count = 0;
    for (int c = 0; c < CACHES; c++) {
        for (int id = 0; id < IDS; id++)
            count += model.blocks[c][id].holds[s] > 0;
    }
    return count;
}

// ---- eviction ----

static void drop_behind(int cache, int id)
{
    const struct block_model top = model.blocks[cache][id];
    for (int other = 0; other < IDS; other++) {
        struct block_model *block = &model.blocks[cache][other];
        if (!behind(block, &top))
            continue;
        model.num_evicted += model_may_go(cache, block) || other == id;
        if (!model_is_held(block))
            model.tenants[top.tenant].evicted++;
        block->published = false;
        block->keep = CORE_KEEP_NORMAL;
        if (!model_is_held(block))
            *block = (struct block_model){.tenant = NONE};
    }
}

struct age {
    bool preferred, inner;
    uint64_t last_use;
};

static bool is_older(struct age a, struct age b)
{
    if (a.preferred != b.preferred)
        return b.preferred;
    if (a.inner != b.inner)
        return b.inner;
    return a.last_use < b.last_use;
}

static struct age age_of(int cache, const struct block_model *block)
{
    return (struct age){kept(cache, block, CORE_KEEP_PREFERRED), has_children(cache, block),
                        block->last_use};
}

// The tenant's next block to go; NONE: it has none in this cache.
static int next_victim(int tenant, int cache)
{
    int first = NONE;
    for (int id = 0; id < IDS; id++) {
        const struct block_model *block = &model.blocks[cache][id];
        if (block->tenant == tenant && model_may_go(cache, block) &&
            (first == NONE ||
             is_older(age_of(cache, block), age_of(cache, &model.blocks[cache][first]))))
            first = id;
    }
    return first;
}

// Follows the latest cached child down.
static int lowest(int cache, int id)
{
    int next = id;
    while (next != NONE) {
        id = next;
        next = NONE;
        for (int other = 0; other < IDS; other++) {
            const struct block_model *block = &model.blocks[cache][other];
            if (behind(block, &model.blocks[cache][id]) && !model_is_held(block) &&
                key_depth(block->key) == key_depth(model.blocks[cache][id].key) + 1 &&
                (next == NONE || block->seq > model.blocks[cache][next].seq))
                next = other;
        }
    }
    return id;
}

static bool is_idle(int cache, int chunk)
{
    bool cached = false;
    for (int id = chunk * CHUNK; id < (chunk + 1) * CHUNK; id++) {
        const struct block_model *block = &model.blocks[cache][id];
        if (block->tenant != NONE && !model_may_go(cache, block))
            return false;
        cached |= block->tenant != NONE;
    }
    return model.chunks[cache][chunk].present && cached;
}

// What the tenant may lose for a lease of `asking`: a floor holds only for others' leases.
static uint64_t may_lose(int tenant, int asking)
{
    return tenant == asking ? model_count(tenant, NONE, model_may_go) : surplus(tenant);
}

static bool floors_hold_without(int cache, int chunk, int asking)
{
    bool lost[IDS] = {false};
    for (int id = chunk * CHUNK; id < (chunk + 1) * CHUNK; id++) {
        for (int other = 0; other < IDS; other++)
            lost[other] |= model.blocks[cache][id].published &&
                           behind(&model.blocks[cache][other], &model.blocks[cache][id]) &&
                           model_may_go(cache, &model.blocks[cache][other]);
    }
    for (int t = 0; t < TENANTS; t++) {
        uint64_t count = 0;
        for (int id = 0; id < IDS; id++)
            count += lost[id] && model.blocks[cache][id].tenant == t;
        if (count > may_lose(t, asking))
            return false;
    }
    return true;
}

static struct age chunk_age(int cache, int chunk)
{
    struct age age = {.last_use = model.chunks[cache][chunk].last_use};
    for (int id = chunk * CHUNK; id < (chunk + 1) * CHUNK; id++)
        age.preferred |= model.blocks[cache][id].tenant != NONE &&
                         kept(cache, &model.blocks[cache][id], CORE_KEEP_PREFERRED);
    return age;
}

static int oldest_chunk(int tenant, int cache, int asking)
{
    bool tried[CHUNKS] = {false};
    for (int i = 0; i < TRIES; i++) {
        int oldest = NONE;
        for (int chunk = 0; chunk < CHUNKS; chunk++) {
            if (is_idle(cache, chunk) && model.chunks[cache][chunk].owner == tenant &&
                !tried[chunk] &&
                (oldest == NONE || is_older(chunk_age(cache, chunk), chunk_age(cache, oldest))))
                oldest = chunk;
        }
        if (oldest == NONE || floors_hold_without(cache, oldest, asking))
            return oldest;
        tried[oldest] = true;
    }
    return NONE;
}

static bool evict_from(int tenant, int cache, int asking)
{
    int own = next_victim(tenant, cache), other = 1 - cache,
        chunk = oldest_chunk(tenant, other, asking);
    if (own != NONE && chunk != NONE) {
        struct age age = age_of(cache, &model.blocks[cache][own]);
        age.inner = false;
        if (!is_older(chunk_age(other, chunk), age))
            chunk = NONE;
    }
    if (chunk != NONE) {
        for (int id = chunk * CHUNK; id < (chunk + 1) * CHUNK; id++) {
            if (model.blocks[other][id].tenant != NONE)
                drop_behind(other, id);
        }
        model.chunks[other][chunk].present = false;
        model.num_moved++;
    } else if (own != NONE) {
        drop_behind(cache, lowest(cache, own));
    }
    return chunk != NONE || own != NONE;
}

static bool evict_for(int cache, int asking)
{
    bool tried[TENANTS] = {false};
    for (int round = 0; round < TENANTS; round++) {
        int most = NONE;
        for (int t = 0; t < TENANTS; t++) { // equal ones: the older tenant
            if (!tried[t] && surplus(t) &&
                (most == NONE ||
                 model_count(t, NONE, model_may_go) > model_count(most, NONE, model_may_go)))
                most = t;
        }
        if (most == NONE)
            break;
        if (evict_from(most, cache, asking))
            return true;
        tried[most] = true;
    }
    return evict_from(asking, cache, asking);
}

void model_trim(void)
{
    for (int t = 0; t < TENANTS; t++) {
        uint64_t cap = model.tenants[t].limits.cached;
        while (cap && model_count(t, NONE, model_may_go) > cap) {
            int cache = 0, id = next_victim(t, 0), other = next_victim(t, 1);
            if (id == NONE || (other != NONE && is_older(age_of(1, &model.blocks[1][other]),
                                                         age_of(0, &model.blocks[0][id])))) {
                cache = 1;
                id = other;
            }
            drop_behind(cache, lowest(cache, id));
        }
    }
}

// ---- memory ----

static uint32_t num_present(int cache)
{
    uint32_t count = 0;
    for (int chunk = 0; chunk < CHUNKS; chunk++)
        count += model.chunks[cache][chunk].present;
    return count;
}

static bool is_empty(int cache, int chunk)
{
    for (int id = chunk * CHUNK; id < (chunk + 1) * CHUNK; id++) {
        if (model.blocks[cache][id].tenant != NONE)
            return false;
    }
    return model.chunks[cache][chunk].present;
}

static uint32_t count_free(int cache)
{
    uint32_t count = num_present(cache) * CHUNK;
    for (int id = 0; id < IDS; id++)
        count -= model.blocks[cache][id].tenant != NONE;
    return count;
}

static uint32_t growable(void)
{
    return POOL / CHUNK - num_present(0) - num_present(1);
}

static uint32_t available(int cache, int asking)
{
    uint32_t spare = growable(), own = 0;
    for (int chunk = 0; chunk < CHUNKS; chunk++)
        spare += is_empty(1 - cache, chunk);
    for (int t = 0; t < TENANTS; t++) {
        uint64_t here = model_count(t, cache, model_may_go);
        uint64_t idle = 0;
        for (int chunk = 0; chunk < CHUNKS; chunk++)
            idle += is_idle(1 - cache, chunk) && model.chunks[1 - cache][chunk].owner == t;
        spare += (uint32_t)(idle < may_lose(t, asking) ? idle : may_lose(t, asking));
        own += (uint32_t)(here < may_lose(t, asking) ? here : may_lose(t, asking));
    }
    return count_free(cache) + own + spare * CHUNK;
}

static bool take_spare(int cache)
{
    for (int chunk = CHUNKS; chunk-- > 0;) {
        if (is_empty(1 - cache, chunk)) {
            model.chunks[1 - cache][chunk].present = false;
            return true;
        }
    }
    return false;
}

static void grow_to(int cache, uint32_t count)
{
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        if (count_free(cache) < count && growable() && !model.chunks[cache][chunk].present)
            model.chunks[cache][chunk] = (struct chunk_model){.present = true, .owner = NONE};
    }
}

bool model_make_room(int cache, uint32_t count, int asking)
{
    if (count_free(cache) >= count)
        return true;
    if (available(cache, asking) < count)
        return false;
    grow_to(cache, count);
    while (count_free(cache) < count && (take_spare(cache) || evict_for(cache, asking)))
        grow_to(cache, count);
    return count_free(cache) >= count;
}
