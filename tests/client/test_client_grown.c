// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_client_grown.c - a program of today with a later library, in which every struct that may
// grow has grown. The bytes around each struct that the library fills must not change.

#include "rigs/check_main.h"
#include "rigs/daemon_harness.h"

#include <aule/aule.h>
#include <stdlib.h>
#include <string.h>

enum {
    CANARY = 0xa5,
    MARGIN = 512,
    TOKENS = 16,
    HEADS = 2,
    HEAD_DIM = 64,
    BLOCK = 8,
    BLOCKS = TOKENS / BLOCK
};

// A struct as the program has it on its stack.
#define GUARDED(type)                                                                              \
    struct {                                                                                       \
        unsigned char before[MARGIN];                                                              \
        type it;                                                                                   \
        unsigned char after[MARGIN];                                                               \
    }
#define GUARD(guarded) memset(&(guarded), CANARY, sizeof(guarded))
#define EXPECT_GUARDED(guarded)                                                                    \
    do {                                                                                           \
        expect_canaries((guarded).before, MARGIN);                                                 \
        expect_canaries((guarded).after, MARGIN);                                                  \
    } while (0)

static void expect_canaries(const unsigned char *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        ck_assert_uint_eq(bytes[i], CANARY);
}

static void ok(enum aule_status status)
{
    ck_assert_msg(status == AULE_OK, "%s: %s", aule_status_name(status), aule_error());
}

// ---- fixture: a daemon, a session, a cache, tensors, blocks ----

static struct daemon daemon_;
static struct aule_session *session;
static struct aule_cache *cache;
static struct aule_tensor q, k, v, out;
static int32_t blocks[BLOCKS];

static void setup(void)
{
    const struct aule_cache_params params = {.name = "old",
                                             .num_layers = 1,
                                             .num_kv_heads = HEADS,
                                             .head_dim = HEAD_DIM,
                                             .k_dtype = AULE_F32,
                                             .v_dtype = AULE_F32,
                                             .block_size = BLOCK};
    ck_assert(daemon_launch(&daemon_, NULL));
    ok(aule_session_open(
        &(struct aule_session_params){.socket = daemon_.socket, .name = "program of today"},
        &session));
    ok(aule_cache_open(session, &params, &cache));
    struct aule_tensor *const tensors[] = {&q, &k, &v, &out};
    for (int i = 0; i < 4; i++) {
        GUARDED(struct aule_tensor) tensor;
        GUARD(tensor);
        ok(aule_tensor_create(session, AULE_F32, TOKENS, HEADS, HEAD_DIM, &tensor.it));
        EXPECT_GUARDED(tensor);
        *tensors[i] = tensor.it;
        float *data = aule_tensor_data(session, &tensor.it);
        for (int j = 0; j < TOKENS * HEADS * HEAD_DIM; j++)
            data[j] = (float)(j % 7) / 7 - 0.5f;
    }
    ok(aule_blocks_lease(cache, BLOCKS, 1000, blocks));
}

static void teardown(void)
{
    aule_cache_close(cache);
    aule_session_close(session);
    ck_assert_int_eq(daemon_end(&daemon_), 0);
}

static struct aule_batch *create_batch(void)
{
    static const int32_t cu[] = {0, TOKENS}, lens[] = {TOKENS};
    static int64_t slots[TOKENS];
    for (int i = 0; i < TOKENS; i++)
        slots[i] = (int64_t)blocks[i / BLOCK] * BLOCK + i % BLOCK;
    const struct aule_batch_params params = {.num_seqs = 1,
                                             .max_blocks = BLOCKS,
                                             .cu_seqlens_q = cu,
                                             .seq_lens_kv = lens,
                                             .block_table = blocks,
                                             .slot_mapping = slots};
    struct aule_batch *batch;
    ok(aule_batch_create(cache, &params, &batch));
    return batch;
}

static struct aule_run_params run_params(void)
{
    return (struct aule_run_params){
        .num_heads = HEADS, .q = q, .k = k, .v = v, .out = out, .causal = true};
}

// ---- tests ----

START_TEST(what_a_session_fills_stays_inside_its_struct)
{
    GUARDED(struct aule_session_info) info;
    GUARDED(struct aule_cache_state) state;
    GUARD(info);
    GUARD(state);
    ok(aule_session_info(session, &info.it));
    ok(aule_cache_state(cache, &state.it));
    EXPECT_GUARDED(info);
    EXPECT_GUARDED(state);
    ck_assert_uint_ne(info.it.session, 0);
    ck_assert_uint_eq(state.it.leased_blocks, BLOCKS);
}
END_TEST

START_TEST(runs_and_what_they_say_of_themselves)
{
    struct aule_batch *batch = create_batch();
    const struct aule_run_params run = run_params();
    const struct aule_layers layers = {.num_layers = 1};
    GUARDED(struct aule_run_result) result;
    GUARDED(struct aule_ticket) ticket;
    GUARD(result);
    GUARD(ticket);
    ok(aule_run(batch, &run, -1, &result.it));
    ck_assert_uint_eq(result.it.num_runs, 1);
    ok(aule_run_submit(batch, &run, -1, &ticket.it));
    ok(aule_ticket_wait(session, ticket.it, -1, &result.it));
    ok(aule_run_layers_submit(batch, &run, &layers, -1, &ticket.it));
    ok(aule_ticket_wait(session, ticket.it, -1, NULL));
    ok(aule_run_layers(batch, &run, &layers, -1, &result.it));
    ck_assert_uint_eq(result.it.num_sessions, 1);
    EXPECT_GUARDED(result);
    EXPECT_GUARDED(ticket);
    ck_assert_float_ne(*(float *)aule_tensor_data(session, &out), 0);
    const int64_t more[TOKENS] = {0};
    ck_assert_int_eq(aule_batch_advance(batch, &(struct aule_advance){.slot_mapping = more}),
                     AULE_OUT_OF_RANGE);
    aule_batch_destroy(batch);
}
END_TEST

START_TEST(attention_gathers_merges_and_prefixes)
{
    struct aule_batch *batch = create_batch();
    const struct aule_run_params run = run_params();
    const struct aule_attention_params params = {.num_seqs = 1,
                                                 .q_len = TOKENS,
                                                 .kv_len = TOKENS,
                                                 .num_kv_heads = HEADS,
                                                 .head_dim = HEAD_DIM,
                                                 .run = run};
    GUARDED(struct aule_run_result) result;
    GUARDED(struct aule_ticket) ticket;
    GUARD(result);
    GUARD(ticket);
    ok(aule_run(batch, &run, -1, NULL));
    ok(aule_attention(session, &params, -1, &result.it, &ticket.it));
    ok(aule_attention_submit(session, &params, -1, &ticket.it));
    ok(aule_ticket_wait(session, ticket.it, -1, &result.it));
    ok(aule_kv_gather(batch, &(struct aule_kv_gather){.k = k, .v = v}, -1, &ticket.it));
    ok(aule_ticket_wait(session, ticket.it, -1, &result.it));
    const int64_t slots[] = {(int64_t)blocks[0] * BLOCK};
    ok(aule_kv_import(
        cache, &(struct aule_kv_import){.num_rows = 1, .slot_mapping = slots, .k = k, .v = v}, -1,
        NULL));
    EXPECT_GUARDED(result);
    EXPECT_GUARDED(ticket);
    aule_batch_destroy(batch);

    int32_t tokens[TOKENS] = {1}, found[BLOCKS];
    uint32_t count;
    const struct aule_prefix prefix = {.tokens = tokens, .num_tokens = TOKENS};
    ok(aule_prefix_publish(cache, &prefix, blocks, NULL));
    ok(aule_prefix_lookup(cache, &prefix, 0, found, &count));
    ck_assert_uint_le(count, BLOCKS);
}
END_TEST

START_TEST(forms_of_the_metadata)
{
    static const int32_t cu[] = {0, 3}, table[] = {0, 1}, lens[] = {9}, ids[] = {0, 0},
                         positions[] = {4, 5};
    GUARDED(struct aule_metadata) metadata;
    GUARD(metadata);
    ok(aule_metadata_varlen(1, cu, cu, 0, 0, &metadata.it));
    ck_assert_int_eq(metadata.it.params.seq_lens_kv[0], 3);
    aule_metadata_finish(&metadata.it);
    ck_assert_ptr_null(metadata.it.owned);
    ok(aule_metadata_append(1, lens, table, 2, BLOCK, &metadata.it));
    ck_assert_int_eq(metadata.it.params.slot_mapping[0], BLOCK + 1);
    aule_metadata_finish(&metadata.it);
    const struct aule_token_form form = {
        .num_tokens = 2, .num_seqs = 1, .seq_ids = ids, .positions = positions};
    ok(aule_metadata_tokens(&form, &metadata.it));
    ck_assert_int_eq(metadata.it.params.seq_lens_kv[0], 6);
    aule_metadata_finish(&metadata.it);
    EXPECT_GUARDED(metadata);
}
END_TEST

static void expect_lists(struct aule_monitor *monitor)
{
    struct aule_session_state *sessions;
    struct aule_cache_view *caches;
    struct aule_block_state *states;
    struct aule_variant_state *variants;
    uint32_t count;
    ok(aule_monitor_sessions(monitor, &sessions, &count));
    ck_assert_uint_eq(count, 2);
    ck_assert_str_eq(sessions[0].name, "program of today");
    ck_assert_str_eq(sessions[1].name, "another");
    ok(aule_monitor_caches(monitor, &caches, &count));
    ck_assert_uint_eq(count, 1);
    ck_assert_str_eq(caches[0].name, "old");
    ok(aule_monitor_blocks(monitor, caches[0].cache, &states, &count));
    ck_assert_uint_ge(count, BLOCKS);
    for (uint32_t i = 0; i < count; i++)
        ck_assert_int_eq(states[i].block, (int32_t)i);
    ok(aule_monitor_variants(monitor, &variants, &count));
    ck_assert_uint_gt(count, 1);
    for (uint32_t i = 0; i < count; i++)
        ck_assert_uint_gt(strlen(variants[i].name), 0);
    free(sessions);
    free(caches);
    free(states);
    free(variants);
}

START_TEST(what_a_monitor_fills_stays_inside_its_struct)
{
    GUARDED(struct aule_ping_info) ping;
    GUARDED(struct aule_device_state) device;
    struct aule_monitor *monitor;
    struct aule_session *another;
    GUARD(ping);
    GUARD(device);
    ok(aule_session_open(&(struct aule_session_params){.socket = daemon_.socket, .name = "another"},
                         &another));
    ok(aule_monitor_open(daemon_.socket, 0, &monitor));
    ok(aule_monitor_ping(monitor, &ping.it));
    ok(aule_monitor_device(monitor, &device.it));
    EXPECT_GUARDED(ping);
    EXPECT_GUARDED(device);
    ck_assert_str_eq(ping.it.version, aule_version());
    ck_assert_str_eq(ping.it.socket, daemon_.socket);
    ck_assert_uint_gt(strlen(device.it.name), 0);
    expect_lists(monitor);
    aule_monitor_close(monitor);
    aule_session_close(another);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        what_a_session_fills_stays_inside_its_struct, runs_and_what_they_say_of_themselves,
        attention_gathers_merges_and_prefixes,        forms_of_the_metadata,
        what_a_monitor_fills_stays_inside_its_struct, NULL};
    Suite *suite = suite_create("grown structs");
    check_case(suite, "program", setup, teardown, tests, 1);
    return check_main(suite);
}
