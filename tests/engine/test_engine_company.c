// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_engine_company.c - which runs of a wave are planned together, without running them: random
// batches that come, advance, fork and go, compared with a search over all pairs; and what looking
// for company costs dispatches that share nothing. On matrix_emulated, which every device runs.

#include "engine/plan/cut.h"
#include "engine/plan/joint.h"
#include "engine/plan/plan.h"
#include "rigs/dice.h"
#include "rigs/engine_world.h"

#include <math.h>
#include <string.h>
#include <time.h>

enum { KEYS = 16, DIM = 32, PART = 256, PART_BLOCKS = PART / KEYS, COLUMNS = 64 };

static struct engine_cache *cache_;

static void open_world(void)
{
    engine = open_engine((struct engine_params){.variant = "matrix_emulated"});
    open_arena();
    struct engine_cache_params params = shape(1, 1, DIM, DTYPE_F16);
    params.kv.block_size = KEYS;
    cache_ = open_cache(params);
}

static void close_world(void)
{
    engine_cache_destroy(cache_);
    teardown();
}

static struct engine_run run_of(struct engine_batch *batch)
{
    return (struct engine_run){
        .batch = batch,
        .arena = arena,
        .num_heads = 1,
        .q = dense(0, 1, DIM, DTYPE_F16),
        .out = dense(1 << 19, 1, DIM, DTYPE_F16),
        .scale = 0.5f,
        .k_scale = 1,
        .v_scale = 1,
        .causal = true,
        .num_splits = 4, // parts of 256 keys
    };
}

// ---- random batches ----

enum { MOST_BATCHES = 6, MOST_SEQS = 5 };

// What a client knows of a batch.
struct line {
    struct engine_batch *batch; // NULL = there is none
    uint32_t num_seqs;
    int32_t lens[MOST_SEQS], table[MOST_SEQS][COLUMNS];
};

static struct line lines[MOST_BATCHES];
static int32_t next_block;

static uint32_t columns_of(int32_t len)
{
    return (uint32_t)(len + KEYS - 1) / KEYS;
}

// Any sequence that lives; NULL = there is none. *len: its length.
static const int32_t *any_sequence(struct dice *dice, int32_t *len)
{
    const struct line *line = &lines[dice_below(dice, MOST_BATCHES)];
    if (!line->batch)
        return NULL;
    uint32_t seq = dice_below(dice, line->num_seqs);
    *len = line->lens[seq];
    return line->table[seq];
}

// A sequence with the first blocks of another one, or with none.
static void draw_sequence(struct dice *dice, int32_t *row, int32_t *out_len)
{
    int32_t other_len = 0, len = (int32_t)dice_between(dice, 1, 4 * PART - 1);
    const int32_t *other = dice_chance(dice, 75) ? any_sequence(dice, &other_len) : NULL;
    uint32_t common = other ? dice_below(dice, columns_of(other_len) + 1) : 0;
    for (uint32_t i = 0; i < COLUMNS; i++)
        row[i] = i < common ? other[i] : i < columns_of(len) ? next_block++ : -1;
    *out_len = len;
}

static void begin(struct dice *dice, struct line *line)
{
    int32_t cu[MOST_SEQS + 1] = {0};
    uint32_t num_seqs = dice_between(dice, 1, MOST_SEQS);
    struct line fresh = {.num_seqs = num_seqs};
    for (uint32_t seq = 0; seq < num_seqs; seq++) {
        draw_sequence(dice, fresh.table[seq], &fresh.lens[seq]);
        cu[seq + 1] = cu[seq] + 1;
    }
    fresh.batch = open_batch((struct engine_batch_params){
        .cache = cache_,
        .num_seqs = num_seqs,
        .max_blocks = COLUMNS,
        .num_tokens = num_seqs,
        .cu_seqlens_q = cu,
        .seq_lens_kv = fresh.lens,
        .block_table = fresh.table[0],
    });
    *line = fresh;
}

// Some sequences grow, some replace a block, some begin anew with the blocks of another one.
static void advance(struct dice *dice, struct line *line)
{
    struct engine_entry entries[MOST_SEQS * COLUMNS];
    uint32_t count = 0;
    struct engine_batch *next;
    struct error error = {0};
    for (uint32_t seq = 0; seq < line->num_seqs; seq++) {
        int32_t row[COLUMNS], len = line->lens[seq];
        memcpy(row, line->table[seq], sizeof row);
        if (dice_chance(dice, 10))
            draw_sequence(dice, row, &len);
        else if (dice_chance(dice, 10))
            row[dice_below(dice, columns_of(len))] = next_block++;
        else if (len < 4 * PART - 40)
            len += (int32_t)dice_below(dice, 40);
        for (uint32_t i = 0; i < columns_of(len); i++)
            row[i] = row[i] >= 0 ? row[i] : next_block++;
        for (uint32_t i = 0; i < COLUMNS; i++)
            if (row[i] != line->table[seq][i])
                entries[count++] = (struct engine_entry){seq, i, row[i]};
        memcpy(line->table[seq], row, sizeof row);
        line->lens[seq] = len;
    }
    const struct engine_advance params = {.seq_lens_kv = line->lens,
                                          .entries = entries,
                                          .num_entries = count,
                                          .block_table = line->table[0],
                                          .is_used = dice_chance(dice, 50)};
    ck_assert_int_eq(engine_batch_advance(line->batch, &params, &next, &error), STATUS_OK);
    engine_batch_destroy(line->batch);
    line->batch = next;
}

// A sequence among those of all batches.
struct place {
    const int32_t *row;
    int32_t len;
};

// The last part of a sequence is its own, and its query sees only what is before it.
static bool has_part(const struct place *place, uint32_t part)
{
    return place->len > (int32_t)((part + 1) * PART);
}

static bool share(const struct place *a, const struct place *b, uint32_t part)
{
    return has_part(a, part) && has_part(b, part) &&
           memcmp(a->row, b->row, (part + 1) * PART_BLOCKS * sizeof *a->row) == 0;
}

static void expect_crowds(void)
{
    enum { LEAST = 4 };
    struct engine_batch *batches[MOST_BATCHES];
    struct place places[MOST_BATCHES * MOST_SEQS];
    uint32_t num_batches = 0, count = 0;
    struct cuts cuts;
    for (uint32_t i = 0; i < MOST_BATCHES; i++) {
        for (uint32_t seq = 0; lines[i].batch && seq < lines[i].num_seqs; seq++)
            places[count++] = (struct place){lines[i].table[seq], lines[i].lens[seq]};
        if (lines[i].batch)
            batches[num_batches++] = lines[i].batch;
    }
    if (num_batches < 2)
        return;
    struct engine_run run = run_of(batches[0]);
    struct cutting cutting = cutting_of_run(&run);
    ck_assert(cuts_make(&cuts, batches, num_batches, &cutting));
    for (uint32_t seq = 0; seq < count; seq++) {
        uint32_t shared = 0;
        for (uint32_t part = 0; part < 4; part++) {
            uint32_t others = 0;
            for (uint32_t other = 0; other < count; other++)
                others += share(&places[seq], &places[other], part);
            shared += others >= LEAST;
        }
        ck_assert_msg(cuts.crowds.parts[seq] == shared,
                      "sequence %u of %u has %u shared parts, not %u", seq, count,
                      cuts.crowds.parts[seq], shared);
    }
    cuts_finish(&cuts);
}

START_TEST(sequences_of_batches_that_come_advance_and_go_are_found)
{
    struct dice dice = {.state = 41};
    open_world();
    for (int i = 0; i < 3000; i++) {
        struct line *line = &lines[dice_below(&dice, MOST_BATCHES)];
        if (!line->batch) {
            begin(&dice, line);
        } else if (dice_chance(&dice, 15)) {
            engine_batch_destroy(line->batch);
            line->batch = NULL;
        } else {
            advance(&dice, line);
        }
        expect_crowds();
    }
    for (uint32_t i = 0; i < MOST_BATCHES; i++) {
        engine_batch_destroy(lines[i].batch);
        lines[i].batch = NULL;
    }
    close_world();
}
END_TEST

// ---- waves that repeat ----

enum { MOST_WAVES = 5, MOST_IN_WAVE = 4, MOST_RUNS = MOST_WAVES * MOST_IN_WAVE, NUM_STEPS = 400 };

// Some waves of runs: each wave is either drawn, or the one before in other layers.
struct steps {
    struct engine_run runs[MOST_RUNS];
    uint32_t ends[MOST_WAVES], num_waves;
};

static struct engine_run draw_run(struct dice *dice)
{
    struct line *line = &lines[dice_below(dice, MOST_BATCHES)];
    struct engine_run run = run_of(line->batch);
    run.layer = dice_below(dice, 3);
    run.soft_cap = dice_chance(dice, 20) ? 8 : 0;
    run.num_splits = dice_chance(dice, 20) ? 1 : 4;
    return run;
}

static void draw_wave(struct dice *dice, struct steps *steps)
{
    const uint32_t wave = steps->num_waves++, begin = wave ? steps->ends[wave - 1] : 0,
                   before = wave > 1 ? steps->ends[wave - 2] : 0;
    const bool repeats = wave && dice_chance(dice, 70);
    const uint32_t count = repeats ? begin - before : dice_between(dice, 1, MOST_IN_WAVE);
    for (uint32_t i = 0; i < count; i++) {
        struct engine_run *run = &steps->runs[begin + i];
        *run = repeats ? steps->runs[before + i] : draw_run(dice);
        if (!repeats)
            continue;
        run->layer += dice_chance(dice, 95) ? 1 : 2;
        run->out.offset += 1 << 10;
    }
    steps->ends[wave] = begin + count;
}

static struct submission *planned_of(const struct engine_run *runs, const uint32_t *ends,
                                     uint32_t num_waves)
{
    const struct engine_submission params = {
        .runs = runs, .num_runs = ends[num_waves - 1], .wave_ends = ends, .num_waves = num_waves};
    struct submission *s = submission_create(engine, &params);
    ck_assert_ptr_nonnull(s);
    s->slot = &engine->slots[0]; // nothing is submitted
    plan_build(s);
    return s;
}

static void expect_same_group(const struct group *group, const struct group *alone,
                              uint32_t first_group, uint32_t first_run)
{
    ck_assert_uint_eq(group->kind, alone->kind);
    ck_assert_mem_eq(&group->geometry, &alone->geometry, sizeof group->geometry);
    ck_assert(group->read == alone->read && group->write == alone->write &&
              group->merge == alone->merge && group->redo == alone->redo);
    ck_assert_uint_eq(group->num_runs, alone->num_runs);
    ck_assert_uint_eq(group->num_items, alone->num_items);
    ck_assert_uint_eq(group->num_tokens, alone->num_tokens);
    ck_assert_uint_eq(group->num_merges, alone->num_merges);
    ck_assert_uint_eq(group->num_tails, alone->num_tails);
    ck_assert_uint_eq(group->partial_bytes, alone->partial_bytes);
    ck_assert_uint_eq(group->run - first_run, alone->run);
    ck_assert_uint_eq(group->helps, alone->helps);
    ck_assert_uint_eq(group->helper ? group->helper - first_group : 0, alone->helper);
}

static void expect_same_run(const struct planned *planned, const struct planned *alone,
                            uint32_t first_group, uint32_t first_run)
{
    ck_assert_ptr_eq(planned->joint, alone->joint);
    if (planned->joint) {
        ck_assert_uint_eq(planned->number, alone->number);
        ck_assert_uint_eq(planned->leader - first_run, alone->leader);
        ck_assert_uint_eq(planned->next == NO_RUN ? NO_RUN : planned->next - first_run,
                          alone->next);
    }
    ck_assert_uint_eq(planned->num_shares, alone->num_shares);
    for (uint32_t i = 0; i < planned->num_shares; i++) {
        const struct share *share = &planned->shares[i], *other = &alone->shares[i];
        ck_assert_uint_eq(share->kernel, other->kernel);
        ck_assert_uint_eq(share->group - first_group, other->group);
        ck_assert_uint_eq(share->writes, other->writes);
        ck_assert_uint_eq(share->work.items, other->work.items);
        ck_assert_uint_eq(share->work.num_items, other->work.num_items);
    }
}

// Plans all waves together, and each of them alone.
static void expect_same_plans(const struct steps *steps)
{
    struct submission *all = planned_of(steps->runs, steps->ends, steps->num_waves);
    for (uint32_t wave = 0; wave < steps->num_waves; wave++) {
        const uint32_t begin = wave ? steps->ends[wave - 1] : 0, count = steps->ends[wave] - begin,
                       first = all->wave_groups[wave];
        struct submission *alone = planned_of(steps->runs + begin, &count, 1);
        ck_assert_uint_eq(all->wave_groups[wave + 1] - first, alone->num_groups);
        for (uint32_t i = 0; i < alone->num_groups; i++)
            expect_same_group(&all->groups[first + i], &alone->groups[i], first, begin);
        for (uint32_t i = 0; i < count; i++)
            expect_same_run(&all->planned[begin + i], &alone->planned[i], first, begin);
        submission_free(alone);
    }
    submission_free(all);
}

START_TEST(a_wave_in_any_submission_has_the_plan_that_it_has_alone)
{
    struct dice dice = {.state = 43};
    open_world();
    for (int i = 0; i < NUM_STEPS; i++) {
        struct steps steps = {.num_waves = 0};
        for (uint32_t j = 0; j < MOST_BATCHES; j++)
            if (!lines[j].batch)
                begin(&dice, &lines[j]);
            else if (dice_chance(&dice, 30))
                advance(&dice, &lines[j]);
        while (steps.num_waves < MOST_WAVES)
            draw_wave(&dice, &steps);
        expect_same_plans(&steps);
    }
    for (uint32_t i = 0; i < MOST_BATCHES; i++) {
        engine_batch_destroy(lines[i].batch);
        lines[i].batch = NULL;
    }
    close_world();
}
END_TEST

// ---- what it costs ----

static double thread_us(void)
{
    struct timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

// CPU time of planning the runs as one wave.
static double plan_us(const struct engine_run *runs, uint32_t count, bool apart)
{
    const struct engine_submission params = {
        .runs = runs, .num_runs = count, .wave_ends = &count, .num_waves = 1};
    struct submission *s = submission_create(engine, &params);
    ck_assert_ptr_ne(s, NULL);
    s->slot = &engine->slots[0]; // nothing is submitted
    s->apart = apart;
    double start = thread_us();
    plan_build(s);
    double took = thread_us() - start;
    submission_free(s);
    return took;
}

enum { ALL_SEQS = 4096, FEW_COLUMNS = 20 };

// `seqs` sequences with blocks from `first` on.
static struct engine_batch *alone(uint32_t seqs, int32_t first)
{
    static int32_t cu[ALL_SEQS + 1], lens[ALL_SEQS], table[ALL_SEQS * FEW_COLUMNS];
    for (uint32_t seq = 0; seq < seqs; seq++) {
        cu[seq + 1] = (int32_t)seq + 1;
        lens[seq] = FEW_COLUMNS * KEYS - 3;
        for (int32_t i = 0; i < FEW_COLUMNS; i++)
            table[seq * FEW_COLUMNS + (uint32_t)i] = first + (int32_t)seq * FEW_COLUMNS + i;
    }
    return open_batch((struct engine_batch_params){
        .cache = cache_,
        .num_seqs = seqs,
        .max_blocks = FEW_COLUMNS,
        .num_tokens = seqs,
        .cu_seqlens_q = cu,
        .seq_lens_kv = lens,
        .block_table = table,
    });
}

// The least CPU time of planning 4,096 sequences that share nothing, in `count` batches.
static void measure(uint32_t count, double *with, double *without)
{
    static struct engine_run runs[ALL_SEQS];
    uint32_t seqs = ALL_SEQS / count;
    *with = *without = INFINITY;
    for (uint32_t i = 0; i < count; i++)
        runs[i] = run_of(alone(seqs, (int32_t)(i * seqs * FEW_COLUMNS)));
    for (int i = 0; i < 20; i++) {
        *without = fmin(*without, plan_us(runs, count, true));
        *with = fmin(*with, plan_us(runs, count, false));
    }
    ck_assert_ptr_eq(engine->joints, NULL);
    for (uint32_t i = 0; i < count; i++)
        engine_batch_destroy(runs[i].batch);
}

// Prints what looking for company costs the planner; docs/performance.md has figures.
START_TEST(sequences_that_share_nothing_make_no_joint)
{
    static const uint32_t counts[] = {1, 8, 64, 512, 4096};
    open_world();
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        double with, without;
        measure(counts[i], &with, &without);
        printf("4096 sequences in %u runs: %.1f us, without looking %.1f us\n", counts[i], with,
               without);
    }
    close_world();
}
END_TEST

void add_company_tests(Suite *suite)
{
    TCase *tcase = tcase_create("company");
    tcase_set_tags(tcase, "kernels");
    tcase_add_test(tcase, sequences_of_batches_that_come_advance_and_go_are_found);
    tcase_add_test(tcase, a_wave_in_any_submission_has_the_plan_that_it_has_alone);
    tcase_add_test(tcase, sequences_that_share_nothing_make_no_joint);
    suite_add_tcase(suite, tcase);
}
