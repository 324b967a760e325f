// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_core_step.c - a batch that advances: the blocks that it refers to, compared with a batch
// created anew, also while runs of earlier steps are in flight.

#include "core/pool/mentions.h"
#include "core/pool/session.h"
#include "core/steps/batch.h"
#include "rigs/check_main.h"
#include "rigs/step_world.h"

#include <string.h>

enum { SEQS = 4, COLUMNS = 4, TOKENS = 4, CHUNK = 256, CHUNKS = 4, MANY = 200 };
static const int32_t cu[SEQS + 1] = {0, 1, 3, 3, 4}; // the third sequence is padding

// Chunks of several words of bits, and blocks from all parts of the first chunk.
static void open_wide_world(void)
{
    int32_t leased[MANY];
    world_open(&world,
               &(struct core_params){.max_run_work = 1 << 24, .max_blocks = CHUNKS * CHUNK});
    worker_open(&a, &world, 1, "");
    worker_open(&b, &world, 1, "");
    worker_lease(&a, MANY, leased);
    worker_lease(&b, 8, blocks_b);
    ck_assert_uint_eq(worker_counts(&a).total, CHUNK);
    for (int i = 0; i < 24; i++)
        blocks[i] = leased[i * (MANY / 24)];
    count_tokens(tokens, 64, 1);
}

// Another session leases all free blocks and more, so that the cache grows. False: it cannot.
static bool grow_cache(void)
{
    int32_t others[CHUNK];
    if (worker_counts(&a).total == CHUNKS * CHUNK)
        return false;
    worker_lease(&b, (uint32_t)worker_counts(&b).free + 100, others);
    return true;
}

struct model {
    int32_t lens[SEQS], table[SEQS * COLUMNS], positions[TOKENS];
    int64_t slots[TOKENS];
    bool has_positions;
};

static struct core_batch_params params_of(const struct model *m)
{
    return (struct core_batch_params){
        .cache = a.cache,
        .num_seqs = SEQS,
        .max_blocks = COLUMNS,
        .cu_seqlens_q = cu,
        .num_cu_seqlens_q = SEQS + 1,
        .seq_lens_kv = m->lens,
        .num_seq_lens_kv = SEQS,
        .block_table = m->table,
        .num_block_table = SEQS * COLUMNS,
        .slot_mapping = m->slots,
        .num_slot_mapping = TOKENS,
        .positions = m->positions,
        .num_positions = m->has_positions ? TOKENS : 0,
    };
}

static uint64_t random_state;

static uint32_t roll(uint32_t limit)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 33) % limit;
}

// Some blocks that steps choose from then have much larger ids; those that they replace stay
// leased.
static void grow_far(void)
{
    if (roll(30) || !grow_cache())
        return;
    for (int i = 0; i < 4; i++)
        worker_lease(&a, 1, &blocks[roll(24)]);
}

static uint32_t refs_of(int32_t block)
{
    return worker_block(&a, block).batch_refs;
}

// Draws the next step: mostly a valid one, sometimes anything.
static void next_model(struct model *m, struct core_entry entries[8], uint32_t *num_entries)
{
    *num_entries = roll(5);
    for (uint32_t i = 0; i < *num_entries; i++) {
        struct core_entry entry = {roll(SEQS), roll(COLUMNS), blocks[roll(24)]};
        if (roll(4) == 0) {
            entry.block = -1;
            entry.column = roll(2);
        } else if (roll(60) == 0) {
            entry.block = MANY + (int32_t)roll(2000);
        }
        entries[i] = entry;
        m->table[entry.seq * COLUMNS + entry.column] = entry.block;
    }
    for (uint32_t s = 0; s < SEQS; s++)
        m->lens[s] =
            roll(3) ? m->lens[s] + (int32_t)roll(3) : (int32_t)roll(8 * COLUMNS + (roll(30) == 0));
    for (uint32_t t = 0; t < TOKENS; t++) {
        m->slots[t] =
            roll(3) ? (int64_t)blocks[16 + 2 * t + roll(2)] * WORLD_BLOCK + roll(WORLD_BLOCK) : -1;
        m->positions[t] = (int32_t)roll(32);
    }
}

static enum status try_advance(uint64_t batch, const struct model *m,
                               const struct core_entry *entries, uint32_t count)
{
    const struct core_advance advance = {
        .batch = batch,
        .seq_lens_kv = m->lens,
        .num_seq_lens_kv = SEQS,
        .entries = entries,
        .num_entries = count,
        .slot_mapping = m->slots,
        .num_slot_mapping = TOKENS,
        .positions = m->has_positions ? m->positions : NULL,
        .num_positions = m->has_positions ? TOKENS : 0,
    };
    return world_advance(a.session, &advance, NULL);
}

static uint64_t create(const struct model *m)
{
    const struct core_batch_params params = params_of(m);
    return worker_create(&a, &params);
}

// Both or neither refer to a block, and a gather reads the same blocks.
static void expect_alike(uint64_t advanced, uint64_t created)
{
    struct core_batch_view {
        enum status status;
        struct error error;
    } views[2];
    const uint64_t batches[2] = {advanced, created};
    for (int i = 0; i < 24; i++)
        ck_assert_msg(refs_of(blocks[i]) == 0 || refs_of(blocks[i]) == 2, "block %d has %u refs",
                      blocks[i], refs_of(blocks[i]));
    for (int i = 0; i < 2; i++) {
        struct core_run_params params = worker_run_params(&a, batches[i], 0, 4, NULL);
        uint64_t ticket;
        params.entry.kind = ENGINE_GATHER;
        params.entry.k.offset = params.entry.v.offset = 0; // refused for that at the latest
        params.entry.window_left = params.entry.window_right = 0;
        views[i].status = core_run(a.session, &params, &ticket, &views[i].error);
        ck_assert_int_ne((int)views[i].status, STATUS_OK);
    }
    ck_assert_int_eq((int)views[0].status, (int)views[1].status);
    ck_assert_str_eq(views[0].error.text, views[1].error.text);
}

// Both batches of a comparison write the same slots, so neither may reserve them.
static void unreserve(uint64_t id)
{
    struct batch *batch;
    ck_assert_status(batch_find(a.session, id, &batch, &error), STATUS_OK);
    batch_unreserve(batch);
}

// If none of its runs is in flight, the refs of all blocks are those of the batch alone.
START_TEST(an_advanced_batch_is_what_one_created_anew_would_be)
{
    struct model m = {.table = {0}, .has_positions = _i % 2};
    uint32_t refused = 0, advanced = 0;
    random_state = 0x9e3779b97f4a7c15ull * (uint64_t)(_i + 1);
    for (uint32_t i = 0; i < SEQS * COLUMNS; i++)
        m.table[i] = blocks[i];
    for (uint32_t t = 0; t < TOKENS; t++)
        m.slots[t] = -1;
    for (uint32_t s = 0; s < SEQS; s++)
        m.lens[s] = 4;
    uint64_t batch = create(&m);
    for (int i = 0; i < 400; i++) {
        struct model next = m;
        struct core_entry entries[8];
        uint32_t count, made, before[24];
        grow_far();
        next_model(&next, entries, &count);
        const struct core_batch_params params = params_of(&next);
        uint64_t anew = 0;
        for (int j = 0; j < 24; j++)
            before[j] = refs_of(blocks[j]);
        unreserve(batch);
        enum status expected = world_create(a.session, &params, &anew, &made, NULL);
        if (expected == STATUS_OK)
            unreserve(anew);
        enum status status = try_advance(batch, &next, entries, count);
        ck_assert_msg(status == expected, "step %d: %s, but created anew it is %s", i,
                      status_name((int)status), status_name((int)expected));
        if (status == STATUS_OK) {
            expect_alike(batch, anew);
            ck_assert_status(core_batch_destroy(a.session, anew, &error), STATUS_OK);
            m = next;
        } else {
            for (int j = 0; j < 24; j++)
                ck_assert_uint_eq(refs_of(blocks[j]), before[j]);
        }
        advanced += status == STATUS_OK;
        refused += status != STATUS_OK;
        world_check(&world);
    }
    ck_assert_uint_gt(advanced, 40);
    ck_assert_uint_gt(refused, 40);
    ck_assert_status(core_batch_destroy(a.session, batch, &error), STATUS_OK);
    for (int i = 0; i < 24; i++)
        ck_assert_uint_eq(refs_of(blocks[i]), 0);
}
END_TEST

// ---- slots of several batches ----

static enum status try_batch(uint32_t num_tokens, uint32_t num_new, uint64_t *batch,
                             struct error *error)
{
    const int32_t cu_[] = {0, (int32_t)num_new}, lens[] = {(int32_t)num_tokens};
    int64_t slots[16];
    uint32_t made;
    for (uint32_t i = 0; i < num_new; i++) {
        uint32_t position = num_tokens - num_new + i;
        slots[i] = (int64_t)blocks[position / 8] * 8 + position % 8;
    }
    struct core_batch_params params = sequences_over(a.cache, 1, cu_, lens, blocks, 2);
    params.slot_mapping = slots;
    params.num_slot_mapping = num_new;
    return world_create(a.session, &params, batch, &made, error);
}

START_TEST(a_second_batch_may_not_write_a_slot_before_the_first_has_run)
{
    uint64_t first, second, none = 0;
    char words[64];
    worker_fill(&a, blocks, 1);
    ck_assert_status(try_batch(11, 11, &first, &error), STATUS_OK);
    snprintf(words, sizeof words, "(block %d, offset 2) is also written by batch %u", blocks[1],
             (unsigned)first);
    ck_assert_refused(try_batch(13, 3, &none, &error), STATUS_DUPLICATE_SLOT, words);
    ck_assert_status(try_batch(13, 2, &second, &error), STATUS_OK); // slots 3 and 4 of that block
    ck_assert_status(core_batch_destroy(a.session, first, &error), STATUS_OK);
    ck_assert_status(try_batch(11, 3, &first, &error), STATUS_OK);
    // Runs are ordered, so once a batch has run, others may write its slots again.
    uint64_t ticket = worker_run(&a, first, 0, 3, tokens);
    ck_assert_status(try_batch(11, 11, &none, &error), STATUS_OK);
    ck_assert_refused(try_batch(13, 2, &none, &error), STATUS_DUPLICATE_SLOT, "has not run yet");
    ck_assert_status(core_batch_destroy(a.session, first, &error), STATUS_OK); // its run is queued
    ck_assert_refused(try_batch(8, 1, &none, &error), STATUS_DUPLICATE_SLOT, "offset 7");
    world_finish_all(&world);
    worker_reap(&a, ticket, STATUS_OK);
    world_check(&world);
}
END_TEST

START_TEST(a_batch_beside_another_may_write_its_slots)
{
    const int32_t cu_[] = {0, 1}, lens[] = {9};
    const int64_t slot = (int64_t)blocks[1] * 8;
    uint64_t first, twin, none = 0;
    uint32_t made;
    ck_assert_status(try_batch(9, 1, &first, &error), STATUS_OK);
    struct core_batch_params params = sequences_over(a.cache, 1, cu_, lens, blocks, 2);
    params.slot_mapping = &slot;
    params.num_slot_mapping = 1;
    params.beside = first;
    ck_assert_status(world_create(a.session, &params, &twin, &made, &error), STATUS_OK);
    ck_assert_refused(try_batch(9, 1, &none, &error), STATUS_DUPLICATE_SLOT, "offset 0");
    ck_assert_status(core_batch_destroy(a.session, twin, &error), STATUS_OK);
    ck_assert_refused(try_batch(9, 1, &none, &error), STATUS_DUPLICATE_SLOT, "offset 0");
    params.beside = 0; // an import runs at once
    params.num_seq_lens_kv = params.num_block_table = params.max_blocks = 0;
    ck_assert_status(world_create(a.session, &params, &twin, &made, &error), STATUS_OK);
    params = sequences_over(a.cache, 1, cu_, lens, blocks, 2);
    params.beside = 4711;
    ck_assert_refused(world_create(a.session, &params, &twin, &made, &error), STATUS_NOT_FOUND,
                      "no batch 4711");
    world_check(&world);
}
END_TEST

START_TEST(a_step_may_not_write_a_slot_of_another_batch_that_has_not_run)
{
    uint64_t batch, other, none = 0;
    ck_assert_status(try_batch(9, 1, &batch, &error), STATUS_OK);
    ck_assert_status(try_batch(10, 1, &other, &error), STATUS_OK);
    const int64_t taken = (int64_t)blocks[1] * 8 + 1, own = taken - 1;
    const int32_t length = 9;
    struct core_advance advance = {.batch = batch, .slot_mapping = &taken, .num_slot_mapping = 1};
    ck_assert_refused(world_advance(a.session, &advance, &error), STATUS_DUPLICATE_SLOT,
                      "has not run yet");
    ck_assert_refused(try_batch(9, 1, &none, &error), STATUS_DUPLICATE_SLOT,
                      "offset 0"); // as before
    advance.slot_mapping = &own;   // the same step again
    advance.seq_lens_kv = &length;
    advance.num_seq_lens_kv = 1;
    ck_assert_status(world_advance(a.session, &advance, &error), STATUS_OK);
    ck_assert_status(core_batch_destroy(a.session, other, &error), STATUS_OK);
    advance.slot_mapping = &taken;
    advance.num_seq_lens_kv = 0;
    ck_assert_status(world_advance(a.session, &advance, &error), STATUS_OK);
    ck_assert_status(try_batch(9, 1, &none, &error), STATUS_OK); // the step before is over
    ck_assert_refused(try_batch(10, 1, &none, &error), STATUS_DUPLICATE_SLOT, "offset 1");
    world_check(&world);
}
END_TEST

// The audit counts every reference anew after each event.
START_TEST(steps_with_runs_in_flight_keep_their_blocks)
{
    struct model m = {.table = {0}};
    random_state = 0x2545f4914f6cdd1dull * (uint64_t)(_i + 1);
    for (uint32_t i = 0; i < SEQS * COLUMNS; i++)
        m.table[i] = blocks[i];
    for (uint32_t t = 0; t < TOKENS; t++)
        m.slots[t] = -1;
    uint64_t batch = create(&m);
    for (int i = 0; i < 300; i++) {
        struct model next = m;
        struct core_entry entries[8];
        uint32_t count;
        struct core_run_params params =
            worker_run_params(&a, batch, roll(WORLD_LAYERS), TOKENS, tokens);
        uint64_t ticket;
        grow_far();
        params.entry.flags |= WIRE_RUN_DETACHED;
        params.entry.window_left = params.entry.window_right =
            0; // hides entries that may be missing
        params.entry.kind = ENGINE_WRITE;
        switch (roll(6)) {
        case 0:
        case 1:
        case 2:
            next_model(&next, entries, &count);
            if (try_advance(batch, &next, entries, count) == STATUS_OK)
                m = next;
            break;
        case 3:
            (void)core_run(a.session, &params, &ticket, NULL);
            world_step(&world);
            break;
        case 4:
            fake_engine_finish(world.engine);
            world_step(&world);
            break;
        default:
            if (roll(8))
                break;
            ck_assert_status(core_batch_destroy(a.session, batch, &error), STATUS_OK);
            world_check(&world);
            batch = create(&m);
            break;
        }
        world_check(&world);
    }
    if (_i % 2)
        worker_close(&a, true);
    else
        ck_assert_status(core_batch_destroy(a.session, batch, &error), STATUS_OK);
    world_check(&world);
    world_finish_all(&world);
    world_check(&world);
    for (int i = 0; _i % 2 == 0 && i < 24; i++)
        ck_assert_uint_eq(refs_of(blocks[i]), 0);
}
END_TEST

START_TEST(a_block_that_a_step_no_longer_uses_is_released_when_its_runs_are_done)
{
    const int32_t q[] = {0, 1}, lens[] = {16};
    const int64_t slots[] = {-1};
    struct core_batch_params params = sequences_over(a.cache, 1, q, lens, blocks, 3);
    worker_fill(&a, blocks, 3);
    params.slot_mapping = slots;
    params.num_slot_mapping = 1;
    uint64_t batch = worker_create(&a, &params);
    uint64_t ticket = worker_run(&a, batch, 0, 1, tokens);
    world_step(&world);
    worker_release(&a, blocks, 1); // the batch keeps it
    const struct core_entry entry = {0, 0, -1};
    const struct core_advance advance = {.batch = batch,
                                         .entries = &entry,
                                         .num_entries = 1,
                                         .slot_mapping = slots,
                                         .num_slot_mapping = 1};
    ck_assert_status(world_advance(a.session, &advance, &error), STATUS_OK);
    world_check(&world);
    ck_assert_uint_eq(refs_of(blocks[0]), 1);
    ck_assert_uint_eq(refs_of(blocks[2]), 1); // 17 keys reach into it
    ck_assert_int_ne((int)worker_block(&a, blocks[0]).state, CORE_FREE);
    const struct fake_submission *s = fake_engine_newest(world.engine);
    ck_assert_ptr_nonnull(s->runs[0].batch);
    world_finish_all(&world);
    ck_assert_uint_eq(refs_of(blocks[0]), 0);
    ck_assert_int_eq((int)worker_block(&a, blocks[0]).state, CORE_FREE);
    worker_reap(&a, ticket, STATUS_OK);
    // A run that sees the hidden keys is refused now; a run whose window hides them is not.
    struct core_run_params run = worker_run_params(&a, batch, 0, 1, tokens);
    ck_assert_refused(core_run(a.session, &run, &ticket, &error), STATUS_INVALID,
                      "block_table[0][0] = -1");
    run.entry.window_left = 8;
    run.entry.window_right = 0;
    ck_assert_status(core_run(a.session, &run, &ticket, &error), STATUS_OK);
}
END_TEST

START_TEST(only_what_changes_is_looked_at_again)
{
    uint64_t batch = worker_batch(&a, blocks, 9, 1);
    const int64_t slots[] = {(int64_t)blocks[1] * WORLD_BLOCK + 1};
    struct core_advance advance = {.batch = batch, .slot_mapping = slots, .num_slot_mapping = 1};
    worker_release(&a, blocks, 1); // the batch refers to it, and no session holds it
    ck_assert_status(world_advance(a.session, &advance, &error), STATUS_OK);
    const struct core_entry entry = {0, 0, blocks[0]};
    advance.entries = &entry;
    advance.num_entries = 1;
    ck_assert_refused(world_advance(a.session, &advance, &error), STATUS_NOT_HELD,
                      "block_table[0][0]");
}
END_TEST

// Each step has its own lengths and a slot. If a run sees an entry that changes, the engine makes
// another table.
START_TEST(steps_under_way_count_a_table_that_they_share_once)
{
    enum { OWN = 3 * sizeof(int32_t) + sizeof(int64_t), TABLE = 3 * sizeof(int32_t) };
    const int32_t q[] = {0, 1}, lens[] = {9};
    const int64_t slots[] = {-1};
    struct core_batch_params params = sequences_over(a.cache, 1, q, lens, blocks, 3);
    params.slot_mapping = slots;
    params.num_slot_mapping = 1;
    const struct core_entry behind = {0, 2, blocks[3]}, gone = {0, 0, -1}, seen = {0, 1, blocks[4]};
    struct core_advance advance = {.slot_mapping = slots, .num_slot_mapping = 1};
    worker_fill(&a, blocks, 5);
    advance.batch = worker_create(&a, &params);
    ck_assert_uint_eq(a.session->memory.batches,
                      2 * (3 * sizeof(int32_t) + TABLE) + sizeof(int32_t) + sizeof(int64_t));
    ck_assert_status(core_batch_advance(a.session, &advance, &error), STATUS_OK);
    uint64_t idle = a.session->memory.batches;
    worker_run(&a, advance.batch, 0, 1, tokens);
    advance.entries = &behind;
    advance.num_entries = 1;
    ck_assert_status(core_batch_advance(a.session, &advance, &error), STATUS_OK);
    ck_assert_uint_eq(a.session->memory.batches, idle + OWN);
    worker_run(&a, advance.batch, 0, 1, tokens);
    advance.entries = &gone; // no run looks there any more
    ck_assert_status(core_batch_advance(a.session, &advance, &error), STATUS_OK);
    ck_assert_uint_eq(a.session->memory.batches, idle + 2 * OWN + mentions_dropped_bytes(1));
    struct core_run_params windowed = worker_run_params(&a, advance.batch, 0, 1, tokens);
    windowed.entry.window_left = windowed.entry.window_right = 0;
    worker_queue(&a, &windowed);
    advance.entries = &seen;
    ck_assert_status(core_batch_advance(a.session, &advance, &error), STATUS_OK);
    ck_assert_uint_eq(a.session->memory.batches,
                      idle + 3 * OWN + TABLE + 2 * mentions_dropped_bytes(1));
    world_check(&world);
    world_finish_all(&world);
    ck_assert_uint_eq(a.session->memory.batches, idle);
}
END_TEST

// A gather reads it, a query does not: only the gather fails.
START_TEST(what_padding_could_not_read_is_looked_at_in_each_step)
{
    const int32_t q[] = {0, 0}, lens[] = {8};
    const struct core_batch_params params = sequences_over(a.cache, 1, q, lens, blocks_b, 1);
    const struct core_advance advance = {.batch = worker_create(&a, &params)};
    ck_assert_status(world_advance(a.session, &advance, &error), STATUS_OK);
    worker_release(&b, blocks_b, 1);
    for (int32_t leased = -1; leased != blocks_b[0];)
        worker_lease(&a, 1, &leased);
    ck_assert_uint_eq(refs_of(blocks_b[0]), 0);
    ck_assert_status(world_advance(a.session, &advance, &error), STATUS_OK);
    ck_assert_uint_eq(refs_of(blocks_b[0]), 1);
}
END_TEST

START_TEST(lengths_and_positions_grow_by_themselves)
{
    const int32_t positions[] = {8};
    const int32_t q[] = {0, 1}, lens[] = {9};
    struct core_batch_params params = sequences_over(a.cache, 1, q, lens, blocks, 2);
    params.positions = positions;
    params.num_positions = 1;
    params.max_context_len = 9; // of the first step only
    worker_fill(&a, blocks, 2);
    const uint64_t before = core_metrics(world.core)[METRIC_TOKENS_ATTENDED];
    uint64_t batch = worker_create(&a, &params);
    const struct core_advance advance = {.batch = batch};
    for (int i = 10; i <= 16; i++)
        ck_assert_status(world_advance(a.session, &advance, &error), STATUS_OK);
    ck_assert_refused(world_advance(a.session, &advance, &error), STATUS_OUT_OF_RANGE,
                      "seq_lens_kv[0] = 17 exceeds the 16 tokens");
    worker_run(&a, batch, 0, 1, tokens);
    world_finish_all(&world);
    const uint64_t *totals = core_metrics(world.core);
    ck_assert_uint_eq(totals[METRIC_TOKENS_ATTENDED] - before, 16);
}
END_TEST

START_TEST(what_has_no_next_step_says_so)
{
    const uint8_t mask[1] = {1};
    const int32_t q[] = {0, 1}, lens[] = {1};
    const int64_t slots[] = {0};
    struct core_batch_params params = sequences_over(a.cache, 1, q, lens, blocks, 1);
    params.mask = mask;
    params.mask_bytes = 1;
    struct core_advance advance = {0};
    ck_assert_refused(world_advance(a.session, &advance, &error), STATUS_NOT_FOUND,
                      "has no batch 0");
    advance.batch = worker_create(&a, &params);
    ck_assert_refused(world_advance(a.session, &advance, &error), STATUS_INVALID, "has a mask");
    params.mask_bytes = 0;
    advance.batch = worker_create(&a, &params);
    advance.slot_mapping = slots;
    advance.num_slot_mapping = 1;
    ck_assert_refused(world_advance(a.session, &advance, &error), STATUS_INVALID,
                      "slot_mapping has 1 entries; 0 are needed");
    const struct core_entry entries[2] = {{0, 0, blocks[0]}, {0, 0, blocks[0]}};
    advance.num_slot_mapping = 0;
    advance.entries = entries;
    advance.num_entries = 2;
    ck_assert_refused(world_advance(a.session, &advance, &error), STATUS_INVALID,
                      "2 entries change; the block table has 1");
    advance.num_entries = 1;
    ck_assert_status(world_advance(a.session, &advance, &error), STATUS_OK);
}
END_TEST

START_TEST(a_block_shows_its_references_whichever_session_has_them)
{
    worker_batch(&a, blocks, 8, 1);
    worker_batch(&b, blocks_b, 8, 1);
    worker_release(&a, blocks, 1);
    worker_release(&b, blocks_b, 1);
    ck_assert_uint_eq(refs_of(blocks[0]), 1);
    ck_assert_uint_eq(refs_of(blocks_b[0]), 1);
    ck_assert_uint_eq(refs_of(blocks[1]), 0);
}
END_TEST

START_TEST(a_batch_that_names_nothing_advances_in_a_cache_that_never_grew)
{
    const int32_t q[] = {0, 0}, lens[] = {0}, none[] = {-1};
    uint64_t cache = worker_open_cache(&a, "new");
    const struct core_batch_params params = sequences_over(cache, 1, q, lens, none, 1);
    const struct core_advance advance = {.batch = worker_create(&a, &params)};
    for (int i = 0; i < 2; i++)
        ck_assert_status(world_advance(a.session, &advance, &error), STATUS_OK);
    world_check(&world);
}
END_TEST

// A bit for each id up to the largest that was ever used: none for other sessions' blocks above it.
START_TEST(a_step_takes_memory_for_what_it_names_and_not_for_how_large_the_cache_is)
{
    const int32_t q[] = {0, 0}, lens[] = {8};
    const struct core_batch_params params = sequences_over(a.cache, 1, q, lens, blocks, 1);
    struct core_advance advance = {.batch = worker_create(&a, &params)};
    ck_assert_status(world_advance(a.session, &advance, &error), STATUS_OK);
    uint64_t kept = a.session->memory.batches;
    ck_assert(grow_cache());
    ck_assert_status(world_advance(a.session, &advance, &error), STATUS_OK);
    ck_assert_uint_eq(a.session->memory.batches, kept);
    int32_t far;
    worker_lease(&a, 1, &far);
    ck_assert_int_ge(far, CHUNK);
    advance.entries = &(struct core_entry){0, 0, far};
    advance.num_entries = 1;
    ck_assert_status(world_advance(a.session, &advance, &error), STATUS_OK);
    ck_assert_uint_eq(a.session->memory.batches,
                      kept + ((uint64_t)far / 64 - (uint64_t)blocks[0] / 64) * sizeof(uint64_t));
    world_check(&world);
}
END_TEST

START_TEST(a_batch_over_the_arena_advances_too)
{
    const struct core_layout layout = {.kv = {.num_kv_heads = 1,
                                              .head_dim_k = 8,
                                              .head_dim_v = 8,
                                              .k_dtype = DTYPE_F16,
                                              .v_dtype = DTYPE_F16}};
    const int32_t q[] = {0, 1}, lens[] = {3}, starts[] = {0};
    struct core_batch_params params = sequences_over(0, 1, q, lens, NULL, 0);
    params.layout = &layout;
    params.kv_starts = starts;
    params.num_kv_starts = 1;
    params.max_context_len = 3;
    const struct core_advance advance = {.batch = worker_create(&a, &params)};
    ck_assert_status(world_advance(a.session, &advance, &error), STATUS_OK);
    world_check(&world);
    ck_assert_status(core_batch_destroy(a.session, advance.batch, &error), STATUS_OK);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("core step");
    check_case(suite, "steps", open_wide_world, close_all,
               (const TTest *const[]){
                   a_block_that_a_step_no_longer_uses_is_released_when_its_runs_are_done,
                   only_what_changes_is_looked_at_again,
                   what_padding_could_not_read_is_looked_at_in_each_step,
                   steps_under_way_count_a_table_that_they_share_once,
                   a_second_batch_may_not_write_a_slot_before_the_first_has_run,
                   a_batch_beside_another_may_write_its_slots,
                   a_step_may_not_write_a_slot_of_another_batch_that_has_not_run,
                   lengths_and_positions_grow_by_themselves, what_has_no_next_step_says_so,
                   a_batch_over_the_arena_advances_too,
                   a_block_shows_its_references_whichever_session_has_them,
                   a_batch_that_names_nothing_advances_in_a_cache_that_never_grew,
                   a_step_takes_memory_for_what_it_names_and_not_for_how_large_the_cache_is, NULL},
               1);
    check_case(suite, "random steps", open_wide_world, close_all,
               (const TTest *const[]){an_advanced_batch_is_what_one_created_anew_would_be,
                                      steps_with_runs_in_flight_keep_their_blocks, NULL},
               10);
    return check_main(suite);
}
