// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_core_copy.c - copies and zeroing of blocks, in the session's order: what they refuse, keep
// and count as written, also after a failure or after the death of the session. Also merges, whose
// runs use only the arena.

#include "core/runs/copy.h"
#include "core/scheduler.h"
#include "core/state.h"
#include "rigs/check_main.h"
#include "rigs/core_world.h"

#include <stdio.h>
#include <string.h>

static struct world world;
static struct worker a, b;
static int32_t blocks[16], tokens[64];

static void open_two(void)
{
    world_open(&world, NULL);
    worker_open(&a, &world, 1, "");
    worker_open(&b, &world, 1, "");
    count_tokens(tokens, 64, 1);
    worker_lease(&a, 16, blocks);
}

static void close_two(void)
{
    world_check(&world);
    world_close(&world);
}

static uint64_t copy_all(const int32_t *from, const int32_t *to, uint32_t count)
{
    uint64_t ticket = 0;
    ck_assert_status(core_blocks_copy(a.session, a.cache, from, to, count, false, &ticket, &error),
                     STATUS_OK);
    world_check(&world);
    return ticket;
}

static uint64_t copy(int32_t from, int32_t to)
{
    return copy_all(&from, &to, 1);
}

static void finish(uint64_t ticket, enum status expected)
{
    world_finish_all(&world);
    worker_reap(&a, ticket, expected);
}

static int32_t slot(int32_t block, uint32_t at)
{
    return fake_engine_slot(core_engine_cache(world.core, a.cache), 1, block, at);
}

static enum status try_publish(int32_t block, struct error *error)
{
    int32_t given = block;
    uint32_t existing;
    return worker_try_publish(&a, tokens, 8, &given, &existing, error);
}

// Queues writes of all slots of a block in both layers; returns the last ticket.
static uint64_t write_later(int32_t block)
{
    uint64_t last;
    worker_write_async(&a, &block, tokens, 8, &last);
    return last;
}

// Fails the runs of this kind in the newest submission.
static void fail_kind(enum engine_kind kind)
{
    world_step(&world);
    for (struct fake_submission *s = fake_engine_oldest(world.engine); s; s = s->next) {
        for (uint32_t i = 0; i < s->num_runs; i++) {
            if (s->runs[i].run.kind == kind)
                s->runs[i].fail = STATUS_UNSUPPORTED;
        }
    }
}

// ---- effects ----

START_TEST(a_copy_carries_all_layers_and_comes_in_the_sessions_order)
{
    uint64_t first = write_later(blocks[0]);
    uint64_t second = copy(blocks[0], blocks[1]);
    uint64_t third = copy_all((int32_t[]){blocks[1], -1, blocks[1]},
                              (int32_t[]){blocks[2], blocks[0], blocks[3]}, 3);
    ck_assert_uint_eq(second, first + 1);
    ck_assert_uint_eq(third, second + 1);
    finish(third, STATUS_OK);
    for (uint32_t i = 0; i < 8; i++) {
        ck_assert_int_eq(slot(blocks[1], i), tokens[i]);
        ck_assert_int_eq(slot(blocks[2], i), tokens[i]);
        ck_assert_int_eq(slot(blocks[3], i), tokens[i]);
        ck_assert_int_eq(slot(blocks[0], i), 0);
        ck_assert_int_eq(fake_engine_slot(core_engine_cache(world.core, a.cache), 0, blocks[2], i),
                         tokens[i]);
    }
    worker_reap(&a, second, STATUS_OK);
}
END_TEST

START_TEST(copies_of_several_sessions_share_a_wave)
{
    int32_t other[2];
    uint64_t ticket;
    worker_lease(&b, 2, other);
    copy(blocks[0], blocks[1]);
    copy(blocks[1], blocks[2]);
    ck_assert_status(
        core_blocks_copy(b.session, b.cache, &other[0], &other[1], 1, true, &ticket, &error),
        STATUS_OK);
    world_step(&world);
    const struct fake_submission *s = fake_engine_oldest(world.engine);
    ck_assert_uint_eq(s->num_runs, 3);
    ck_assert_uint_eq(s->num_waves, 2);
    ck_assert_uint_eq(s->runs[0].wave + s->runs[1].wave, 0);
    world_finish_all(&world);
    struct core_session_counts counts;
    core_session_counts(b.session, &counts);
    ck_assert_uint_eq(counts.tickets_unreaped, 0); // detached
    ck_assert_uint_eq(counts.runs_done, 1);
    ck_assert_uint_eq(counts.tokens_attended, 0);
}
END_TEST

#define REFUSED(from, to, count, status, text)                                                     \
    do {                                                                                           \
        uint64_t none_ = 0;                                                                        \
        ck_assert_refused(                                                                         \
            core_blocks_copy(a.session, a.cache, from, to, count, false, &none_, &error), status,  \
            text);                                                                                 \
        ck_assert_uint_eq(none_, 0);                                                               \
        world_check(&world);                                                                       \
    } while (0)
#define LIST(...) ((const int32_t[]){__VA_ARGS__})

START_TEST(each_kind_of_bad_copy_has_its_status_and_a_sentence_with_the_values)
{
    int32_t other, sealed = blocks[15];
    uint64_t ticket;
    worker_lease(&b, 1, &other);
    worker_write(&a, &sealed, tokens, 8);
    worker_publish(&a, tokens, 8, &sealed);
    REFUSED(LIST(blocks[0]), LIST(blocks[1]), 0, STATUS_INVALID, "a copy of 0 blocks");
    REFUSED(LIST(99), LIST(blocks[1]), 1, STATUS_OUT_OF_RANGE,
            "from[0] = 99 is outside the cache's");
    REFUSED(LIST(-2), LIST(blocks[1]), 1, STATUS_OUT_OF_RANGE, "from[0] = -2");
    REFUSED(LIST(blocks[0]), LIST(-1), 1, STATUS_OUT_OF_RANGE, "to[0] = -1");
    REFUSED(LIST(blocks[0], other), LIST(blocks[1], blocks[2]), 2, STATUS_NOT_HELD,
            "from[1] = 16 is not held");
    REFUSED(LIST(blocks[0]), LIST(other), 1, STATUS_NOT_HELD,
            "to[0] = 16 is not held by this session");
    REFUSED(LIST(blocks[0]), LIST(sealed), 1, STATUS_SEALED, "to[0] = 15 is sealed");
    REFUSED(LIST(blocks[0], -1), LIST(blocks[1], blocks[1]), 2, STATUS_INVALID,
            "to[1] = 1 occurs twice");
    REFUSED(LIST(blocks[0], blocks[1]), LIST(blocks[1], blocks[2]), 2, STATUS_INVALID,
            "from[1] = 1 is in `to` as well");
    REFUSED(LIST(blocks[0]), LIST(blocks[0]), 1, STATUS_INVALID, "in `to` as well");
    REFUSED(blocks, blocks, 17, STATUS_NOT_HELD, "a copy to 17 blocks; the session holds 16");
    ck_assert_refused(core_blocks_copy(a.session, 999, blocks, blocks, 1, false, &ticket, &error),
                      STATUS_NOT_FOUND, "999");
    world.core->params.max_run_work = 2 * WORLD_BLOCK_BYTES + WORLD_LAYERS * (1 << 15);
    REFUSED(LIST(blocks[0]), LIST(blocks[1]), 1, STATUS_LIMIT,
            "the copy takes 66561 multiply-adds; one run may take 66560 (--max-run-work)");
    world.core->params.max_run_work = 0;
    finish(copy(sealed, blocks[1]), STATUS_OK); // sealed blocks may be read
    for (int i = 0; i < 64; i++)
        copy(-1, blocks[1]);
    REFUSED(LIST(blocks[0]), LIST(blocks[1]), 1, STATUS_BUSY, "--max-tickets");
    world_finish_all(&world);
}
END_TEST

// ---- to and from the arena ----

static enum status try_move(bool out, const int32_t *ids, uint32_t count, uint64_t offset,
                            uint64_t *ticket, struct error *error)
{
    const struct core_move_params params = {
        .cache = a.cache, .out = out, .blocks = ids, .count = count, .offset = offset};
    return core_blocks_move(a.session, &params, ticket, error);
}

static uint64_t move(bool out, const int32_t *ids, uint32_t count, uint64_t offset)
{
    uint64_t ticket = 0;
    ck_assert_status(try_move(out, ids, count, offset, &ticket, &error), STATUS_OK);
    world_check(&world);
    return ticket;
}

START_TEST(whole_blocks_go_to_the_arena_and_come_back_in_the_sessions_order)
{
    write_later(blocks[0]);
    move(true, LIST(blocks[0]), 1, 0);
    move(false, LIST(blocks[1]), 1, 0);
    copy(-1, blocks[0]); // what was copied out before stays
    finish(move(false, LIST(blocks[2]), 1, 0), STATUS_OK);
    for (uint32_t i = 0; i < 8; i++) {
        ck_assert_int_eq(slot(blocks[1], i), tokens[i]);
        ck_assert_int_eq(slot(blocks[2], i), tokens[i]);
    }
    ck_assert_status(try_publish(blocks[2], &error), STATUS_OK);      // all of it counts as written
    finish(move(true, LIST(blocks[2], blocks[1]), 2, 16), STATUS_OK); // sealed ones may be read
    finish(move(false, LIST(blocks[3], blocks[4]), 2, 16), STATUS_OK);
    ck_assert_int_eq(slot(blocks[4], 7), tokens[7]);
}
END_TEST

START_TEST(a_failed_move_into_a_block_leaves_it_unwritten)
{
    write_later(blocks[0]);
    finish(move(true, LIST(blocks[0]), 1, 0), STATUS_OK);
    const uint64_t ticket = move(false, LIST(blocks[1]), 1, 0);
    fail_kind(ENGINE_COPY);
    finish(ticket, STATUS_UNSUPPORTED);
    ck_assert_refused(try_publish(blocks[1], &error), STATUS_UNWRITTEN, "0 of 8 slots");
    ck_assert_status(try_publish(blocks[0], &error), STATUS_OK);
}
END_TEST

// The same bytes of the arena, blocks of two caches: the second move waits for the first.
START_TEST(moves_over_the_same_bytes_come_one_after_the_other)
{
    struct core_cache_identity identity = world_identity("alt");
    struct core_cache_info info;
    struct worker alt = a;
    int32_t other;
    ck_assert_status(core_cache_open(a.session, &identity, &info, &error), STATUS_OK);
    alt.cache = info.cache;
    worker_lease(&alt, 1, &other);
    const struct core_move_params in = {.cache = info.cache, .blocks = &other, .count = 1};
    uint64_t ticket;
    write_later(blocks[0]);
    move(true, LIST(blocks[0]), 1, 0);
    ck_assert_status(core_blocks_move(a.session, &in, &ticket, &error), STATUS_OK);
    finish(ticket, STATUS_OK);
    ck_assert_int_eq(fake_engine_slot(core_engine_cache(world.core, info.cache), 1, other, 3),
                     tokens[3]);
}
END_TEST

#define MOVE_REFUSED(out, ids, count, offset, expected, text)                                      \
    do {                                                                                           \
        uint64_t none_ = 0;                                                                        \
        ck_assert_refused(try_move(out, ids, count, offset, &none_, &error), expected, text);      \
        ck_assert_uint_eq(none_, 0);                                                               \
        world_check(&world);                                                                       \
    } while (0)

START_TEST(each_kind_of_bad_move_has_its_status_and_a_sentence_with_the_values)
{
    int32_t other, sealed = blocks[15];
    worker_lease(&b, 1, &other);
    worker_write(&a, &sealed, tokens, 8);
    worker_publish(&a, tokens, 8, &sealed);
    worker_write(&a, &blocks[1], tokens, 5);
    MOVE_REFUSED(true, blocks, 0, 0, STATUS_INVALID, "a copy of 0 blocks");
    MOVE_REFUSED(true, LIST(99), 1, 0, STATUS_OUT_OF_RANGE, "from[0] = 99 is outside the cache's");
    MOVE_REFUSED(true, LIST(sealed, other), 2, 0, STATUS_NOT_HELD, "from[1] = 16 is not held");
    MOVE_REFUSED(true, LIST(sealed, blocks[1]), 2, 0, STATUS_UNWRITTEN,
                 "from[1] = 1 is wholly written in 0 of 2 layers");
    MOVE_REFUSED(false, LIST(-1), 1, 0, STATUS_OUT_OF_RANGE, "to[0] = -1");
    MOVE_REFUSED(false, LIST(other), 1, 0, STATUS_NOT_HELD, "to[0] = 16 is not held");
    MOVE_REFUSED(false, LIST(sealed), 1, 0, STATUS_SEALED, "to[0] = 15 is sealed");
    MOVE_REFUSED(false, LIST(blocks[2], blocks[2]), 2, 0, STATUS_INVALID, "to[1] = 2 occurs twice");
    MOVE_REFUSED(true, LIST(sealed), 1, 8, STATUS_MISALIGNED, "offset 8");
    MOVE_REFUSED(true, LIST(sealed), 1, WORLD_ARENA, STATUS_OUT_OF_RANGE, "1 blocks, ");
    MOVE_REFUSED(true, LIST(sealed), 1, UINT64_MAX - 15, STATUS_OUT_OF_RANGE,
                 "offset 18446744073709551600");
    world.core->params.max_run_work = 2 * WORLD_BLOCK_BYTES + WORLD_LAYERS * (1 << 15);
    MOVE_REFUSED(true, LIST(sealed), 1, 0, STATUS_LIMIT, "--max-run-work");
    world.core->params.max_run_work = 0;
    for (int i = 0; i < 64; i++)
        move(true, LIST(sealed), 1, 0);
    MOVE_REFUSED(true, LIST(sealed), 1, 0, STATUS_BUSY, "--max-tickets");
    world_finish_all(&world);
}
END_TEST

// ---- what counts as written ----

START_TEST(written_slots_of_the_source_count_as_written_in_the_copy)
{
    worker_write(&a, &blocks[0], tokens, 8);
    worker_write(&a, &blocks[1], tokens, 5);
    finish(copy_all(LIST(blocks[0], blocks[1]), LIST(blocks[2], blocks[3]), 2), STATUS_OK);
    ck_assert_refused(try_publish(blocks[3], &error), STATUS_UNWRITTEN, "5 of 8 slots");
    ck_assert_status(try_publish(blocks[2], &error), STATUS_OK);
    finish(copy_all(LIST(-1), LIST(blocks[0]), 1), STATUS_OK);
    ck_assert_refused(try_publish(blocks[0], &error), STATUS_UNWRITTEN, "0 of 8 slots");
}
END_TEST

START_TEST(a_copy_counts_from_when_it_is_queued_and_is_seen_when_it_is_done)
{
    write_later(blocks[0]);
    uint64_t ticket = copy(blocks[0], blocks[1]);
    int32_t found[1];
    ck_assert_status(try_publish(blocks[1], &error), STATUS_OK);
    ck_assert_uint_eq(worker_lookup(&b, tokens, 8, found), 0); // not yet
    ck_assert_refused(
        core_blocks_copy(a.session, a.cache, LIST(-1), &blocks[1], 1, false, &ticket, &error),
        STATUS_SEALED, "sealed");
    world_finish_all(&world);
    ck_assert_uint_eq(worker_lookup(&b, tokens, 8, found), 1);
    ck_assert_int_eq(found[0], blocks[1]);
}
END_TEST

START_TEST(a_copy_takes_what_was_written_before_it_not_what_comes_after)
{
    uint64_t ticket = copy(blocks[0], blocks[1]);
    write_later(blocks[0]);
    ck_assert_refused(try_publish(blocks[1], &error), STATUS_UNWRITTEN, "0 of 8");
    finish(ticket, STATUS_OK);
    ck_assert_refused(try_publish(blocks[1], &error), STATUS_UNWRITTEN, "0 of 8");
    ck_assert_status(try_publish(blocks[0], &error), STATUS_OK);
}
END_TEST

START_TEST(writes_before_a_copy_into_their_block_count_no_more)
{
    write_later(blocks[0]);
    uint64_t zeroing = copy(-1, blocks[0]);
    ck_assert_refused(try_publish(blocks[0], &error), STATUS_UNWRITTEN, "0 of 8");
    world_step(&world);
    world_check(&world);
    finish(zeroing, STATUS_OK); // the end of the writes did not make the slots written again
    ck_assert_refused(try_publish(blocks[0], &error), STATUS_UNWRITTEN, "0 of 8");
    copy(-1, blocks[0]);
    uint64_t again = write_later(blocks[0]);
    finish(again, STATUS_OK);
    ck_assert_status(try_publish(blocks[0], &error), STATUS_OK);
}
END_TEST

// ---- failure ----

START_TEST(a_failed_copy_takes_the_bits_back_and_what_was_published_on_trust)
{
    int32_t found[1];
    worker_write(&a, &blocks[0], tokens, 8);
    uint64_t ticket = copy(blocks[0], blocks[1]);
    ck_assert_status(try_publish(blocks[1], &error), STATUS_OK);
    uint64_t other = copy(blocks[0], blocks[2]);
    fail_kind(ENGINE_COPY);
    finish(ticket, STATUS_UNSUPPORTED);
    worker_reap(&a, other, STATUS_UNSUPPORTED);
    ck_assert_uint_eq(worker_lookup(&b, tokens, 8, found), 0);
    ck_assert_refused(try_publish(blocks[2], &error), STATUS_UNWRITTEN, "0 of 8");
    ck_assert_status(try_publish(blocks[0], &error), STATUS_OK); // the source is unchanged
}
END_TEST

START_TEST(a_failed_write_is_not_believed_of_its_copies_nor_of_theirs)
{
    worker_write(&a, &blocks[0], tokens, 8);
    write_later(blocks[1]);
    copy(blocks[1], blocks[2]);
    copy(blocks[2], blocks[3]);
    uint64_t end = copy(blocks[0], blocks[2]); // written again
    uint64_t last = copy(blocks[2], blocks[5]);
    fail_kind(ENGINE_ATTEND);
    finish(end, STATUS_OK);
    worker_reap(&a, last, STATUS_OK);
    ck_assert_refused(try_publish(blocks[1], &error), STATUS_UNWRITTEN, "0 of 8");
    ck_assert_refused(try_publish(blocks[3], &error), STATUS_UNWRITTEN, "0 of 8");
    ck_assert_status(try_publish(blocks[2], &error), STATUS_OK);
    ck_assert_int_eq(slot(blocks[5], 7), tokens[7]);
}
END_TEST

START_TEST(a_published_copy_of_a_failed_write_is_never_found)
{
    int32_t found[1];
    write_later(blocks[0]);
    copy(blocks[0], blocks[1]);
    uint64_t ticket = copy(blocks[1], blocks[2]);
    ck_assert_status(try_publish(blocks[2], &error), STATUS_OK);
    fail_kind(ENGINE_ATTEND);
    finish(ticket, STATUS_OK);
    ck_assert_uint_eq(worker_lookup(&b, tokens, 8, found), 0);
    ck_assert_int_eq(worker_block(&a, blocks[2]).depth, -1);
}
END_TEST

START_TEST(a_failed_write_before_a_copy_into_its_block_does_not_harm_the_copy)
{
    worker_write(&a, &blocks[0], tokens, 8);
    write_later(blocks[1]);
    uint64_t ticket = copy(blocks[0], blocks[1]);
    uint64_t second = copy(blocks[1], blocks[2]);
    fail_kind(ENGINE_ATTEND);
    finish(ticket, STATUS_OK);
    worker_reap(&a, second, STATUS_OK);
    ck_assert_status(try_publish(blocks[1], &error), STATUS_OK);
    ck_assert_int_eq(slot(blocks[2], 3), tokens[3]);
}
END_TEST

START_TEST(a_refused_submission_of_a_copy_ends_before_what_is_in_flight)
{
    write_later(blocks[0]);
    world_step(&world);
    uint64_t ticket = copy(blocks[0], blocks[1]);
    fake_engine_refuse_submit(world.engine, STATUS_NO_MEMORY);
    world_step(&world);
    world_check(&world);
    ck_assert_refused(try_publish(blocks[1], &error), STATUS_UNWRITTEN, "0 of 8");
    finish(ticket, STATUS_NO_MEMORY);
    ck_assert_status(try_publish(blocks[0], &error), STATUS_OK);
}
END_TEST

START_TEST(a_lost_device_ends_copies_and_merges)
{
    uint64_t first = copy(blocks[0], blocks[1]);
    world_step(&world);
    world_step(&world);
    uint64_t second = copy(blocks[1], blocks[2]);
    fake_engine_lose(world.engine, "gone");
    world_step(&world);
    worker_reap(&a, first, STATUS_DEVICE_LOST);
    worker_reap(&a, second, STATUS_DEVICE_LOST);
    REFUSED(blocks, blocks, 1, STATUS_DEVICE_LOST, "gone");
    ck_assert_refused(
        core_merge(a.session, &(struct core_merge_params){.num_parts = 1}, &first, &error),
        STATUS_DEVICE_LOST, "gone");
}
END_TEST

// ---- ownership ----

START_TEST(blocks_of_a_copy_in_flight_stay_until_it_is_over)
{
    uint64_t ticket =
        copy_all(LIST(blocks[0], blocks[0], -1), LIST(blocks[1], blocks[2], blocks[3]), 3);
    ck_assert_uint_eq(worker_block(&a, blocks[0]).batch_refs, 2);
    worker_release(&a, blocks, 4);
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq((int)worker_block(&a, blocks[i]).state, CORE_LEASED);
    world_step(&world);
    world_check(&world);
    finish(ticket, STATUS_OK);
    for (int i = 0; i < 4; i++)
        ck_assert_int_eq((int)worker_block(&a, blocks[i]).state, CORE_FREE);
}
END_TEST

START_TEST(a_session_that_dies_leaves_the_blocks_of_its_copies_in_quarantine)
{
    copy_all(LIST(blocks[0], -1), LIST(blocks[1], blocks[2]), 2);
    world_step(&world);
    copy(blocks[3], blocks[4]); // in flight, too
    world_step(&world);
    uint64_t batch = worker_batch(&a, &blocks[5], 8, 8);
    worker_run(&a, batch, 0, 8, tokens);
    copy(blocks[5], blocks[6]); // these are dropped
    copy(blocks[6], blocks[7]);
    worker_close(&a, true);
    world_check(&world);
    struct core_counts counts = worker_counts(&b);
    ck_assert_uint_eq(counts.quarantined, 5);
    ck_assert_uint_eq(counts.free + counts.quarantined, counts.total);
    ck_assert(!a.gone);
    while (fake_engine_finish(world.engine)) {
        world_step(&world);
        world_check(&world);
    }
    ck_assert(a.gone);
    counts = worker_counts(&b);
    ck_assert_uint_eq(counts.free, counts.total);
}
END_TEST

START_TEST(a_copy_outlives_the_closing_of_its_cache)
{
    uint64_t ticket = copy(blocks[0], blocks[1]);
    worker_close(&b, false);
    ck_assert_status(core_cache_close(a.session, a.cache, &error), STATUS_OK);
    world_check(&world);
    ck_assert_uint_eq(core_num_caches(world.core), 1);
    finish(ticket, STATUS_OK);
    ck_assert_uint_eq(core_num_caches(world.core), 0);
}
END_TEST

// A random write or copy within blocks[0 .. 4). Some fail, on the GPU or before.
static void do_something(uint64_t dice)
{
    int32_t to = blocks[dice % 4], from = blocks[(dice + 1 + (dice >> 8) % 3) % 4];
    if (dice >> 16 & 1)
        write_later(to);
    else
        copy(dice >> 17 & 3 ? from : -1, to);
    if ((dice >> 20 & 7) == 0)
        fake_engine_refuse_submit(world.engine, STATUS_NO_MEMORY);
    world_step(&world);
    struct fake_submission *s = fake_engine_newest(world.engine);
    if (s && (dice >> 24 & 3) == 0)
        s->runs[(dice >> 26) % s->num_runs].fail = STATUS_UNSUPPORTED;
    if ((dice >> 32 & 3) == 0)
        fake_engine_finish(world.engine);
    world_check(&world);
}

static void reap_all(void)
{
    struct core_ticket_result result;
    world_finish_all(&world);
    for (uint64_t ticket = 1; ticket <= a.session->runs.last_ticket; ticket++)
        core_ticket_reap(a.session, ticket, &result, NULL);
}

// Slots that core counts as written must have been written: they were 0 before.
static uint32_t count_published(int round)
{
    uint32_t count = 0;
    for (int i = 0; i < 4; i++) {
        int32_t given = blocks[i], text[8];
        uint32_t existing;
        count_tokens(text, 8, 100 * round + 10 * i);
        if (worker_try_publish(&a, text, 8, &given, &existing, NULL) != STATUS_OK)
            continue;
        for (uint32_t k = 0; k < 16; k++)
            ck_assert_int_ne(
                fake_engine_slot(core_engine_cache(world.core, a.cache), k / 8, given, k % 8), 0);
        worker_release(&a, &given, 1);
        worker_lease(&a, 1, &blocks[i]);
        count++;
    }
    return count;
}

START_TEST(nothing_counts_as_written_that_is_not_whatever_fails)
{
    uint64_t dice = 88172645463325252ull;
    uint32_t published = 0;
    for (int round = 0; round < 300; round++) {
        copy_all(LIST(-1, -1, -1, -1), blocks, 4);
        reap_all();
        for (int i = 0; i < 12; i++) {
            dice ^= dice << 13;
            dice ^= dice >> 7;
            dice ^= dice << 17;
            do_something(dice >> 8);
        }
        reap_all();
        published += count_published(round);
    }
    ck_assert_uint_gt(published, 150);
    ck_assert_uint_lt(published, 1050);
}
END_TEST

// ---- merges ----

static struct engine_part parts[3];

static struct wire_tensor tensor(enum dtype dtype, uint64_t offset)
{
    return (struct wire_tensor){
        .dtype = dtype, .offset = offset, .token_stride = 32, .head_stride = 16};
}

// Four tokens of two heads of eight.
static struct core_merge_params good_merge(void)
{
    for (uint64_t i = 0; i < 3; i++) {
        parts[i].out = tensor(DTYPE_F16, 1024 * i);
        parts[i].lse =
            (struct wire_tensor){.dtype = DTYPE_F32, .offset = 512 + 1024 * i, .token_stride = 16};
    }
    return (struct core_merge_params){
        .num_tokens = 4,
        .num_heads = 2,
        .head_dim = 8,
        .parts = parts,
        .num_parts = 3,
        .out = tensor(DTYPE_F16, 8192),
        .lse = {.dtype = DTYPE_F32, .offset = 9216, .token_stride = 16, .head_stride = 4},
    };
}

#define MERGE_REFUSED(change, status, text)                                                        \
    do {                                                                                           \
        struct core_merge_params p = good_merge();                                                 \
        uint64_t none_ = 0;                                                                        \
        change;                                                                                    \
        ck_assert_refused(core_merge(a.session, &p, &none_, &error), status, text);                \
        ck_assert_uint_eq(none_, 0);                                                               \
    } while (0)
#define MERGE_ACCEPTED(change)                                                                     \
    do {                                                                                           \
        struct core_merge_params p = good_merge();                                                 \
        uint64_t ticket_ = 0;                                                                      \
        change;                                                                                    \
        ck_assert_status(core_merge(a.session, &p, &ticket_, &error), STATUS_OK);                  \
        finish(ticket_, STATUS_OK);                                                                \
    } while (0)

START_TEST(a_merge_reaches_the_engine_as_it_was_given)
{
    struct core_merge_params good = good_merge();
    uint64_t ticket;
    ck_assert_status(core_merge(a.session, &good, &ticket, &error), STATUS_OK);
    memset(parts, 0xff, sizeof(parts)); // they were copied
    world_step(&world);
    const struct engine_run *run = &fake_engine_oldest(world.engine)->runs[0].run;
    ck_assert_int_eq((int)run->kind, ENGINE_MERGE);
    ck_assert_ptr_eq(run->arena, a.arena);
    ck_assert_uint_eq(run->num_parts, 3);
    ck_assert_uint_eq(run->num_tokens, 4);
    ck_assert_uint_eq(run->num_heads, 2);
    ck_assert_uint_eq(run->head_dim, 8);
    ck_assert_uint_eq(run->parts[2].out.offset, 2048);
    ck_assert_uint_eq(run->parts[1].lse.offset, 1536);
    ck_assert_uint_eq(run->out.offset, 8192);
    ck_assert_uint_eq(run->lse.token_stride, 16);
    finish(ticket, STATUS_OK);
    MERGE_ACCEPTED(p.lse.dtype = 0);
    MERGE_ACCEPTED(p.num_tokens = 0);
    MERGE_ACCEPTED(parts[1] = parts[0]); // a part may occur twice
    MERGE_ACCEPTED(p.detached = false);
}
END_TEST

START_TEST(a_merge_may_write_over_one_of_its_parts_but_not_beside_it)
{
    MERGE_ACCEPTED((p.out = parts[1].out, p.lse = parts[1].lse));
    MERGE_ACCEPTED((p.out = parts[1].out, p.lse = parts[2].lse, p.lse.head_stride = 4));
    MERGE_REFUSED(p.out.offset = 1040, STATUS_INVALID, "out at 1040 overlaps outs[1] at 1024");
    MERGE_REFUSED((p.out = parts[1].out, p.out.token_stride = 48), STATUS_INVALID,
                  "out at 1024 overlaps outs[1]");
    MERGE_REFUSED(p.lse.offset = 528, STATUS_INVALID, "lse at 528 overlaps lses[0] at 512");
    MERGE_REFUSED(p.lse.offset = 1024, STATUS_INVALID, "overlaps");
    MERGE_REFUSED(p.out.offset = 2560, STATUS_INVALID, "out at 2560 overlaps lses[2] at 2560");
    MERGE_REFUSED(p.lse.offset = 8192, STATUS_INVALID, "out at 8192 overlaps lse at 8192");
}
END_TEST

// Four tokens of three heads, and of one: rows of 12 bytes, and of 4.
START_TEST(a_merge_takes_dense_lses_of_any_number_of_heads)
{
    for (uint64_t heads = 1; heads <= 3; heads += 2) {
        struct wire_tensor lses[4], outs[4];
        for (uint64_t i = 0; i < 4; i++) {
            lses[i] = (struct wire_tensor){
                .dtype = DTYPE_F32, .offset = 20484 + 16 * heads * i, .token_stride = 4 * heads};
            outs[i] = (struct wire_tensor){.dtype = DTYPE_F16,
                                           .offset = 1024 * i,
                                           .token_stride = 16 * heads,
                                           .head_stride = 16};
        }
#define DENSE                                                                                      \
    p.num_heads = (uint32_t)heads, parts[0] = (struct engine_part){outs[0], lses[0]},              \
    parts[1] = (struct engine_part){outs[1], lses[1]},                                             \
    parts[2] = (struct engine_part){outs[2], lses[2]}, p.out = outs[3], p.lse = lses[3]
        MERGE_ACCEPTED((DENSE));
        MERGE_ACCEPTED((DENSE, p.out = outs[1], p.lse = lses[1]));
        MERGE_REFUSED((DENSE, p.lse.offset -= 4), STATUS_INVALID, "overlaps lses[2]");
        MERGE_REFUSED((DENSE, p.lse.offset += 2), STATUS_MISALIGNED, "a multiple of 4");
        MERGE_REFUSED((DENSE, parts[1].lse.token_stride += 2), STATUS_MISALIGNED,
                      "lses[1] has offset");
        MERGE_REFUSED((DENSE, parts[1].out.offset += 4), STATUS_MISALIGNED, "a multiple of 16");
#undef DENSE
    }
}
END_TEST

// ---- tickets that wait to be reaped ----

// 3 copied blocks, each a range of memory in every layer, and 3 merged parts. Nothing else of the
// session counts.
START_TEST(the_arrays_of_copies_and_merges_are_bounded_until_they_are_reaped)
{
    const int32_t from[] = {blocks[0], blocks[1], -1}, to[] = {blocks[3], blocks[4], blocks[5]};
    const uint64_t copied = 3 * (sizeof(struct engine_copy) + sizeof(struct copy_pair) +
                                 WORLD_LAYERS * ENGINE_RANGE_BYTES);
    const uint64_t merged = 3 * sizeof(struct engine_part);
    struct core_merge_params merge = good_merge();
    uint64_t first, second, none = 0;
    char words[160];
    world.core->params.max_batch_memory = copied + merged;
    first = copy_all(from, to, 3);
    ck_assert_status(core_merge(a.session, &merge, &second, &error), STATUS_OK);
    snprintf(words, sizeof(words),
             "%zu bytes of arrays more would exceed the session's limit of %zu "
             "(--max-batch-memory); its batches and unreaped runs have %zu",
             (size_t)copied, (size_t)(copied + merged), (size_t)(copied + merged));
    ck_assert_refused(core_blocks_copy(a.session, a.cache, from, to, 3, false, &none, &error),
                      STATUS_LIMIT, words);
    world_finish_all(&world);
    ck_assert_refused(core_merge(a.session, &merge, &none, &error), STATUS_LIMIT,
                      "--max-batch-memory");
    ck_assert_uint_eq(none, 0);
    ck_assert_uint_eq(a.session->memory.batches, copied + merged);
    worker_reap(&a, first, STATUS_OK);
    ck_assert_uint_eq(a.session->memory.batches, merged);
    worker_reap(&a, second, STATUS_OK);
    ck_assert_uint_eq(a.session->memory.batches, 0);
    merge.detached = true;
    ck_assert_status(core_merge(a.session, &merge, &none, &error), STATUS_OK);
    ck_assert_status(core_blocks_copy(a.session, a.cache, from, to, 3, true, &none, &error),
                     STATUS_OK);
    ck_assert_refused(core_merge(a.session, &merge, &none, &error), STATUS_LIMIT,
                      "--max-batch-memory");
    world_finish_all(&world);
    ck_assert_uint_eq(a.session->memory.batches, 0); // they are done, so they count no more
                                                     // although nobody reaps them
}
END_TEST

START_TEST(each_kind_of_bad_merge_has_its_status_and_a_sentence_with_the_values)
{
    MERGE_REFUSED(p.num_parts = 0, STATUS_INVALID, "a merge of 0 parts");
    MERGE_REFUSED(p.num_parts = 65536, STATUS_LIMIT, "a merge of 65536 parts; at most 65535");
    MERGE_REFUSED(p.num_heads = 0, STATUS_INVALID, "num_heads is 0");
    MERGE_REFUSED(p.num_heads = 65536, STATUS_INVALID, "num_heads is 65536");
    MERGE_REFUSED(p.head_dim = 12, STATUS_UNSUPPORTED, "head_dim 12");
    MERGE_REFUSED(p.head_dim = 0, STATUS_UNSUPPORTED, "head_dim 0");
    MERGE_REFUSED(p.head_dim = 520, STATUS_UNSUPPORTED, "head_dim 520");
    MERGE_REFUSED(p.num_tokens = UINT32_MAX, STATUS_INVALID, "num_tokens is 4294967295");
    MERGE_REFUSED(p.num_tokens = INT32_MAX, STATUS_OUT_OF_RANGE, "out at 8192");
    MERGE_REFUSED(p.out.dtype = DTYPE_INT8, STATUS_UNSUPPORTED, "out is int8");
    MERGE_REFUSED(parts[2].out.dtype = DTYPE_F32, STATUS_MISMATCH,
                  "outs[2] is f32, but out is f16");
    MERGE_REFUSED(parts[1].lse.dtype = DTYPE_F16, STATUS_MISMATCH,
                  "lses[1] is f16; it must be f32");
    MERGE_REFUSED(parts[1].lse.dtype = 0, STATUS_INVALID, "lses[1] has dtype 0");
    MERGE_REFUSED(parts[1].out.memory = 2, STATUS_UNSUPPORTED, "outs[1] lies in memory kind 2");
    MERGE_REFUSED(parts[1].lse.memory = 1, STATUS_MISMATCH,
                  "lses[1] lies in the device arena, but out in the arena");
    MERGE_REFUSED(parts[1].lse.head_stride = 16, STATUS_INVALID, "lse has head stride 16");
    MERGE_REFUSED(parts[1].out.outer_stride = 16, STATUS_INVALID, "outs[1] has outer stride 16");
    MERGE_REFUSED(p.out.outer_stride = 16, STATUS_INVALID, "out has outer stride 16");
    MERGE_REFUSED(p.lse.outer_stride = 16, STATUS_INVALID, "lse has outer stride 16");
    MERGE_REFUSED(parts[0].out.offset = 8, STATUS_MISALIGNED, "outs[0] has offset 8");
    MERGE_REFUSED(parts[2].out.offset = WORLD_ARENA - 112, STATUS_OUT_OF_RANGE,
                  "outs[2] at 1048464");
    MERGE_REFUSED(parts[2].lse.token_stride = UINT64_MAX - 15, STATUS_OUT_OF_RANGE, "lses[2] at");
    MERGE_REFUSED(p.out.token_stride = 16, STATUS_INVALID, "out's rows of 16 bytes overlap");
    world.core->params.max_run_work =
        1049088; // 4 tokens, 2 heads: 4 rows of 16 bytes, 4 workgroups
    MERGE_REFUSED(
        (void)0, STATUS_LIMIT,
        "the merge takes 1049089 multiply-adds; one run may take 1049088 (--max-run-work)");
    world.core->params.max_run_work = 1049089;
    MERGE_ACCEPTED((void)0);
    const struct core_session_params params = {.id = 77, .owner = &b};
    struct core_session *bare;
    struct core_merge_params good = good_merge();
    uint64_t ticket;
    worker_close(&b, false);
    b.gone = false;
    ck_assert_status(core_session_open(world.core, &params, &bare, &error), STATUS_OK);
    ck_assert_refused(core_merge(bare, &good, &ticket, &error), STATUS_INVALID,
                      "out lies in the arena, but the session has none");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("core copy");
    check_case(suite, "copies", open_two, close_two,
               (const TTest *const[]){
                   a_copy_carries_all_layers_and_comes_in_the_sessions_order,
                   copies_of_several_sessions_share_a_wave,
                   each_kind_of_bad_copy_has_its_status_and_a_sentence_with_the_values,
                   whole_blocks_go_to_the_arena_and_come_back_in_the_sessions_order,
                   a_failed_move_into_a_block_leaves_it_unwritten,
                   moves_over_the_same_bytes_come_one_after_the_other,
                   each_kind_of_bad_move_has_its_status_and_a_sentence_with_the_values, NULL},
               1);
    check_case(
        suite, "written", open_two, close_two,
        (const TTest *const[]){written_slots_of_the_source_count_as_written_in_the_copy,
                               a_copy_counts_from_when_it_is_queued_and_is_seen_when_it_is_done,
                               a_copy_takes_what_was_written_before_it_not_what_comes_after,
                               writes_before_a_copy_into_their_block_count_no_more, NULL},
        1);
    check_case(
        suite, "failures", open_two, close_two,
        (const TTest *const[]){a_failed_copy_takes_the_bits_back_and_what_was_published_on_trust,
                               a_failed_write_is_not_believed_of_its_copies_nor_of_theirs,
                               a_published_copy_of_a_failed_write_is_never_found,
                               a_failed_write_before_a_copy_into_its_block_does_not_harm_the_copy,
                               a_refused_submission_of_a_copy_ends_before_what_is_in_flight,
                               a_lost_device_ends_copies_and_merges,
                               nothing_counts_as_written_that_is_not_whatever_fails, NULL},
        1);
    check_case(
        suite, "ownership", open_two, close_two,
        (const TTest *const[]){blocks_of_a_copy_in_flight_stay_until_it_is_over,
                               a_session_that_dies_leaves_the_blocks_of_its_copies_in_quarantine,
                               a_copy_outlives_the_closing_of_its_cache, NULL},
        1);
    check_case(suite, "merges", open_two, close_two,
               (const TTest *const[]){
                   a_merge_reaches_the_engine_as_it_was_given,
                   a_merge_may_write_over_one_of_its_parts_but_not_beside_it,
                   a_merge_takes_dense_lses_of_any_number_of_heads,
                   the_arrays_of_copies_and_merges_are_bounded_until_they_are_reaped,
                   each_kind_of_bad_merge_has_its_status_and_a_sentence_with_the_values, NULL},
               1);
    return check_main(suite);
}
