// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_tuning.c - tuning from outside: a daemon with tuning measures after a worker's decode, shows
// the result, and knows it after a restart. It renews, clears and stops when aule-ctl says so. The
// worker's bits stay the same, and a damaged file stops nothing.

#include "aule/aule.h"
#include "base/uuid.h"
#include "rigs/check_main.h"
#include "rigs/daemon_harness.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    BLOCK_SIZE = 16,
    DIM = 16,
    TOKENS = 40,
    BLOCKS = 3,
    HEADS = 2,
    ROW = HEADS * DIM * 2 /* bytes */,
    PATIENCE_S = 300
};

static struct daemon server;
static struct aule_monitor *monitor;
static char folder[128], pipelines[256], wanted[ROW];

#define CHECK_OK(call)                                                                             \
    do {                                                                                           \
        enum aule_status check_status = (call);                                                    \
        ck_assert_msg(check_status == AULE_OK, "%s: %s", aule_status_name(check_status),           \
                      aule_error());                                                               \
    } while (0)

static void begin_life(void)
{
    const char *const options[] = {
        "--variant", "matrix_emulated", "--tune", "on", "--tune-time", "60000", "--max-tuned",
        "4",         "--cache-folder",  folder,   NULL};
    struct aule_device_state device;
    char uuid[UUID_TEXT_SIZE];
    ck_assert(daemon_start(&server, options));
    CHECK_OK(aule_monitor_open(server.socket, 60000, &monitor));
    CHECK_OK(aule_monitor_device(monitor, &device));
    snprintf(pipelines, sizeof pipelines, "%s/pipelines-%s", folder, uuid_text(device.uuid, uuid));
}

static void end_life(void)
{
    aule_monitor_close(monitor);
    ck_assert_int_eq(daemon_stop(&server), 0);
}

// ---- a worker ----

static struct aule_tensor tensor(struct aule_session *session, uint32_t tokens, uint32_t heads)
{
    struct aule_tensor made;
    CHECK_OK(aule_tensor_create(session, AULE_F16, tokens, heads, DIM, &made));
    uint16_t *halves = aule_tensor_data(session, &made);
    for (uint32_t i = 0; i < tokens * heads * DIM; i++) // each 0.125 to 1
        halves[i] = (uint16_t)(0x3000 + i * 977u % 0xc00u);
    return made;
}

static void run_tokens(struct aule_session *session, struct aule_cache *cache,
                       const int32_t *blocks, int32_t tokens, const int64_t *slots, void *row)
{
    const int32_t cu[] = {0, tokens}, lens[] = {TOKENS};
    struct aule_batch *batch = NULL;
    CHECK_OK(aule_batch_create(cache,
                               &(struct aule_batch_params){.num_seqs = 1,
                                                           .max_blocks = BLOCKS,
                                                           .cu_seqlens_q = cu,
                                                           .seq_lens_kv = lens,
                                                           .block_table = blocks,
                                                           .slot_mapping = slots},
                               &batch));
    struct aule_run_params run = {.num_heads = HEADS, .causal = true};
    run.q = tensor(session, (uint32_t)tokens, HEADS);
    run.k = tensor(session, (uint32_t)tokens, 1);
    run.v = tensor(session, (uint32_t)tokens, 1);
    run.out = tensor(session, (uint32_t)tokens, HEADS);
    CHECK_OK(aule_run(batch, &run, 240000, NULL));
    memcpy(row, aule_tensor_data(session, &run.out), ROW);
    aule_batch_destroy(batch);
}

// Opens a session: 40 tokens, then one query over them. Returns its row.
static void decode(char row[ROW])
{
    struct aule_session *session = NULL;
    struct aule_cache *cache = NULL;
    int32_t blocks[BLOCKS];
    int64_t slots[TOKENS];
    CHECK_OK(aule_session_open(&(struct aule_session_params){.socket = server.socket,
                                                             .arena_size = 1 << 20,
                                                             .timeout_ms = 240000},
                               &session));
    CHECK_OK(aule_cache_open(session,
                             &(struct aule_cache_params){.name = "model",
                                                         .num_layers = 1,
                                                         .num_kv_heads = 1,
                                                         .head_dim = DIM,
                                                         .k_dtype = AULE_F16,
                                                         .v_dtype = AULE_F16,
                                                         .block_size = BLOCK_SIZE},
                             &cache));
    CHECK_OK(aule_blocks_lease(cache, BLOCKS, 60000, blocks));
    for (int i = 0; i < TOKENS; i++)
        slots[i] = (int64_t)blocks[i / BLOCK_SIZE] * BLOCK_SIZE + i % BLOCK_SIZE;
    run_tokens(session, cache, blocks, TOKENS, slots, row);
    run_tokens(session, cache, blocks, 1, NULL, row);
    aule_cache_close(cache);
    aule_session_close(session);
}

static void expect_bits(void)
{
    char row[ROW];
    decode(row);
    ck_assert_int_eq(memcmp(row, wanted, ROW), 0);
}

// ---- an operator ----

static struct aule_tuning_state look(enum aule_tune_action action, uint32_t *count,
                                     struct aule_tuned_state *first)
{
    struct aule_tuning_state state;
    struct aule_tuned_state *array = NULL;
    CHECK_OK(aule_monitor_tune(monitor, action, &state, &array, count));
    if (*count && first)
        *first = array[0];
    free(array);
    return state;
}

static time_t now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return time.tv_sec;
}

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
}

static struct aule_tuned_state await_measured(void)
{
    struct aule_tuned_state first = {.gpu_ns = 0};
    uint32_t count = 0;
    for (time_t deadline = now() + PATIENCE_S;
         look(AULE_TUNE_SHOW, &count, &first).num_waiting || !count; nap())
        ck_assert(now() < deadline);
    ck_assert_uint_eq(count, 1);
    ck_assert_int_eq(first.state, AULE_TUNED_MEASURED);
    return first;
}

static void await_file(const char *path, bool there)
{
    for (time_t deadline = now() + PATIENCE_S; (access(path, F_OK) == 0) != there; nap())
        ck_assert(now() < deadline);
}

static void ctl(const char *action, const char *words)
{
    char command[512], text[8192];
    snprintf(command, sizeof command, "exec %s tune %s --json --timeout 60000 --socket %s", CTL,
             action, server.socket);
    FILE *pipe = popen(command, "re");
    ck_assert_ptr_nonnull(pipe);
    text[fread(text, 1, sizeof text - 1, pipe)] = '\0';
    ck_assert_msg(pclose(pipe) == 0, "tune %s: %s", action, text);
    ck_assert_msg(strstr(text, words) != NULL, "tune %s: %s", action, text);
}

static void setup(void)
{
    ck_assert(daemon_init(&server));
    snprintf(folder, sizeof folder, "%s/cache", server.folder);
}

static void teardown(void)
{
    unlink(pipelines);
    snprintf(pipelines, sizeof pipelines, "%s/pipelines.key", folder);
    unlink(pipelines);
    ck_assert_msg(rmdir(folder) == 0, "something was left in %s", folder);
    daemon_finish(&server);
}

START_TEST(a_daemon_measures_shows_remembers_renews_and_forgets_and_no_bit_changes)
{
    uint32_t count;
    begin_life();
    struct aule_tuning_state state = look(AULE_TUNE_SHOW, &count, NULL);
    ck_assert_uint_eq(count, 0);
    ck_assert(state.enabled);
    ck_assert_uint_eq(state.max_entries, 4);
    ck_assert_int_eq(strncmp(state.path, folder, strlen(folder)), 0);
    decode(wanted);
    struct aule_tuned_state tuned = await_measured();
    ck_assert_uint_gt(tuned.gpu_ns, 0);
    ck_assert_str_eq(tuned.kernel, "attention_decode_emulated");
    expect_bits();
    await_file(state.path, true);
    end_life();

    begin_life();
    ck_assert_uint_eq(await_measured().gpu_ns, tuned.gpu_ns); // as in the file
    expect_bits();
    ctl("renew", "attention_decode_emulated");
    ck_assert_uint_gt(await_measured().num_samples, 0);
    ctl("off", "\"enabled\":\tfalse");
    ctl("clear", "\"tuned\":\t[]");
    await_file(state.path, false);
    expect_bits();
    look(AULE_TUNE_SHOW, &count, NULL);
    ck_assert_uint_eq(count, 0);
    ctl("on", "\"enabled\":\ttrue");
    end_life();

    FILE *spoilt = fopen(state.path, "w");
    ck_assert_ptr_nonnull(spoilt);
    fputs("{\"format\": \"aule tuning 1\", ", spoilt);
    fclose(spoilt);
    begin_life();
    ck_assert(daemon_log_contains(&server, "is ignored: it is no JSON document"));
    expect_bits();
    await_measured();
    ctl("clear", "\"tuned\":\t[]");
    await_file(state.path, false);
    end_life();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("tuning");
    TCase *tcase = tcase_create("daemon");
    tcase_add_checked_fixture(tcase, setup, teardown);
    tcase_add_test(tcase, a_daemon_measures_shows_remembers_renews_and_forgets_and_no_bit_changes);
    suite_add_tcase(suite, tcase);
    return check_main(suite);
}
