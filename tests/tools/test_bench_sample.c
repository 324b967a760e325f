// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_bench_sample.c - which rows aule-bench checks if it cannot check all, and what it reports
// about a wrong row.

#include "rigs/check_main.h"
#include "tools/bench/check.h"
#include "tools/bench/sample.h"
#include "tools/bench/wrong.h"

#include <stdlib.h>

// A shape with a draw of `count`, and how often each (token, KV head) is in it.
struct drawn {
    struct selection selection;
    struct shape shape;
    uint32_t count, *pairs, *times;
};

static void draw(struct drawn *d, const char *name, uint32_t count)
{
    *d = (struct drawn){.count = count};
    ck_assert(selection_add(&d->selection, name));
    const struct workload *w = d->selection.list;
    ck_assert(shape_init(&d->shape, w, 0, workload_num_seqs(w)));
    d->pairs = calloc(count, sizeof *d->pairs);
    d->times = calloc((size_t)d->shape.num_tokens * w->num_kv_heads, sizeof *d->times);
    ck_assert(d->pairs && d->times && sample_draw(&d->shape, count, d->pairs));
    for (uint32_t i = 0; i < count; i++) {
        ck_assert_uint_lt(d->pairs[i], d->shape.num_tokens * w->num_kv_heads);
        d->times[d->pairs[i]]++;
    }
}

static void release(struct drawn *d)
{
    shape_finish(&d->shape);
    selection_finish(&d->selection);
    free(d->pairs);
    free(d->times);
}

static bool has_token(const struct drawn *d, uint32_t token)
{
    uint32_t heads = d->selection.list->num_kv_heads, times = 0;
    for (uint32_t head = 0; head < heads; head++)
        times += d->times[token * heads + head];
    return times > 0;
}

static const struct {
    const char *name;
    uint32_t count;
} draws[] = {
    {"D4", 128}, {"D1", 256},         {"D5", 64},
    {"P1", 256}, {"P2", 256},         {"P3", 256},
    {"M1", 256}, {"decode:1x100", 3}, {"decode:300x100", 256},
};
enum { NUM_DRAWS = sizeof draws / sizeof *draws };

START_TEST(a_wrong_row_is_noted_as_such)
{
    struct drawn d;
    draw(&d, "decode:1x16", 1);
    const struct workload *w = d.selection.list;
    uint16_t *zeros = calloc((size_t)w->num_heads * w->head_dim, sizeof *zeros);
    ck_assert_ptr_nonnull(zeros);
    const struct check check = {
        .shape = &d.shape, .dtype = DTYPE_F16, .kv_dtype = DTYPE_F16, .out = zeros};
    struct verdict verdict;
    ck_assert(!wrong_noted());
    ck_assert(!check_rows(&check, &verdict));
    ck_assert(wrong_noted());
    free(zeros);
    release(&d);
}
END_TEST

START_TEST(no_row_is_drawn_twice)
{
    struct drawn d;
    draw(&d, draws[_i].name, draws[_i].count);
    for (uint32_t i = 0; i < d.count; i++)
        ck_assert_uint_eq(d.times[d.pairs[i]], 1);
    release(&d);
}
END_TEST

START_TEST(each_sequence_is_drawn_from_at_its_end)
{
    struct drawn d;
    draw(&d, draws[_i].name, draws[_i].count);
    uint32_t ends = 0;
    for (uint32_t s = 0; s < d.shape.num_seqs; s++)
        ends += has_token(&d, (uint32_t)d.shape.cu_seqlens_q[s + 1] - 1);
    ck_assert_uint_eq(ends, d.shape.num_seqs < d.count ? d.shape.num_seqs : d.count);
    release(&d);
}
END_TEST

START_TEST(each_kv_head_is_drawn)
{
    struct drawn d;
    draw(&d, "D4", 128);
    for (uint32_t head = 0; head < 8; head++) {
        uint32_t times = 0;
        for (uint32_t token = 0; token < d.shape.num_tokens; token++)
            times += d.times[token * 8 + head];
        ck_assert_uint_gt(times, 0);
    }
    release(&d);
}
END_TEST

// The first token of all, both sides of a border of each size, and most places within a tile of 64.
START_TEST(a_prefill_is_drawn_from_all_over_its_tiles)
{
    struct drawn d;
    uint32_t sides[4] = {0}, places = 0;
    bool within[64] = {false};
    draw(&d, "P1", 256);
    ck_assert(has_token(&d, 0));
    for (uint32_t token = 1; token < d.shape.num_tokens; token++) {
        if (!has_token(&d, token))
            continue;
        within[token % 64] = true;
        for (int b = 0; b < 4; b++)
            sides[b] += token % (16u << b) == 0 && has_token(&d, token - 1);
    }
    for (int i = 0; i < 64; i++)
        places += within[i];
    for (int b = 0; b < 4; b++)
        ck_assert_uint_gt(sides[b], 0);
    ck_assert_uint_gt(places, 48);
    release(&d);
}
END_TEST

static Suite *suite(void)
{
    Suite *suite = suite_create("bench_sample");
    TCase *rows = tcase_create("rows");
    suite_add_tcase(suite, rows);
    tcase_add_test(rows, a_wrong_row_is_noted_as_such);
    tcase_add_loop_test(rows, no_row_is_drawn_twice, 0, NUM_DRAWS);
    tcase_add_loop_test(rows, each_sequence_is_drawn_from_at_its_end, 0, NUM_DRAWS);
    tcase_add_test(rows, each_kv_head_is_drawn);
    tcase_add_test(rows, a_prefill_is_drawn_from_all_over_its_tiles);
    return suite;
}

int main(void)
{
    return check_main(suite());
}
