// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_offer_walk.c - random hand-overs of several sessions, some of which die, against a model: a
// list of sequences, each with its contents and with the sessions that have it. After each
// operation core counts itself anew, and its counts agree with the model. A session that gets
// a sequence finds every number that its first owner wrote. The seed is the test's number.

#include "base/clock.h"
#include "rigs/check_main.h"
#include "rigs/core_world.h"
#include "rigs/dice.h"

#include <stdio.h>
#include <string.h>

enum { WORKERS = 4, SEQUENCES = 8, MOST_BLOCKS = 4, STEPS = 6000, SEEDS = 6, NOBODY = -1 };

struct sequence {
    bool used, offered, writable;
    int owner; // has it, or has offered it; NOBODY: it died while `taker` had it
    int taker; // of the offer, NOBODY: none
    int32_t blocks[MOST_BLOCKS];
    uint32_t num_blocks, num_stored;
    int32_t first; // number in its first slot; the next ones follow
    uint64_t offer;
    int64_t expires_ns;
    char name[16];
};

static struct world world;
static struct worker workers[WORKERS];
static struct sequence sequences[SEQUENCES];
static struct dice dice;
static int32_t last_number;
static uint32_t num_taken, num_back, num_expired, num_orphans, num_busy;

static struct worker *worker_of(int w)
{
    return &workers[w];
}

static bool is_open(int w)
{
    return workers[w].session != NULL;
}

// A sequence that `w` has and does not offer. NULL: another one was drawn.
static struct sequence *draw(int w)
{
    struct sequence *sequence = &sequences[dice_below(&dice, SEQUENCES)];
    bool fits = sequence->used && !sequence->offered && sequence->owner == w;
    return fits ? sequence : NULL;
}

static void expect_contents(const struct sequence *sequence)
{
    const struct engine_cache *engine = core_engine_cache(world.core, workers[0].cache);
    for (uint32_t i = 0; i < sequence->num_stored; i++)
        for (uint32_t layer = 0; layer < WORLD_LAYERS; layer++)
            if (fake_engine_slot(engine, layer, sequence->blocks[i / WORLD_BLOCK],
                                 i % WORLD_BLOCK) != sequence->first + (int32_t)i)
                ck_abort_msg("slot %u of a sequence that begins with %d", i, sequence->first);
}

// ---- what sessions do ----

static void write_tokens(int w, struct sequence *sequence, uint32_t num_new)
{
    int32_t numbers[MOST_BLOCKS * WORLD_BLOCK];
    uint32_t from = sequence->num_stored;
    sequence->num_stored += num_new;
    count_tokens(numbers, num_new, sequence->first + (int32_t)from);
    uint64_t batch = worker_batch(worker_of(w), sequence->blocks, sequence->num_stored, num_new),
             last = 0;
    for (uint32_t layer = 0; layer < WORLD_LAYERS; layer++) {
        struct core_run_params run =
            worker_run_params(worker_of(w), batch, layer, num_new, numbers);
        run.entry.flags |= WIRE_RUN_DETACHED;
        ck_assert_status(core_run(worker_of(w)->session, &run, &last, &error), STATUS_OK);
    }
    ck_assert_status(core_batch_destroy(worker_of(w)->session, batch, &error), STATUS_OK);
}

static void do_make(int w)
{
    struct sequence *sequence = &sequences[dice_below(&dice, SEQUENCES)];
    struct sequence fresh = {.used = true, .writable = true, .owner = w, .taker = NOBODY};
    struct error error = {0};
    if (sequence->used)
        return;
    fresh.num_blocks = 1 + dice_below(&dice, MOST_BLOCKS);
    if (worker_try_lease(worker_of(w), fresh.num_blocks, fresh.blocks, &error) != STATUS_OK)
        return;
    fresh.first = last_number + 1;
    last_number += MOST_BLOCKS * WORLD_BLOCK;
    *sequence = fresh;
    write_tokens(w, sequence, 1 + dice_below(&dice, fresh.num_blocks * WORLD_BLOCK));
}

static void do_extend(int w)
{
    struct sequence *sequence = draw(w);
    if (!sequence || !sequence->writable)
        return;
    uint32_t room = sequence->num_blocks * WORLD_BLOCK - sequence->num_stored;
    if (room > 0)
        write_tokens(w, sequence, 1 + dice_below(&dice, room));
}

static void do_release(int w)
{
    struct sequence *sequence = draw(w);
    if (!sequence)
        return;
    worker_release(worker_of(w), sequence->blocks, sequence->num_blocks);
    sequence->used = false;
}

static void do_offer(int w)
{
    struct sequence *sequence = draw(w);
    if (!sequence)
        return;
    snprintf(sequence->name, sizeof sequence->name, "s%d", sequence->first);
    sequence->expires_ns = dice_chance(&dice, 50) ? FOREVER : world.now_ns + 2000;
    const struct core_offer_params params = {.cache = worker_of(w)->cache,
                                             .name = sequence->name,
                                             .blocks = sequence->blocks,
                                             .num_blocks = sequence->num_blocks,
                                             .num_stored = sequence->num_stored,
                                             .num_tokens = sequence->num_stored,
                                             .expires_ns = sequence->expires_ns};
    ck_assert_status(core_offer_make(worker_of(w)->session, &params, &error), STATUS_OK);
    sequence->offered = true;
    sequence->writable = false;
}

static void do_take(int w)
{
    struct sequence *sequence = &sequences[dice_below(&dice, SEQUENCES)];
    const struct core_offer *offer;
    struct error error = {0};
    if (!sequence->used || !sequence->offered || sequence->owner == NOBODY)
        return;
    enum status status = core_offer_take(worker_of(w)->session, NULL, worker_of(w)->cache,
                                         sequence->name, &offer, &error);
    if (sequence->taker != NOBODY || status == STATUS_BUSY) {
        ck_assert_int_eq((int)status, (int)STATUS_BUSY);
        ck_assert(sequence->taker != NOBODY || !core_idle(world.core));
        num_busy++;
        return;
    }
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
    ck_assert_uint_eq(offer->num_stored, sequence->num_stored);
    ck_assert_mem_eq(offer->blocks, sequence->blocks,
                     sequence->num_blocks * sizeof *sequence->blocks);
    sequence->taker = w;
    sequence->offer = offer->id;
    if (w != sequence->owner)
        expect_contents(sequence);
    num_taken++;
}

static struct sequence *draw_taken(int w)
{
    struct sequence *sequence = &sequences[dice_below(&dice, SEQUENCES)];
    return sequence->used && sequence->offered && sequence->taker == w ? sequence : NULL;
}

static void do_accept(int w)
{
    struct sequence *sequence = draw_taken(w);
    uint8_t access[MOST_BLOCKS];
    if (!sequence)
        return;
    ck_assert_status(
        core_offer_settle(worker_of(w)->session, sequence->offer, true, access, &error), STATUS_OK);
    for (uint32_t i = 0; i < sequence->num_blocks; i++)
        ck_assert_int_eq(access[i], CORE_ACCESS_WRITE);
    sequence->owner = w;
    sequence->taker = NOBODY;
    sequence->offered = false;
    sequence->writable = true;
}

// The taker has it no more.
static void come_back(struct sequence *sequence)
{
    sequence->taker = NOBODY;
    if (sequence->owner == NOBODY)
        sequence->used = false;
    num_back++;
}

static void do_give_back(int w)
{
    struct sequence *sequence = draw_taken(w);
    if (!sequence)
        return;
    worker_release(worker_of(w), sequence->blocks, sequence->num_blocks);
    ck_assert_status(core_offer_settle(worker_of(w)->session, sequence->offer, false, NULL, &error),
                     STATUS_OK);
    come_back(sequence);
}

static void do_die(int w)
{
    if (dice_below(&dice, 8))
        return;
    worker_close(worker_of(w), dice_chance(&dice, 70));
    for (int i = 0; i < SEQUENCES; i++) {
        struct sequence *sequence = &sequences[i];
        if (!sequence->used)
            continue;
        if (sequence->taker == w)
            come_back(sequence);
        if (sequence->used && sequence->owner == w) {
            sequence->owner = NOBODY;
            sequence->used = sequence->taker != NOBODY;
            num_orphans += sequence->used;
        }
    }
}

// ---- the GPU and the clock ----

static void expire(void)
{
    for (int i = 0; i < SEQUENCES; i++) {
        struct sequence *sequence = &sequences[i];
        bool waits = sequence->used && sequence->offered && sequence->taker == NOBODY;
        if (!waits || sequence->expires_ns > world.now_ns)
            continue;
        sequence->used = false;
        num_expired++;
    }
}

static void do_step(int w)
{
    (void)w;
    world.now_ns += dice_below(&dice, 200);
    world_step(&world);
    expire();
}

static void do_finish(int w)
{
    fake_engine_finish(world.engine);
    do_step(w);
}

// ---- the comparison ----

static void compare(void)
{
    bool expected[64] = {false};
    uint64_t in_use = 0;
    for (int i = 0; i < SEQUENCES; i++) {
        for (uint32_t b = 0; sequences[i].used && b < sequences[i].num_blocks; b++) {
            ck_assert(!expected[sequences[i].blocks[b]]); // no block is in two sequences
            expected[sequences[i].blocks[b]] = true;
        }
    }
    for (int id = 0; id < 64; id++) {
        struct core_block_view view;
        core_block_at(world.core, workers[0].cache, (uint32_t)id, &view);
        if (expected[id])
            ck_assert_int_eq((int)view.state, (int)CORE_LEASED);
        in_use += view.state == CORE_LEASED;
    }
    if (core_idle(world.core)) // else dead runs keep blocks
        for (int id = 0; id < 64; id++)
            in_use -= expected[id];
    ck_assert(!core_idle(world.core) || in_use == 0);
    world_check(&world);
}

static const struct {
    void (*run)(int w);
    uint32_t weight;
} operations[] = {{do_make, 20}, {do_extend, 10}, {do_release, 2},   {do_offer, 20},
                  {do_take, 30}, {do_accept, 12}, {do_give_back, 6}, {do_die, 4},
                  {do_step, 20}, {do_finish, 25}};

static void random_operation(void)
{
    uint32_t sum = 0, at = 0;
    int w = (int)dice_below(&dice, WORKERS);
    for (size_t i = 0; i < sizeof operations / sizeof *operations; i++)
        sum += operations[i].weight;
    for (uint32_t pick = dice_below(&dice, sum); pick >= operations[at].weight; at++)
        pick -= operations[at].weight;
    if (is_open(w))
        operations[at].run(w);
    else if (workers[w].gone)
        worker_open(&workers[w], &world, 1, "");
}

START_TEST(random_hand_overs_lose_no_block_and_no_contents)
{
    dice.state = (uint64_t)_i + 7;
    world_open(&world, &(struct core_params){.max_tickets = 1u << 20});
    for (int w = 0; w < WORKERS; w++)
        worker_open(&workers[w], &world, 1, "");
    for (int i = 0; i < STEPS; i++) {
        random_operation();
        compare();
    }
    world_finish_all(&world);
    expire();
    compare();
    for (int i = 0; i < SEQUENCES; i++)
        if (sequences[i].used)
            expect_contents(&sequences[i]);
    // The walk has reached what it is meant to test.
    ck_assert_uint_gt(num_taken, 50);
    ck_assert_uint_gt(num_back, 10);
    ck_assert_uint_gt(num_expired, 3);
    ck_assert_uint_gt(num_orphans, 2);
    ck_assert_uint_gt(num_busy, 20);
    for (int w = 0; w < WORKERS; w++)
        if (is_open(w))
            worker_close(&workers[w], true);
    world_finish_all(&world);
    const uint64_t *totals = core_metrics(world.core);
    ck_assert_uint_eq(totals[METRIC_BLOCKS_LEASED] + totals[METRIC_BLOCKS_QUARANTINED], 0);
    ck_assert_uint_eq(totals[METRIC_OFFERS], 0);
    world_close(&world);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("offer walk");
    check_case(suite, "random walks", NULL, NULL,
               (const TTest *const[]){random_hand_overs_lose_no_block_and_no_contents, NULL},
               SEEDS);
    return check_main(suite);
}
