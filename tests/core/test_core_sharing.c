// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_core_sharing.c - random operations of sessions of three tenants in two caches, compared with
// a naive model of quotas, pins, classes, floors, caps and the order of eviction. The model is
// arrays and linear searches. It predicts each eviction from the use counter of the step before.
// After each operation the state and depth of every block and the figures of every tenant are
// compared, and core counts itself anew. The table `operations` says what is drawn.

#include "core/state.h"
#include "rigs/check_main.h"
#include "rigs/core_world.h"

enum {
    SEEDS = 12,
    STEPS = 2500,
    TENANTS = 3,
    SESSIONS = 6, // session s is of tenant s % TENANTS
    CACHES = 2,
    CHUNK = 4,
    CHUNKS = 32, // block ids of a cache, in chunks
    IDS = CHUNK * CHUNKS,
    POOL = 64,   // blocks
    PHASE = 100, // operations that prefer one of the caches
    TRIES = 8,   // chunks that core looks at for one eviction
    DEPTH = 4,
    TEXTS = 5,
    NONE = -1,
};

struct block_model {
    bool published, sealed;
    int tenant;        // NONE = free
    uint32_t key, seq; // of its node: text_key(); order of creation
    int keep;          // of the prefix that ends with it
    uint32_t holds[SESSIONS];
    uint64_t last_use;
};

struct chunk_model {
    bool present;
    uint64_t last_use; // of the block that was cached last
    int owner;         // its tenant
};

struct tenant_model {
    struct core_limits limits;
    uint64_t id, evicted;
};

struct text {
    bool used;
    int cache;
    uint32_t count;
    int32_t blocks[DEPTH];
};

static struct world world;
static struct worker workers[SESSIONS];
static uint64_t cache_ids[CACHES];
static struct block_model model[CACHES][IDS];
static struct chunk_model chunks[CACHES][CHUNKS];
static struct tenant_model tenants[TENANTS];
static struct text texts[SESSIONS][TEXTS];
static uint64_t quotas[SESSIONS];
static uint32_t last_seq;
static uint64_t random_state;
static uint64_t num_evicted, num_moved, num_quota, num_no_blocks, num_pins, num_hits, num_kept_back;

static uint32_t roll(uint32_t sides)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)((random_state >> 16) % sides);
}

// ---- the model: what a block is ----

static uint32_t depth_of(uint32_t key)
{
    uint32_t depth = 0;
    while (depth < DEPTH && key >> (4 * depth) & 15)
        depth++;
    return depth;
}

static uint32_t cut(uint32_t key, uint32_t depth)
{
    return key & ((1u << (4 * depth)) - 1);
}

static bool behind(const struct block_model *block, const struct block_model *top)
{
    return block->published && block->tenant == top->tenant &&
           cut(block->key, depth_of(top->key)) == top->key;
}

static int find(int cache, int tenant, uint32_t key)
{
    for (int id = 0; id < IDS; id++) {
        const struct block_model *block = &model[cache][id];
        if (block->published && block->tenant == tenant && block->key == key)
            return id;
    }
    return NONE;
}

static bool held(const struct block_model *block)
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
        if (behind(&model[cache][id], top) && model[cache][id].keep == keep)
            return true;
    }
    return false;
}

static bool is_pinned(int cache, const struct block_model *block)
{
    return block->published && !held(block) && kept(cache, block, CORE_KEEP_PINNED);
}

static bool may_go(int cache, const struct block_model *block)
{
    return block->published && !held(block) && !kept(cache, block, CORE_KEEP_PINNED);
}

static bool is_used(int cache, const struct block_model *block)
{
    return held(block) || is_pinned(cache, block);
}

static bool has_children(int cache, const struct block_model *top)
{
    for (int id = 0; id < IDS; id++) {
        if (&model[cache][id] != top && behind(&model[cache][id], top))
            return true;
    }
    return false;
}

static uint64_t count_tenant(int tenant, int cache, bool (*is)(int, const struct block_model *))
{
    uint64_t count = 0;
    for (int c = 0; c < CACHES; c++) {
        for (int id = 0; id < IDS && (cache == NONE || cache == c); id++)
            count += model[c][id].tenant == tenant && is(c, &model[c][id]);
    }
    return count;
}

static uint64_t surplus(int tenant)
{
    uint64_t cached = count_tenant(tenant, NONE, may_go), floor = tenants[tenant].limits.floor;
    return cached > floor ? cached - floor : 0;
}

static uint64_t distinct(int s)
{
    uint64_t count = 0;
    for (int c = 0; c < CACHES; c++) {
        for (int id = 0; id < IDS; id++)
            count += model[c][id].holds[s] > 0;
    }
    return count;
}

// ---- the model: eviction ----

static void drop_behind(int cache, int id)
{
    const struct block_model top = model[cache][id];
    for (int other = 0; other < IDS; other++) {
        struct block_model *block = &model[cache][other];
        if (!behind(block, &top))
            continue;
        num_evicted += may_go(cache, block) || other == id;
        if (!held(block))
            tenants[top.tenant].evicted++;
        block->published = false;
        block->keep = CORE_KEEP_NORMAL;
        if (!held(block))
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
        const struct block_model *block = &model[cache][id];
        if (block->tenant == tenant && may_go(cache, block) &&
            (first == NONE || is_older(age_of(cache, block), age_of(cache, &model[cache][first]))))
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
            const struct block_model *block = &model[cache][other];
            if (behind(block, &model[cache][id]) && !held(block) &&
                depth_of(block->key) == depth_of(model[cache][id].key) + 1 &&
                (next == NONE || block->seq > model[cache][next].seq))
                next = other;
        }
    }
    return id;
}

static bool is_idle(int cache, int chunk)
{
    bool cached = false;
    for (int id = chunk * CHUNK; id < (chunk + 1) * CHUNK; id++) {
        const struct block_model *block = &model[cache][id];
        if (block->tenant != NONE && !may_go(cache, block))
            return false;
        cached |= block->tenant != NONE;
    }
    return chunks[cache][chunk].present && cached;
}

// What the tenant may lose for a lease of `asking`: a floor holds only for others' leases.
static uint64_t may_lose(int tenant, int asking)
{
    return tenant == asking ? count_tenant(tenant, NONE, may_go) : surplus(tenant);
}

static bool floors_hold_without(int cache, int chunk, int asking)
{
    bool lost[IDS] = {false};
    for (int id = chunk * CHUNK; id < (chunk + 1) * CHUNK; id++) {
        for (int other = 0; other < IDS; other++)
            lost[other] |= model[cache][id].published &&
                           behind(&model[cache][other], &model[cache][id]) &&
                           may_go(cache, &model[cache][other]);
    }
    for (int t = 0; t < TENANTS; t++) {
        uint64_t count = 0;
        for (int id = 0; id < IDS; id++)
            count += lost[id] && model[cache][id].tenant == t;
        if (count > may_lose(t, asking))
            return false;
    }
    return true;
}

static struct age chunk_age(int cache, int chunk)
{
    struct age age = {.last_use = chunks[cache][chunk].last_use};
    for (int id = chunk * CHUNK; id < (chunk + 1) * CHUNK; id++)
        age.preferred |=
            model[cache][id].tenant != NONE && kept(cache, &model[cache][id], CORE_KEEP_PREFERRED);
    return age;
}

static int oldest_chunk(int tenant, int cache, int asking)
{
    bool tried[CHUNKS] = {false};
    for (int i = 0; i < TRIES; i++) {
        int oldest = NONE;
        for (int chunk = 0; chunk < CHUNKS; chunk++) {
            if (is_idle(cache, chunk) && chunks[cache][chunk].owner == tenant && !tried[chunk] &&
                (oldest == NONE || is_older(chunk_age(cache, chunk), chunk_age(cache, oldest))))
                oldest = chunk;
        }
        if (oldest == NONE || floors_hold_without(cache, oldest, asking))
            return oldest;
        tried[oldest] = true;
        num_kept_back++;
    }
    return NONE;
}

static bool evict_from(int tenant, int cache, int asking)
{
    int own = next_victim(tenant, cache), other = 1 - cache,
        chunk = oldest_chunk(tenant, other, asking);
    if (own != NONE && chunk != NONE) {
        struct age age = age_of(cache, &model[cache][own]);
        age.inner = false;
        if (!is_older(chunk_age(other, chunk), age))
            chunk = NONE;
    }
    if (chunk != NONE) {
        for (int id = chunk * CHUNK; id < (chunk + 1) * CHUNK; id++) {
            if (model[other][id].tenant != NONE)
                drop_behind(other, id);
        }
        chunks[other][chunk].present = false;
        num_moved++;
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
                (most == NONE || count_tenant(t, NONE, may_go) > count_tenant(most, NONE, may_go)))
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

static void trim(void)
{
    for (int t = 0; t < TENANTS; t++) {
        uint64_t cap = tenants[t].limits.cached;
        while (cap && count_tenant(t, NONE, may_go) > cap) {
            int cache = 0, id = next_victim(t, 0), other = next_victim(t, 1);
            if (id == NONE || (other != NONE &&
                               is_older(age_of(1, &model[1][other]), age_of(0, &model[0][id])))) {
                cache = 1;
                id = other;
            }
            drop_behind(cache, lowest(cache, id));
        }
    }
}

// ---- the model: memory ----

static uint32_t num_present(int cache)
{
    uint32_t count = 0;
    for (int chunk = 0; chunk < CHUNKS; chunk++)
        count += chunks[cache][chunk].present;
    return count;
}

static bool is_empty(int cache, int chunk)
{
    for (int id = chunk * CHUNK; id < (chunk + 1) * CHUNK; id++) {
        if (model[cache][id].tenant != NONE)
            return false;
    }
    return chunks[cache][chunk].present;
}

static uint32_t count_free(int cache)
{
    uint32_t count = num_present(cache) * CHUNK;
    for (int id = 0; id < IDS; id++)
        count -= model[cache][id].tenant != NONE;
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
        uint64_t here = count_tenant(t, cache, may_go);
        uint64_t idle = 0;
        for (int chunk = 0; chunk < CHUNKS; chunk++)
            idle += is_idle(1 - cache, chunk) && chunks[1 - cache][chunk].owner == t;
        spare += (uint32_t)(idle < may_lose(t, asking) ? idle : may_lose(t, asking));
        own += (uint32_t)(here < may_lose(t, asking) ? here : may_lose(t, asking));
    }
    return count_free(cache) + own + spare * CHUNK;
}

static bool take_spare(int cache)
{
    for (int chunk = CHUNKS; chunk-- > 0;) {
        if (is_empty(1 - cache, chunk)) {
            chunks[1 - cache][chunk].present = false;
            return true;
        }
    }
    return false;
}

static void grow_to(int cache, uint32_t count)
{
    for (int chunk = 0; chunk < CHUNKS; chunk++) {
        if (count_free(cache) < count && growable() && !chunks[cache][chunk].present)
            chunks[cache][chunk] = (struct chunk_model){.present = true, .owner = NONE};
    }
}

static bool make_room(int cache, uint32_t count, int asking)
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

// ---- comparing ----

// Blocks that became cached have a new last use, and so has the chunk of the latest one.
static void note_uses(void)
{
    for (int c = 0; c < CACHES; c++) {
        for (int id = 0; id < IDS; id++) {
            struct block_model *block = &model[c][id];
            struct chunk_model *chunk = &chunks[c][id / CHUNK];
            struct core_block_view view;
            if (block->tenant == NONE)
                continue;
            core_block_at(world.core, cache_ids[c], (uint32_t)id, &view);
            if (may_go(c, block) && view.last_use != block->last_use &&
                view.last_use > chunk->last_use) {
                chunk->last_use = view.last_use;
                chunk->owner = block->tenant;
            }
            block->last_use = view.last_use;
        }
    }
}

static enum core_block_kind expected_state(int cache, int id)
{
    const struct block_model *block = &model[cache][id];
    if (!chunks[cache][id / CHUNK].present)
        return CORE_ABSENT;
    if (block->tenant == NONE)
        return CORE_FREE;
    if (!held(block))
        return CORE_CACHED;
    return block->sealed ? CORE_HELD : CORE_LEASED;
}

static void compare_block(int cache, int id)
{
    const struct block_model *block = &model[cache][id];
    struct core_block_view view;
    core_block_at(world.core, cache_ids[cache], (uint32_t)id, &view);
    int depth = block->published ? (int)depth_of(block->key) - 1 : -1;
    if (view.state != expected_state(cache, id) || view.depth != depth)
        ck_abort_msg("cache %d, block %d: state %d, depth %d; expected %d, %d", cache, id,
                     (int)view.state, (int)view.depth, (int)expected_state(cache, id), depth);
}

static void compare(void)
{
    for (int c = 0; c < CACHES; c++) {
        for (int id = 0; id < IDS; id++)
            compare_block(c, id);
    }
    for (int t = 0; t < TENANTS; t++) {
        struct core_tenant_view view;
        ck_assert(core_tenant_at(world.core, (uint32_t)t, &view));
        ck_assert_uint_eq(view.used, count_tenant(t, NONE, is_used));
        ck_assert_uint_eq(view.pinned, count_tenant(t, NONE, is_pinned));
        ck_assert_uint_eq(view.cached, count_tenant(t, NONE, may_go));
        ck_assert_uint_eq(view.evicted, tenants[t].evicted);
    }
    for (int s = 0; s < SESSIONS; s++) {
        struct core_session_counts counts;
        core_session_counts(workers[s].session, &counts);
        ck_assert_uint_eq(counts.blocks_held, distinct(s));
    }
    world_check(&world);
}

// ---- operations ----

static bool over_quota(int s, uint64_t session, uint64_t tenant)
{
    uint64_t most = tenants[s % TENANTS].limits.blocks,
             used = count_tenant(s % TENANTS, NONE, is_used);
    bool over = (quotas[s] && session && distinct(s) + session > quotas[s]) ||
                (most && tenant && used + tenant > most);
    num_quota += over;
    return over;
}

static void release(int s, int cache, const int32_t *ids, uint32_t count)
{
    workers[s].cache = cache_ids[cache];
    worker_release(&workers[s], ids, count);
    for (uint32_t i = 0; i < count; i++) {
        struct block_model *block = &model[cache][ids[i]];
        block->holds[s]--;
        if (!held(block) && !block->published)
            *block = (struct block_model){.tenant = NONE};
    }
    note_uses();
    trim();
}

static bool lease(int s, int cache, uint32_t count, int32_t *ids)
{
    workers[s].cache = cache_ids[cache];
    enum status expected = over_quota(s, count, count)            ? STATUS_QUOTA
                           : make_room(cache, count, s % TENANTS) ? STATUS_OK
                                                                  : STATUS_NO_BLOCKS;
    ck_assert_status(worker_try_lease(&workers[s], count, ids, &error), expected);
    num_no_blocks += expected == STATUS_NO_BLOCKS;
    for (uint32_t i = 0; expected == STATUS_OK && i < count; i++) {
        struct block_model *block = &model[cache][ids[i]];
        ck_assert_int_eq(block->tenant, NONE);
        *block = (struct block_model){.tenant = s % TENANTS};
        block->holds[s] = 1;
    }
    return expected == STATUS_OK;
}

static uint32_t num_steps;

static int some_cache(void)
{
    return (int)(roll(5) ? num_steps / PHASE % CACHES : roll(CACHES));
}

static uint32_t random_key(uint32_t *depth)
{
    uint32_t key = 0;
    *depth = 1 + roll(DEPTH);
    for (uint32_t i = 0; i < *depth; i++)
        key |= (1 + roll(i ? 2 : 4)) << (4 * i);
    return key;
}

static void key_tokens(uint32_t key, int32_t *tokens)
{
    for (uint32_t i = 0; i < depth_of(key) * WORLD_BLOCK; i++)
        tokens[i] = (int32_t)((key >> (4 * (i / WORLD_BLOCK)) & 15) * 100 + i);
}

// The quota that a hold of the chain's cached blocks would take.
static uint32_t find_chain(int s, int cache, uint32_t key, int32_t *ids, uint64_t *session,
                           uint64_t *tenant)
{
    uint32_t count = 0;
    *session = *tenant = 0;
    for (; count < depth_of(key); count++) {
        int id = find(cache, s % TENANTS, cut(key, count + 1));
        if (id == NONE)
            break;
        *session += !model[cache][id].holds[s];
        *tenant += may_go(cache, &model[cache][id]);
        ids[count] = id;
    }
    return count;
}

static bool look_up(int s, struct text *text, uint32_t key)
{
    int32_t tokens[DEPTH * WORLD_BLOCK], expected[DEPTH];
    uint64_t session, tenant;
    uint32_t count, wanted = find_chain(s, text->cache, key, expected, &session, &tenant);
    bool over = over_quota(s, session, tenant);
    key_tokens(key, tokens);
    const struct core_prefix prefix = {.tokens = tokens, .num_tokens = depth_of(key) * WORLD_BLOCK};
    ck_assert_status(core_prefix_lookup(workers[s].session, cache_ids[text->cache], &prefix, 0,
                                        text->blocks, &count, &error),
                     over ? STATUS_QUOTA : STATUS_OK);
    if (over)
        return false;
    ck_assert_uint_eq(count, wanted);
    for (uint32_t i = 0; i < count; i++) {
        ck_assert_int_eq(text->blocks[i], expected[i]);
        model[text->cache][expected[i]].holds[s]++;
    }
    num_hits += count;
    text->count = count;
    return true;
}

static void compute(int s, struct text *text, uint32_t key)
{
    struct worker *worker = &workers[s];
    int32_t tokens[DEPTH * WORLD_BLOCK];
    uint32_t depth = depth_of(key), first = text->count, num_new = (depth - first) * WORLD_BLOCK;
    key_tokens(key, tokens);
    worker->cache = cache_ids[text->cache];
    uint64_t batch = worker_batch(worker, text->blocks, depth * WORLD_BLOCK, num_new);
    for (uint32_t layer = 0; layer < WORLD_LAYERS; layer++) {
        uint64_t ticket =
            worker_run(worker, batch, layer, num_new, tokens + (size_t)first * WORLD_BLOCK);
        world_finish_all(&world);
        worker_reap(worker, ticket, STATUS_OK);
    }
    ck_assert_status(core_batch_destroy(worker->session, batch, &error), STATUS_OK);
    ck_assert_uint_eq(worker_publish(worker, tokens, depth * WORLD_BLOCK, text->blocks), 0);
    for (uint32_t i = first; i < depth; i++) {
        struct block_model *block = &model[text->cache][text->blocks[i]];
        block->published = block->sealed = true;
        block->key = cut(key, i + 1);
        block->seq = ++last_seq;
    }
    text->count = depth;
}

static void do_text(int s)
{
    struct text *text = &texts[s][roll(TEXTS)];
    uint32_t depth, key = random_key(&depth);
    if (text->used)
        return;
    *text = (struct text){.cache = some_cache()};
    if (!look_up(s, text, key))
        return;
    text->used = text->count > 0;
    if (depth == text->count)
        return;
    if (!lease(s, text->cache, depth - text->count, text->blocks + text->count)) {
        release(s, text->cache, text->blocks, text->count);
        text->used = false;
        return;
    }
    compute(s, text, key);
    text->used = true;
}

static void do_scratch(int s)
{
    struct text *text = &texts[s][roll(TEXTS)];
    if (text->used)
        return;
    *text = (struct text){.cache = some_cache(), .count = 1 + roll(DEPTH)};
    text->used = lease(s, text->cache, text->count, text->blocks);
}

static void do_release(int s)
{
    struct text *text = &texts[s][roll(TEXTS)];
    if (!text->used)
        return;
    release(s, text->cache, text->blocks, text->count);
    text->used = false;
}

static void do_keep(int s)
{
    int32_t tokens[DEPTH * WORLD_BLOCK], ids[DEPTH];
    int cache = some_cache(), keep = (int)roll(CORE_NUM_KEEPS);
    uint32_t depth, key = random_key(&depth), kept_tokens;
    uint64_t session, tenant;
    uint32_t count = find_chain(s, cache, key, ids, &session, &tenant);
    bool over = keep == CORE_KEEP_PINNED && over_quota(s, 0, tenant);
    key_tokens(key, tokens);
    const struct core_prefix prefix = {.tokens = tokens, .num_tokens = depth * WORLD_BLOCK};
    ck_assert_status(core_prefix_keep(workers[s].session, cache_ids[cache], &prefix,
                                      (enum core_keep)keep, &kept_tokens, &error),
                     over ? STATUS_QUOTA : STATUS_OK);
    ck_assert_uint_eq(kept_tokens, over ? 0 : count * WORLD_BLOCK);
    if (over || !count)
        return;
    model[cache][ids[count - 1]].keep = keep;
    num_pins += keep == CORE_KEEP_PINNED;
    note_uses();
    trim();
}

static void do_limit(int s)
{
    int t = s % TENANTS;
    struct core_limits limits = {roll(3) ? 6 + roll(40) : 0, roll(3) ? 4 + roll(30) : 0, roll(12)};
    bool valid = !limits.cached || limits.floor <= limits.cached;
    ck_assert_status(core_tenant_limit(world.core, tenants[t].id, &limits, &error),
                     valid ? STATUS_OK : STATUS_INVALID);
    if (valid)
        tenants[t].limits = limits;
    quotas[s] = roll(2) ? 0 : 4 + roll(16);
    core_session_limit(workers[s].session, quotas[s]);
    trim();
}

static void do_reopen(int s)
{
    for (int t = 0; t < TEXTS; t++) // one by one, so that the model sees the order
        if (texts[s][t].used)
            release(s, texts[s][t].cache, texts[s][t].blocks, texts[s][t].count);
    memset(texts[s], 0, sizeof(texts[s]));
    worker_close(&workers[s], roll(2));
    worker_open(&workers[s], &world, (uint32_t)(s % TENANTS), "");
    worker_open_cache(&workers[s], "alt");
    quotas[s] = 0;
}

static const struct {
    const char *name;
    void (*run)(int s);
    uint32_t weight;
} operations[] = {
    {"look up, lease, compute, publish", do_text, 30},
    {"lease without publishing", do_scratch, 4},
    {"release", do_release, 30},
    {"pin, prefer, unpin", do_keep, 6},
    {"limit tenant and session", do_limit, 1},
    {"close and open again", do_reopen, 1},
};

static void random_operation(void)
{
    uint32_t sum = 0, at = 0;
    for (size_t i = 0; i < sizeof(operations) / sizeof(*operations); i++)
        sum += operations[i].weight;
    for (uint32_t pick = roll(sum); pick >= operations[at].weight; at++)
        pick -= operations[at].weight;
    num_steps++;
    operations[at].run((int)roll(SESSIONS));
    note_uses();
}

static void begin(void)
{
    world_open(&world, &(struct core_params){.max_blocks = POOL});
    fake_engine_limit_allocation(world.engine, CHUNK * WORLD_BLOCK_BYTES / WORLD_LAYERS);
    for (int c = 0; c < CACHES; c++) {
        for (int id = 0; id < IDS; id++)
            model[c][id].tenant = NONE;
    }
    for (int s = 0; s < SESSIONS; s++) {
        struct core_tenant_view view;
        worker_open(&workers[s], &world, (uint32_t)(s % TENANTS), "");
        cache_ids[0] = workers[s].cache;
        cache_ids[1] = worker_open_cache(&workers[s], "alt");
        if (s >= TENANTS)
            continue;
        ck_assert(core_tenant_at(world.core, (uint32_t)s, &view));
        tenants[s].id = view.tenant;
    }
    struct core_cache_view view; // the model knows how large a chunk is
    ck_assert(core_cache_at(world.core, 0, &view));
    ck_assert_uint_eq(view.chunk_blocks, CHUNK);
}

START_TEST(every_eviction_refusal_and_figure_is_what_a_plain_model_says)
{
    random_state = 0x9e3779b97f4a7c15ull * (uint64_t)(_i + 3);
    begin();
    for (int i = 0; i < STEPS; i++) {
        random_operation();
        compare();
    }
    // The walk has reached all that it is meant to test.
    ck_assert_uint_gt(num_hits, 100);
    ck_assert_uint_gt(num_evicted, 100);
    ck_assert_uint_gt(num_moved, 5);
    ck_assert_uint_gt(num_quota, 5);
    ck_assert_uint_gt(num_no_blocks, 5);
    ck_assert_uint_gt(num_pins, 5);
    world_close(&world);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("core sharing");
    TCase *tcase = tcase_create("random walks");
    check_loop(tcase, every_eviction_refusal_and_figure_is_what_a_plain_model_says, SEEDS);
    tcase_set_timeout(tcase, 240);
    suite_add_tcase(suite, tcase);
    return check_main(suite);
}
