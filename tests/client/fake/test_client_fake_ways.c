// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_client_fake_ways.c - which of its two paths contiguous attention takes, what it does if
// there is no room for the paged path, and which calls it refuses before either. Each test is a
// process with a fake daemon in it.

#include "attention/attention_journal.h"

// ---- which path ----

static const struct {
    uint32_t threshold, kv_len;
    int32_t longest; // 0 = kv_len
    enum aule_path asked, taken;
} path_cases[] = {
    {0, 2048, 0, AULE_PATH_AUTO, AULE_PATH_CONTIGUOUS},
    {0, 2049, 0, AULE_PATH_AUTO, AULE_PATH_PAGED},
    {0, 4096, 2048, AULE_PATH_AUTO, AULE_PATH_CONTIGUOUS},
    {16, 16, 0, AULE_PATH_AUTO, AULE_PATH_CONTIGUOUS},
    {16, 17, 0, AULE_PATH_AUTO, AULE_PATH_PAGED},
    {UINT32_MAX, 4096, 0, AULE_PATH_AUTO, AULE_PATH_CONTIGUOUS},
    {0, 4096, 0, AULE_PATH_CONTIGUOUS, AULE_PATH_CONTIGUOUS},
    {0, 1, 0, AULE_PATH_PAGED, AULE_PATH_PAGED},
};
enum { NUM_PATH_CASES = sizeof path_cases / sizeof *path_cases };

START_TEST(the_longest_kv_length_decides_unless_a_way_is_forced)
{
    struct aule_session *session = NULL;
    const struct aule_session_params open = {.socket = path,
                                             .paged_threshold = path_cases[_i].threshold};
    struct aule_attention_params params = attention(path_cases[_i].asked);
    struct aule_ticket ticket;
    int32_t longest = path_cases[_i].longest;
    fake_start(&fake, path, NULL, NULL);
    ok(aule_session_open(&open, &session));
    params.num_seqs = 1;
    params.kv_len = path_cases[_i].kv_len;
    params.kv_lens = longest ? &longest : NULL;
    ok(aule_attention(session, &params, 0, NULL, &ticket));
    ck_assert_int_eq(ticket.path, path_cases[_i].taken);
    ck_assert_int_eq(ticket.fallback, AULE_OK);
    aule_session_close(session);
}
END_TEST

static const struct {
    unsigned at;
    enum status status;
    const char *words, *forced;
} full_cases[] = {
    {1, STATUS_LIMIT, "open local attend end ", "open "},
    {1, STATUS_NO_MEMORY, "open local attend end ", "open "},
    {2, STATUS_NO_BLOCKS, "open lease:4 local attend end ", "open lease:4 "},
    {2, STATUS_QUOTA, "open lease:4 local attend end ", "open lease:4 "},
    {2, STATUS_LIMIT, "open lease:4 local attend end ", "open lease:4 "},
    {3, STATUS_LIMIT, "open lease:4 import release:4 local attend end ",
     "open lease:4 import release:4 "},
    {3, STATUS_NO_MEMORY, "open lease:4 import release:4 local attend end ",
     "open lease:4 import release:4 "},
    {4, STATUS_LIMIT, "open lease:4 import write end release:4 local attend end ",
     "open lease:4 import write end release:4 "},
};
enum { NUM_FULL_CASES = sizeof full_cases / sizeof *full_cases };

START_TEST(without_blocks_the_automatic_way_is_contiguous_and_says_so_and_the_forced_one_fails)
{
    struct journal journal = {.fail_at = full_cases[_i].at, .fail_with = full_cases[_i].status};
    struct aule_session *session = open_journal(&journal, 16);
    struct aule_attention_params params = attention(AULE_PATH_AUTO);
    struct aule_ticket ticket;
    ok(aule_attention_submit(session, &params, 0, &ticket));
    expect_words(&journal, full_cases[_i].words);
    ck_assert_int_eq(ticket.path, AULE_PATH_CONTIGUOUS);
    ck_assert_int_eq((int)ticket.fallback, (int)full_cases[_i].status);
    aule_session_close(session);
    fake_stop(&fake);

    journal = (struct journal){.fail_at = full_cases[_i].at, .fail_with = full_cases[_i].status};
    session = open_journal(&journal, 16);
    params.path = AULE_PATH_PAGED;
    ticket.id = 4711;
    expect(aule_attention_submit(session, &params, 0, &ticket),
           (enum aule_status)full_cases[_i].status, "as the test wants it");
    ck_assert_uint_eq(ticket.id, 4711);
    expect_words(&journal, full_cases[_i].forced);
    expect_empty_arena(session);
    aule_session_close(session);
}
END_TEST

// The slots of this many keys take 4 MiB. No message can hold them, so they must go through the
// arena.
START_TEST(an_arena_without_room_for_the_slots_makes_the_automatic_way_contiguous)
{
    struct journal journal = {.commands = 0};
    struct aule_session *session = open_journal(&journal, 16);
    struct aule_attention_params params = attention(AULE_PATH_AUTO);
    struct aule_ticket ticket;
    struct aule_session_info info;
    void *all;
    ok(aule_session_info(session, &info));
    ok(aule_arena_alloc(session, info.arena_size, &all, NULL));
    params.kv_len = 4096 * 64;
    params.kv_lens = NULL;
    ok(aule_attention_submit(session, &params, 0, &ticket));
    expect_words(&journal, "open lease:16384 release:16384 local attend end ");
    ck_assert_int_eq(ticket.path, AULE_PATH_CONTIGUOUS);
    ck_assert_int_eq(ticket.fallback, AULE_NO_MEMORY);
    params.path = AULE_PATH_PAGED;
    expect(aule_attention_submit(session, &params, 0, &ticket), AULE_NO_MEMORY, "arena");
    aule_arena_free(session, all);
    aule_session_close(session);
}
END_TEST

START_TEST(a_lease_larger_than_a_message_is_no_lease)
{
    static int32_t len = INT32_MAX;
    struct journal journal = {.commands = 0};
    struct aule_session *session = open_journal(&journal, 0);
    struct aule_attention_params params = attention(AULE_PATH_AUTO);
    struct aule_ticket ticket;
    params.num_seqs = 1;
    params.kv_len = INT32_MAX;
    params.kv_lens = &len;
    ok(aule_attention_submit(session, &params, 0, &ticket));
    expect_words(&journal, "open local attend end ");
    ck_assert_int_eq(ticket.fallback, AULE_LIMIT);
    aule_session_close(session);
}
END_TEST

// ---- refused calls ----

static void seqs_beyond(struct aule_attention_params *params)
{
    params->num_seqs = 1u << 31;
    params->q_len = 0;
    params->kv_lens = NULL;
}

static void rows_beyond(struct aule_attention_params *params)
{
    params->q_len = 1u << 30;
}

static void longer_keys(struct aule_attention_params *params)
{
    params->kv_len = 39;
}

static void longer_queries(struct aule_attention_params *params)
{
    static const int32_t q_lens[] = {3, 4};
    params->q_lens = q_lens;
}

static void no_way(struct aule_attention_params *params)
{
    params->path = (enum aule_path)3;
}

static void no_mask(struct aule_attention_params *params)
{
    params->mask_size = 5;
}

static void empty_mask(struct aule_attention_params *params)
{
    params->mask = params;
}

static void other_k(struct aule_attention_params *params)
{
    params->run.k.dtype = AULE_F32;
}

static void eight_bits(struct aule_attention_params *params)
{
    params->run.q.dtype = params->run.k.dtype = params->run.v.dtype = params->run.out.dtype =
        AULE_FP8_E4M3;
}

static void no_type(struct aule_attention_params *params)
{
    params->run.q.dtype = params->run.k.dtype = params->run.v.dtype = params->run.out.dtype =
        (enum aule_dtype)77;
}

static void other_out(struct aule_attention_params *params)
{
    params->run.out.dtype = AULE_BF16;
}

static const struct {
    void (*change)(struct aule_attention_params *params);
    enum aule_status status;
    const char *words;
} refused_cases[] = {
    {seqs_beyond, AULE_OUT_OF_RANGE, "2147483648 sequences of kv_len = 40"},
    {rows_beyond, AULE_OUT_OF_RANGE, "2 sequences of q_len = 1073741824"},
    {longer_keys, AULE_OUT_OF_RANGE, "kv_lens[0] = 40 is not from 0 to kv_len 39"},
    {longer_queries, AULE_OUT_OF_RANGE, "q_lens[1] = 4 is not from 0 to q_len 3"},
    {no_way, AULE_INVALID, "path = 3"},
    {no_mask, AULE_INVALID, "mask is NULL, but mask_size 5"},
    {empty_mask, AULE_INVALID,
     "mask is given with mask_size 0, but sequence 0 has queries and keys"},
    {eight_bits, AULE_UNSUPPORTED, "q is fp8_e4m3; it may be f32, f16 or bf16"},
    {no_type, AULE_INVALID, "q has the unknown dtype 77"},
    {other_k, AULE_MISMATCH, "k is f32, but q is f16"},
    {other_out, AULE_MISMATCH, "out is bf16, but q is f16"},
};
enum { NUM_REFUSED_CASES = sizeof refused_cases / sizeof *refused_cases };

START_TEST(impossible_arguments_are_refused_before_the_daemon_is_asked)
{
    struct journal journal = {.commands = 0};
    struct aule_session *session = open_journal(&journal, 0);
    struct aule_attention_params params = attention(AULE_PATH_AUTO);
    refused_cases[_i].change(&params);
    expect(aule_attention(session, &params, 0, NULL, NULL), refused_cases[_i].status,
           refused_cases[_i].words);
    expect_words(&journal, "");
    aule_session_close(session);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client_fake_ways");
    add(suite, "which way",
        (const struct entry[]){
            {the_longest_kv_length_decides_unless_a_way_is_forced, NUM_PATH_CASES},
            {without_blocks_the_automatic_way_is_contiguous_and_says_so_and_the_forced_one_fails,
             NUM_FULL_CASES},
            {an_arena_without_room_for_the_slots_makes_the_automatic_way_contiguous, 0},
            {a_lease_larger_than_a_message_is_no_lease, 0},
            {NULL, 0},
        });
    add(suite, "refused",
        (const struct entry[]){
            {impossible_arguments_are_refused_before_the_daemon_is_asked, NUM_REFUSED_CASES},
            {NULL, 0},
        });
    return check_main(suite);
}
