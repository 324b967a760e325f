// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_core_sharing.c - random operations of sessions of three tenants in two caches, compared with
// rigs/sharing_model.h. After each operation the state and depth of every block and the figures of
// every tenant are compared, and core counts itself anew. The table `operations` says what is
// drawn.

#include "core/state.h"
#include "rigs/check_main.h"
#include "rigs/core_world.h"
#include "rigs/sharing_model.h"

enum {
    SEEDS = 12,
    STEPS = 2500,
    PHASE = 100, // operations that prefer one of the caches
    TEXTS = 5,
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
static struct text texts[SESSIONS][TEXTS];
static uint64_t quotas[SESSIONS];
static uint32_t last_seq;
static uint64_t random_state;
static uint64_t num_quota, num_no_blocks, num_pins, num_hits;

static uint32_t roll(uint32_t sides)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)((random_state >> 16) % sides);
}

// ---- comparing ----

// Blocks that became cached have a new last use, and so has the chunk of the latest one.
static void note_uses(void)
{
    for (int c = 0; c < CACHES; c++) {
        for (int id = 0; id < IDS; id++) {
            struct block_model *block = &model.blocks[c][id];
            struct chunk_model *chunk = &model.chunks[c][id / CHUNK];
            struct core_block_view view;
            if (block->tenant == NONE)
                continue;
            core_block_at(world.core, cache_ids[c], (uint32_t)id, &view);
            if (model_may_go(c, block) && view.last_use != block->last_use &&
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
    const struct block_model *block = &model.blocks[cache][id];
    if (!model.chunks[cache][id / CHUNK].present)
        return CORE_ABSENT;
    if (block->tenant == NONE)
        return CORE_FREE;
    if (!model_is_held(block))
        return CORE_CACHED;
    return block->sealed ? CORE_HELD : CORE_LEASED;
}

static void compare_block(int cache, int id)
{
    const struct block_model *block = &model.blocks[cache][id];
    struct core_block_view view;
    core_block_at(world.core, cache_ids[cache], (uint32_t)id, &view);
    int depth = block->published ? (int)key_depth(block->key) - 1 : -1;
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
        ck_assert_uint_eq(view.used, model_count(t, NONE, model_is_used));
        ck_assert_uint_eq(view.pinned, model_count(t, NONE, model_is_pinned));
        ck_assert_uint_eq(view.cached, model_count(t, NONE, model_may_go));
        ck_assert_uint_eq(view.evicted, model.tenants[t].evicted);
    }
    for (int s = 0; s < SESSIONS; s++) {
        struct core_session_counts counts;
        core_session_counts(workers[s].session, &counts);
        ck_assert_uint_eq(counts.blocks_held, model_distinct(s));
    }
    world_check(&world);
}

// ---- operations ----

static bool over_quota(int s, uint64_t session, uint64_t tenant)
{
    uint64_t most = model.tenants[s % TENANTS].limits.blocks,
             used = model_count(s % TENANTS, NONE, model_is_used);
    bool over = (quotas[s] && session && model_distinct(s) + session > quotas[s]) ||
                (most && tenant && used + tenant > most);
    num_quota += over;
    return over;
}

static void release(int s, int cache, const int32_t *ids, uint32_t count)
{
    workers[s].cache = cache_ids[cache];
    worker_release(&workers[s], ids, count);
    for (uint32_t i = 0; i < count; i++) {
        struct block_model *block = &model.blocks[cache][ids[i]];
        block->holds[s]--;
        if (!model_is_held(block) && !block->published)
            *block = (struct block_model){.tenant = NONE};
    }
    note_uses();
    model_trim();
}

static bool lease(int s, int cache, uint32_t count, int32_t *ids)
{
    workers[s].cache = cache_ids[cache];
    enum status expected = over_quota(s, count, count)                  ? STATUS_QUOTA
                           : model_make_room(cache, count, s % TENANTS) ? STATUS_OK
                                                                        : STATUS_NO_BLOCKS;
    ck_assert_status(worker_try_lease(&workers[s], count, ids, &error), expected);
    num_no_blocks += expected == STATUS_NO_BLOCKS;
    for (uint32_t i = 0; expected == STATUS_OK && i < count; i++) {
        struct block_model *block = &model.blocks[cache][ids[i]];
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
    for (uint32_t i = 0; i < key_depth(key) * WORLD_BLOCK; i++)
        tokens[i] = (int32_t)((key >> (4 * (i / WORLD_BLOCK)) & 15) * 100 + i);
}

// The quota that a hold of the chain's cached blocks would take.
static uint32_t find_chain(int s, int cache, uint32_t key, int32_t *ids, uint64_t *session,
                           uint64_t *tenant)
{
    uint32_t count = 0;
    *session = *tenant = 0;
    for (; count < key_depth(key); count++) {
        int id = model_find(cache, s % TENANTS, key_cut(key, count + 1));
        if (id == NONE)
            break;
        *session += !model.blocks[cache][id].holds[s];
        *tenant += model_may_go(cache, &model.blocks[cache][id]);
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
    const struct core_prefix prefix = {.tokens = tokens,
                                       .num_tokens = key_depth(key) * WORLD_BLOCK};
    ck_assert_status(core_prefix_lookup(workers[s].session, cache_ids[text->cache], &prefix, 0,
                                        text->blocks, &count, &error),
                     over ? STATUS_QUOTA : STATUS_OK);
    if (over)
        return false;
    ck_assert_uint_eq(count, wanted);
    for (uint32_t i = 0; i < count; i++) {
        ck_assert_int_eq(text->blocks[i], expected[i]);
        model.blocks[text->cache][expected[i]].holds[s]++;
    }
    num_hits += count;
    text->count = count;
    return true;
}

static void compute(int s, struct text *text, uint32_t key)
{
    struct worker *worker = &workers[s];
    int32_t tokens[DEPTH * WORLD_BLOCK];
    uint32_t depth = key_depth(key), first = text->count, num_new = (depth - first) * WORLD_BLOCK;
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
        struct block_model *block = &model.blocks[text->cache][text->blocks[i]];
        block->published = block->sealed = true;
        block->key = key_cut(key, i + 1);
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
    model.blocks[cache][ids[count - 1]].keep = keep;
    num_pins += keep == CORE_KEEP_PINNED;
    note_uses();
    model_trim();
}

static void do_limit(int s)
{
    int t = s % TENANTS;
    struct core_limits limits = {roll(3) ? 6 + roll(40) : 0, roll(3) ? 4 + roll(30) : 0, roll(12)};
    bool valid = !limits.cached || limits.floor <= limits.cached;
    ck_assert_status(core_tenant_limit(world.core, model.tenants[t].id, &limits, &error),
                     valid ? STATUS_OK : STATUS_INVALID);
    if (valid)
        model.tenants[t].limits = limits;
    quotas[s] = roll(2) ? 0 : 4 + roll(16);
    core_session_limit(workers[s].session, quotas[s]);
    model_trim();
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
            model.blocks[c][id].tenant = NONE;
    }
    for (int s = 0; s < SESSIONS; s++) {
        struct core_tenant_view view;
        worker_open(&workers[s], &world, (uint32_t)(s % TENANTS), "");
        cache_ids[0] = workers[s].cache;
        cache_ids[1] = worker_open_cache(&workers[s], "alt");
        if (s >= TENANTS)
            continue;
        ck_assert(core_tenant_at(world.core, (uint32_t)s, &view));
        model.tenants[s].id = view.tenant;
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
    ck_assert_uint_gt(model.num_evicted, 100);
    ck_assert_uint_gt(model.num_moved, 5);
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
