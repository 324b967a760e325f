// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_client_forms.c - the other forms of a step's metadata: the numbers that each becomes, and
// what each refuses. No daemon.

#include "aule/aule.h"
#include "rigs/check_main.h"
#include "rigs/client_expect.h"

#include <stdlib.h>
#include <string.h>

static void expect_ints(const char *name, const int32_t *got, const int32_t *wanted, size_t count)
{
    ck_assert_msg(got != NULL, "%s is NULL", name);
    for (size_t i = 0; i < count; i++)
        ck_assert_msg(got[i] == wanted[i], "%s[%zu] = %d instead of %d", name, i, got[i],
                      wanted[i]);
}

static void expect_zeroed(const struct aule_metadata *metadata)
{
    ck_assert_ptr_null(metadata->owned);
    ck_assert_ptr_null(metadata->params.cu_seqlens_q);
    ck_assert_uint_eq(metadata->params.num_seqs, 0);
}

// ---- varlen ----

START_TEST(the_varlen_example_of_three_sequences_becomes_lengths_and_starts)
{
    const int32_t cu_q[] = {0, 10, 13, 14}, cu_k[] = {0, 0, 1, 8};
    struct aule_metadata metadata;
    ok(aule_metadata_varlen(3, cu_q, cu_k, 10, 7, &metadata));
    const struct aule_batch_params *params = &metadata.params;
    ck_assert_uint_eq(params->num_seqs, 3);
    expect_ints("cu_seqlens_q", params->cu_seqlens_q, cu_q, 4);
    expect_ints("seq_lens_kv", params->seq_lens_kv, (const int32_t[]){0, 1, 7}, 3);
    expect_ints("kv_starts", params->kv_starts, (const int32_t[]){0, 0, 1}, 3);
    ck_assert_uint_eq(params->max_seqlen_q, 10);
    ck_assert_uint_eq(params->max_context_len, 7);
    ck_assert_ptr_null(params->block_table);
    ck_assert_ptr_null(params->slot_mapping);
    ck_assert_ptr_null(params->token_rows);
    aule_metadata_finish(&metadata);
    expect_zeroed(&metadata);
    aule_metadata_finish(&metadata);
    aule_metadata_finish(NULL);
}
END_TEST

START_TEST(varlen_keys_may_begin_anywhere_and_no_sequence_is_a_batch)
{
    const int32_t cu_q[] = {0, 1}, cu_k[] = {100, 105}, zero = 0;
    struct aule_metadata metadata;
    ok(aule_metadata_varlen(1, cu_q, cu_k, 0, 0, &metadata));
    ck_assert_int_eq(metadata.params.kv_starts[0], 100);
    ck_assert_int_eq(metadata.params.seq_lens_kv[0], 5);
    aule_metadata_finish(&metadata);
    ok(aule_metadata_varlen(0, &zero, &zero, 0, 0, &metadata));
    aule_metadata_finish(&metadata);
}
END_TEST

static const struct {
    int32_t cu_q[4], cu_k[4];
    uint32_t max_q, max_k;
    enum aule_status status;
    const char *words;
} varlen_cases[] = {
    {{1, 10, 13, 14}, {0, 0, 1, 8}, 0, 0, AULE_INVALID, "cu_seqlens_q[0] = 1 instead of 0"},
    {{0, 10, 9, 14},
     {0, 0, 1, 8},
     0,
     0,
     AULE_INVALID,
     "cu_seqlens_q[2] = 9 is less than the entry before it, 10"},
    {{0, 10, 13, 14}, {-1, 0, 1, 8}, 0, 0, AULE_INVALID, "cu_seqlens_k[0] = -1"},
    {{0, 10, 13, 14},
     {0, 0, 1, -8},
     0,
     0,
     AULE_INVALID,
     "cu_seqlens_k[3] = -8 is less than the entry before it, 1"},
    {{0, 10, 13, 14},
     {0, 0, 1, 8},
     9,
     7,
     AULE_OUT_OF_RANGE,
     "sequence 0 has 10 rows of cu_seqlens_q, more than max_seqlen_q = 9"},
    {{0, 10, 13, 14},
     {0, 0, 1, 8},
     10,
     6,
     AULE_OUT_OF_RANGE,
     "sequence 2 has 7 rows of cu_seqlens_k, more than max_seqlen_k = 6"},
    {{0, 10, INT32_MIN, 14}, {0, 0, 1, 8}, 0, 0, AULE_INVALID, "cu_seqlens_q[2] = -2147483648"},
};
enum { NUM_VARLEN_CASES = sizeof varlen_cases / sizeof *varlen_cases };

START_TEST(a_wrong_varlen_form_is_refused_with_its_values)
{
    struct aule_metadata metadata = {.params = {.num_seqs = 99}};
    expect(aule_metadata_varlen(3, varlen_cases[_i].cu_q, varlen_cases[_i].cu_k,
                                varlen_cases[_i].max_q, varlen_cases[_i].max_k, &metadata),
           varlen_cases[_i].status, varlen_cases[_i].words);
    expect_zeroed(&metadata);
}
END_TEST

// ---- append ----

static const int32_t decode_lens[] = {30, 32, 70};
static const int32_t decode_table[] = {2, -1, -1, -1, 0, 1, -1, -1, 3, 5, 6, -1};

START_TEST(the_decode_example_of_three_sequences_appends_in_place)
{
    struct aule_metadata metadata;
    ok(aule_metadata_append(3, decode_lens, decode_table, 4, 32, &metadata));
    const struct aule_batch_params *params = &metadata.params;
    const int64_t slots[] = {2 * 32 + 30, 1 * 32 + 0, 6 * 32 + 6};
    expect_ints("cu_seqlens_q", params->cu_seqlens_q, (const int32_t[]){0, 1, 2, 3}, 4);
    expect_ints("seq_lens_kv", params->seq_lens_kv, (const int32_t[]){31, 33, 71}, 3);
    for (int s = 0; s < 3; s++)
        ck_assert_int_eq(params->slot_mapping[s], slots[s]);
    ck_assert_ptr_eq(params->block_table, decode_table);
    ck_assert_uint_eq(params->max_blocks, 4);
    ck_assert_ptr_null(params->positions);
    ck_assert_ptr_null(params->token_rows);
    aule_metadata_finish(&metadata);
}
END_TEST

static const struct {
    int32_t len; // of the second of two sequences
    uint32_t block_size, max_blocks;
    enum aule_status status;
    const char *words;
} append_cases[] = {
    {64, 32, 2, AULE_OUT_OF_RANGE,
     "cache_seqlens[1] = 64: a new token needs column 2 of the block table, which has 2"},
    {INT32_MAX, 32, 2, AULE_OUT_OF_RANGE, "cache_seqlens[1] = 2147483647"},
    {32, 32, 2, AULE_OUT_OF_RANGE, "needs block_table[1][1] = -1, which is no block"},
    {-1, 32, 2, AULE_INVALID, "cache_seqlens[1] = -1"},
    {1, 0, 2, AULE_INVALID, "block_size = 0"},
    {1, 24, 2, AULE_INVALID, "block_size = 24"},
    {1, 512, 2, AULE_INVALID, "block_size = 512"},
    {0, 32, 0, AULE_OUT_OF_RANGE, "cache_seqlens[0] = 5: a new token needs column 0"},
};
enum { NUM_APPEND_CASES = sizeof append_cases / sizeof *append_cases };

START_TEST(a_wrong_append_is_refused_with_its_values)
{
    const int32_t lens[] = {5, append_cases[_i].len}, table[] = {7, 8, 9, -1};
    struct aule_metadata metadata;
    expect(aule_metadata_append(2, lens, table, append_cases[_i].max_blocks,
                                append_cases[_i].block_size, &metadata),
           append_cases[_i].status, append_cases[_i].words);
    expect_zeroed(&metadata);
}
END_TEST

START_TEST(an_append_of_more_tokens_than_can_be_counted_is_refused)
{
    struct aule_metadata metadata;
    expect(aule_metadata_append(UINT32_MAX, decode_lens, decode_table, 4, 32, &metadata),
           AULE_OUT_OF_RANGE, "num_seqs = 4294967295");
    expect(aule_metadata_append(3, NULL, decode_table, 4, 32, &metadata), AULE_INVALID,
           "cache_seqlens is NULL");
    expect(aule_metadata_append(3, decode_lens, NULL, 4, 32, &metadata), AULE_INVALID,
           "block_table is NULL");
    ok(aule_metadata_append(0, NULL, NULL, 0, 32, &metadata));
    ck_assert_int_eq(metadata.params.cu_seqlens_q[0], 0);
    aule_metadata_finish(&metadata);
}
END_TEST

// ---- flattened tokens ----

enum {
    PROMPT_A = 36,
    PROMPT_B = 37,
    PROMPT_C = 36,
    PROMPTS = PROMPT_A + PROMPT_B + PROMPT_C,
    COLUMNS = 2
};
static const int32_t prompt_lens[] = {PROMPT_A, PROMPT_B, PROMPT_C}, prompt_cu[] = {0, 36, 73, 109};
static const int32_t prompt_table[] = {0, 4, 1, 5, 2, 6};
static int32_t prompt_seqs[PROMPTS], prompt_positions[PROMPTS];
static int64_t prompt_slots[PROMPTS];

static void add_prompt_token(int at, int32_t s, int32_t i)
{
    prompt_seqs[at] = s;
    prompt_positions[at] = i;
    prompt_slots[at] = (int64_t)prompt_table[s * COLUMNS + i / 32] * 32 + i % 32;
}

static struct aule_token_form prompt_form(void)
{
    return (struct aule_token_form){.num_tokens = PROMPTS,
                                    .num_seqs = 3,
                                    .seq_ids = prompt_seqs,
                                    .positions = prompt_positions,
                                    .slot_mapping = prompt_slots,
                                    .block_table = prompt_table,
                                    .max_blocks = COLUMNS};
}

static void expect_prompts(const struct aule_batch_params *params)
{
    expect_ints("cu_seqlens_q", params->cu_seqlens_q, prompt_cu, 4);
    expect_ints("seq_lens_kv", params->seq_lens_kv, prompt_lens, 3);
    ck_assert_ptr_eq(params->slot_mapping, prompt_slots); // in rows, as given
    ck_assert_ptr_eq(params->block_table, prompt_table);
    ck_assert_ptr_null(params->positions);
    ck_assert_uint_eq(params->mask_size, 0);
}

START_TEST(prompts_of_36_37_and_36_tokens_one_after_the_other_are_a_plain_batch)
{
    struct aule_metadata metadata;
    struct aule_token_form form = prompt_form();
    for (int32_t s = 0; s < 3; s++)
        for (int32_t i = 0; i < prompt_lens[s]; i++)
            add_prompt_token(prompt_cu[s] + i, s, i);
    ok(aule_metadata_tokens(&form, &metadata));
    expect_prompts(&metadata.params);
    ck_assert_ptr_null(metadata.params.token_rows);
    aule_metadata_finish(&metadata);
}
END_TEST

START_TEST(interleaved_prompts_are_grouped_in_their_order)
{
    struct aule_metadata metadata;
    struct aule_token_form form = prompt_form();
    int at = 0;
    for (int32_t i = 0; i < PROMPT_B; i++)
        for (int32_t s = 2; s >= 0; s--)
            if (i < prompt_lens[s])
                add_prompt_token(at++, s, i);
    ck_assert_int_eq(at, PROMPTS);
    ok(aule_metadata_tokens(&form, &metadata));
    expect_prompts(&metadata.params);
    const int32_t *rows = metadata.params.token_rows;
    ck_assert_ptr_nonnull(rows);
    for (int32_t s = 0; s < 3; s++)
        for (int32_t i = 0; i < prompt_lens[s]; i++) {
            ck_assert_int_eq(prompt_seqs[rows[prompt_cu[s] + i]], s);
            ck_assert_int_eq(prompt_positions[rows[prompt_cu[s] + i]], i);
        }
    aule_metadata_finish(&metadata);
}
END_TEST

// The three scenarios that a scheduler makes a step of.
START_TEST(a_prefill_a_decode_and_a_mixed_step_become_the_metadata_of_the_lesson)
{
    enum { N = 19 };
    int32_t ids[N] = {0}, positions[N];
    const int32_t table[] = {3, 1, 4, 7}, decode_position = N + 2, cu_mixed[] = {0, 1, 6},
                  lens_mixed[] = {22, 13};
    struct aule_metadata metadata;
    for (int32_t i = 0; i < N; i++)
        positions[i] = i;
    struct aule_token_form form = {.num_tokens = N,
                                   .num_seqs = 1,
                                   .seq_ids = ids,
                                   .positions = positions,
                                   .block_table = table,
                                   .max_blocks = 2};
    ok(aule_metadata_tokens(&form, &metadata));
    expect_ints("cu_seqlens_q", metadata.params.cu_seqlens_q, (const int32_t[]){0, N}, 2);
    ck_assert_int_eq(metadata.params.seq_lens_kv[0], N);
    aule_metadata_finish(&metadata);

    form.num_tokens = 1;
    form.positions = &decode_position;
    ok(aule_metadata_tokens(&form, &metadata));
    expect_ints("cu_seqlens_q", metadata.params.cu_seqlens_q, (const int32_t[]){0, 1}, 2);
    ck_assert_int_eq(metadata.params.seq_lens_kv[0], N + 3);
    ck_assert_ptr_null(metadata.params.positions);
    aule_metadata_finish(&metadata);

    const int32_t mixed_ids[] = {0, 1, 1, 1, 1, 1}, mixed_positions[] = {21, 8, 9, 10, 11, 12};
    form = (struct aule_token_form){.num_tokens = 6,
                                    .num_seqs = 2,
                                    .seq_ids = mixed_ids,
                                    .positions = mixed_positions,
                                    .block_table = table,
                                    .max_blocks = 2};
    ok(aule_metadata_tokens(&form, &metadata));
    expect_ints("cu_seqlens_q", metadata.params.cu_seqlens_q, cu_mixed, 3);
    expect_ints("seq_lens_kv", metadata.params.seq_lens_kv, lens_mixed, 2);
    ck_assert_ptr_null(metadata.params.positions);
    ck_assert_ptr_null(metadata.params.token_rows);
    ck_assert_ptr_null(metadata.params.slot_mapping);
    aule_metadata_finish(&metadata);
}
END_TEST

START_TEST(a_sequence_without_a_token_is_padding)
{
    const int32_t ids[] = {3, 1}, positions[] = {5, 0}, lens[] = {9, 1, 0, 6}, table[4] = {0};
    struct aule_metadata metadata;
    struct aule_token_form form = {.num_tokens = 2,
                                   .num_seqs = 4,
                                   .seq_ids = ids,
                                   .positions = positions,
                                   .block_table = table,
                                   .max_blocks = 1};
    ok(aule_metadata_tokens(&form, &metadata));
    expect_ints("cu_seqlens_q", metadata.params.cu_seqlens_q, (const int32_t[]){0, 0, 1, 1, 2}, 5);
    expect_ints("seq_lens_kv", metadata.params.seq_lens_kv, (const int32_t[]){0, 1, 0, 6}, 4);
    expect_ints("token_rows", metadata.params.token_rows, (const int32_t[]){1, 0}, 2);
    aule_metadata_finish(&metadata);
    form.seq_lens_kv = lens;
    ok(aule_metadata_tokens(&form, &metadata));
    expect_ints("seq_lens_kv", metadata.params.seq_lens_kv, lens, 4);
    ck_assert_ptr_null(metadata.params.positions);
    aule_metadata_finish(&metadata);
    form = (struct aule_token_form){.num_seqs = 0};
    ok(aule_metadata_tokens(&form, &metadata));
    ck_assert_int_eq(metadata.params.cu_seqlens_q[0], 0);
    aule_metadata_finish(&metadata);
}
END_TEST

// A chunk from the middle of what its sequence has already.
START_TEST(positions_go_along_where_they_are_not_the_last_ones)
{
    const int32_t ids[] = {0, 0, 0}, positions[] = {4, 5, 6}, len = 20, table = 0;
    struct aule_metadata metadata;
    const struct aule_token_form form = {.num_tokens = 3,
                                         .num_seqs = 1,
                                         .seq_ids = ids,
                                         .positions = positions,
                                         .block_table = &table,
                                         .max_blocks = 1,
                                         .seq_lens_kv = &len};
    ok(aule_metadata_tokens(&form, &metadata));
    ck_assert_ptr_eq(metadata.params.positions, positions);
    ck_assert_uint_eq(metadata.params.mask_size, 0);
    aule_metadata_finish(&metadata);
}
END_TEST

// A tree of drafts: two tokens at one depth, and a branch that ended.
START_TEST(repeated_positions_ask_for_a_mask_of_their_size)
{
    const int32_t ids[] = {0, 1, 0, 0, 0, 1}, positions[] = {10, 3, 11, 11, 12, 4},
                  lens[] = {15, 5}, table[4] = {0};
    struct aule_metadata metadata;
    struct aule_token_form form = {.num_tokens = 6,
                                   .num_seqs = 2,
                                   .seq_ids = ids,
                                   .positions = positions,
                                   .block_table = table,
                                   .max_blocks = 2,
                                   .seq_lens_kv = lens,
                                   .repeats = true};
    ok(aule_metadata_tokens(&form, &metadata));
    ck_assert_ptr_eq(metadata.params.positions, positions);
    expect_ints("token_rows", metadata.params.token_rows, (const int32_t[]){0, 2, 3, 4, 1, 5}, 6);
    ck_assert_uint_eq(metadata.params.mask_size, (4 * 15 + 7) / 8 + (2 * 5 + 7) / 8);
    ck_assert_ptr_null(metadata.params.mask);
    aule_metadata_finish(&metadata);
    form.repeats = false;
    expect(
        aule_metadata_tokens(&form, &metadata), AULE_INVALID,
        "positions[3] = 11 of sequence 0 repeats the one before it; set `repeats` to allow that");
    form.repeats = true;
    form.seq_lens_kv = NULL;
    expect(aule_metadata_tokens(&form, &metadata), AULE_INVALID,
           "seq_lens_kv is NULL, but num_seqs is 2");
}
END_TEST

static const struct {
    int32_t ids[3], positions[3], lens[2];
    bool with_lens, repeats;
    enum aule_status status;
    const char *words;
} token_cases[] = {
    {{0, 2, 0},
     {0, 0, 1},
     {0},
     false,
     false,
     AULE_OUT_OF_RANGE,
     "seq_ids[1] = 2 is not from 0 to num_seqs 2 - 1"},
    {{0, -1, 0}, {0, 0, 1}, {0}, false, false, AULE_OUT_OF_RANGE, "seq_ids[1] = -1"},
    {{0, 1, 0}, {0, -7, 1}, {0}, false, false, AULE_INVALID, "positions[1] = -7"},
    {{0, 1, 0},
     {4, 9, 6},
     {0},
     false,
     false,
     AULE_INVALID,
     "positions[2] = 6 of sequence 0 leaves a gap: its previous token stands at 4"},
    {{0, 1, 0},
     {4, 9, 6},
     {9, 10},
     true,
     true,
     AULE_INVALID,
     "positions[2] = 6 of sequence 0 leaves a gap"},
    {{0, 1, 0}, {4, 9, 3}, {0}, false, false, AULE_INVALID, "positions[2] = 3 of sequence 0 falls"},
    {{0, 1, 0},
     {4, 9, 3},
     {9, 9},
     true,
     true,
     AULE_INVALID,
     "positions[2] = 3 of sequence 0 falls"},
    {{0, 1, 0},
     {4, INT32_MAX, 5},
     {0},
     false,
     false,
     AULE_OUT_OF_RANGE,
     "positions[1] = 2147483647"},
    {{0, 1, 1},
     {4, INT32_MAX, INT32_MAX},
     {9, 9},
     true,
     false,
     AULE_INVALID,
     "repeats the one before"},
    {{0, 1, 0},
     {4, 9, 5},
     {6, 9},
     true,
     false,
     AULE_OUT_OF_RANGE,
     "seq_lens_kv[1] = 9, but a token of it stands at position 9"},
    {{0, 1, 0}, {4, 9, 5}, {-6, 9}, true, true, AULE_INVALID, "seq_lens_kv[0] = -6"},
};
enum { NUM_TOKEN_CASES = sizeof token_cases / sizeof *token_cases };

START_TEST(wrong_tokens_are_refused_with_their_values)
{
    const int32_t table[2] = {0};
    struct aule_metadata metadata;
    const struct aule_token_form form = {
        .num_tokens = 3,
        .num_seqs = 2,
        .seq_ids = token_cases[_i].ids,
        .positions = token_cases[_i].positions,
        .block_table = table,
        .max_blocks = 1,
        .seq_lens_kv = token_cases[_i].with_lens ? token_cases[_i].lens : NULL,
        .repeats = token_cases[_i].repeats};
    expect(aule_metadata_tokens(&form, &metadata), token_cases[_i].status, token_cases[_i].words);
    expect_zeroed(&metadata);
}
END_TEST

START_TEST(a_token_form_without_its_arrays_is_refused)
{
    const int32_t zero = 0;
    struct aule_metadata metadata;
    struct aule_token_form form = {
        .num_tokens = 1, .num_seqs = 1, .positions = &zero, .block_table = &zero};
    expect(aule_metadata_tokens(&form, &metadata), AULE_INVALID, "seq_ids is NULL");
    form.seq_ids = &zero;
    form.positions = NULL;
    expect(aule_metadata_tokens(&form, &metadata), AULE_INVALID, "positions is NULL");
    form.positions = &zero;
    form.block_table = NULL;
    form.max_blocks = 3;
    expect(aule_metadata_tokens(&form, &metadata), AULE_INVALID,
           "block_table is NULL, but its shape is [1, 3]");
    form.num_tokens = UINT32_MAX;
    expect(aule_metadata_tokens(&form, &metadata), AULE_OUT_OF_RANGE, "num_tokens = 4294967295");
    expect(aule_metadata_tokens(NULL, &metadata), AULE_INVALID, "form is NULL");
}
END_TEST

// Each token is in the order once, and tokens of a sequence keep their order.
START_TEST(random_interleavings_are_grouped_stably)
{
    enum { TOKENS = 200, SEQS = 9 };
    int32_t ids[TOKENS], positions[TOKENS], next[SEQS], table[SEQS] = {0};
    srand(3);
    for (int round = 0; round < 300; round++) {
        struct aule_metadata metadata;
        bool seen[TOKENS] = {false};
        for (int s = 0; s < SEQS; s++)
            next[s] = rand() % 50;
        for (int t = 0; t < TOKENS; t++) {
            ids[t] = rand() % SEQS;
            positions[t] = next[ids[t]]++;
        }
        const struct aule_token_form form = {.num_tokens = TOKENS,
                                             .num_seqs = SEQS,
                                             .seq_ids = ids,
                                             .positions = positions,
                                             .block_table = table,
                                             .max_blocks = 1};
        ok(aule_metadata_tokens(&form, &metadata));
        const struct aule_batch_params *params = &metadata.params;
        ck_assert_int_eq(params->cu_seqlens_q[SEQS], TOKENS);
        ck_assert_ptr_null(params->positions);
        for (int s = 0; s < SEQS; s++)
            for (int t = params->cu_seqlens_q[s]; t < params->cu_seqlens_q[s + 1]; t++) {
                int row = params->token_rows[t];
                ck_assert(!seen[row]);
                seen[row] = true;
                ck_assert_int_eq(ids[row], s);
                ck_assert_int_eq(positions[row], next[s] - (params->cu_seqlens_q[s + 1] - t));
            }
        aule_metadata_finish(&metadata);
    }
}
END_TEST

struct entry {
    const TTest *test;
    int count; // of a loop test; 0 = once
};

static void add(Suite *suite, const char *name, const struct entry *entries)
{
    TCase *group = tcase_create(name);
    for (; entries->test; entries++)
        tcase_add_loop_test(group, entries->test, 0, entries->count ? entries->count : 1);
    suite_add_tcase(suite, group);
}

int main(void)
{
    Suite *suite = suite_create("client_forms");
    add(suite, "varlen",
        (const struct entry[]){
            {the_varlen_example_of_three_sequences_becomes_lengths_and_starts, 0},
            {varlen_keys_may_begin_anywhere_and_no_sequence_is_a_batch, 0},
            {a_wrong_varlen_form_is_refused_with_its_values, NUM_VARLEN_CASES},
            {NULL, 0}});
    add(suite, "append",
        (const struct entry[]){{the_decode_example_of_three_sequences_appends_in_place, 0},
                               {a_wrong_append_is_refused_with_its_values, NUM_APPEND_CASES},
                               {an_append_of_more_tokens_than_can_be_counted_is_refused, 0},
                               {NULL, 0}});
    add(suite, "tokens",
        (const struct entry[]){
            {prompts_of_36_37_and_36_tokens_one_after_the_other_are_a_plain_batch, 0},
            {interleaved_prompts_are_grouped_in_their_order, 0},
            {a_prefill_a_decode_and_a_mixed_step_become_the_metadata_of_the_lesson, 0},
            {a_sequence_without_a_token_is_padding, 0},
            {positions_go_along_where_they_are_not_the_last_ones, 0},
            {repeated_positions_ask_for_a_mask_of_their_size, 0},
            {wrong_tokens_are_refused_with_their_values, NUM_TOKEN_CASES},
            {a_token_form_without_its_arrays_is_refused, 0},
            {random_interleavings_are_grouped_stably, 0},
            {NULL, 0}});
    return check_main(suite);
}
