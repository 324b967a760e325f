// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_client_fake_attention.c - which commands contiguous attention sends, in which order and with what in them, by either way; that it
// gives everything back, whichever of them fails; and the tickets of a call that is two runs. Each test is a process of its own with
// a fake daemon in it.

#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "client_world.h"

enum { SEQS = 2, Q_LEN = 3, KV_LEN = 40, HEADS = 4, KV_HEADS = 2, DIM = 16, DIM_V = 32, NUM_BLOCKS = 4, BLOCK = 32 };
static const int32_t kv_lens[SEQS] = {40, 33};

// What the fake was asked, one word each, and the last ones of three kinds.
struct journal {
    char words[2000];
    unsigned commands;
    unsigned fail_at; // the command, counted from 1, that fails; 0 = none
    enum status fail_with;
    bool for_good; // and all after it
    bool full;     // a run that attends finds the session full until a ticket is waited for
    struct wire_batch_create import, attend;
    int32_t cu[SEQS + 1], lens[SEQS], q_lens[SEQS], starts[SEQS], table[SEQS * 2], import_cu[SEQS + 1];
    int64_t slots[SEQS * KV_LEN];
    struct wire_run write, run;
    char cache[128];
    struct wire_cache_open identity;
};

static void note(struct journal *journal, const char *word, int64_t number)
{
    size_t used = strlen(journal->words);
    if (number >= 0)
        snprintf(journal->words + used, sizeof journal->words - used, "%s:%lld ", word, (long long)number);
    else
        snprintf(journal->words + used, sizeof journal->words - used, "%s ", word);
}

static void keep_ints(int32_t *to, const struct wire_ints *from, uint32_t room)
{
    ck_assert_uint_le(from->count, room);
    if (from->count > 0)
        memcpy(to, from->data, from->count * sizeof *to);
}

static void note_batch(struct journal *journal, const struct wire_batch_create *batch)
{
    bool import = batch->num_seqs > 0 && batch->seq_lens_kv.count == 0;
    note(journal, batch->has_layout ? "local" : import ? "import" : "batch", -1);
    if (import) {
        journal->import = *batch;
        keep_ints(journal->import_cu, &batch->cu_seqlens_q, SEQS + 1);
        ck_assert_uint_le(batch->slot_mapping.count, SEQS * KV_LEN);
        memcpy(journal->slots, batch->slot_mapping.data, batch->slot_mapping.count * sizeof *journal->slots);
        return;
    }
    journal->attend = *batch;
    keep_ints(journal->cu, &batch->cu_seqlens_q, SEQS + 1);
    keep_ints(journal->lens, &batch->seq_lens_kv, SEQS);
    keep_ints(journal->q_lens, &batch->q_lens, SEQS);
    keep_ints(journal->starts, &batch->kv_starts, SEQS);
    keep_ints(journal->table, &batch->block_table, SEQS * 2);
}

static void note_run(struct journal *journal, const struct wire_run *run)
{
    static const char *const kinds[] = {"attend", "write", "gather"};
    char word[16];
    snprintf(word, sizeof word, "%s%s", kinds[run->kind], run->flags & WIRE_RUN_DETACHED ? "!" : "");
    note(journal, word, -1);
    *(run->kind == WIRE_RUN_WRITE ? &journal->write : &journal->run) = *run;
}

static void note_request(struct journal *journal, const struct wire_request *request)
{
    switch (request->command) {
    case WIRE_COMMAND_CACHE_OPEN:
        note(journal, "open", -1);
        snprintf(journal->cache, sizeof journal->cache, "%s", request->cache_open.name);
        journal->identity = request->cache_open;
        break;
    case WIRE_COMMAND_CACHE_CLOSE: note(journal, "close", -1); break;
    case WIRE_COMMAND_BLOCKS_LEASE: note(journal, "lease", request->blocks_lease.count); break;
    case WIRE_COMMAND_BLOCKS_RELEASE: note(journal, "release", request->blocks_release.blocks.count); break;
    case WIRE_COMMAND_BATCH_CREATE: note_batch(journal, &request->batch_create); break;
    case WIRE_COMMAND_BATCH_DESTROY: note(journal, "end", -1); break;
    case WIRE_COMMAND_RUN: note_run(journal, &request->run); break;
    case WIRE_COMMAND_WAIT: note(journal, "wait", (int64_t)request->wait.ticket); break;
    default: break;
    }
}

static const char *message_of(const struct journal *journal)
{
    return journal->for_good && journal->commands > journal->fail_at ? "and another" : "as the test wants it";
}

static enum fake_action keep(struct fake_daemon *daemon, const struct wire_request *request, struct wire_reply *reply)
{
    struct journal *journal = daemon->context;
    enum status status = STATUS_OK;
    if (request->command == WIRE_COMMAND_HELLO || request->command == WIRE_COMMAND_MAPPED ||
        request->command == WIRE_COMMAND_CLOSE_SESSION)
        return FAKE_ANSWER;
    note_request(journal, request);
    journal->commands++;
    if (journal->commands == journal->fail_at || (journal->for_good && journal->commands > journal->fail_at))
        status = journal->fail_with;
    if (journal->full && request->command == WIRE_COMMAND_WAIT)
        journal->full = false;
    if (journal->full && request->command == WIRE_COMMAND_RUN && request->run.kind == WIRE_RUN_ATTEND)
        status = STATUS_BUSY;
    if (status != STATUS_OK)
        *reply = (struct wire_reply){.status = status, .message = message_of(journal), .answer = WIRE_ANSWER_EMPTY};
    return FAKE_ANSWER;
}

static void forget(struct journal *journal)
{
    *journal = (struct journal){.commands = 0};
}

static void expect_words(const struct journal *journal, const char *words)
{
    ck_assert_str_eq(journal->words, words);
}

// A tensor by hand: [SEQS, heads, len, dim], heads before tokens.
static struct aule_tensor tensor_at(uint64_t offset, uint32_t heads, uint32_t len, uint32_t dim)
{
    return (struct aule_tensor){.dtype = AULE_F16,
                                .offset = offset,
                                .token_stride = 2 * (uint64_t)dim,
                                .head_stride = 2 * (uint64_t)dim * len,
                                .outer_stride = 2 * (uint64_t)dim * len * heads};
}

static struct aule_attention_params attention(enum aule_path way)
{
    return (struct aule_attention_params){.num_seqs = SEQS,
                                          .q_len = Q_LEN,
                                          .kv_len = KV_LEN,
                                          .num_kv_heads = KV_HEADS,
                                          .head_dim = DIM,
                                          .head_dim_v = DIM_V,
                                          .kv_lens = kv_lens,
                                          .path = way,
                                          .run = {.layer = 3, // not used
                                                  .num_heads = HEADS,
                                                  .q = tensor_at(0, HEADS, Q_LEN, DIM),
                                                  .k = tensor_at(4096, KV_HEADS, KV_LEN, DIM),
                                                  .v = tensor_at(16384, KV_HEADS, KV_LEN, DIM_V),
                                                  .out = tensor_at(65536, HEADS, Q_LEN, DIM_V),
                                                  .causal = true,
                                                  .scale = 0.25f}};
}

static struct aule_session *open_journal(struct journal *journal, uint32_t threshold)
{
    struct aule_session *session = NULL;
    const struct aule_session_params params = {.socket = path, .paged_threshold = threshold};
    fake_start(&fake, path, keep, journal);
    ck_assert_int_eq(aule_session_open(&params, &session), AULE_OK);
    return session;
}

static void expect_tensor(const struct wire_tensor *seen, const struct aule_tensor *given)
{
    ck_assert_uint_eq(seen->dtype, given->dtype);
    ck_assert_uint_eq(seen->offset, given->offset);
    ck_assert_uint_eq(seen->token_stride, given->token_stride);
    ck_assert_uint_eq(seen->head_stride, given->head_stride);
    ck_assert_uint_eq(seen->outer_stride, given->outer_stride);
}

static void expect_numbers(const int32_t *seen, const int32_t *wanted, int count)
{
    for (int i = 0; i < count; i++)
        ck_assert_int_eq(seen[i], wanted[i]);
}

// ---- the contiguous way ----

START_TEST(the_contiguous_way_is_one_local_batch_and_one_run)
{
    static const int32_t q_lens[SEQS] = {3, 1};
    static const uint8_t mask[30];
    struct journal journal = {.commands = 0};
    struct aule_session *session = open_journal(&journal, 0);
    struct aule_attention_params params = attention(AULE_PATH_AUTO);
    struct aule_ticket ticket;
    params.q_lens = q_lens;
    params.mask = mask;
    params.mask_size = sizeof mask;
    ok(aule_attention_submit(session, &params, 17, &ticket));
    expect_words(&journal, "local attend end ");
    ck_assert_int_eq(ticket.path, AULE_PATH_CONTIGUOUS);
    ck_assert_int_eq(ticket.fallback, AULE_OK);
    ck_assert_uint_eq(ticket.before, 0);
    const struct wire_batch_create *batch = &journal.attend;
    ck_assert_uint_eq(batch->cache, 0);
    ck_assert_uint_eq(batch->layout.num_kv_heads, KV_HEADS);
    ck_assert_uint_eq(batch->layout.head_dim_k, DIM);
    ck_assert_uint_eq(batch->layout.head_dim_v, DIM_V);
    ck_assert_uint_eq(batch->layout.k_dtype, AULE_F16);
    ck_assert_uint_eq(batch->layout.v_dtype, AULE_F16);
    ck_assert_uint_eq(batch->layout.block_size, 0);
    ck_assert_uint_eq(batch->max_blocks, 0);
    ck_assert_uint_eq(batch->mask.count, sizeof mask);
    ck_assert_uint_eq(batch->slot_mapping.count + batch->positions.count + batch->kv_starts.count, 0);
    expect_numbers(journal.cu, (const int32_t[]){0, 3, 6}, 3);
    expect_numbers(journal.lens, kv_lens, 2);
    expect_numbers(journal.q_lens, q_lens, 2);
    expect_tensor(&journal.run.q, &params.run.q);
    expect_tensor(&journal.run.keys, &params.run.k);
    expect_tensor(&journal.run.values, &params.run.v);
    expect_tensor(&journal.run.out, &params.run.out);
    ck_assert_uint_eq(journal.run.k.dtype, 0);
    ck_assert_uint_eq(journal.run.v.dtype, 0);
    ck_assert_uint_eq(journal.run.layer, 0);
    ck_assert_uint_eq(journal.run.flags, WIRE_RUN_CAUSAL);
    ck_assert_float_eq(journal.run.scale, 0.25f);
    ok(aule_ticket_wait(session, ticket, 0, NULL));
    expect_words(&journal, "local attend end wait:1 ");
    aule_session_close(session);
}
END_TEST

START_TEST(rows_of_tensors_without_an_outer_stride_follow_one_another)
{
    struct journal journal = {.commands = 0};
    struct aule_session *session = open_journal(&journal, 0);
    struct aule_attention_params params = attention(AULE_PATH_CONTIGUOUS);
    params.run.v.outer_stride = 0;
    params.kv_lens = NULL;
    ok(aule_attention(session, &params, 0, NULL, NULL));
    expect_words(&journal, "local attend end wait:1 ");
    expect_numbers(journal.starts, (const int32_t[]){0, KV_LEN}, 2);
    expect_numbers(journal.lens, (const int32_t[]){KV_LEN, KV_LEN}, 2);
    aule_session_close(session);
}
END_TEST

// ---- the paged way ----

START_TEST(the_paged_way_leases_imports_attends_and_gives_back)
{
    struct journal journal = {.commands = 0};
    struct aule_session *session = open_journal(&journal, 0);
    struct aule_attention_params params = attention(AULE_PATH_PAGED);
    struct aule_ticket ticket;
    ok(aule_attention_submit(session, &params, 17, &ticket));
    expect_words(&journal, "open lease:4 import write end batch attend end release:4 ");
    ck_assert_int_eq(ticket.path, AULE_PATH_PAGED);
    ck_assert_uint_eq(ticket.before, 1);
    ck_assert_str_eq(journal.cache, "aule_attention f16, 2 heads of 16 and 32");
    ck_assert_uint_eq(journal.identity.num_layers, 1);
    ck_assert_uint_eq(journal.identity.k_dtype, AULE_F16);
    ck_assert_uint_eq(journal.identity.v_dtype, AULE_F16);
    ck_assert_uint_eq(journal.identity.block_size, BLOCK);
    ck_assert_uint_eq(journal.import.cache, 7);
    ck_assert_uint_eq(journal.import.num_seqs, SEQS);
    ck_assert_uint_eq(journal.import.block_table.count, 0);
    expect_numbers(journal.import_cu, (const int32_t[]){0, KV_LEN, 2 * KV_LEN}, 3);
    for (int s = 0; s < SEQS; s++)
        for (int j = 0; j < KV_LEN; j++) // the lease gave 0, 1, 2, 3
            ck_assert_int_eq(journal.slots[s * KV_LEN + j], j < kv_lens[s] ? s * 2 * BLOCK + j : -1);
    expect_tensor(&journal.write.k, &params.run.k);
    expect_tensor(&journal.write.v, &params.run.v);
    ck_assert_uint_eq(journal.write.num_heads, KV_HEADS);
    ck_assert_uint_eq(journal.write.batch, 9);
    ck_assert_uint_eq(journal.write.rope_dim, 0);
    ck_assert(!journal.attend.has_layout);
    ck_assert_uint_eq(journal.attend.cache, 7);
    ck_assert_uint_eq(journal.attend.max_blocks, 2);
    expect_numbers(journal.table, (const int32_t[]){0, 1, 2, 3}, 4);
    expect_numbers(journal.lens, kv_lens, 2);
    expect_tensor(&journal.run.q, &params.run.q);
    expect_tensor(&journal.run.out, &params.run.out);
    ck_assert_uint_eq(journal.run.batch, 10);
    ck_assert_uint_eq(journal.run.k.dtype + journal.run.v.dtype + journal.run.keys.dtype + journal.run.values.dtype, 0);
    forget(&journal);
    ok(aule_ticket_wait(session, ticket, 0, NULL));
    expect_words(&journal, "wait:2 wait:1 ");
    forget(&journal);
    ok(aule_attention(session, &params, 0, NULL, &ticket)); // its cache is open
    expect_words(&journal, "lease:4 import write end batch attend end release:4 wait:4 wait:3 ");
    ck_assert_int_eq(ticket.path, AULE_PATH_PAGED);
    aule_session_close(session);
}
END_TEST

START_TEST(a_shorter_sequence_has_no_block_in_the_rest_of_its_row)
{
    static const int32_t lens[SEQS] = {0, 33};
    struct journal journal = {.commands = 0};
    struct aule_session *session = open_journal(&journal, 0);
    struct aule_attention_params params = attention(AULE_PATH_PAGED);
    params.kv_lens = lens;
    ok(aule_attention(session, &params, 0, NULL, NULL));
    expect_words(&journal, "open lease:2 import write end batch attend end release:2 wait:2 wait:1 ");
    expect_numbers(journal.table, (const int32_t[]){-1, -1, 0, 1}, 4);
    ck_assert_int_eq(journal.slots[0], -1);
    ck_assert_int_eq(journal.slots[KV_LEN + 32], BLOCK);
    forget(&journal);
    params.kv_lens = (const int32_t[]){0, 0}; // nothing to lease, nothing to copy
    ok(aule_attention(session, &params, 0, NULL, NULL));
    expect_words(&journal, "batch attend end wait:3 ");
    aule_session_close(session);
}
END_TEST

START_TEST(each_shape_has_one_cache_until_the_session_ends)
{
    struct journal journal = {.commands = 0};
    struct aule_session *session = open_journal(&journal, 0);
    struct aule_attention_params params = attention(AULE_PATH_PAGED);
    ok(aule_attention(session, &params, 0, NULL, NULL));
    params.run.q.dtype = params.run.k.dtype = params.run.v.dtype = params.run.out.dtype = AULE_BF16;
    ok(aule_attention(session, &params, 0, NULL, NULL));
    ck_assert_str_eq(journal.cache, "aule_attention bf16, 2 heads of 16 and 32");
    params.head_dim_v = 0;
    ok(aule_attention(session, &params, 0, NULL, NULL));
    ck_assert_str_eq(journal.cache, "aule_attention bf16, 2 heads of 16 and 16");
    for (int i = 0; i < 3; i++)
        ok(aule_attention(session, &params, 0, NULL, NULL));
    ck_assert_uint_eq(atomic_load(&fake.seen[WIRE_COMMAND_CACHE_OPEN]), 3);
    ok(aule_session_reconnect(session));
    ok(aule_attention(session, &params, 0, NULL, NULL));
    ck_assert_uint_eq(atomic_load(&fake.seen[WIRE_COMMAND_CACHE_OPEN]), 4);
    ck_assert_uint_eq(atomic_load(&fake.seen[WIRE_COMMAND_CACHE_CLOSE]), 0);
    aule_session_close(session);
}
END_TEST

START_TEST(where_another_cache_has_the_name_the_session_has_one_of_its_own)
{
    struct journal journal = {.fail_at = 1, .fail_with = STATUS_MISMATCH};
    struct aule_session *session = open_journal(&journal, 0);
    struct aule_attention_params params = attention(AULE_PATH_PAGED);
    struct aule_session_info info;
    char name[128];
    ok(aule_session_info(session, &info));
    snprintf(name, sizeof name, "aule_attention f16, 2 heads of 16 and 32, session %llu of %llx",
             (unsigned long long)info.session, (unsigned long long)info.epoch);
    for (int i = 0; i < 2; i++)
        ok(aule_attention_submit(session, &params, 0, NULL));
    expect_words(&journal, "open open lease:4 import write! end batch attend! end release:4 "
                           "lease:4 import write! end batch attend! end release:4 ");
    ck_assert_str_eq(journal.cache, name);
    aule_session_close(session);
}
END_TEST

// ---- which of the two ----

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
    const struct aule_session_params open = {.socket = path, .paged_threshold = path_cases[_i].threshold};
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
    {3, STATUS_LIMIT, "open lease:4 import release:4 local attend end ", "open lease:4 import release:4 "},
    {3, STATUS_NO_MEMORY, "open lease:4 import release:4 local attend end ", "open lease:4 import release:4 "},
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
    expect(aule_attention_submit(session, &params, 0, &ticket), (enum aule_status)full_cases[_i].status,
           "as the test wants it");
    ck_assert_uint_eq(ticket.id, 4711);
    expect_words(&journal, full_cases[_i].forced);
    expect_empty_arena(session);
    aule_session_close(session);
}
END_TEST

// The slots of so many keys have 4 MiB: no message takes them, so they want to go through the arena.
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

// ---- everything is given back ----

// What is to be given back when the command of that number fails: 1 open, 2 lease, 3 import, 4 write, 5 end, 6 batch,
// 7 attend.
static const struct {
    unsigned at;
    enum status status;
    const char *words;
} failure_cases[] = {
    {1, STATUS_DEVICE_LOST, "open "},
    {2, STATUS_DEVICE_LOST, "open lease:4 "},
    {3, STATUS_INVALID, "open lease:4 import release:4 "},
    {3, STATUS_DEVICE_LOST, "open lease:4 import release:4 "},
    {4, STATUS_BUSY, "open lease:4 import write end release:4 "},
    {4, STATUS_UNSUPPORTED, "open lease:4 import write end release:4 "},
    {6, STATUS_INVALID, "open lease:4 import write end batch wait:1 release:4 "},
    {7, STATUS_LIMIT, "open lease:4 import write end batch attend end wait:1 release:4 "},
    {7, STATUS_DEVICE_LOST, "open lease:4 import write end batch attend end wait:1 release:4 "},
};
enum { NUM_FAILURE_CASES = sizeof failure_cases / sizeof *failure_cases };

START_TEST(whichever_command_fails_everything_is_given_back_and_its_sentence_stays)
{
    const enum aule_path ways[] = {AULE_PATH_AUTO, AULE_PATH_PAGED};
    for (int i = 0; i < 4; i++) {
        struct journal journal = {.fail_at = failure_cases[_i].at, .fail_with = failure_cases[_i].status};
        struct aule_session *session = open_journal(&journal, 16);
        struct aule_attention_params params = attention(ways[i % 2]);
        struct aule_ticket ticket = {.id = 4711};
        enum aule_status status = i < 2 ? aule_attention_submit(session, &params, 0, &ticket)
                                        : aule_attention(session, &params, 0, NULL, &ticket);
        expect(status, (enum aule_status)failure_cases[_i].status, "as the test wants it");
        expect_words(&journal, failure_cases[_i].words);
        ck_assert_uint_eq(ticket.id, 4711);
        expect_empty_arena(session);
        aule_session_close(session);
        fake_stop(&fake);
    }
}
END_TEST

START_TEST(the_contiguous_way_ends_its_batch_when_the_run_fails)
{
    struct journal journal = {.fail_at = 2, .fail_with = STATUS_INVALID};
    struct aule_session *session = open_journal(&journal, 0);
    struct aule_attention_params params = attention(AULE_PATH_CONTIGUOUS);
    expect(aule_attention(session, &params, 0, NULL, NULL), AULE_INVALID, "as the test wants it");
    expect_words(&journal, "local attend end ");
    aule_session_close(session);
}
END_TEST

START_TEST(a_failure_while_giving_back_does_not_hide_the_first_one)
{
    struct journal journal = {.fail_at = 4, .fail_with = STATUS_UNSUPPORTED};
    struct aule_session *session = open_journal(&journal, 0);
    struct aule_attention_params params = attention(AULE_PATH_PAGED);
    journal.for_good = true;
    expect(aule_attention(session, &params, 0, NULL, NULL), AULE_UNSUPPORTED, "as the test wants it");
    expect_words(&journal, "open lease:4 import write end release:4 ");
    // Later sentences are kept again.
    expect(aule_attention(session, &params, -2, NULL, NULL), AULE_INVALID, "timeout_ms = -2");
    aule_session_close(session);
}
END_TEST

// ---- two runs, one ticket ----

START_TEST(a_copy_that_fails_fails_the_call)
{
    // 8 end, 9 release, 10 wait for the run, 11 wait for the copy
    struct journal journal = {.fail_at = 11, .fail_with = STATUS_NO_MEMORY};
    struct aule_session *session = open_journal(&journal, 0);
    struct aule_attention_params params = attention(AULE_PATH_PAGED);
    expect(aule_attention(session, &params, 0, NULL, NULL), AULE_NO_MEMORY, "as the test wants it");
    expect_words(&journal, "open lease:4 import write end batch attend end release:4 wait:2 wait:1 ");
    aule_session_close(session);
}
END_TEST

START_TEST(a_run_that_fails_takes_the_ticket_of_its_copy_along)
{
    struct journal journal = {.fail_at = 10, .fail_with = STATUS_UNSUPPORTED};
    struct aule_session *session = open_journal(&journal, 0);
    struct aule_attention_params params = attention(AULE_PATH_PAGED);
    expect(aule_attention(session, &params, 0, NULL, NULL), AULE_UNSUPPORTED, "as the test wants it");
    expect_words(&journal, "open lease:4 import write end batch attend end release:4 wait:2 wait:1 ");
    aule_session_close(session);
}
END_TEST

START_TEST(a_wait_that_times_out_leaves_both_tickets_and_a_call_abandons_both)
{
    struct journal journal = {.fail_at = 10, .fail_with = STATUS_TIMEOUT};
    struct aule_session *session = open_journal(&journal, 0);
    struct aule_attention_params params = attention(AULE_PATH_PAGED);
    struct aule_ticket ticket;
    ok(aule_attention_submit(session, &params, 0, &ticket));
    expect(aule_ticket_wait(session, ticket, 0, NULL), AULE_TIMEOUT, "as the test wants it");
    ok(aule_ticket_wait(session, ticket, 0, NULL));
    expect_words(&journal, "open lease:4 import write end batch attend end release:4 wait:2 wait:2 wait:1 ");

    forget(&journal);
    journal.fail_at = 9;
    journal.fail_with = STATUS_TIMEOUT;
    expect(aule_attention(session, &params, 0, NULL, NULL), AULE_TIMEOUT, "as the test wants it");
    params.path = AULE_PATH_CONTIGUOUS;
    ok(aule_attention_submit(session, &params, 0, NULL)); // reaps what was abandoned
    expect_words(&journal,
                 "lease:4 import write end batch attend end release:4 wait:4 local wait:3 wait:4 attend! end ");
    aule_session_close(session);
}
END_TEST

// Its own first ticket may be what fills the session: it must not wait for itself.
START_TEST(where_one_ticket_is_left_the_copy_is_waited_for_first)
{
    struct journal journal = {.full = true};
    struct aule_session *session = open_journal(&journal, 0);
    struct aule_attention_params params = attention(AULE_PATH_PAGED);
    struct aule_ticket ticket;
    ok(aule_attention_submit(session, &params, -1, &ticket));
    expect_words(&journal, "open lease:4 import write end batch attend wait:1 attend end release:4 ");
    ck_assert_uint_eq(ticket.before, 0);
    ck_assert_int_eq(ticket.path, AULE_PATH_PAGED);
    ok(aule_ticket_wait(session, ticket, 0, NULL));
    aule_session_close(session);
}
END_TEST

START_TEST(without_a_ticket_nobody_waits_for_either_run)
{
    struct journal journal = {.commands = 0};
    struct aule_session *session = open_journal(&journal, 0);
    struct aule_attention_params params = attention(AULE_PATH_PAGED);
    ok(aule_attention_submit(session, &params, 0, NULL));
    expect_words(&journal, "open lease:4 import write! end batch attend! end release:4 ");
    aule_session_close(session);
}
END_TEST

// ---- what is refused here ----

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
    params->run.q.dtype = params->run.k.dtype = params->run.v.dtype = params->run.out.dtype = AULE_FP8_E4M3;
}

static void no_type(struct aule_attention_params *params)
{
    params->run.q.dtype = params->run.k.dtype = params->run.v.dtype = params->run.out.dtype = (enum aule_dtype)77;
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
    {longer_keys, AULE_OUT_OF_RANGE, "kv_lens[0] = 40, kv_len 39"},
    {longer_queries, AULE_OUT_OF_RANGE, "q_lens[1] = 4, q_len 3"},
    {no_way, AULE_INVALID, "path = 3"},
    {no_mask, AULE_INVALID, "mask is NULL and mask_size 5"},
    {empty_mask, AULE_INVALID, "mask is given and mask_size 0, but sequence 0 has queries and keys"},
    {eight_bits, AULE_UNSUPPORTED, "q is fp8_e4m3; it may be f32, f16 or bf16"},
    {no_type, AULE_INVALID, "q has dtype 77"},
    {other_k, AULE_MISMATCH, "k is f32, but q is f16"},
    {other_out, AULE_MISMATCH, "out is bf16, but q is f16"},
};
enum { NUM_REFUSED_CASES = sizeof refused_cases / sizeof *refused_cases };

START_TEST(what_cannot_be_is_refused_before_the_daemon_is_asked)
{
    struct journal journal = {.commands = 0};
    struct aule_session *session = open_journal(&journal, 0);
    struct aule_attention_params params = attention(AULE_PATH_AUTO);
    refused_cases[_i].change(&params);
    expect(aule_attention(session, &params, 0, NULL, NULL), refused_cases[_i].status, refused_cases[_i].words);
    expect_words(&journal, "");
    aule_session_close(session);
}
END_TEST

// ---- the daemon goes, the process forks ----

START_TEST(after_a_reconnect_tensors_and_tickets_of_before_are_of_another_epoch)
{
    struct journal journal = {.commands = 0};
    struct aule_session *session = open_journal(&journal, 0);
    struct aule_attention_params params = attention(AULE_PATH_PAGED);
    struct aule_ticket ticket;
    ok(aule_attention_submit(session, &params, 0, &ticket));
    ok(aule_session_reconnect(session));
    expect(aule_ticket_wait(session, ticket, 0, NULL), AULE_EPOCH, "before the reconnect");
    params.run.k.life = 1;
    expect(aule_attention_submit(session, &params, 0, &ticket), AULE_EPOCH, "k lies in the arena of life 1");
    params.path = AULE_PATH_CONTIGUOUS;
    expect(aule_attention_submit(session, &params, 0, &ticket), AULE_EPOCH, "keys lies in the arena of life 1");
    const struct aule_merge_params merge = {.num_parts = 1, .outs = &params.run.q, .lses = &params.run.k};
    expect(aule_merge_submit(session, &merge, 0, NULL), AULE_EPOCH, "a tensor of lses lies in the arena of life 1");
    aule_session_close(session);
}
END_TEST

START_TEST(a_daemon_that_goes_in_the_middle_ends_the_call)
{
    struct journal journal = {.commands = 0};
    struct aule_session *session = open_journal(&journal, 0);
    struct aule_attention_params params = attention(AULE_PATH_PAGED);
    ok(aule_attention(session, &params, 0, NULL, NULL));
    fake_stop(&fake);
    expect(aule_attention(session, &params, -1, NULL, NULL), AULE_DAEMON_GONE, path);
    aule_session_close(session);
}
END_TEST

START_TEST(a_forked_child_can_attend_to_nothing)
{
    struct journal journal = {.commands = 0};
    struct aule_session *session = open_journal(&journal, 0);
    struct aule_cache *cache = open_cache(session);
    struct aule_batch *batch = create_batch(cache), *local = NULL;
    const struct aule_attention_params params = attention(AULE_PATH_PAGED);
    const struct aule_merge_params merge = {.num_parts = 1, .outs = &params.run.q, .lses = &params.run.q};
    const int64_t slot = 0;
    const struct aule_kv_import import = {.num_rows = 1, .slot_mapping = &slot};
    const struct aule_kv_gather gather = {.layer = 0};
    const struct aule_kv_layout layout = {.num_kv_heads = 1, .head_dim = 64};
    const int32_t zero = 0;
    const struct aule_batch_params empty = {.cu_seqlens_q = &zero};
    int status;
    ok(aule_attention(session, &params, 0, NULL, NULL));
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0) {
        int wrong = 0;
        wrong += aule_attention(session, &params, 0, NULL, NULL) != AULE_FORKED;
        wrong += aule_merge_submit(session, &merge, 0, NULL) != AULE_FORKED;
        wrong += aule_blocks_copy(cache, 1, &zero, &zero, 0, NULL) != AULE_FORKED;
        wrong += aule_blocks_zero(cache, 1, &zero, 0, NULL) != AULE_FORKED;
        wrong += aule_kv_import(cache, &import, 0, NULL) != AULE_FORKED;
        wrong += aule_kv_gather(batch, &gather, 0, NULL) != AULE_FORKED;
        wrong += aule_batch_create_local(session, &layout, &empty, &local) != AULE_FORKED;
        aule_batch_destroy(batch);
        aule_cache_close(cache);
        aule_session_close(session);
        _exit(wrong);
    }
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child's status is 0x%x", (unsigned)status);
    ok(aule_attention(session, &params, 0, NULL, NULL));
    aule_batch_destroy(batch);
    aule_cache_close(cache);
    aule_session_close(session);
}
END_TEST

// ---- threads ----

enum { NUM_THREADS = 4, CALLS_A_THREAD = 50 };

static void *attend_often(void *context)
{
    struct aule_session *session = context;
    const struct aule_attention_params params = attention(AULE_PATH_PAGED);
    for (int i = 0; i < CALLS_A_THREAD; i++)
        ok(aule_attention(session, &params, -1, NULL, NULL));
    return NULL;
}

START_TEST(threads_share_the_cache_of_a_shape)
{
    pthread_t threads[NUM_THREADS];
    fake_start(&fake, path, NULL, NULL);
    struct aule_session *session = open_session(0);
    for (int i = 0; i < NUM_THREADS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, attend_often, session), 0);
    for (int i = 0; i < NUM_THREADS; i++)
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
    // Those that were opened side by side were closed again.
    ck_assert_uint_eq(atomic_load(&fake.seen[WIRE_COMMAND_CACHE_OPEN]),
                      atomic_load(&fake.seen[WIRE_COMMAND_CACHE_CLOSE]) + 1);
    ck_assert_uint_eq(atomic_load(&fake.seen[WIRE_COMMAND_BLOCKS_LEASE]), NUM_THREADS * CALLS_A_THREAD);
    ck_assert_uint_eq(atomic_load(&fake.seen[WIRE_COMMAND_BLOCKS_RELEASE]), NUM_THREADS * CALLS_A_THREAD);
    ck_assert_uint_eq(atomic_load(&fake.seen[WIRE_COMMAND_BATCH_DESTROY]),
                      atomic_load(&fake.seen[WIRE_COMMAND_BATCH_CREATE]));
    aule_session_close(session);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client_fake_attention");
    add(suite, "contiguous",
        (const struct entry[]){
            {the_contiguous_way_is_one_local_batch_and_one_run, 0},
            {rows_of_tensors_without_an_outer_stride_follow_one_another, 0},
            {the_contiguous_way_ends_its_batch_when_the_run_fails, 0},
            {NULL, 0},
        });
    add(suite, "paged",
        (const struct entry[]){
            {the_paged_way_leases_imports_attends_and_gives_back, 0},
            {a_shorter_sequence_has_no_block_in_the_rest_of_its_row, 0},
            {each_shape_has_one_cache_until_the_session_ends, 0},
            {where_another_cache_has_the_name_the_session_has_one_of_its_own, 0},
            {NULL, 0},
        });
    add(suite, "which way",
        (const struct entry[]){
            {the_longest_kv_length_decides_unless_a_way_is_forced, NUM_PATH_CASES},
            {without_blocks_the_automatic_way_is_contiguous_and_says_so_and_the_forced_one_fails, NUM_FULL_CASES},
            {an_arena_without_room_for_the_slots_makes_the_automatic_way_contiguous, 0},
            {a_lease_larger_than_a_message_is_no_lease, 0},
            {what_cannot_be_is_refused_before_the_daemon_is_asked, NUM_REFUSED_CASES},
            {NULL, 0},
        });
    add(suite, "giving back",
        (const struct entry[]){
            {whichever_command_fails_everything_is_given_back_and_its_sentence_stays, NUM_FAILURE_CASES},
            {a_failure_while_giving_back_does_not_hide_the_first_one, 0},
            {NULL, 0},
        });
    add(suite, "tickets",
        (const struct entry[]){
            {a_copy_that_fails_fails_the_call, 0},
            {a_run_that_fails_takes_the_ticket_of_its_copy_along, 0},
            {a_wait_that_times_out_leaves_both_tickets_and_a_call_abandons_both, 0},
            {where_one_ticket_is_left_the_copy_is_waited_for_first, 0},
            {without_a_ticket_nobody_waits_for_either_run, 0},
            {NULL, 0},
        });
    add(suite, "ends",
        (const struct entry[]){
            {after_a_reconnect_tensors_and_tickets_of_before_are_of_another_epoch, 0},
            {a_daemon_that_goes_in_the_middle_ends_the_call, 0},
            {a_forked_child_can_attend_to_nothing, 0},
            {threads_share_the_cache_of_a_shape, 0},
            {NULL, 0},
        });
    return check_main(suite);
}
