// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_engine_step.c - a batch that advances on a real device: which table its steps read while
// earlier steps wait on the GPU, and that a batch needs no more metadata after its first run. Also
// core over the engine: sessions whose runs wait together share one dispatch.

#include "core/core.h"
#include "rigs/engine_world.h"

#include <string.h>

// ---- steps ----

enum { Q = 0, K = 64, V = 128, OUT = 192, WIDTH = 64, COLUMNS = 4, NUM_BLOCKS = 4 };

// One sequence whose only query sees only its newest key: the first key of a block, whose value is
// the number of the block times 16.
struct line {
    struct engine_cache *cache;
    int32_t table[COLUMNS];
};

static float value_of(int32_t block)
{
    return (float)(16 * (block + 1));
}

static struct line open_line(void)
{
    struct line line = {.cache = plain_cache(), .table = {0, -1, -1, -1}};
    for (int32_t block = 0; block < NUM_BLOCKS; block++) {
        struct engine_batch *batch = one_key(line.cache, block, true);
        struct engine_run run = plain_run(batch, 0, Q, K, V, OUT);
        fill(V, value_of(block));
        expect_done(submit_runs(&run, 1));
        engine_batch_destroy(batch);
    }
    return line;
}

static struct engine_batch *begin_line(struct line *line)
{
    return open_batch((struct engine_batch_params){
        .cache = line->cache,
        .num_seqs = 1,
        .max_blocks = COLUMNS,
        .num_tokens = 1,
        .cu_seqlens_q = (int32_t[]){0, 1},
        .seq_lens_kv = (int32_t[]){1},
        .block_table = line->table,
    });
}

static struct engine_run run_of(struct engine_batch *batch, uint64_t out)
{
    struct engine_run run = plain_run(batch, 0, Q, K, V, out);
    run.windowed = true;
    run.window_left = 0;
    run.window_right = -1;
    return run;
}

static struct engine_batch *advance(struct line *line, struct engine_batch *batch, int32_t len,
                                    const struct engine_entry *entry, bool is_used)
{
    struct engine_batch *next = NULL;
    struct error error = {0};
    if (entry)
        line->table[entry->column] = entry->block;
    const struct engine_advance params = {.seq_lens_kv = &len,
                                          .entries = entry,
                                          .num_entries = entry != NULL,
                                          .block_table = line->table,
                                          .is_used = is_used};
    ck_assert_msg(engine_batch_advance(batch, &params, &next, &error) == STATUS_OK, "%s",
                  error.text);
    return next;
}

static void close_line(struct line *line)
{
    engine_cache_destroy(line->cache);
}

START_TEST(entries_that_become_visible_are_added_to_the_table_that_waiting_runs_read)
{
    struct line line = open_line();
    struct engine_batch *steps[3] = {begin_line(&line)};
    uint64_t last = 0;
    VkSemaphore gate = close_gate();
    for (uint32_t i = 0; i < 3; i++) {
        const struct engine_entry entry = {0, i, (int32_t)i};
        if (i > 0)
            steps[i] = advance(&line, steps[i - 1], 8 * (int32_t)i + 1, &entry, true);
        const struct engine_run run = run_of(steps[i], OUT + i * WIDTH);
        last = submit_runs(&run, 1);
    }
    ck_assert_ptr_eq(steps[1]->table, steps[0]->table);
    ck_assert_ptr_eq(steps[2]->table, steps[0]->table);
    open_gate(gate, last);
    for (uint64_t sequence = last - 2; sequence <= last; sequence++)
        expect_done(sequence);
    for (uint32_t i = 0; i < 3; i++) {
        expect_floats(OUT + i * WIDTH, value_of((int32_t)i));
        engine_batch_destroy(steps[i]);
    }
    close_line(&line);
}
END_TEST

START_TEST(a_change_that_waiting_runs_can_see_copies_the_table)
{
    struct line line = open_line();
    struct engine_batch *before = begin_line(&line);
    VkSemaphore gate = close_gate();
    struct engine_run run = run_of(before, OUT);
    submit_runs(&run, 1);
    struct engine_batch *after = advance(&line, before, 1, &(struct engine_entry){0, 0, 3}, true);
    run = run_of(after, OUT + WIDTH);
    uint64_t last = submit_runs(&run, 1);
    ck_assert_ptr_ne(after->table, before->table);
    open_gate(gate, last);
    expect_done(last - 1);
    expect_done(last);
    expect_floats(OUT, value_of(0));
    expect_floats(OUT + WIDTH, value_of(3));
    engine_batch_destroy(before);
    engine_batch_destroy(after);
    close_line(&line);
}
END_TEST

START_TEST(entries_left_of_the_window_stay_in_the_table_that_waiting_runs_read)
{
    struct line line = open_line();
    struct engine_batch *steps[3] = {begin_line(&line)};
    VkSemaphore gate = close_gate();
    struct engine_run run = run_of(steps[0], OUT);
    submit_runs(&run, 1);
    steps[1] = advance(&line, steps[0], 9, &(struct engine_entry){0, 1, 1}, true);
    steps[2] = advance(&line, steps[1], 9, &(struct engine_entry){0, 0, -1}, false);
    ck_assert_ptr_eq(steps[2]->table, steps[0]->table);
    run = run_of(steps[2], OUT + WIDTH);
    uint64_t last = submit_runs(&run, 1);
    open_gate(gate, last);
    expect_done(last - 1);
    expect_done(last);
    expect_floats(OUT, value_of(0));
    expect_floats(OUT + WIDTH, value_of(1));
    // Runs in flight do not notice that a block is used again.
    struct engine_batch *other = advance(&line, steps[2], 1, &(struct engine_entry){0, 0, 2}, true);
    ck_assert_ptr_ne(other->table, steps[0]->table);
    run = run_of(other, OUT);
    expect_done(submit_runs(&run, 1));
    expect_floats(OUT, value_of(2));
    for (uint32_t i = 0; i < 3; i++)
        engine_batch_destroy(steps[i]);
    engine_batch_destroy(other);
    close_line(&line);
}
END_TEST

START_TEST(a_table_that_no_run_reads_changes_where_it_is)
{
    struct line line = open_line();
    struct engine_batch *before = begin_line(&line);
    struct engine_run run = run_of(before, OUT);
    expect_done(submit_runs(&run, 1));
    struct engine_batch *after = advance(&line, before, 1, &(struct engine_entry){0, 0, 2}, false);
    ck_assert_ptr_eq(after->table, before->table);
    engine_batch_destroy(before);
    run = run_of(after, OUT);
    expect_done(submit_runs(&run, 1));
    expect_floats(OUT, value_of(2));
    engine_batch_destroy(after);
    close_line(&line);
}
END_TEST

START_TEST(runs_of_a_batch_after_the_first_take_no_metadata)
{
    struct line line = open_line();
    struct engine_batch *batch = begin_line(&line);
    struct engine_run runs[2] = {run_of(batch, OUT), run_of(batch, OUT + WIDTH)};
    runs[1].layer = 1;
    expect_done(submit_runs(runs, 1));
    const struct items *items = batch->lists.items;
    uint32_t pieces = num_pieces();
    for (int i = 0; i < 4; i++) {
        struct engine_event event = expect_done(submit_runs(runs, 2));
        ck_assert_uint_eq(event.num_dispatches, 1); // two layers, one dispatch
        ck_assert_ptr_eq(batch->lists.items, items);
    }
    ck_assert_uint_eq(num_pieces(), pieces);
    expect_floats(OUT, value_of(0));
    engine_batch_destroy(batch);
    close_line(&line);
}
END_TEST

// ---- shared prefixes ----

struct pair {
    struct engine_batch *batch;
    int32_t lens[2], table[2 * COLUMNS];
};

// Advances to `lens`. Shared prefixes are found anew, or are kept, as `known` says.
static void step_pair(struct pair *pair, const int32_t lens[2], const struct engine_entry *entries,
                      uint32_t count, bool known, uint32_t places)
{
    struct engine_batch *next = NULL;
    struct error error = {0};
    for (uint32_t i = 0; i < count; i++)
        pair->table[entries[i].seq * COLUMNS + entries[i].column] = entries[i].block;
    const struct engine_advance params = {
        .seq_lens_kv = lens, .entries = entries, .num_entries = count, .block_table = pair->table};
    ck_assert_msg(engine_batch_advance(pair->batch, &params, &next, &error) == STATUS_OK, "%s",
                  error.text);
    ck_assert_int_eq(next->sharing_known, known);
    ck_assert_uint_eq(next->sharing.num_places, places);
    engine_batch_destroy(pair->batch);
    pair->batch = next;
}

START_TEST(sequences_that_come_to_share_blocks_are_found_in_that_step)
{
    struct line line = open_line();
    struct pair pair = {.table = {-1, -1, -1, -1, -1, -1, -1, -1}};
    pair.batch = open_batch((struct engine_batch_params){
        .cache = line.cache,
        .num_seqs = 2,
        .max_blocks = COLUMNS,
        .num_tokens = 2,
        .cu_seqlens_q = (int32_t[]){0, 1, 2},
        .seq_lens_kv = pair.lens, // no key is there yet
        .block_table = pair.table,
    });
    const struct engine_entry alike[] = {{0, 0, 0}, {0, 1, 1}, {1, 0, 0}, {1, 1, 2}},
                              other[] = {{1, 0, 3}};
    const struct engine_entry hidden[] = {{1, 1, -1}}, grown[] = {{0, 2, 2}, {1, 2, 3}};
    step_pair(&pair, (int32_t[]){16, 0}, alike, 4, false, 0); // one of them has no keys yet
    step_pair(&pair, (int32_t[]){16, 16}, NULL, 0, false, 2);
    step_pair(&pair, (int32_t[]){17, 17}, grown, 2, true, 2);
    step_pair(&pair, (int32_t[]){18, 18}, hidden, 1, true, 2);
    step_pair(&pair, (int32_t[]){18, 18}, other, 1, false, 0);
    step_pair(&pair, (int32_t[]){18, 18}, alike + 2, 1, false, 2);
    engine_batch_destroy(pair.batch);
    close_line(&line);
}
END_TEST

// ---- sessions ----

enum { MOST = 8, ARENA = ARENA_BYTES / MOST };

struct crowd_of_sessions {
    struct core *core;
    struct core_session *sessions[MOST];
    struct engine_arena *arenas[MOST];
    uint64_t batches[MOST], cache[MOST];
    int32_t blocks[MOST];
};

static void step_until_idle(struct core *core)
{
    double deadline = now_s() + DEADLINE_S;
    while (!core_idle(core) && now_s() < deadline) {
        core_step(core, 0);
        nap();
    }
    ck_assert(core_idle(core));
}

static void lease_one(struct crowd_of_sessions *c, int i)
{
    struct error error = {0};
    enum status status = STATUS_NO_BLOCKS;
    bool growing = false;
    double deadline = now_s() + DEADLINE_S;
    while (status == STATUS_NO_BLOCKS && now_s() < deadline) {
        status = core_blocks_lease(c->sessions[i], NULL, c->cache[i], 1, &c->blocks[i], &growing,
                                   &error);
        core_step(c->core, 0);
        nap();
    }
    ck_assert_msg(status == STATUS_OK, "%s", error.text);
}

static void open_session(struct crowd_of_sessions *c, int i)
{
    struct error error = {0};
    struct core_cache_info info;
    const struct core_cache_identity identity = {.name = "kv",
                                                 .num_layers = 2,
                                                 .kv = {.num_kv_heads = 1,
                                                        .head_dim_k = 8,
                                                        .head_dim_v = 8,
                                                        .block_size = BLOCK,
                                                        .k_dtype = DTYPE_F32,
                                                        .v_dtype = DTYPE_F32}};
    ck_assert_int_eq(engine_arena_create(engine, memory + i * ARENA, ARENA, &c->arenas[i], &error),
                     STATUS_OK);
    const struct core_session_params params = {.id = (uint64_t)i + 1,
                                               .tenant = "",
                                               .name = "",
                                               .arena = c->arenas[i],
                                               .arena_size = ARENA};
    ck_assert_int_eq(core_session_open(c->core, &params, &c->sessions[i], &error), STATUS_OK);
    ck_assert_msg(core_cache_open(c->sessions[i], &identity, &info, &error) == STATUS_OK, "%s",
                  error.text);
    c->cache[i] = info.cache;
    lease_one(c, i);
    const int64_t slot = (int64_t)c->blocks[i] * BLOCK;
    const struct core_batch_params batch = {.cache = c->cache[i],
                                            .num_seqs = 1,
                                            .max_blocks = 1,
                                            .cu_seqlens_q = (int32_t[]){0, 1},
                                            .num_cu_seqlens_q = 2,
                                            .seq_lens_kv = (int32_t[]){1},
                                            .num_seq_lens_kv = 1,
                                            .block_table = &c->blocks[i],
                                            .num_block_table = 1,
                                            .slot_mapping = &slot,
                                            .num_slot_mapping = 1};
    uint32_t num_tokens;
    ck_assert_msg(core_batch_create(c->sessions[i], &batch, &c->batches[i], &num_tokens, &error) ==
                      STATUS_OK,
                  "%s", error.text);
}

// Two layers of the one-key run of session `i`, whose value is 100 * i.
static uint64_t run_session(struct crowd_of_sessions *c, int i)
{
    struct error error = {0};
    uint64_t ticket = 0;
    struct wire_tensor tensor = {.dtype = DTYPE_F32, .token_stride = 32, .head_stride = 32};
    struct core_run_params run = {.entry = {.batch = c->batches[i],
                                            .num_heads = 1,
                                            .q = tensor,
                                            .k = tensor,
                                            .v = tensor,
                                            .out = tensor,
                                            .window_left = -1,
                                            .window_right = -1,
                                            .flags = WIRE_RUN_CAUSAL}};
    run.entry.k.offset = K;
    run.entry.v.offset = V;
    run.entry.out.offset = OUT;
    run.layers = (struct wire_layers){.num_layers = 2, .out = WIDTH};
    fill((uint64_t)i * ARENA + V, 100 * (float)i);
    ck_assert_msg(core_run(c->sessions[i], &run, &ticket, &error) == STATUS_OK, "%s", error.text);
    return ticket;
}

// Compiles what all the runs need.
static void warm_up(struct crowd_of_sessions *c)
{
    struct core_ticket_result result;
    struct error error = {0};
    const uint64_t ticket = run_session(c, 0);
    step_until_idle(c->core);
    ck_assert_int_eq(core_ticket_reap(c->sessions[0], ticket, &result, &error), STATUS_OK);
}

// Two submissions of the first session wait on the GPU. All runs that are queued meanwhile share
// one submission.
START_TEST(runs_of_sessions_that_wait_together_share_one_dispatch)
{
    static const int counts[] = {2, MOST};
    const int count = counts[_i];
    struct crowd_of_sessions c = {.core = NULL};
    struct error error = {0};
    struct core_ticket_result result;
    uint64_t tickets[MOST], first[2];
    const struct core_params params = {
        .engine = engine,
        .pool_limit_bytes = 1 << 24,
        .max_sessions = MOST,
        .max_caches = 1,
        .max_batches = 4,
        .max_tickets = 8,
    };
    ck_assert_int_eq(core_create(&params, &c.core, &error), STATUS_OK);
    for (int i = 0; i < count; i++)
        open_session(&c, i);
    warm_up(&c);
    VkSemaphore gate = close_gate();
    for (int i = 0; i < 2; i++) {
        first[i] = run_session(&c, 0);
        core_step(c.core, 0);
    }
    uint64_t gated = engine->last_sequence;
    for (int i = 0; i < count; i++)
        tickets[i] = run_session(&c, i);
    open_gate(gate, gated);
    step_until_idle(c.core);
    for (int i = 0; i < 2; i++)
        ck_assert_int_eq(core_ticket_reap(c.sessions[0], first[i], &result, &error), STATUS_OK);
    for (int i = 0; i < count; i++) {
        ck_assert_int_eq(core_ticket_reap(c.sessions[i], tickets[i], &result, &error), STATUS_OK);
        ck_assert_int_eq(result.status, STATUS_OK);
        ck_assert_uint_eq(result.num_sessions, (uint32_t)count);
        ck_assert_uint_eq(result.num_runs, (uint32_t)count);
        for (int layer = 0; layer < 2; layer++)
            expect_floats((uint64_t)i * ARENA + OUT + (uint64_t)layer * WIDTH, 100 * (float)i);
    }
    const uint64_t *totals = core_metrics(c.core);
    ck_assert_uint_eq(totals[count == 2 ? METRIC_DISPATCHES_OF_2 : METRIC_DISPATCHES_OF_8], 1);
    for (int i = 0; i < count; i++)
        core_session_close(c.sessions[i], false);
    step_until_idle(c.core);
    core_destroy(c.core);
    for (int i = 0; i < count; i++)
        engine_arena_destroy(c.arenas[i]);
}
END_TEST

void add_step_tests(Suite *suite)
{
    TCase *tcase = tcase_create("steps");
    tcase_add_checked_fixture(tcase, setup_import, teardown);
    tcase_add_test(tcase,
                   entries_that_become_visible_are_added_to_the_table_that_waiting_runs_read);
    tcase_add_test(tcase, a_change_that_waiting_runs_can_see_copies_the_table);
    tcase_add_test(tcase, entries_left_of_the_window_stay_in_the_table_that_waiting_runs_read);
    tcase_add_test(tcase, a_table_that_no_run_reads_changes_where_it_is);
    tcase_add_test(tcase, runs_of_a_batch_after_the_first_take_no_metadata);
    tcase_add_test(tcase, sequences_that_come_to_share_blocks_are_found_in_that_step);
    tcase_add_loop_test(tcase, runs_of_sessions_that_wait_together_share_one_dispatch, 0, 2);
    suite_add_tcase(suite, tcase);
}
