// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_killed_tiers.c - random operations of real worker processes, some of which are killed, on a
// daemon with tiers that do harm. The stores are real: host memory, a folder, a redis-server. The
// tier `fault` stands before each of them and fails, holds, flips and cuts as drawn. There
// is no plain model of the blocks that a tier keeps. A worker checks every key that it reads
// (worker.c), so a block that came back wrong is seen at once. The daemon counts all of core anew
// in each turn, and after each operation the states of all blocks add up to the pool.
//
// AULE_TEST_SEED repeats a walk; AULE_TEST_LONG walks 20 times as far.

#include "aule/aule.h"
#include "rigs/check_main.h"
#include "rigs/dice.h"
#include "server/server.h"
#include "tier/fault.h"
#include "tier/redis_server.h"
#include "world.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { STEPS = 3000, MOST_WALKS = 4, TEXTS = 3, MOST_TIERS = 3 };

// Which stores a walk has, and whether copies go beside the submissions.
static const struct stores {
    bool files, redis, hauls;
} walks[] = {
    {.files = false}, // host memory alone
    {.files = true, .hauls = true},
    {.redis = true},
    {.files = true, .redis = true, .hauls = true},
};
static const struct stores *stores;

static struct dice dice;
static char folder[48], files_url[64], redis_url[128];

static struct {
    bool spawned, open;
    struct {
        bool used, publish;
        uint32_t num_tokens, num_computed, num_promised;
        int32_t tokens[TOKENS];
    } sequences[SEQUENCES];
} workers[WORKERS];

// In memory that all processes share.
static struct counts {
    atomic_uint harms[FAULT_NUM_KINDS], jobs;
} * counts;

// ---- in the daemon's process ----

static struct tier_backend *harmful[MOST_TIERS];
static uint32_t num_harmful;
static struct dice harm_dice;

enum status __real_tier_create(const struct tier_ops *ops, struct tier_backend *backend,
                               struct tier **out, struct error *error);
enum status __wrap_tier_create(const struct tier_ops *ops, struct tier_backend *backend,
                               struct tier **out, struct error *error);

enum status __wrap_tier_create(const struct tier_ops *ops, struct tier_backend *backend,
                               struct tier **out, struct error *error)
{
    const struct tier_ops *outer;
    struct tier_backend *fault = fault_open(ops, backend, &outer);
    if (!fault || num_harmful == MOST_TIERS)
        _exit(95);
    harmful[num_harmful++] = fault;
    return __real_tier_create(outer, fault, out, error);
}

static void draw_harm(void)
{
    static const enum tier_kind kinds[] = {TIER_LOOKUP, TIER_STORE, TIER_LOAD};
    static const enum stored_reason reasons[] = {STORED_CONNECTION, STORED_STORE, STORED_TIMEOUT,
                                                 STORED_FULL, STORED_ABSENT};
    struct tier_backend *fault = harmful[dice_below(&harm_dice, num_harmful)];
    const struct fault_order order = {
        .kind = (enum fault_kind)dice_below(&harm_dice, FAULT_NUM_KINDS),
        .jobs = kinds[dice_below(&harm_dice, 3)],
        .reason = reasons[dice_below(&harm_dice, 5)],
        // The fake engine uses the first four bytes of each row of 32.
        .bytes = dice_below(&harm_dice, 32) * 32 + dice_below(&harm_dice, 4),
        .times = 1 + dice_below(&harm_dice, 2),
    };
    fault_order(fault, &order);
    atomic_fetch_add(&counts->harms[order.kind], 1);
}

// Called in each turn of the dispatcher. A job that is held goes on later, or is abandoned.
static void do_harm(void)
{
    if (!num_harmful)
        return;
    if (dice_chance(&harm_dice, 3))
        draw_harm();
    if (dice_chance(&harm_dice, 10))
        fault_let_go(harmful[dice_below(&harm_dice, num_harmful)]);
}

static void adjust(struct server_params *params)
{
    params->host_tier = 1 << 21;
    params->tier_deadline_ms = 50;
    params->max_tier_jobs = 16;
    if (stores->files)
        params->tiers.texts[params->tiers.count++] = files_url;
    if (stores->redis)
        params->tiers.texts[params->tiers.count++] = redis_url;
}

// ---- operations ----

// Few texts, so that many prompts are in tiers. They differ at a block's begin, or later.
static void draw_tokens(int32_t *tokens, uint32_t from, uint32_t count)
{
    for (uint32_t p = from; p < from + count; p++) {
        int32_t text = p % BLOCK ? tokens[p - 1] / 100 : 1;
        if (p % BLOCK == 0 || dice_chance(&dice, 5))
            text = 1 + (int32_t)dice_below(&dice, TEXTS);
        tokens[p] = text * 100 + (int32_t)p;
    }
}

static int some_sequence(int w, bool used)
{
    const int start = (int)dice_below(&dice, SEQUENCES);
    for (int i = 0; i < SEQUENCES; i++) {
        const int s = (start + i) % SEQUENCES;
        if (workers[w].sequences[s].used == used)
            return s;
    }
    return NONE;
}

static enum order_kind draw_kind(void)
{
    static const enum order_kind kinds[] = {
        ORDER_CREATE, ORDER_CREATE,  ORDER_CREATE,   ORDER_WAIT,    ORDER_WAIT,
        ORDER_WAIT,   ORDER_STEP,    ORDER_STEP,     ORDER_STEP,    ORDER_PUBLISH,
        ORDER_FORK,   ORDER_DESTROY, ORDER_TRUNCATE, ORDER_DESTROY, ORDER_DESTROY};
    return dice_chance(&dice, 1) ? ORDER_CLOSE
                                 : kinds[dice_below(&dice, sizeof kinds / sizeof *kinds)];
}

// False: nothing to do.
static bool draw_order(int w, struct order *order)
{
    *order = (struct order){.kind = workers[w].open ? draw_kind() : ORDER_OPEN,
                            .other = (int)dice_below(&dice, TENANTS)};
    if (order->kind == ORDER_OPEN || order->kind == ORDER_CLOSE)
        return true;
    order->sequence = some_sequence(w, order->kind != ORDER_CREATE);
    if (order->sequence == NONE)
        return false;
    if (order->kind == ORDER_CREATE) {
        order->publish = dice_chance(&dice, 90);
        order->claim = order->publish && dice_chance(&dice, 70);
        order->loads = dice_chance(&dice, 80);
        order->count = dice_between(&dice, BLOCK, TOKENS - 2);
        draw_tokens(order->tokens, 0, order->count);
    } else if (order->kind == ORDER_STEP) {
        int32_t all[2 * TOKENS];
        const uint32_t begun = workers[w].sequences[order->sequence].num_tokens,
                       computed = workers[w].sequences[order->sequence].num_computed;
        order->count = dice_between(&dice, 0, TOKENS - begun);
        order->count = order->count > 9 ? 9 : order->count;
        memcpy(all, workers[w].sequences[order->sequence].tokens, TOKENS * sizeof *all);
        draw_tokens(all, begun, order->count);
        memcpy(order->tokens, all + begun, order->count * sizeof *all);
        return computed < begun || order->count > 0;
    } else if (order->kind == ORDER_TRUNCATE) {
        order->count = dice_below(&dice, workers[w].sequences[order->sequence].num_tokens + 1);
    } else if (order->kind == ORDER_FORK) {
        order->other = some_sequence(w, false);
        return order->other != NONE;
    } else if (order->kind == ORDER_WAIT) {
        return workers[w].sequences[order->sequence].num_promised > 0;
    }
    return true;
}

// What the worker has now, by its answer.
static void note(int w, const struct order *order, const struct reply *reply)
{
    const int shown = order->kind == ORDER_FORK ? order->other : order->sequence;
    const bool fine = reply->status == AULE_OK;
    if (order->kind == ORDER_OPEN)
        workers[w].open = fine;
    if (order->kind == ORDER_OPEN || order->kind == ORDER_CLOSE) {
        workers[w].open = order->kind == ORDER_OPEN;
        memset(workers[w].sequences, 0, sizeof workers[w].sequences);
        return;
    }
    if (order->kind == ORDER_CREATE && fine)
        memcpy(workers[w].sequences[shown].tokens, order->tokens, order->count * sizeof(int32_t));
    if (order->kind == ORDER_STEP) {
        const uint32_t begun = workers[w].sequences[shown].num_tokens;
        memcpy(workers[w].sequences[shown].tokens + begun, order->tokens,
               (reply->num_tokens - begun) * sizeof(int32_t));
    }
    if (order->kind == ORDER_FORK && fine)
        workers[w].sequences[shown] = workers[w].sequences[order->sequence];
    if ((order->kind == ORDER_CREATE || order->kind == ORDER_FORK) && fine)
        workers[w].sequences[shown].used = true;
    if (order->kind == ORDER_DESTROY)
        memset(&workers[w].sequences[shown], 0, sizeof workers[w].sequences[shown]);
    workers[w].sequences[shown].num_tokens = reply->num_tokens;
    workers[w].sequences[shown].num_computed = reply->num_computed;
    workers[w].sequences[shown].num_promised = reply->num_promised;
}

// A pool that is too small for all is no failure, nor is a block that has not come yet.
static bool is_expected(int status)
{
    return status == AULE_OK || status == AULE_NO_BLOCKS || status == AULE_TIMEOUT ||
           status == AULE_BUSY || status == AULE_NOT_FOUND;
}

static void kill_worker(int w)
{
    world_kill(w);
    memset(&workers[w], 0, sizeof workers[w]);
}

// False: the worker was killed in the middle of it.
static bool do_order(int w, const struct order *order)
{
    struct reply reply;
    world_order(w, order);
    if (dice_chance(&dice, 2)) {
        kill_worker(w);
        return false;
    }
    world_reply(w, &reply);
    ck_assert_msg(reply.status != AULE_OK || !reply.text[0], "worker %d: %s", w, reply.text);
    ck_assert_msg(is_expected(reply.status), "worker %d, order %d: %d, %s", w, (int)order->kind,
                  reply.status, reply.text);
    note(w, order, &reply);
    return true;
}

// Waits a while for what tiers bring, and reads all of it back.
static void take_promised(int w, int sequence)
{
    const struct order wait = {.kind = ORDER_WAIT, .sequence = sequence},
                       step = {.kind = ORDER_STEP, .sequence = sequence};
    for (int i = 0; i < 20 && workers[w].sequences[sequence].num_promised; i++) {
        usleep(500);
        if (!do_order(w, &wait))
            return;
    }
    do_order(w, &step);
}

static void do_one(int w)
{
    struct order order;
    if (!workers[w].spawned)
        world_spawn(w);
    workers[w].spawned = true;
    if (draw_order(w, &order) && do_order(w, &order) && order.kind == ORDER_CREATE &&
        workers[w].sequences[order.sequence].num_promised && dice_chance(&dice, 70))
        take_promised(w, order.sequence);
}

// ---- the walk ----

static void begin(const struct stores *wanted)
{
    stores = wanted;
    dice = (struct dice){check_draw("tiers")};
    harm_dice = (struct dice){check_draw("harm")};
    counts = mmap(NULL, sizeof *counts, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(counts, MAP_FAILED);
    strcpy(folder, "/tmp/aule-model-files-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(files_url, sizeof files_url, "files://%s?size=1M", folder);
    if (stores->redis) {
        server_start(0, NULL);
        snprintf(redis_url, sizeof redis_url,
                 "redis://127.0.0.1:%d?connections=4&queue=1M&absent=20&expire=3600",
                 servers[0].port);
    }
    world_adjust = adjust;
    world_in_turn = do_harm;
    world_has_hauls = stores->hauls;
    world_start();
}

static void end(void)
{
    char command[64];
    world_stop();
    servers_end();
    snprintf(command, sizeof command, "rm -rf %s", folder);
    ck_assert_int_eq(system(command), 0);
}

// Whether blocks came back in spite of all, and each kind of harm was done.
static bool is_covered(void)
{
    for (int kind = 0; kind < FAULT_NUM_KINDS; kind++)
        if (atomic_load(&counts->harms[kind]) == 0)
            return false;
    return world_metric("aule_tier_loaded_tokens_total") > 0 &&
           world_metric("aule_runs_done_total") > 0;
}

START_TEST(workers_die_and_tiers_do_harm_and_no_key_is_wrong)
{
    const uint32_t steps = check_is_long() ? 20 * STEPS : STEPS;
    begin(&walks[_i]);
    // On a busy machine tiers are late more often, so fewer blocks come back: then it walks on.
    for (uint32_t step = 0; step < steps || (step < MOST_WALKS * steps && !is_covered()); step++) {
        const int w = (int)dice_below(&dice, WORKERS);
        if (workers[w].spawned && dice_chance(&dice, 2))
            kill_worker(w);
        else
            do_one(w);
        world_check_sum();
    }
    for (int w = 0; w < WORKERS; w++)
        if (workers[w].spawned)
            kill_worker(w);
    world_await_rest();
    ck_assert(is_covered());
    end();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("killed, with tiers");
    const TTest *const tests[] = {workers_die_and_tiers_do_harm_and_no_key_is_wrong, NULL};
    if (!server_is_there()) {
        puts("skipped: redis-server is not installed");
        return 77;
    }
    check_seed();
    check_case(suite, "tiers", NULL, NULL, tests, sizeof walks / sizeof *walks);
    return check_main(suite);
}
