// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// plain_model.c - see plain_model.h.

#include "plain_model.h"

#include <stddef.h>
#include <string.h>

// ---- blocks ----

static const struct model_block nobodys = {
    .node = NONE, .tenant = NONE, .writer = NONE, .id = NONE};

void model_init(struct model *m, int num_blocks)
{
    memset(m, 0, sizeof *m);
    for (int b = 0; b < BLOCKS; b++) {
        m->blocks[b] = nobodys;
        m->blocks[b].absent = b >= num_blocks;
    }
}

static bool is_user(const struct model_block *b, int worker)
{
    return b->holds[worker] || b->names[worker] || b->lingers[worker];
}

uint32_t block_holders(const struct model *m, int block)
{
    uint32_t count = 0;
    for (int w = 0; w < WORKERS; w++)
        count += m->blocks[block].holds[w] > 0;
    return count;
}

enum state block_state(const struct model *m, int block)
{
    const struct model_block *b = &m->blocks[block];
    if (b->absent)
        return NUM_STATES;
    for (int w = 0; w < WORKERS; w++) {
        if (is_user(b, w))
            return b->sealed ? HELD : LEASED;
    }
    if (b->dead)
        return QUARANTINED;
    return b->sealed && b->node != NONE ? CACHED : FREE;
}

enum keep node_keep(const struct model *m, int node)
{
    enum keep keep = m->nodes[node].keep;
    for (int n = 0; n < BLOCKS; n++) {
        enum keep below = NORMAL;
        if (m->nodes[n].used && m->nodes[n].parent == node)
            below = node_keep(m, n);
        keep = below > keep ? below : keep;
    }
    return keep;
}

static bool is_evictable(const struct model *m, int block)
{
    return block_state(m, block) == CACHED && node_keep(m, m->blocks[block].node) != PINNED;
}

static void settle(struct model *m, int block)
{
    struct model_block *b = &m->blocks[block];
    bool evictable = is_evictable(m, block);
    if (evictable && !b->evictable)
        b->last_use = ++m->clock;
    b->evictable = evictable;
    if (block_state(m, block) == FREE)
        *b = nobodys;
}

static void hold(struct model *m, int worker, int block)
{
    m->blocks[block].holds[worker]++;
    settle(m, block);
}

static void drop(struct model *m, int worker, int block)
{
    struct model_block *b = &m->blocks[block];
    if (--b->holds[worker] == 0 && m->sessions[worker].attached)
        b->lingers[worker] = ++m->last_release; // also if it lingers already
    settle(m, block);
}

// The one that was released first; NONE: none lingers.
static int first_lingering(const struct model *m, int worker)
{
    int first = NONE;
    for (int b = 0; b < BLOCKS; b++)
        if (m->blocks[b].lingers[worker] &&
            (first == NONE || m->blocks[b].lingers[worker] < m->blocks[first].lingers[worker]))
            first = b;
    return first;
}

static void let_go(struct model *m, int worker)
{
    for (int b; (b = first_lingering(m, worker)) != NONE;) {
        m->blocks[b].lingers[worker] = 0;
        settle(m, b);
    }
}

// ---- sums ----

uint32_t count_state(const struct model *m, enum state state)
{
    uint32_t count = 0;
    for (int b = 0; b < BLOCKS; b++)
        count += block_state(m, b) == state;
    return count;
}

uint32_t session_blocks(const struct model *m, int worker)
{
    uint32_t count = 0;
    for (int b = 0; b < BLOCKS; b++)
        count += is_user(&m->blocks[b], worker);
    return count;
}

uint32_t session_leased(const struct model *m, int worker)
{
    uint32_t count = 0;
    for (int b = 0; b < BLOCKS; b++)
        count += block_state(m, b) == LEASED && m->blocks[b].writer == worker;
    return count;
}

struct tenant_counts tenant_counts(const struct model *m, int tenant)
{
    struct tenant_counts counts = {0};
    for (int b = 0; b < BLOCKS; b++) {
        if (m->blocks[b].tenant != tenant || block_state(m, b) == FREE)
            continue;
        counts.cached += m->blocks[b].evictable;
        counts.used += !m->blocks[b].evictable;
        const int node = m->blocks[b].node;
        counts.pinned += node != NONE && node_keep(m, node) == PINNED;
    }
    return counts;
}

static uint64_t mix(uint64_t hash, uint64_t value)
{
    hash = (hash ^ value) * 0x9e3779b97f4a7c15ull;
    return hash ^ hash >> 29;
}

static uint64_t path_hash(const struct model *m, int node)
{
    uint64_t hash = 7;
    for (; node != NONE; node = m->nodes[node].parent) {
        hash = mix(hash, (uint64_t)m->nodes[node].tenant);
        for (int i = 0; i < BLOCK; i++)
            hash = mix(hash, (uint64_t)m->nodes[node].tokens[i]);
    }
    return hash;
}

uint64_t model_digest(const struct model *m)
{
    uint64_t sum = mix(mix(1, m->waiter.kind), m->waiter.over ? 1 + m->waiter.outcome : 0);
    for (int b = 0; b < BLOCKS; b++) {
        const struct model_block *block = &m->blocks[b];
        uint64_t hash = mix(3, block_state(m, b)), older = 0;
        for (int o = 0; block->evictable && o < BLOCKS; o++)
            older += m->blocks[o].evictable && m->blocks[o].last_use < block->last_use;
        hash = mix(mix(hash, older), block->node == NONE ? 0 : path_hash(m, block->node));
        for (int w = 0; w < WORKERS; w++) {
            uint64_t before = 0;
            for (int o = 0; block->lingers[w] && o < BLOCKS; o++)
                before += m->blocks[o].lingers[w] && m->blocks[o].lingers[w] <= block->lingers[w];
            hash = mix(mix(hash, block->holds[w] * 16 + block->names[w]), before);
        }
        sum += mix(mix(hash, (uint64_t)block->writer), (uint64_t)block->tenant);
    }
    for (int t = 0; t < TENANTS; t++)
        sum += mix(mix(5, (uint64_t)t), m->tenants[t].evicted);
    for (int w = 0; w < WORKERS; w++)
        for (int s = 0; s < SEQUENCES; s++) {
            const struct model_sequence *q = &m->sequences[w][s];
            uint64_t hash = mix(mix(9, (uint64_t)(w * SEQUENCES + s)), q->num_blocks);
            sum += mix(mix(hash, q->num_found * 64 + q->num_published), q->claim_promised);
        }
    return sum;
}

// ---- eviction ----

static void unlink_node(struct model *m, int node)
{
    for (int n = 0; n < BLOCKS; n++)
        if (m->nodes[n].used && m->nodes[n].parent == node)
            unlink_node(m, n);
    int block = m->nodes[node].block;
    m->nodes[node].used = false;
    m->blocks[block].node = NONE;
    settle(m, block);
}

static bool has_children(const struct model *m, int node)
{
    for (int n = 0; n < BLOCKS; n++)
        if (m->nodes[n].used && m->nodes[n].parent == node)
            return true;
    return false;
}

// The newest child that is older than `after`; NONE: the newest of all.
static int next_child(const struct model *m, int node, int after)
{
    int best = NONE;
    for (int n = 0; n < BLOCKS; n++)
        if (m->nodes[n].used && m->nodes[n].parent == node &&
            (after == NONE || m->nodes[n].made < m->nodes[after].made) &&
            (best == NONE || m->nodes[n].made > m->nodes[best].made))
            best = n;
    return best;
}

// The first evictable node at or behind `node`, children first, the newest child before others.
static int lowest_cached(const struct model *m, int node)
{
    int child = NONE;
    while ((child = next_child(m, node, child)) != NONE) {
        int found = lowest_cached(m, child);
        if (found != NONE)
            return found;
    }
    return m->blocks[m->nodes[node].block].evictable ? node : NONE;
}

static uint64_t victim_key(const struct model *m, int block)
{
    int node = m->blocks[block].node;
    return m->blocks[block].last_use + (has_children(m, node) ? 1ull << 62 : 0) +
           (node_keep(m, node) == PREFERRED ? 1ull << 63 : 0);
}

// Normal blocks before preferred ones, children before parents, then the least recently used. A
// cached block goes before the cached block before it, also if a held one is between them.
static bool evict_from(struct model *m, int tenant)
{
    int victim = NONE;
    for (int b = 0; b < BLOCKS; b++)
        if (m->blocks[b].evictable && m->blocks[b].tenant == tenant &&
            (victim == NONE || victim_key(m, b) < victim_key(m, victim)))
            victim = b;
    if (victim == NONE)
        return false;
    int node = lowest_cached(m, m->blocks[victim].node);
    uint32_t before = tenant_counts(m, tenant).cached;
    unlink_node(m, node);
    m->tenants[tenant].evicted += before - tenant_counts(m, tenant).cached;
    return true;
}

static void trim(struct model *m)
{
    for (int t = 0; t < TENANTS; t++)
        while (m->tenants[t].cached && tenant_counts(m, t).cached > m->tenants[t].cached)
            evict_from(m, t);
}

static uint64_t surplus(const struct model *m, int tenant)
{
    uint64_t cached = tenant_counts(m, tenant).cached, floor = m->tenants[tenant].floor;
    return cached > floor ? cached - floor : 0;
}

// From the tenant with the most cached blocks above its floor; at last below one's own floor.
static bool evict_for(struct model *m, int asking)
{
    int from = NONE;
    for (int t = 0; t < TENANTS; t++)
        if (surplus(m, t) &&
            (from == NONE || tenant_counts(m, t).cached > tenant_counts(m, from).cached))
            from = t;
    return evict_from(m, from == NONE ? asking : from);
}

// ---- limits ----

static bool is_over(const struct model *m, int worker, uint64_t more, uint64_t more_of_tenant)
{
    const struct model_session *session = &m->sessions[worker];
    const struct model_tenant *tenant = &m->tenants[session->tenant];
    if (session->quota && more && session_blocks(m, worker) + more > session->quota)
        return true;
    return tenant->blocks && more_of_tenant &&
           tenant_counts(m, session->tenant).used + more_of_tenant > tenant->blocks;
}

void model_limit(struct model *m, int tenant, uint64_t blocks, uint64_t cached, uint64_t floor)
{
    m->tenants[tenant].blocks = blocks;
    m->tenants[tenant].cached = cached;
    m->tenants[tenant].floor = floor;
    trim(m);
}

// ---- leases ----

// If every other session of its tenant that has blocks waits, a lease needs no turn.
static bool needs_no_turn(const struct model *m, int worker)
{
    for (int w = 0; w < WORKERS; w++)
        if (w != worker && m->sessions[w].open &&
            m->sessions[w].tenant == m->sessions[worker].tenant && session_blocks(m, w) &&
            !m->sessions[w].waits)
            return false;
    return true;
}

static bool has_turn(const struct model *m, int worker, uint32_t count)
{
    if (m->waiter.kind != WAITS_LEASE || m->waiter.over || m->waiter.worker == worker)
        return true;
    int own = m->sessions[worker].tenant, other = m->sessions[m->waiter.worker].tenant;
    return needs_no_turn(m, worker) ||
           (own != other && // if they would have as many, the lease that waits is older
            tenant_counts(m, own).used + count < tenant_counts(m, other).used + m->waiter.count);
}

enum outcome model_lease(struct model *m, int worker, uint32_t count, int *blocks, bool waited)
{
    int tenant = m->sessions[worker].tenant;
    uint64_t available = count_state(m, FREE);
    if (!waited && !has_turn(m, worker, count))
        return NO_BLOCKS;
    if (is_over(m, worker, count, count))
        return QUOTA;
    for (int t = 0; t < TENANTS; t++)
        available += t == tenant ? tenant_counts(m, t).cached : surplus(m, t);
    if (available < count)
        return NO_BLOCKS;
    while (count_state(m, FREE) < count)
        evict_for(m, tenant);
    for (int b = 0; count; b++) {
        if (block_state(m, b) != FREE)
            continue;
        *blocks++ = b;
        m->blocks[b].tenant = tenant;
        m->blocks[b].writer = worker;
        m->blocks[b].last_use = ++m->clock;
        hold(m, worker, b);
        count--;
    }
    return DONE;
}

void model_release(struct model *m, int worker, const int *blocks, uint32_t count)
{
    for (uint32_t i = count; i-- > 0;)
        drop(m, worker, blocks[i]);
    trim(m);
}

// ---- the prefix index ----

static int find_node(const struct model *m, int tenant, int parent, const int32_t *tokens)
{
    for (int n = 0; n < BLOCKS; n++) {
        const struct model_node *node = &m->nodes[n];
        if (node->used && node->tenant == tenant && node->parent == parent &&
            memcmp(node->tokens, tokens, sizeof node->tokens) == 0)
            return n;
    }
    return NONE;
}

uint32_t find_chain(const struct model *m, int tenant, const int32_t *tokens, uint32_t num_blocks,
                    int *nodes)
{
    int parent = NONE;
    for (uint32_t i = 0; i < num_blocks; i++) {
        parent = nodes[i] = find_node(m, tenant, parent, tokens + (size_t)i * BLOCK);
        if (parent == NONE)
            return i;
    }
    return num_blocks;
}

enum outcome model_lookup(struct model *m, int worker, const int32_t *tokens, uint32_t num_blocks,
                          int *blocks, uint32_t *num_found)
{
    int nodes[DEPTH];
    uint32_t more = 0, more_of_tenant = 0;
    *num_found = find_chain(m, m->sessions[worker].tenant, tokens, num_blocks, nodes);
    for (uint32_t i = 0; i < *num_found; i++) {
        blocks[i] = m->nodes[nodes[i]].block;
        more += !is_user(&m->blocks[blocks[i]], worker);
        more_of_tenant += m->blocks[blocks[i]].evictable;
    }
    if (is_over(m, worker, more, more_of_tenant))
        return QUOTA;
    for (uint32_t i = *num_found; i-- > 0;)
        hold(m, worker, blocks[i]);
    return DONE;
}

static void publish_claim(struct model *m, int worker, const int32_t *path, uint32_t depth);

static void path_of(const struct model *m, int node, int32_t *path)
{
    for (; node != NONE; node = m->nodes[node].parent)
        memcpy(path + (size_t)m->nodes[node].depth * BLOCK, m->nodes[node].tokens,
               sizeof m->nodes[node].tokens);
}

static int add_node(struct model *m, int tenant, int parent, const int32_t *tokens)
{
    int n = 0;
    while (m->nodes[n].used)
        n++;
    m->nodes[n] = (struct model_node){.used = true,
                                      .tenant = tenant,
                                      .parent = parent,
                                      .block = NONE,
                                      .depth = parent == NONE ? 0 : m->nodes[parent].depth + 1,
                                      .made = ++m->last_id};
    memcpy(m->nodes[n].tokens, tokens, sizeof m->nodes[n].tokens);
    return n;
}

// True: blocks[i] became the block that the index has.
static void publish_one(struct model *m, int worker, int node, int *block, bool releases)
{
    int given = *block, other = m->nodes[node].block;
    bool again = other == given;
    if (other != NONE && !again) {
        hold(m, worker, other);
        if (releases)
            drop(m, worker, given);
        *block = other;
    } else {
        m->nodes[node].block = given;
        m->blocks[given].node = node;
        m->blocks[given].sealed = true;
        m->blocks[given].writer = NONE;
        settle(m, given);
    }
    int32_t path[TOKENS];
    path_of(m, node, path);
    if (!again)
        publish_claim(m, worker, path, (uint32_t)m->nodes[node].depth);
}

enum outcome model_publish(struct model *m, int worker, int parent, const int32_t *tokens,
                           int *blocks, uint32_t num_blocks, bool releases)
{
    int tenant = m->sessions[worker].tenant, at = NONE, nodes[DEPTH];
    uint32_t more = 0, less = 0, more_of_tenant = 0, less_of_tenant = 0;
    if (parent != NONE && m->blocks[parent].node == NONE)
        return NOT_FOUND;
    int top = parent == NONE ? NONE : m->blocks[parent].node;
    at = top;
    for (uint32_t i = 0; i < num_blocks; i++) {
        at = nodes[i] =
            i && at == NONE ? NONE : find_node(m, tenant, at, tokens + (size_t)i * BLOCK);
        int other = at == NONE ? NONE : m->nodes[at].block;
        if (other == NONE || other == blocks[i])
            continue;
        const struct model_block *given = &m->blocks[blocks[i]];
        bool leaves = releases && given->holds[worker] == 1 && !given->names[worker] &&
                      !m->sessions[worker].attached;
        uint32_t users = 0;
        for (int w = 0; w < WORKERS; w++)
            users += is_user(given, w);
        more += !is_user(&m->blocks[other], worker);
        more_of_tenant += m->blocks[other].evictable;
        less += leaves;
        less_of_tenant += leaves && users == 1;
    }
    if (is_over(m, worker, more > less ? more - less : 0,
                more_of_tenant > less_of_tenant ? more_of_tenant - less_of_tenant : 0))
        return QUOTA;
    for (uint32_t i = 0; i < num_blocks; i++)
        if (nodes[i] == NONE)
            nodes[i] = add_node(m, tenant, i ? nodes[i - 1] : top, tokens + (size_t)i * BLOCK);
    for (uint32_t i = num_blocks; i-- > 0;)
        publish_one(m, worker, nodes[i], &blocks[i], releases);
    trim(m);
    return DONE;
}

enum outcome model_keep(struct model *m, int worker, const int32_t *tokens, uint32_t num_blocks,
                        enum keep keep, uint32_t *num_kept)
{
    int nodes[DEPTH];
    uint32_t more = 0, found;
    found = find_chain(m, m->sessions[worker].tenant, tokens, num_blocks, nodes);
    *num_kept = 0;
    for (uint32_t i = 0; i < found; i++)
        more += m->blocks[m->nodes[nodes[i]].block].evictable;
    if (keep == PINNED && is_over(m, worker, 0, more))
        return QUOTA;
    if (found)
        m->nodes[nodes[found - 1]].keep = keep;
    for (uint32_t i = found; i-- > 0;)
        settle(m, m->nodes[nodes[i]].block);
    trim(m);
    *num_kept = found;
    return DONE;
}

// ---- claims ----

struct model_claim *claim_of(struct model *m, uint64_t id)
{
    for (int c = 0; c < CLAIMS; c++)
        if (m->claims[c].used && m->claims[c].id == id)
            return &m->claims[c];
    return NULL;
}

static bool same_path(const struct model *m, const struct model_claim *a,
                      const struct model_claim *b, uint32_t depth)
{
    return m->sessions[a->worker].tenant == m->sessions[b->worker].tenant &&
           depth < a->num_blocks && depth < b->num_blocks &&
           memcmp(a->tokens, b->tokens, (depth + 1) * BLOCK * sizeof *a->tokens) == 0;
}

static bool is_published(const struct model *m, const struct model_claim *claim, uint32_t depth)
{
    int nodes[DEPTH];
    return find_chain(m, m->sessions[claim->worker].tenant, claim->tokens, depth + 1, nodes) ==
           depth + 1;
}

// Published, or an older claim lacks it, too.
static bool is_promised(struct model *m, struct model_claim *claim, uint32_t depth)
{
    if (is_published(m, claim, depth))
        return true;
    claim->queued[depth] = true;
    for (int c = 0; c < CLAIMS; c++) {
        const struct model_claim *other = &m->claims[c];
        if (other->used && other->id < claim->id && same_path(m, claim, other, depth) &&
            other->queued[depth])
            return true;
    }
    return false;
}

uint32_t claim_promised(struct model *m, struct model_claim *claim)
{
    uint32_t end = claim->num_found;
    while (end < claim->num_blocks && is_promised(m, claim, end))
        end++;
    return end - claim->num_found;
}

static void end_if_over(struct model_claim *claim)
{
    for (uint32_t i = 0; i < claim->num_blocks; i++)
        if (claim->queued[i])
            return;
    claim->used = false;
}

struct model_claim *model_claim(struct model *m, int worker, const int32_t *tokens,
                                uint32_t num_blocks, uint32_t num_found)
{
    struct model_claim *claim = m->claims;
    while (claim->used)
        claim++;
    *claim = (struct model_claim){.used = true,
                                  .id = ++m->last_id,
                                  .worker = worker,
                                  .num_blocks = num_blocks,
                                  .num_found = num_found};
    memcpy(claim->tokens, tokens, num_blocks * BLOCK * sizeof *tokens);
    for (uint32_t i = num_found; i < num_blocks; i++)
        claim->queued[i] = true;
    return claim;
}

enum outcome model_claim_take(struct model *m, uint64_t id, int *blocks, uint32_t *num_blocks,
                              uint32_t *promised, bool *ended)
{
    struct model_claim *claim = claim_of(m, id);
    uint32_t end, more = 0, more_of_tenant = 0;
    int nodes[DEPTH];
    *num_blocks = 0;
    if (!claim)
        return NOT_FOUND;
    int tenant = m->sessions[claim->worker].tenant;
    uint32_t found = find_chain(m, tenant, claim->tokens, claim->num_blocks, nodes);
    end = found > claim->num_found ? found : claim->num_found;
    if (end == claim->num_found && is_promised(m, claim, end))
        return TIMEOUT;
    for (uint32_t i = claim->num_found; i < end; i++) {
        int block = blocks[i - claim->num_found] = m->nodes[nodes[i]].block;
        more += !is_user(&m->blocks[block], claim->worker);
        more_of_tenant += m->blocks[block].evictable;
    }
    if (is_over(m, claim->worker, more, more_of_tenant))
        return QUOTA;
    *num_blocks = end - claim->num_found;
    *promised = claim_promised(m, claim) - *num_blocks;
    for (uint32_t i = *num_blocks; i-- > 0;)
        hold(m, claim->worker, blocks[i]);
    for (; claim->num_found < end; claim->num_found++)
        claim->queued[claim->num_found] = false;
    end_if_over(claim);
    *ended = !claim->used;
    return DONE;
}

void model_claim_release(struct model *m, uint64_t id, uint32_t num_blocks)
{
    struct model_claim *claim = claim_of(m, id);
    if (!claim)
        return;
    if (claim->num_blocks > num_blocks)
        claim->num_blocks = num_blocks;
    if (claim->num_found > claim->num_blocks)
        claim->num_found = claim->num_blocks;
    end_if_over(claim);
}

// The oldest of the session's claims that lacks the block has it.
static void publish_claim(struct model *m, int worker, const int32_t *path, uint32_t depth)
{
    struct model_claim *oldest = NULL;
    for (int c = 0; c < CLAIMS; c++) {
        struct model_claim *claim = &m->claims[c];
        if (claim->used && claim->worker == worker && depth < claim->num_blocks &&
            claim->queued[depth] && (!oldest || claim->id < oldest->id) &&
            memcmp(claim->tokens, path, (depth + 1) * BLOCK * sizeof *path) == 0)
            oldest = claim;
    }
    if (!oldest)
        return;
    oldest->queued[depth] = false;
    end_if_over(oldest);
}

// ---- offers ----

void model_offer(struct model *m, int worker, int offer, const struct model_offer *what,
                 const bool *keep)
{
    m->offers[offer] = *what;
    m->offers[offer].used = true;
    m->offers[offer].giver = worker;
    m->offers[offer].taker = NONE;
    m->offers[offer].tenant = m->sessions[worker].tenant;
    m->offers[offer].made = ++m->last_id;
    for (uint32_t i = 0; i < what->num_blocks; i++) {
        struct model_block *block = &m->blocks[what->blocks[i]];
        block->names[worker]++;
        if (!keep[i])
            drop(m, worker, what->blocks[i]);
        block->offers++;
        block->writer = NONE;
    }
}

enum outcome model_take(struct model *m, int worker, int offer)
{
    struct model_offer *o = &m->offers[offer];
    uint32_t more = 0;
    if (!o->used || o->giver == NONE || o->tenant != m->sessions[worker].tenant)
        return NOT_FOUND;
    if (o->taker != NONE)
        return BUSY;
    for (uint32_t i = 0; i < o->num_blocks; i++)
        more += !is_user(&m->blocks[o->blocks[i]], worker);
    if (is_over(m, worker, more, 0))
        return QUOTA;
    for (uint32_t i = 0; i < o->num_blocks; i++)
        hold(m, worker, o->blocks[i]);
    o->taker = worker;
    o->took = ++m->last_id;
    return DONE;
}

static void leave_giver(struct model *m, struct model_offer *offer)
{
    int giver = offer->giver;
    offer->giver = NONE;
    for (uint32_t i = 0; i < offer->num_blocks; i++)
        m->blocks[offer->blocks[i]].offers--;
    for (uint32_t i = 0; i < offer->num_blocks; i++) {
        m->blocks[offer->blocks[i]].names[giver]--;
        settle(m, offer->blocks[i]);
    }
}

void model_settle(struct model *m, int index, bool accept, bool *may_write)
{
    struct model_offer *offer = &m->offers[index];
    int taker = offer->taker;
    if (accept && offer->giver != NONE)
        leave_giver(m, offer);
    for (uint32_t i = 0; accept && i < offer->num_blocks; i++) {
        struct model_block *block = &m->blocks[offer->blocks[i]];
        if (block->holds[taker] == 1 && !block->sealed && !block->offers &&
            block_holders(m, offer->blocks[i]) == 1)
            block->writer = taker;
        may_write[i] = block->holds[taker] && !block->sealed && block->writer == taker;
    }
    offer->taker = NONE;
    if (offer->giver == NONE)
        offer->used = false;
    trim(m); // what only the giver held may be more than its tenant's cap
}

static void leave_offers(struct model *m, int worker)
{
    for (int o = 0; o < OFFERS; o++) {
        struct model_offer *offer = &m->offers[o];
        if (offer->used && offer->taker == worker) {
            offer->taker = NONE;
            offer->used = offer->giver != NONE;
        }
    }
    for (;;) { // in the order in which they were made
        struct model_offer *first = NULL;
        for (int o = 0; o < OFFERS; o++)
            if (m->offers[o].used && m->offers[o].giver == worker &&
                (!first || m->offers[o].made < first->made))
                first = &m->offers[o];
        if (!first)
            return;
        leave_giver(m, first);
        first->used = first->taker != NONE;
    }
}

// ---- sessions ----

void model_open(struct model *m, int worker, int tenant)
{
    m->sessions[worker] = (struct model_session){.open = true, .tenant = tenant};
}

void model_attach(struct model *m, int worker)
{
    m->sessions[worker].attached = true;
}

void model_report(struct model *m, int worker)
{
    let_go(m, worker);
    trim(m);
}

// The one with the lowest id of the daemon above `last` that the worker holds; NONE: none.
static int next_held(const struct model *m, int worker, int32_t last)
{
    int next = NONE;
    for (int b = 0; b < BLOCKS; b++)
        if (m->blocks[b].holds[worker] && m->blocks[b].id >= last &&
            (next == NONE || m->blocks[b].id < m->blocks[next].id))
            next = b;
    return next;
}

uint32_t model_haunted(const struct model *m, int worker, int *blocks)
{
    static struct model rest;
    uint32_t count = 0;
    rest = *m;
    for (int b; (b = first_lingering(&rest, worker)) != NONE; rest.blocks[b].lingers[worker] = 0)
        if (!m->blocks[b].holds[worker])
            blocks[count++] = b;
    for (int b; (b = next_held(&rest, worker, -2)) != NONE; rest.blocks[b].holds[worker] = 0)
        blocks[count++] = b; // also if it lingers: the death releases it again
    return count;
}

void model_close(struct model *m, int worker, const int *in_flight, uint32_t num_in_flight)
{
    leave_offers(m, worker);
    for (int c = 0; c < CLAIMS; c++)
        if (m->claims[c].worker == worker)
            m->claims[c].used = false;
    for (uint32_t i = 0; i < num_in_flight; i++)
        m->blocks[in_flight[i]].dead = true;
    let_go(m, worker);
    int32_t last = -2;
    for (int b; (b = next_held(m, worker, last)) != NONE; settle(m, b)) { // by the daemon's ids
        last = m->blocks[b].id;
        m->blocks[b].holds[worker] = 0;
    }
    for (int b = 0; b < BLOCKS; b++) // some may linger for another worker, which offered them
        if (m->blocks[b].writer == worker)
            m->blocks[b].writer = NONE;
    m->sessions[worker].open = m->sessions[worker].attached = false;
    trim(m);
    memset(m->records[worker], 0, sizeof m->records[worker]);
    memset(m->sequences[worker], 0, sizeof m->sequences[worker]);
}

void model_finish_dead(struct model *m, const int *in_flight, uint32_t num_in_flight)
{
    for (uint32_t i = 0; i < num_in_flight; i++) {
        m->blocks[in_flight[i]].dead = false;
        settle(m, in_flight[i]);
    }
    trim(m);
}
