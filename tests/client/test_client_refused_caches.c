// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_client_refused_caches.c - libaule-client with the real daemon: impossible caches, caches
// with another identity, sessions of other clients, and limits, each of which names its option.
// Each test is a process; tests of bad input share one daemon, which must still work at the end.
// Batches and runs: test_client_refused.c.

#include "client/src/link/connection.h"
#include "rigs/client_step.h"

// ---- fixtures ----

static void setup(void)
{
    launch(NULL);
}

static const char *const strict[] = {
    "--max-sessions",   "2", "--max-caches",   "1",  "--max-arena", "1M", "--max-batches", "2",
    "--session-blocks", "4", "--max-metadata", "4K", NULL};

static void setup_strict(void)
{
    launch(strict);
}

static void setup_for_one(void)
{
    launch((const char *const[]){"--max-connections", "1", NULL});
}

// Another identity under the same name.
static void other_layers(struct aule_cache_params *params)
{
    params->num_layers = 3;
}

static void other_heads(struct aule_cache_params *params)
{
    params->num_kv_heads = 4;
}

static void other_dim(struct aule_cache_params *params)
{
    params->head_dim = params->head_dim_v = 32;
}

static void other_dtype(struct aule_cache_params *params)
{
    params->k_dtype = AULE_F16;
}

static void other_block(struct aule_cache_params *params)
{
    params->block_size = 64;
}

static void other_fingerprint(struct aule_cache_params *params)
{
    params->fingerprint = "other";
}

static const struct {
    void (*change)(struct aule_cache_params *params);
    const char *words; // the field and both values
} identities[] = {
    {other_layers, "has num_layers 2, not 3"},
    {other_heads, "has num_kv_heads 2, not 4"},
    {other_dim, "has head_dim_k 16, not 32"},
    {other_dtype, "has k_dtype f32, not f16"},
    {other_block, "has block_size 8, not 64; take another name"},
    {other_fingerprint, "has fingerprint 7072696e74, not 6f74686572"},
};
enum { NUM_IDENTITIES = sizeof identities / sizeof *identities };

START_TEST(another_identity_is_refused_with_both_values)
{
    struct step step;
    struct aule_cache *other = NULL;
    open_step(&step, NULL);
    struct aule_cache_params params = cache_params();
    identities[_i].change(&params);
    expect(aule_cache_open(step.session, &params, &other), AULE_MISMATCH, identities[_i].words);
    ck_assert_ptr_null(other);
    still_works(&step);
    close_step(&step);
}
END_TEST

static void no_dim(struct aule_cache_params *params)
{
    params->head_dim = 0;
}

static void odd_dim(struct aule_cache_params *params)
{
    params->head_dim = 12;
}

static void odd_block(struct aule_cache_params *params)
{
    params->block_size = 24;
}

static void latent(struct aule_cache_params *params)
{
    params->v_is_k_prefix = true;
    params->head_dim_v = 2 * DIM;
}

static void vast(struct aule_cache_params *params)
{
    params->head_dim = 584;
}

static void scaled(struct aule_cache_params *params)
{
    params->scale_mode = AULE_SCALE_PER_TENSOR;
}

static void strangely_scaled(struct aule_cache_params *params)
{
    params->k_dtype = params->v_dtype = AULE_FP8_E4M3;
    params->scale_mode = (enum aule_scale_mode)3;
}

static void opaque(struct aule_cache_params *params)
{
    params->block_bytes = 4096;
}

static void oddly_opaque(struct aule_cache_params *params)
{
    *params = (struct aule_cache_params){.name = "other", .block_bytes = 4088};
}

static void vastly_opaque(struct aule_cache_params *params)
{
    *params = (struct aule_cache_params){.name = "other", .block_bytes = UINT64_C(1) << 32};
}

static void no_name(struct aule_cache_params *params)
{
    params->name = NULL;
}

static void long_fingerprint(struct aule_cache_params *params)
{
    params->fingerprint_size = 65;
}

static const struct {
    void (*change)(struct aule_cache_params *params);
    enum aule_status status;
    const char *words;
} bad_caches[] = {
    {no_dim, AULE_INVALID, "head_dim_k 0"},
    {odd_dim, AULE_UNSUPPORTED, "12"},
    {odd_block, AULE_UNSUPPORTED, "24"},
    {vast, AULE_UNSUPPORTED, "584"},
    {latent, AULE_INVALID, "v_is_k_prefix"},
    {scaled, AULE_INVALID, "only 8-bit dtypes are scaled"},
    {strangely_scaled, AULE_UNSUPPORTED, "3"},
    {opaque, AULE_INVALID, "num_layers is 2 and block_bytes 4096"},
    {oddly_opaque, AULE_INVALID, "block_bytes 4088"},
    {vastly_opaque, AULE_UNSUPPORTED, "block_bytes 4294967296"},
    {no_name, AULE_INVALID, "name"},
    {long_fingerprint, AULE_INVALID, "65"},
};
enum { NUM_BAD_CACHES = sizeof bad_caches / sizeof *bad_caches };

START_TEST(a_cache_that_cannot_be_is_refused)
{
    struct step step;
    struct aule_cache *other = NULL;
    open_step(&step, NULL);
    struct aule_cache_params params = cache_params();
    params.name = "other";
    bad_caches[_i].change(&params);
    expect(aule_cache_open(step.session, &params, &other), bad_caches[_i].status,
           bad_caches[_i].words);
    ck_assert_ptr_null(other);
    still_works(&step);
    close_step(&step);
}
END_TEST

// A message that the library itself never sends, through its own connection.
START_TEST(a_command_for_a_session_that_is_not_ones_own_is_refused)
{
    struct step step;
    struct aule_session_info info;
    struct connection *connection = NULL;
    struct answer answer;
    const struct timeout timeout = timeout_start(WAIT_MS);
    open_step(&step, NULL);
    ok(aule_session_info(step.session, &info));
    ok(connection_open(daemon_.socket, &timeout, &connection));
    struct wire_request request = {
        .session = 424242, .epoch = info.epoch, .command = WIRE_COMMAND_CLOSE_SESSION};
    expect(connection_call(connection, &request, &timeout, WIRE_ANSWER_EMPTY, &answer),
           AULE_NO_SESSION, "424242");
    request.session = info.session; // of another connection
    expect(connection_call(connection, &request, &timeout, WIRE_ANSWER_EMPTY, &answer),
           AULE_NO_SESSION, "session");
    request.epoch = info.epoch + 1;
    expect(connection_call(connection, &request, &timeout, WIRE_ANSWER_EMPTY, &answer), AULE_EPOCH,
           "epoch");
    request = (struct wire_request){.command = WIRE_COMMAND_HELLO,
                                    .hello = {.major = 99, .client_name = "future", .tenant = ""}};
    expect(connection_call(connection, &request, &timeout, WIRE_ANSWER_HELLO, &answer),
           AULE_VERSION, "99.0");
    connection_close(connection);
    still_works(&step);
    close_step(&step);
}
END_TEST

// ---- limits: each error names its option ----

START_TEST(every_limit_names_its_option)
{
    struct aule_session *a = open_session(NULL), *b = open_session(NULL), *c = NULL;
    struct aule_session_params params = {.socket = daemon_.socket};
    params.arena_size = 1 << 20;
    expect(aule_session_open(&params, &c), AULE_LIMIT, "--max-sessions");
    aule_session_close(b);
    params.arena_size = 2 << 20;
    expect(aule_session_open(&params, &c), AULE_LIMIT, "--max-arena");

    struct aule_cache *cache = open_cache(a), *other = NULL;
    struct aule_cache_params second = cache_params();
    second.name = "second";
    expect(aule_cache_open(a, &second, &other), AULE_LIMIT, "--max-caches");

    int32_t blocks[5];
    expect(aule_blocks_lease(cache, 5, 0, blocks), AULE_QUOTA, "--session-blocks");
    struct aule_batch *batches[3] = {NULL};
    const int32_t cu[] = {0, 0}, lens[] = {0};
    const struct aule_batch_params padding = {
        .num_seqs = 1, .cu_seqlens_q = cu, .seq_lens_kv = lens};
    ok(aule_batch_create(cache, &padding, &batches[0]));
    ok(aule_batch_create(cache, &padding, &batches[1]));
    expect(aule_batch_create(cache, &padding, &batches[2]), AULE_LIMIT, "--max-batches");
    aule_batch_destroy(batches[0]);
    aule_batch_destroy(batches[1]);
    aule_cache_close(cache);
    aule_session_close(a);
}
END_TEST

START_TEST(a_connection_too_many_is_told_its_option)
{
    struct aule_session *session = open_session(NULL), *other = NULL;
    const struct aule_session_params params = {.socket = daemon_.socket};
    struct aule_monitor *monitor;
    struct aule_ping_info info;
    expect(aule_session_open(&params, &other), AULE_LIMIT, "--max-connections is 1");
    ok(aule_monitor_open(daemon_.socket, 0, &monitor));
    ok(aule_monitor_ping(monitor, &info)); // the control socket has places of its own
    aule_monitor_close(monitor);
    aule_session_close(session);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client_refused_caches");
    add_shared(
        suite, "bad input", setup,
        (const struct entry[]){{another_identity_is_refused_with_both_values, NUM_IDENTITIES},
                               {a_cache_that_cannot_be_is_refused, NUM_BAD_CACHES},
                               {a_command_for_a_session_that_is_not_ones_own_is_refused, 0},
                               {NULL, 0}});
    add(suite, "limits", setup_strict,
        (const struct entry[]){{every_limit_names_its_option, 0}, {NULL, 0}});
    add(suite, "connections", setup_for_one,
        (const struct entry[]){{a_connection_too_many_is_told_its_option, 0}, {NULL, 0}});
    return check_main(suite);
}
