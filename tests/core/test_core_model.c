// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_core_model.c - tens of thousands of random operations of several sessions, compared with a
// model (core_model.h). After each operation the state, holders and references of every block are
// compared, and core counts itself anew. A look-up must return the numbers that writers of exactly
// this chain, tenant and cache wrote. Workers claim what they lack, hand sequences over, and die at
// each step of both. The test's name has the seed, so that a failure can be repeated.

#include "base/clock.h"
#include "core/state.h"
#include "rigs/check_main.h"
#include "rigs/core_model.h"
#include "rigs/model_claims.h"
#include "rigs/model_offers.h"
#include "tier/area.h"
#include "tier/fault.h"
#include "tier/host.h"

#include <string.h>

enum { STEPS = 20000, SEEDS = 20 };
enum { LOOK_NS = 50000, SUBMISSION_NS = 1000000 }; // each submission takes that long

// ---- sessions and caches ----

static const char *const cache_names[CACHES] = {"kv", "alt"};

static void open_cache(int w, int cache)
{
    struct core_cache_identity identity = world_identity(cache_names[cache]);
    struct core_cache_info info;
    ck_assert_status(core_cache_open(workers[w].real.session, &identity, &info, &error), STATUS_OK);
    if (cache_ids[cache])
        ck_assert_uint_eq(cache_ids[cache], info.cache);
    cache_ids[cache] = workers[w].opened[cache] = info.cache;
}

static void do_open(int w)
{
    struct model_worker *worker = &workers[w];
    if (worker->open || (worker->real.world && !worker->real.gone))
        return;
    memset(worker, 0, sizeof(*worker));
    worker->salt = 1 + roll(2);
    worker_open(&worker->real, &world, 1, worker->salt == 1 ? "" : "tenant");
    cache_ids[0] = worker->opened[0] = worker->real.cache;
    worker->open = true;
}

static uint32_t submitted_runs(const struct worker *worker)
{
    uint32_t count = 0;
    for (const struct fake_submission *s = fake_engine_oldest(world.engine); s; s = s->next) {
        for (uint32_t i = 0; i < s->num_runs; i++)
            count += s->runs[i].arena == worker->arena;
    }
    return count;
}

static void forget_holds(int w, int cache)
{
    for (int id = 0; id < IDS; id++)
        model[cache][id].holds[w] = 0;
    for (int t = 0; t < TEXTS; t++) {
        if (workers[w].texts[t].cache == cache)
            workers[w].texts[t].used = workers[w].texts[t].waits = false;
    }
}

static void unregister(int w, int cache, bool dead)
{
    for (int i = 0; i < BATCHES; i++) {
        struct model_batch *batch = &batches[i];
        if (!batch->used || batch->worker != w || (cache >= 0 && batch->cache != cache))
            continue;
        batch->registered = false;
        if (dead && batch->outstanding) {
            batch->dead = true;
            for (uint32_t k = 0; k < batch->depth; k++)
                model[batch->cache][batch->blocks[k]].dead_refs++;
        }
        batch_release(batch);
    }
}

static void take_run(struct model_worker *worker, uint32_t index)
{
    memmove(worker->runs + index, worker->runs + index + 1,
            (--worker->num_runs - index) * sizeof(*worker->runs));
}

static void leave(int w, bool died)
{
    struct model_worker *worker = &workers[w];
    uint32_t submitted = submitted_runs(&worker->real);
    bool behind_dropped = worker->num_back > 0;
    while (worker->num_runs > submitted) { // queued runs are dropped, oldest first
        uint32_t next = worker->num_back ? 0 : submitted;
        struct model_run run = worker->runs[next];
        worker->num_back -= worker->num_back > 0;
        take_run(worker, next);
        run_over(w, &run, false);
    }
    for (uint32_t i = 0; behind_dropped && i < submitted; i++)
        worker->runs[i].dropped = true;
    worker_close(&worker->real, died);
    worker->open = false;
    worker->num_done = 0;
    unregister(w, -1, died);
    model_offers_leave(w, -1);
    claims_leave(w, -1);
    for (int cache = 0; cache < CACHES; cache++)
        forget_holds(w, cache);
    ck_assert_int_eq(worker->real.gone, submitted == 0);
}

static bool finally; // the random walk is over

static void do_close(int w)
{
    const struct worker *worker = &workers[w].real;
    bool died = roll(4) > 0, open = workers[w].open;
    if (open && (finally || submitted_runs(worker) || !roll(3))) // mostly with work in flight
        leave(w, died);
}

// Steps of claims and hand-overs at which a worker dies.
static struct {
    bool (*is_there)(int w);
    uint64_t deaths;
} steps[] = {
    {claim_computes, 0}, {claim_waits_for, 0}, {claim_is_pending, 0}, {offer_is_given, 0},
    {offer_gave, 0},     {offer_took, 0},      {offer_is_pending, 0},
};
enum { NUM_STEPS = sizeof(steps) / sizeof(*steps) };

// Kills a worker at the step at which the fewest have died.
static void do_die(int w)
{
    uint32_t at = 0;
    for (uint32_t i = 1; i < NUM_STEPS; i++)
        at = steps[i].deaths < steps[at].deaths ? i : at;
    for (int i = 0; i < WORKERS; i++, w = (w + 1) % WORKERS) {
        if (!workers[w].open || !steps[at].is_there(w))
            continue;
        leave(w, true);
        steps[at].deaths++;
        return;
    }
}

static void do_second_cache(int w)
{
    struct model_worker *worker = &workers[w];
    if (!worker->open)
        return;
    if (!worker->opened[1]) {
        open_cache(w, 1);
        return;
    }
    ck_assert_status(core_cache_close(worker->real.session, worker->opened[1], &error), STATUS_OK);
    worker->opened[1] = 0;
    unregister(w, 1, false);
    model_offers_leave(w, 1);
    claims_leave(w, 1);
    forget_holds(w, 1);
}

// ---- texts ----

static void do_lookup(int w, struct text *text)
{
    int32_t tokens[DEPTH * 8], found[DEPTH];
    uint32_t fresh, count, expected = count_visible(w, text, 0, &fresh);
    text_tokens(text->key, text->depth, tokens);
    const struct core_prefix prefix = {.tokens = tokens, .num_tokens = text->depth * 8};
    enum status status = core_prefix_lookup(workers[w].real.session, cache_ids[text->cache],
                                            &prefix, 0, found, &count, NULL);
    ck_assert_int_eq((int)status, distinct(w) + fresh > QUOTA ? STATUS_QUOTA : STATUS_OK);
    if (status != STATUS_OK)
        return;
    ck_assert_uint_eq(count, expected);
    for (uint32_t i = 0; i < count; i++)
        take_hit(w, text, i, found[i]);
    text->num_hit = count;
    text->used = true;
}

static void do_text(int w)
{
    struct text *text = free_text(w);
    if (!text)
        return;
    *text = draw_text(w);
    if (roll(3)) // the others compute blocks that may exist, and find that out when they publish
        do_lookup(w, text);
    else
        text->used = true;
    if (!text->used || lease_rest(w, text))
        return;
    release(w, text->cache, text->blocks, text->num_hit);
    text->used = false;
}

static void do_release(int w)
{
    struct text *text = some_text(w);
    if (!text || (!model[text->cache][text->blocks[text->depth - 1]].sealed &&
                  roll(8))) // mostly after publishing it
        return;
    release(w, text->cache, text->blocks, text->depth);
    text->used = false;
}

static void publish_block(int w, const struct text *text, uint32_t i, int32_t got)
{
    uint32_t key = prefix_key(text->key, i + 1);
    int has = find_node(text->cache, key), given = text->blocks[i];
    struct model_block *block = &model[text->cache][given];
    if (has >= 0 && has != given && !model[text->cache][has].pending) {
        ck_assert_int_eq(got, has);
        model[text->cache][has].holds[w]++;
        num_exchanged++;
        claims_publish(w, text->cache, key);
        return;
    }
    bool again = block->node == key;
    ck_assert_int_eq(got, given);
    block->sealed = true;
    block->writer = 0;
    if (has >= 0 && has != given && !block->pending)
        model[text->cache][has].node = 0;
    if (has < 0 || !block->pending)
        block->node = key;
    if (!again)
        claims_publish(w, text->cache, key);
}

static enum status expect_publish(int w, const struct text *text)
{
    uint32_t fresh = 0;
    for (uint32_t i = 0; i < text->depth; i++) {
        const struct model_block *block = &model[text->cache][text->blocks[i]];
        uint32_t key = prefix_key(text->key, i + 1);
        if (block->node != key && !(block->written[0] && block->written[1]))
            return STATUS_UNWRITTEN;
        int has = find_node(text->cache, key);
        if (has >= 0 && has != text->blocks[i] && !model[text->cache][has].pending)
            fresh += !model[text->cache][has].holds[w] && !model[text->cache][has].refs[w];
    }
    return distinct(w) + fresh > QUOTA ? STATUS_QUOTA : STATUS_OK;
}

static void do_publish(int w)
{
    struct text *text = some_text(w);
    int32_t tokens[DEPTH * 8], ids[DEPTH];
    uint32_t existing, before = (uint32_t)num_exchanged;
    if (!text)
        return;
    text_tokens(text->key, text->depth, tokens);
    memcpy(ids, text->blocks, sizeof(ids));
    const struct core_prefix prefix = {.tokens = tokens, .num_tokens = text->depth * 8};
    enum status status = core_prefix_publish(workers[w].real.session, cache_ids[text->cache],
                                             &prefix, ids, text->depth, &existing, NULL);
    ck_assert_int_eq((int)status, (int)expect_publish(w, text));
    if (status != STATUS_OK)
        return;
    for (uint32_t i = text->depth; i-- > 0;)
        publish_block(w, text, i, ids[i]);
    ck_assert_uint_eq(existing, (uint32_t)num_exchanged - before);
    for (uint32_t i = 0; i < text->depth; i++) {
        if (ids[i] != text->blocks[i])
            release(w, text->cache, &text->blocks[i], 1);
        text->blocks[i] = ids[i];
    }
}

// ---- batches and runs ----

static int free_batch(int w)
{
    int free = -1;
    uint32_t live = 0;
    for (int i = 0; i < BATCHES; i++) {
        if (!batches[i].used)
            free = i;
        live += batches[i].used && batches[i].registered && batches[i].worker == w;
    }
    return live < MAX_BATCHES ? free : -1;
}

// What creating a batch says that writes the blocks [first, depth) of `text`: the first block that
// is sealed or another one's, or that another batch will write which has not run yet, decides.
static enum status expect_batch(int w, const struct text *text, uint32_t first)
{
    for (uint32_t i = first; i < text->depth; i++) {
        if (model[text->cache][text->blocks[i]].sealed)
            return STATUS_SEALED;
        if (model[text->cache][text->blocks[i]].writer != workers[w].real.id)
            return STATUS_DENIED;
        for (int n = 0; n < BATCHES; n++) {
            const struct model_batch *other = &batches[n];
            bool reserves = other->used && other->registered && !other->ran && other->worker == w &&
                            other->cache == text->cache;
            for (uint32_t k = other->num_hit; reserves && k < other->depth; k++)
                if (other->blocks[k] == text->blocks[i])
                    return STATUS_DUPLICATE_SLOT;
        }
    }
    return STATUS_OK;
}

// Some batches do not write what is missing. Their runs read keys that may be unwritten.
static void do_batch(int w)
{
    const struct text *text = some_text(w);
    int index = free_batch(w);
    if (!text || index < 0)
        return;
    struct model_batch *batch = &batches[index];
    uint32_t first = text->num_hit < text->depth ? text->num_hit : text->depth - 1, made;
    uint32_t num_new = (text->depth - first) * 8;
    bool writes = text->num_hit < text->depth && roll(8);
    int64_t slots[DEPTH * 8];
    for (uint32_t t = 0; t < num_new; t++)
        slots[t] = (int64_t)text->blocks[first + t / 8] * 8 + t % 8;
    const int32_t cu[] = {0, (int32_t)num_new}, lens[] = {(int32_t)text->depth * 8};
    struct core_batch_params params =
        sequences_over(cache_ids[text->cache], 1, cu, lens, text->blocks, text->depth);
    params.slot_mapping = slots;
    params.num_slot_mapping = writes ? num_new : 0;
    uint64_t id;
    enum status status = core_batch_create(workers[w].real.session, &params, &id, &made, NULL);
    ck_assert_int_eq((int)status, (int)(writes ? expect_batch(w, text, first) : STATUS_OK));
    if (status != STATUS_OK)
        return;
    *batch = (struct model_batch){
        .used = true, .registered = true, .id = id, .worker = w, .cache = text->cache};
    batch->key = text->key;
    batch->depth = text->depth;
    batch->num_hit = writes ? first : text->depth;
    batch->first = first;
    memcpy(batch->blocks, text->blocks, sizeof(batch->blocks));
    for (uint32_t i = 0; i < batch->depth; i++)
        model[batch->cache][batch->blocks[i]].refs[w]++;
}

static int some_batch(int w)
{
    uint32_t start = roll(BATCHES);
    for (uint32_t i = 0; workers[w].open && i < BATCHES; i++) {
        const struct model_batch *batch = &batches[(start + i) % BATCHES];
        if (batch->used && batch->registered && batch->worker == w)
            return (int)((start + i) % BATCHES);
    }
    return -1;
}

static void do_destroy_batch(int w)
{
    int index = some_batch(w);
    if (index < 0)
        return;
    ck_assert_status(core_batch_destroy(workers[w].real.session, batches[index].id, &error),
                     STATUS_OK);
    batches[index].registered = false;
    batch_release(&batches[index]);
}

static bool reads_unwritten(const struct model_batch *batch, uint32_t layer)
{
    for (uint32_t i = 0; i < batch->num_hit; i++)
        if (!model[batch->cache][batch->blocks[i]].written[layer])
            return true;
    return false;
}

static void do_run(int w)
{
    struct model_worker *worker = &workers[w];
    int index = some_batch(w);
    if (index < 0)
        return;
    struct model_batch *batch = &batches[index];
    uint32_t first = batch->first, layer = roll(WORLD_LAYERS);
    uint32_t num_new = (batch->depth - first) * 8;
    int32_t tags[DEPTH * 8];
    for (uint32_t t = 0; t < num_new; t++)
        tags[t] = tag(batch->cache, prefix_key(batch->key, first + t / 8 + 1), t % 8);
    enum status expected =
        worker->num_runs + worker->num_done == MAX_TICKETS ? STATUS_BUSY : STATUS_OK;
    for (uint32_t i = batch->depth; i-- > batch->num_hit;) {
        const struct model_block *block = &model[batch->cache][batch->blocks[i]];
        if (block->sealed || block->writer != worker->real.id)
            expected = block->sealed ? STATUS_SEALED : STATUS_DENIED;
    }
    if (expected == STATUS_OK && reads_unwritten(batch, layer)) {
        expected = STATUS_UNWRITTEN;
        num_unwritten++;
    }
    struct core_run_params params =
        worker_run_params(&worker->real, batch->id, layer, num_new, tags);
    uint64_t ticket;
    ck_assert_status(core_run(worker->real.session, &params, &ticket, &error), expected);
    ck_assert_uint_eq(core_metrics(world.core)[METRIC_RUNS_UNWRITTEN], num_unwritten);
    if (expected != STATUS_OK)
        return;
    worker->runs[worker->num_runs++] = (struct model_run){index, layer, ticket, false};
    batch->outstanding++;
    batch->ran = true;
    for (uint32_t i = batch->num_hit; i < batch->depth; i++) {
        model[batch->cache][batch->blocks[i]].pending++;
        model[batch->cache][batch->blocks[i]].written[layer] = true;
    }
}

static void do_reap(int w)
{
    struct model_worker *worker = &workers[w];
    if (!worker->open || !worker->num_done)
        return;
    uint32_t i = roll(worker->num_done);
    worker_reap(&worker->real, worker->done[i].ticket, worker->done[i].status);
    worker->done[i] = worker->done[--worker->num_done];
}

static int worker_of(const struct engine_arena *arena)
{
    for (int w = 0; w < WORKERS; w++) {
        if (workers[w].real.arena == arena)
            return w;
    }
    ck_abort_msg("a run of nobody");
}

static uint64_t num_kept_back, num_put_off;

static void step(void)
{
    world_step(&world);
    model_offers_expire();
    num_kept_back += world.core->delay.keeps;
}

// A pipeline of some run is not there: the runs of its session come back until it is compiled.
static void put_off(const struct fake_submission *s)
{
    static unsigned asked; // an own counter, so that the random walks stay about the same
    uint64_t line = s->num_runs && ++asked % 5 == 0 ? s->runs[asked / 5 % s->num_runs].run.line : 0;
    if (line && !fake_engine_is_put_off(world.engine, line))
        fake_engine_put_off(world.engine, line);
}

// Sessions whose runs have all come back may have them submitted again.
static void settle_back(void)
{
    for (int w = 0; w < WORKERS; w++)
        if (workers[w].num_back && !submitted_runs(&workers[w].real))
            workers[w].num_back = 0;
}

static void do_finish(int w)
{
    struct fake_submission *s = fake_engine_oldest(world.engine);
    (void)w;
    if (!s)
        return;
    put_off(s);
    for (uint32_t i = 0; i < s->num_runs; i++) {
        struct model_worker *worker = &workers[worker_of(s->runs[i].arena)];
        struct model_run run = worker->runs[worker->num_back];
        bool comes_back = fake_engine_is_put_off(world.engine, s->runs[i].run.line);
        num_put_off += comes_back;
        if (comes_back && worker->open) {
            worker->num_back++;
            continue;
        }
        if (!comes_back && roll(25) == 0)
            s->runs[i].fail = STATUS_UNSUPPORTED;
        take_run(worker, worker->num_back);
        run_over((int)(worker - workers), &run,
                 s->runs[i].fail == STATUS_OK && !comes_back && !run.dropped);
        if (!worker->open)
            continue;
        worker->done[worker->num_done].ticket = run.ticket;
        worker->done[worker->num_done++].status = s->runs[i].fail;
    }
    world.now_ns += SUBMISSION_NS;
    ck_assert(fake_engine_finish(world.engine));
    settle_back();
    step();
}

// Every other time the clock has passed the end of the wait for company. Every third time all
// compiles have ended.
static void do_step(int w)
{
    static unsigned asked; // an own counter, so that the random walks stay the same
    (void)w;
    world.now_ns += ++asked % 2 ? 0 : SUBMISSION_NS * 2 / 3;
    if (asked % 3 == 0)
        fake_engine_compiled(world.engine);
    step();
}

// ---- invalid calls, which must be refused and change nothing ----

static void do_nonsense(int w)
{
    struct worker *real = &workers[w].real;
    int32_t id = (int32_t)roll(IDS + 8) - 4;
    struct error error = {0};
    uint32_t existing, made;
    uint64_t none;
    if (!workers[w].open || (id >= 0 && id < IDS && model[0][id].holds[w]))
        return;
    int32_t tokens[8] = {0}, given = id;
    ck_assert_int_ne((int)core_blocks_release(real->session, cache_ids[0], &id, 1, &error),
                     STATUS_OK);
    ck_assert_int_ne((int)worker_try_publish(real, tokens, 8, &given, &existing, &error),
                     STATUS_OK);
    const int32_t cu[] = {0, 1}, lens[] = {1};
    const int64_t slot = (int64_t)id * 8;
    struct core_batch_params params = sequences_over(cache_ids[0], 1, cu, lens, &id, 1);
    ck_assert_int_ne((int)core_batch_create(real->session, &params, &none, &made, &error),
                     STATUS_OK);
    params.max_blocks = 1;
    params.slot_mapping = &slot;
    params.num_slot_mapping = 1;
    ck_assert_int_ne((int)core_batch_create(real->session, &params, &none, &made, &error),
                     STATUS_OK);
    num_refused += 4;
}

static void do_refuse_memory(int w)
{
    (void)w;
    if (roll(10) == 0)
        fake_engine_refuse_chunks(world.engine, roll(3));
}

static const struct {
    void (*run)(int w);
    uint32_t weight;
} operations[] = {
    {do_open, 6},          {do_close, 2},         {do_second_cache, 1}, {do_text, 12},
    {do_release, 6},       {do_publish, 16},      {do_batch, 12},       {do_run, 30},
    {do_reap, 25},         {do_finish, 12},       {do_step, 12},        {do_nonsense, 3},
    {do_destroy_batch, 8}, {do_refuse_memory, 1}, {do_claim, 10},       {do_claim_take, 14},
    {do_claim_release, 1}, {do_offer, 5},         {do_offer_take, 10},  {do_offer_settle, 6},
    {do_die, 24},
};

static void random_operation(void)
{
    uint32_t sum = 0, at = 0;
    for (size_t i = 0; i < sizeof(operations) / sizeof(*operations); i++)
        sum += operations[i].weight;
    for (uint32_t pick = roll(sum); pick >= operations[at].weight; at++)
        pick -= operations[at].weight;
    operations[at].run((int)roll(WORKERS));
}

// ---- a host tier without room: each block that becomes visible is offered to it, and is skipped,
// so nothing that the model knows may change ----

static struct {
    struct tier *tier;
    struct tier_backend *host;
    uint8_t *memory, *taken;
} full;

static struct core_tiers open_full_tier(void)
{
    const struct tier_share nobody = {0};
    const struct tier_ops *ops;
    full.memory = aligned_alloc(AREA_UNIT, AREA_UNIT);
    const struct host_params params = {.base = full.memory, .size = AREA_UNIT};
    ck_assert_status(host_open(&params, &full.host, &error), STATUS_OK);
    struct tier_backend *fault = fault_open(&host_ops, full.host, &ops);
    ck_assert_status(tier_create(ops, fault, &full.tier, &error), STATUS_OK);
    full.taken = host_reserve(full.host, &nobody, AREA_UNIT);
    ck_assert_ptr_nonnull(full.taken);
    return (struct core_tiers){.host = full.tier,
                               .area = full.host,
                               .base = full.memory,
                               .deadline_ns = FOREVER,
                               .abandon_ns = FOREVER,
                               .max_errands = 4};
}

static void close_full_tier(void)
{
    if (!full.tier)
        return;
    host_ops.give_back(full.host, full.taken);
    ck_assert(tier_close(full.tier, FOREVER));
    free(full.memory);
}

START_TEST(random_operations_of_several_sessions_agree_with_a_simple_model)
{
    random_state = 0x9e3779b97f4a7c15ull * (uint64_t)(_i + 21);
    const bool has_tiers = _i % 2;
    world_open(&world,
               &(struct core_params){.max_blocks = MAX_BLOCKS,
                                     .quota_blocks = QUOTA,
                                     .max_tickets = MAX_TICKETS,
                                     .max_batches = MAX_BATCHES,
                                     .max_claimed = MAX_CLAIMED,
                                     .tiers = has_tiers ? open_full_tier() : (struct core_tiers){0},
                                     .look_ns = LOOK_NS});
    for (int i = 0; i < STEPS; i++) {
        random_operation();
        compare();
    }
    finally = true;
    for (int w = 0; w < WORKERS; w++) {
        do_close(w);
        compare();
    }
    while (fake_engine_oldest(world.engine)) {
        do_finish(0);
        compare();
    }
    const uint64_t *totals = core_metrics(world.core);
    ck_assert_uint_eq(totals[METRIC_BLOCKS_LEASED] + totals[METRIC_BLOCKS_HELD] +
                          totals[METRIC_BLOCKS_QUARANTINED],
                      0);
    // The walk has reached all the states that it is meant to test.
    ck_assert_uint_gt(num_kept_back, 5);
    ck_assert_uint_gt(num_put_off, 40);
    ck_assert_uint_gt(num_hits, 40);
    ck_assert_uint_gt(num_exchanged, 5);
    ck_assert_uint_gt(num_failed, 5);
    ck_assert_uint_gt(num_evicted, 5);
    ck_assert_uint_gt(num_quarantined, 5);
    ck_assert_uint_gt(num_refused, 100);
    ck_assert_uint_gt(num_unwritten, 5);
    ck_assert_uint_gt(num_claims, 40);
    ck_assert_uint_gt(num_promises, 40);
    ck_assert_uint_gt(num_offers, 40);
    ck_assert_uint_gt(num_offers_accepted, 5);
    ck_assert_uint_gt(num_offers_returned, 5);
    ck_assert_uint_gt(num_offers_expired, 5);
    for (int i = 0; i < NUM_STEPS; i++)
        ck_assert_msg(steps[i].deaths > 0, "%d workers died at step %d", (int)steps[i].deaths, i);
    ck_assert_int_eq(totals[METRIC_TIER_SKIPPED] > 0, has_tiers);
    world_close(&world);
    close_full_tier();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("core model");
    TCase *tcase = tcase_create("random walks");
    tcase_add_loop_test(tcase, random_operations_of_several_sessions_agree_with_a_simple_model, 0,
                        SEEDS);
    tcase_set_timeout(tcase, 240);
    suite_add_tcase(suite, tcase);
    return check_main(suite);
}
