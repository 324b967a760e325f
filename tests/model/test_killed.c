// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_killed.c - random operations of real worker processes, some of which are killed, against a
// plain model. Who knows what: this process draws the operations, has the model, and tells one
// worker at a time what to do, so the order is known (world.h). A worker knows only its own
// sequences and checks every key that it reads (worker.c). The daemon runs over the fake engine and
// counts all of core anew in each turn. After each operation the monitor must show what the model
// has: every count, every published block with its state, holders and keep, every tenant.
//
// At most one command waits at a time: for a claim, an offer or a lease. Other operations may end
// its wait. An operation sends several messages, and the daemon may look at the waiting command
// between any two. If that could change the result, the operation is not drawn.
//
// AULE_TEST_SEED repeats a walk; AULE_TEST_LONG walks 20 times as far.

#include "aule/aule.h"
#include "rigs/check_main.h"
#include "rigs/dice.h"
#include "texts.h"
#include "world.h"

#include <string.h>
#include <time.h>

enum { STEPS = 500, WALKS = 2 };

static struct model model;
static struct dice dice;
static bool spawned[WORKERS];
static char doing[120];
static uint64_t seed;
static bool exported; // workers can attach
static struct {
    uint32_t kills, waits, killed_waiting, woken, in_flight, skipped, taken, hits, evicted, quotas;
    uint32_t attached, reports, haunted; // haunted: killed attached workers, kernels in flight
} seen;

// ---- drawing ----

static const char *const names[] = {"open",   "close",    "create", "wait",    "step",    "make",
                                    "submit", "truncate", "fork",   "publish", "destroy", "offer",
                                    "take",   "accept",   "keep",   "attach",  "report",  "fill"};

static void draw_tokens(int32_t *tokens, uint32_t from, uint32_t count)
{
    for (uint32_t p = from; p < from + count; p++) {
        int32_t symbol = p % BLOCK ? tokens[p - 1] / 10 : 0;
        if (p % BLOCK == 0 || (p % BLOCK < 4 && p == from && dice_chance(&dice, 30)))
            symbol = 1 + (int32_t)(dice_chance(&dice, 60) ? 0 : dice_below(&dice, 3));
        tokens[p] = symbol * 10 + (int32_t)(p % BLOCK);
    }
}

static int some_sequence(int worker, bool used)
{
    int start = (int)dice_below(&dice, SEQUENCES);
    for (int i = 0; i < SEQUENCES; i++) {
        int s = (start + i) % SEQUENCES;
        if (model.sequences[worker][s].used == used)
            return s;
    }
    return NONE;
}

// Fills in what `order` needs. False: nothing to do.
static bool draw_order(int worker, struct order *order)
{
    bool makes = order->kind == ORDER_CREATE || order->kind == ORDER_TAKE;
    if (order->kind == ORDER_OPEN || !model.sessions[worker].open) {
        order->other = (int)dice_below(&dice, 4) == 0;
        return order->kind == ORDER_OPEN && !model.sessions[worker].open;
    }
    int drawn = some_sequence(worker, !makes);
    order->sequence = drawn == NONE ? 0 : drawn;
    order->waits = model.waiter.kind == WAITS_NOT && dice_chance(&dice, 50);
    if (order->kind == ORDER_CLOSE)
        return true;
    if (order->kind == ORDER_ATTACH || order->kind == ORDER_REPORT) {
        order->sequence = 0;
        return exported && model.sessions[worker].attached == (order->kind == ORDER_REPORT);
    }
    const struct model_sequence *q = &model.sequences[worker][order->sequence];
    if (order->kind == ORDER_CREATE || order->kind == ORDER_KEEP) {
        order->publish = dice_chance(&dice, 80);
        order->claim = order->publish && dice_chance(&dice, 60);
        order->count = dice_between(&dice, BLOCK - 1, TOKENS - 2);
        order->other = (int)dice_below(&dice, 3);
        draw_tokens(order->tokens, 0, order->count);
        if (order->kind == ORDER_KEEP)
            order->sequence = 0;
        return drawn != NONE || order->kind == ORDER_KEEP;
    }
    if (drawn == NONE)
        return false;
    switch (order->kind) {
    case ORDER_WAIT: return text_promised(&model, worker, order->sequence);
    case ORDER_STEP:
    case ORDER_MAKE: {
        int32_t all[TOKENS + BLOCK];
        order->count = dice_between(&dice, 0, TOKENS - q->num_tokens);
        if (order->count > 9)
            order->count = dice_between(&dice, 1, 9);
        if (q->num_computed == q->num_tokens && order->count == 0)
            return false;
        memcpy(all, q->tokens, sizeof q->tokens);
        draw_tokens(all, q->num_tokens, order->count);
        memcpy(order->tokens, all + q->num_tokens, order->count * sizeof *all);
        order->waits =
            order->waits && !text_would_copy(&model, worker, order->sequence, order->count);
        return true;
    }
    case ORDER_TRUNCATE: order->count = dice_below(&dice, q->num_tokens + 1); return true;
    case ORDER_FORK: order->other = some_sequence(worker, false); return order->other != NONE;
    case ORDER_OFFER:
        order->other = (int)dice_below(&dice, OFFERS);
        return q->offer == NONE && q->num_blocks && !model.offers[order->other].used;
    case ORDER_TAKE: order->other = (int)dice_below(&dice, OFFERS); return true;
    case ORDER_ACCEPT: return q->offer != NONE;
    default: return true;
    }
}

// ---- one operation ----

static enum outcome apply(struct model *m, int worker, const struct order *o)
{
    uint32_t kept;
    switch (o->kind) {
    case ORDER_OPEN: model_open(m, worker, o->other); break;
    case ORDER_CLOSE:
        for (int s = 0; s < SEQUENCES; s++)
            if (m->sequences[worker][s].used)
                text_destroy(m, worker, s);
        model_close(m, worker, NULL, 0);
        break;
    case ORDER_CREATE:
        return text_create(m, worker, o->sequence, o->tokens, o->count, o->publish, o->claim);
    case ORDER_WAIT: return text_wait(m, worker, o->sequence, o->waits);
    case ORDER_STEP:
    case ORDER_MAKE: return text_step(m, worker, o->sequence, o->tokens, o->count, o->waits);
    case ORDER_TRUNCATE: text_truncate(m, worker, o->sequence, o->count); break;
    case ORDER_FORK: text_fork(m, worker, o->sequence, o->other); break;
    case ORDER_PUBLISH: return text_publish(m, worker, o->sequence);
    case ORDER_DESTROY: text_destroy(m, worker, o->sequence); break;
    case ORDER_OFFER: return text_offer(m, worker, o->sequence, o->other);
    case ORDER_TAKE: return text_take(m, worker, o->sequence, o->other, o->waits);
    case ORDER_ACCEPT: text_accept(m, worker, o->sequence); break;
    case ORDER_ATTACH: model_attach(m, worker); break;
    case ORDER_REPORT: model_report(m, worker); break;
    case ORDER_KEEP:
        return model_keep(m, worker, o->tokens, o->count / BLOCK, (enum keep)o->other, &kept);
    default: break;
    }
    return DONE;
}

// False: the result depends on when the daemon looks at the command that waits.
static bool advance(int worker, const struct order *order, enum outcome *outcome)
{
    static struct model eager, lazy;
    lazy = eager = model;
    eager.eager = model.waiter.kind != WAITS_NOT;
    *outcome = apply(&lazy, worker, order);
    texts_wake(&lazy);
    enum outcome other = apply(&eager, worker, order);
    texts_wake(&eager);
    if (other != *outcome || model_digest(&eager) != model_digest(&lazy))
        return false;
    model = lazy;
    return true;
}

static void expect_reply(int worker, int sequence, enum outcome outcome)
{
    static const enum aule_status statuses[] = {
        [DONE] = AULE_OK,         [NO_BLOCKS] = AULE_NO_BLOCKS,
        [QUOTA] = AULE_QUOTA,     [NOT_FOUND] = AULE_NOT_FOUND,
        [TIMEOUT] = AULE_TIMEOUT, [BUSY] = AULE_BUSY};
    const struct model_sequence *q = &model.sequences[worker][sequence];
    struct reply reply;
    world_reply(worker, &reply);
    ck_assert_msg(reply.status == (int)statuses[outcome],
                  "seed %" PRIu64 ", %s: worker %d says %s, not %s: %s", seed, doing, worker,
                  aule_status_name((enum aule_status)reply.status),
                  aule_status_name(statuses[outcome]), reply.text);
    ck_assert_msg(outcome != DONE || !reply.text[0], "seed %" PRIu64 ", %s: worker %d: %s", seed,
                  doing, worker, reply.text);
    if (!model.sessions[worker].open || !q->used)
        return;
    const uint32_t has[] = {reply.num_tokens, reply.num_computed,  reply.num_found,
                            reply.num_blocks, reply.num_published, reply.num_promised};
    const uint32_t wants[] = {q->num_tokens,    q->num_computed,
                              q->num_found,     q->num_blocks,
                              q->num_published, text_promised(&model, worker, sequence)};
    for (int i = 0; i < 6; i++)
        ck_assert_msg(has[i] == wants[i],
                      "seed %" PRIu64 ", %s: number %d of worker %d's sequence %d is %u, not %u",
                      seed, doing, i, worker, sequence, has[i], wants[i]);
    seen.hits += reply.num_found > 0;
}

static void check(void)
{
    if (model.waiter.over) {
        expect_reply(model.waiter.worker, model.waiter.sequence, model.waiter.outcome);
        memset(&model.waiter, 0, sizeof model.waiter);
        seen.woken++;
    }
    world_compare(&model, doing);
}

static void carry_out(int worker, const struct order *order)
{
    enum outcome outcome;
    bool waited = model.waiter.kind != WAITS_NOT;
    if (!advance(worker, order, &outcome)) {
        seen.skipped++;
        return;
    }
    if (order->kind == ORDER_OPEN && !spawned[worker])
        world_spawn(worker);
    spawned[worker] = true;
    unsigned begun = world_begun();
    world_order(worker, order);
    if (!waited && model.waiter.kind != WAITS_NOT) {
        world_await(worker, begun);
        seen.waits++;
    } else {
        expect_reply(worker, order->kind == ORDER_FORK ? order->other : order->sequence, outcome);
    }
    seen.taken += order->kind == ORDER_TAKE && outcome == DONE;
    seen.quotas += outcome == QUOTA;
    seen.attached += order->kind == ORDER_ATTACH;
    seen.reports += order->kind == ORDER_REPORT;
    check();
}

static void do_order(int worker, enum order_kind kind)
{
    struct order order = {.kind = kind};
    if ((model.waiter.kind != WAITS_NOT && model.waiter.worker == worker) ||
        !draw_order(worker, &order))
        return;
    snprintf(doing + strlen(doing), sizeof doing - strlen(doing), " %s %d.%d %d %u%s", names[kind],
             worker, order.sequence, order.other, order.count, order.waits ? " waits" : "");
    carry_out(worker, &order);
}

// ---- deaths ----

static void lose(int worker, const int *in_flight, uint32_t num_in_flight)
{
    if (model.waiter.kind != WAITS_NOT && model.waiter.worker == worker) {
        memset(&model.waiter, 0, sizeof model.waiter);
        seen.killed_waiting++;
    }
    world_kill(worker);
    spawned[worker] = false;
    model_close(&model, worker, in_flight, num_in_flight);
    texts_wake(&model);
    seen.kills++;
    check();
}

static void do_kill(int worker)
{
    if (!model.sessions[worker].open)
        return;
    snprintf(doing + strlen(doing), sizeof doing - strlen(doing), " kill %d", worker);
    lose(worker, NULL, 0);
}

// Kills a worker while the GPU computes a step of it.
static void do_kill_in_flight(int worker)
{
    struct order order = {.kind = ORDER_MAKE};
    static struct model tried;
    int blocks[BLOCKS];
    if (model.waiter.kind != WAITS_NOT || !draw_order(worker, &order))
        return;
    order.waits = false;
    tried = model;
    if (apply(&tried, worker, &order) != DONE)
        return;
    snprintf(doing + strlen(doing), sizeof doing - strlen(doing), " kill in flight %d.%d", worker,
             order.sequence);
    carry_out(worker, &order);
    world_hold(true);
    unsigned before = world_submissions();
    world_order(worker, &(struct order){.kind = ORDER_SUBMIT, .sequence = order.sequence});
    expect_reply(worker, order.sequence, DONE);
    while (world_submissions() == before)
        nanosleep(&(struct timespec){.tv_nsec = 100 * 1000}, NULL);
    // The GPU's work also holds back the fence that frees an attached worker's blocks.
    uint32_t count = model.sessions[worker].attached
                         ? model_haunted(&model, worker, blocks)
                         : text_blocks(&model, worker, order.sequence, blocks);
    seen.haunted += model.sessions[worker].attached;
    lose(worker, blocks, count);
    world_hold(false);
    model_finish_dead(&model, blocks, count);
    seen.in_flight++;
    check();
}

// ---- limits ----

static void do_limit(int worker)
{
    int tenant = (int)dice_below(&dice, TENANTS);
    uint64_t blocks = dice_chance(&dice, 40) ? 0 : dice_between(&dice, 8, 20);
    uint64_t cached = dice_chance(&dice, 50) ? 0 : dice_between(&dice, 4, 14);
    uint64_t floor = dice_below(&dice, cached && cached < 6 ? (uint32_t)cached : 6);
    if (model.sessions[worker].open && dice_chance(&dice, 50)) {
        uint64_t quota = dice_chance(&dice, 60) ? 0 : dice_between(&dice, 4, 10);
        model.sessions[worker].quota = quota;
        world_quota(worker, quota);
    }
    snprintf(doing + strlen(doing), sizeof doing - strlen(doing), " limit %d", tenant);
    model_limit(&model, tenant, blocks, cached, floor);
    world_limit(tenant, blocks, cached, floor);
    texts_wake(&model);
    check();
}

static const struct {
    enum order_kind kind;
    uint32_t weight;
} weights[] = {{ORDER_OPEN, 28},    {ORDER_CLOSE, 2},     {ORDER_CREATE, 32}, {ORDER_WAIT, 24},
               {ORDER_STEP, 60},    {ORDER_TRUNCATE, 10}, {ORDER_FORK, 12},   {ORDER_PUBLISH, 8},
               {ORDER_DESTROY, 16}, {ORDER_OFFER, 14},    {ORDER_TAKE, 18},   {ORDER_ACCEPT, 8},
               {ORDER_KEEP, 8},     {ORDER_ATTACH, 6},    {ORDER_REPORT, 16}};
enum { KILLS = 3, KILLS_IN_FLIGHT = 2, LIMITS = 2 };

static void random_operation(void)
{
    uint32_t sum = KILLS + KILLS_IN_FLIGHT + LIMITS, at = 0;
    int worker = (int)dice_below(&dice, WORKERS);
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++)
        sum += weights[i].weight;
    uint32_t pick = dice_below(&dice, sum);
    if (pick < KILLS) {
        do_kill(worker);
    } else if ((pick -= KILLS) < KILLS_IN_FLIGHT) {
        do_kill_in_flight(worker);
    } else if ((pick -= KILLS_IN_FLIGHT) < LIMITS) {
        do_limit(worker);
    } else {
        for (pick -= LIMITS; pick >= weights[at].weight; at++)
            pick -= weights[at].weight;
        do_order(worker, weights[at].kind);
    }
}

static void walk(int number)
{
    uint32_t steps = check_is_long() ? 20 * STEPS : STEPS;
    seed = check_seed() * WALKS + (uint64_t)number;
    dice.state = seed;
    model_init(&model, world_blocks());
    for (uint32_t i = 0; i < steps; i++) {
        snprintf(doing, sizeof doing, "operation %u:", i);
        while (strchr(doing, ':')[1] == '\0')
            random_operation();
    }
    snprintf(doing, sizeof doing, "the end:");
    for (int w = 0; w < WORKERS; w++)
        do_kill(w);
    for (int t = 0; t < TENANTS; t++)
        seen.evicted += (uint32_t)model.tenants[t].evicted;
    ck_assert_uint_eq(count_state(&model, LEASED) + count_state(&model, HELD), 0);
    printf("seed %" PRIu64
           ": %u kills (%u waiting, %u in flight, %u of them attached), %u waits, %u woken, %u "
           "taken, %u hits, %u evicted, %u quotas, %u attached, %u reports, %u skipped\n",
           seed, seen.kills, seen.killed_waiting, seen.in_flight, seen.haunted, seen.waits,
           seen.woken, seen.taken, seen.hits, seen.evicted, seen.quotas, seen.attached,
           seen.reports, seen.skipped);
    // The walk has reached the states that it is meant to test.
    ck_assert_uint_gt(seen.kills, 0);
    ck_assert_uint_gt(seen.waits, 0);
    ck_assert_uint_gt(seen.hits, 0);
    if (!check_is_long())
        return;
    ck_assert_uint_gt(seen.killed_waiting, 5);
    ck_assert_uint_gt(seen.in_flight, 5);
    ck_assert_uint_gt(seen.woken, 5);
    ck_assert_uint_gt(seen.taken, 20);
    ck_assert_uint_gt(seen.evicted, 20);
    ck_assert_uint_gt(seen.quotas, 20);
}

START_TEST(daemon_and_model_agree_after_every_operation_of_workers_that_die)
{
    walk(_i);
}
END_TEST

// What an attached worker releases has no other lessee before the worker says that its kernels have
// passed, or is dead and the GPU is behind it.
START_TEST(daemon_and_model_agree_with_attached_workers_that_die)
{
    exported = true;
    walk(_i);
    ck_assert_uint_gt(seen.attached, 0);
    ck_assert_uint_gt(seen.reports, 0);
    if (check_is_long())
        ck_assert_uint_gt(seen.haunted, 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("killed");
    check_seed();
    check_case(suite, "walks", world_start, world_stop,
               (const TTest *const[]){
                   daemon_and_model_agree_after_every_operation_of_workers_that_die, NULL},
               WALKS);
    check_case(suite, "attached walks", world_start_exported, world_stop,
               (const TTest *const[]){daemon_and_model_agree_with_attached_workers_that_die, NULL},
               WALKS);
    return check_main(suite);
}
