// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_ctl_views.c - what aule-ctl shows of a real daemon is what sessions of this process did.

#include "rigs/ctl_world.h"

#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

START_TEST(every_command_prints_one_document)
{
    cJSON_Delete(document(ASK(asking[_i], "--json")));
    struct outcome outcome = ASK(asking[_i]);
    ck_assert_msg(outcome.code == OK, "%s", outcome.err);
    ck_assert_uint_gt(strlen(outcome.out), 10);
    outcome_finish(&outcome);
}
END_TEST

START_TEST(the_socket_may_come_from_the_environment)
{
    ck_assert_int_eq(setenv("AULE_SOCKET", server.socket, 1), 0);
    cJSON *json = document(RUN("ping", "--json"));
    ck_assert_str_eq(string(json, "version"), AULE_VERSION_STRING);
    ck_assert_uint_eq(strlen(string(json, "epoch")), 16);
    ck_assert_double_gt(number(json, "round_trip_ns"), 0);
    ck_assert_double_ge(number(json, "protocol_major"), 1);
    cJSON_Delete(json);
}
END_TEST

START_TEST(status_shows_what_the_workers_did)
{
    int32_t blocks[2];
    cJSON *json = document(ASK("status", "--json"));
    ck_assert_double_eq(number(json, "num_sessions"), 0);
    ck_assert(cJSON_IsNull(cJSON_GetObjectItem(json, "prefix_hit_rate")));
    cJSON_Delete(json);
    open_worker("worker");
    publish_two_blocks(blocks);
    json = document(ASK("status", "--json"));
    ck_assert_double_eq(number(json, "pid"), server.pid);
    ck_assert_str_eq(string(json, "socket"), server.socket);
    ck_assert_double_eq(number(json, "num_sessions"), 1);
    ck_assert_double_eq(number(json, "num_caches"), 1);
    ck_assert_double_eq(number(json, "runs_done"), 1);
    ck_assert_double_eq(number(json, "runs_failed"), 0);
    ck_assert_double_eq(number(json, "dispatches"), 1);
    ck_assert_double_eq(number(json, "max_sessions_per_dispatch"), 1);
    ck_assert_double_eq(number(json, "sessions_served"), 1);
    ck_assert_double_eq(number(json, "dispatches_of_1"), 1);
    ck_assert_double_eq(number(json, "dispatches_of_2"), 0);
    ck_assert_double_eq(number(json, "lookups"), 1);
    ck_assert_double_eq(number(json, "lookup_tokens"), 2 * BLOCK_SIZE);
    ck_assert_double_eq(number(json, "hit_tokens"), 2 * BLOCK_SIZE);
    ck_assert_double_eq(number(json, "prefix_hit_rate"), 1);
    ck_assert_double_eq(number(json, "held_blocks"), 2);
    ck_assert_double_eq(number(json, "free_blocks") + number(json, "leased_blocks") +
                            number(json, "held_blocks") + number(json, "cached_blocks") +
                            number(json, "quarantined_blocks"),
                        number(json, "pool_blocks"));
    cJSON_Delete(json);
    struct outcome outcome = ASK("status");
    ck_assert_ptr_nonnull(strstr(outcome.out, "16 of 16 tokens were hits (100.0 %)"));
    ck_assert_ptr_nonnull(strstr(
        outcome.out,
        "sharing   1.00 sessions a dispatch, at most 1\n          dispatches for 1: 1, for 2: 0,"));
    outcome_finish(&outcome);
}
END_TEST

static const cJSON *find_metric(const cJSON *metrics, const char *name)
{
    const cJSON *entry;
    cJSON_ArrayForEach(entry, metrics) if (strcmp(string(entry, "name"), name) == 0) return entry;
    ck_abort_msg("no metric %s", name);
}

// status and metrics show the same numbers.
START_TEST(metrics_show_every_figure_of_the_status)
{
    static const struct {
        const char *key, *name, *unit, *kind;
    } figures[] = {
        {"num_sessions", "aule_sessions", "sessions", "gauge"},
        {"pool_bytes", "aule_pool_bytes", "bytes", "gauge"},
        {"held_blocks", "aule_blocks{state=\"held\"}", "blocks", "gauge"},
        {"runs_done", "aule_runs_done_total", "runs", "counter"},
        {"tokens_attended", "aule_attended_tokens_total", "tokens", "counter"},
        {"hit_tokens", "aule_prefix_hits_tokens_total", "tokens", "counter"},
        {"dispatches_of_1", "aule_run_dispatches_total{sessions=\"1\"}", "dispatches", "counter"},
    };
    int32_t blocks[2];
    open_worker("worker");
    publish_two_blocks(blocks);
    cJSON *status = document(ASK("status", "--json")), *json = document(ASK("metrics", "--json"));
    const cJSON *metrics = cJSON_GetObjectItem(json, "metrics");
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++) {
        const cJSON *metric = find_metric(metrics, figures[i].name);
        ck_assert_double_eq(number(metric, "value"), number(status, figures[i].key));
        ck_assert_str_eq(string(metric, "unit"), figures[i].unit);
        ck_assert_str_eq(string(metric, "kind"), figures[i].kind);
        ck_assert_uint_gt(strlen(string(metric, "help")), 0);
    }
    cJSON_Delete(status);
    cJSON_Delete(json);
    struct outcome outcome = ASK("metrics");
    ck_assert_ptr_nonnull(strstr(outcome.out, "runs that succeeded"));
    outcome_finish(&outcome);
}
END_TEST

START_TEST(caches_show_shape_states_and_what_is_published)
{
    int32_t blocks[2];
    open_worker("worker");
    publish_two_blocks(blocks);
    cJSON *json = document(ASK("caches", "--json"));
    const cJSON *entry = cJSON_GetArrayItem(list(json, "caches", 1), 0);
    ck_assert_str_eq(string(entry, "name"), "model");
    ck_assert_str_eq(string(entry, "fingerprint"), "726576ff");
    ck_assert_str_eq(string(entry, "k_dtype"), "f32");
    ck_assert_str_eq(string(entry, "scale_mode"), "none");
    ck_assert_double_eq(number(entry, "head_dim_v"), HEAD_DIM);
    ck_assert(cJSON_IsFalse(cJSON_GetObjectItem(entry, "v_is_k_prefix")));
    ck_assert_double_eq(number(entry, "block_size"), BLOCK_SIZE);
    ck_assert_double_eq(number(entry, "head_dim"), HEAD_DIM);
    ck_assert_double_eq(number(entry, "block_bytes"), sizeof(float) * 2 * BLOCK_SIZE * HEAD_DIM);
    ck_assert_double_eq(number(entry, "open_sessions"), 1);
    ck_assert_double_eq(number(entry, "published_blocks"), 2);
    ck_assert_double_eq(number(entry, "pending_blocks"), 0);
    ck_assert_double_eq(number(entry, "held_blocks"), 2);
    ck_assert_double_eq(number(entry, "free_blocks") + number(entry, "leased_blocks") +
                            number(entry, "held_blocks") + number(entry, "cached_blocks") +
                            number(entry, "quarantined_blocks"),
                        number(entry, "total_blocks"));
    cJSON_Delete(json);
}
END_TEST

START_TEST(a_narrow_terminal_gets_the_same_columns_in_parts)
{
    char text[8192];
    static const char *const headings[] = {"layers", "KV heads",    "scales",
                                           "chunks", "quarantined", "fingerprint"};
    open_worker("worker");
    show_on_terminal(60, "caches", NULL, text, sizeof text);
    for (size_t i = 0; i < sizeof headings / sizeof *headings; i++)
        ck_assert_msg(strstr(text, headings[i]) != NULL, "%s lacks %s", text, headings[i]);
    ck_assert_msg(strstr(text, "MLA") == NULL, "a column that says no in every line: %s", text);
    int parts = 0;
    for (char *line = strtok(text, "\r\n"); line; line = strtok(NULL, "\r\n")) {
        ck_assert_msg(strlen(line) <= 60, "wider than 60: %s", line);
        ck_assert_msg(strncmp(line, "id  name ", 9) == 0 || strstr(line, "  model  ") == line + 2,
                      "whose line? %s", line);
        parts += strncmp(line, "id ", 3) == 0;
    }
    ck_assert_int_ge(parts, 3);
}
END_TEST

START_TEST(words_that_a_narrow_terminal_has_no_room_for_go_on_below)
{
    char text[8192];
    show_on_terminal(60, "device", NULL, text, sizeof text);
    ck_assert_msg(strstr(text, "  to be chosen by name, for tests: the\r\n                       "
                               "kernels of matrix with products in") != NULL,
                  "%s", text);
    for (char *line = strtok(text, "\r\n"); line; line = strtok(NULL, "\r\n"))
        ck_assert_msg(strlen(line) <= 60, "wider than 60: %s", line);
}
END_TEST

START_TEST(caches_show_scales_and_mla)
{
    const struct aule_cache_params mla = {.name = "mla",
                                          .num_layers = 1,
                                          .num_kv_heads = 1,
                                          .head_dim = 32,
                                          .head_dim_v = 16,
                                          .v_is_k_prefix = true,
                                          .k_dtype = AULE_INT8,
                                          .v_dtype = AULE_INT8,
                                          .scale_mode = AULE_SCALE_PER_TOKEN_HEAD,
                                          .block_size = BLOCK_SIZE};
    session = open_session("worker", NULL);
    CHECK_OK(aule_cache_open(session, &mla, &cache));
    cJSON *json = document(ASK("caches", "--json"));
    const cJSON *entry = cJSON_GetArrayItem(list(json, "caches", 1), 0);
    ck_assert_str_eq(string(entry, "scale_mode"), "token_head");
    ck_assert_str_eq(string(entry, "fingerprint"), "");
    ck_assert_double_eq(number(entry, "head_dim_v"), 16);
    ck_assert(cJSON_IsTrue(cJSON_GetObjectItem(entry, "v_is_k_prefix")));
    cJSON_Delete(json);
    struct outcome outcome = ASK("caches");
    static const char *const words[] = {"K dim", "V dim", "MLA", "scales", "token_head",
                                        "int8",  "32",    "16",  "yes"};
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        ck_assert_msg(strstr(outcome.out, words[i]) != NULL, "%s lacks %s", outcome.out, words[i]);
    outcome_finish(&outcome);
}
END_TEST

// Names come from other processes. They must not control a terminal, and a document must stay valid
// JSON.
START_TEST(names_reach_neither_the_terminal_nor_the_document_raw)
{
    session = open_session("evil\x1b[31m\xff\xc3\xa9", "tenant\"b");
    struct outcome outcome = ASK("sessions");
    ck_assert_int_eq(outcome.code, OK);
    ck_assert_ptr_nonnull(strstr(outcome.out, "evil?[31m?\xc3\xa9"));
    ck_assert_ptr_null(strchr(outcome.out, 0x1b));
    outcome_finish(&outcome);
    cJSON *json = document(ASK("sessions", "--json"));
    const cJSON *entry = cJSON_GetArrayItem(list(json, "sessions", 1), 0);
    ck_assert_str_eq(string(entry, "name"), "evil\x1b[31m?\xc3\xa9");
    ck_assert_str_eq(string(entry, "tenant"), "tenant\"b");
    ck_assert_double_eq(number(entry, "pid"), getpid());
    ck_assert_double_eq(number(entry, "uid"), getuid());
    ck_assert_double_eq(number(entry, "arena_bytes"), 1 << 20);
    cJSON_Delete(json);
}
END_TEST

static void assert_blocks(int count, struct outcome outcome)
{
    cJSON *json = document(outcome);
    list(json, "blocks", count);
    cJSON_Delete(json);
}

START_TEST(blocks_can_be_chosen_by_cache_and_state)
{
    int32_t blocks[2], leased[3];
    open_worker("worker");
    publish_two_blocks(blocks);
    CHECK_OK(aule_blocks_lease(cache, 3, 60000, leased));
    struct aule_cache_state state;
    CHECK_OK(aule_cache_state(cache, &state));

    assert_blocks((int)state.total_blocks, ASK("blocks", "--json"));
    assert_blocks((int)state.free_blocks, ASK("blocks", "--json", "--state", "free"));
    assert_blocks(0, ASK("blocks", "--json", "--state", "quarantined"));
    cJSON *json = document(ASK("blocks", "--json", "--state", "leased", "--cache", "model"));
    const cJSON *entry, *leases = list(json, "blocks", 3);
    struct aule_session_info info;
    CHECK_OK(aule_session_info(session, &info));
    cJSON_ArrayForEach(entry, leases)
    {
        ck_assert_str_eq(string(entry, "cache_name"), "model");
        ck_assert_str_eq(string(entry, "state"), "leased");
        ck_assert_double_eq(number(entry, "writer"), (double)info.session);
        ck_assert_double_eq(number(entry, "depth"), -1);
    }
    char id[32];
    snprintf(id, sizeof id, "%.0f", number(cJSON_GetArrayItem(leases, 0), "cache"));
    cJSON_Delete(json);

    json = document(ASK("blocks", "--json", "--state", "held", "--cache", id));
    const cJSON *held = list(json, "blocks", 2);
    ck_assert_double_eq(number(cJSON_GetArrayItem(held, 0), "depth") +
                            number(cJSON_GetArrayItem(held, 1), "depth"),
                        1);
    cJSON_Delete(json);
}
END_TEST

START_TEST(an_unknown_cache_or_state_is_refused)
{
    open_worker("worker");
    assert_fails(ASK("blocks", "--cache", "nothing"), FAILED, "no cache \"nothing\" among its 1");
    assert_fails(ASK("blocks", "--cache", "987654321"), FAILED, "no cache \"987654321\"");
    assert_fails(ASK("blocks", "--state", "lost"), USAGE, "--state \"lost\" is none of free");
    assert_fails_as_json(ASK("blocks", "--cache", "nothing", "--json"), FAILED, "NOT_FOUND",
                         "no cache \"nothing\"");
}
END_TEST

// A cache's name may be the id of another cache.
START_TEST(a_cache_is_known_by_its_name_before_its_id)
{
    char id[32];
    open_worker("worker");
    cJSON *json = document(ASK("caches", "--json"));
    snprintf(id, sizeof id, "%.0f",
             number(cJSON_GetArrayItem(list(json, "caches", 1), 0), "cache"));
    cJSON_Delete(json);
    struct aule_cache *confusing = open_cache(id);
    int32_t block;
    CHECK_OK(aule_blocks_lease(confusing, 1, 60000, &block));
    json = document(ASK("blocks", "--json", "--cache", id, "--state", "leased"));
    ck_assert_str_eq(string(cJSON_GetArrayItem(list(json, "blocks", 1), 0), "cache_name"), id);
    cJSON_Delete(json);
    aule_cache_close(confusing);
}
END_TEST

START_TEST(device_says_what_the_daemon_runs_on)
{
    session = open_session("worker", NULL);
    struct aule_session_info info;
    CHECK_OK(aule_session_info(session, &info));
    cJSON *json = document(ASK("device", "--json"));
    ck_assert_str_eq(string(json, "name"), info.device_name);
    ck_assert_uint_eq(strlen(string(json, "uuid")), 36);
    ck_assert_int_eq(strncmp(string(json, "api_version"), "1.", 2), 0);
    ck_assert_double_gt(number(json, "heap_bytes"), 0);
    ck_assert(cJSON_IsBool(cJSON_GetObjectItem(json, "software")));
    cJSON_Delete(json);
}
END_TEST

// Exactly one shader is used: the first that the device can run, because none is forced here.
START_TEST(device_shows_every_shader_and_why_it_is_used_or_not)
{
    cJSON *json = document(ASK("device", "--json"));
    const cJSON *entry, *variants = cJSON_GetObjectItem(json, "variants");
    int used = 0, usable = 0;
    ck_assert_int_ge(cJSON_GetArraySize(variants), 2);
    struct outcome outcome = ASK("device");
    cJSON_ArrayForEach(entry, variants)
    {
        bool is_used = cJSON_IsTrue(cJSON_GetObjectItem(entry, "used"));
        bool lacks = string(entry, "missing")[0] != '\0';
        const char *why = lacks ? string(entry, "missing") : is_used ? "the best" : "a better one";
        ck_assert_msg(strstr(string(entry, "why"), why) != NULL, "\"%s\" lacks %s",
                      string(entry, "why"), why);
        ck_assert_int_eq(is_used, !lacks && usable == 0);
        if (is_used)
            ck_assert_str_eq(string(entry, "name"), string(json, "variant"));
        used += is_used;
        usable += !lacks;
        ck_assert_ptr_nonnull(strstr(outcome.out, string(entry, "name")));
        ck_assert_ptr_nonnull(strstr(outcome.out, string(entry, "why")));
    }
    ck_assert_int_eq(used, 1);
    outcome_finish(&outcome);
    cJSON_Delete(json);
}
END_TEST

// The last one of the table has the smallest requirements, so each device can run it.
START_TEST(a_forced_shader_is_said_to_be_forced)
{
    cJSON *json = document(ASK("device", "--json"));
    const cJSON *variants = cJSON_GetObjectItem(json, "variants");
    int last = cJSON_GetArraySize(variants) - 1;
    char name[64];
    snprintf(name, sizeof name, "%s", string(cJSON_GetArrayItem(variants, last), "name"));
    cJSON_Delete(json);
    ck_assert_int_eq(daemon_stop(&server), 0);
    ck_assert(daemon_start(&server, (const char *const[]){"--variant", name, NULL}));
    json = document(ASK("device", "--json"));
    ck_assert_str_eq(string(json, "variant"), name);
    const cJSON *entry;
    bool first = true;
    int num_used = 0;
    cJSON_ArrayForEach(entry, cJSON_GetObjectItem(json, "variants"))
    {
        if (string(entry, "missing")[0])
            continue;
        bool used = strcmp(string(entry, "name"), name) == 0;
        ck_assert_int_eq(cJSON_IsTrue(cJSON_GetObjectItem(entry, "used")), used);
        ck_assert_str_eq(string(entry, "why"), !used   ? "another one is forced"
                                               : first ? "the best that this device can run"
                                                       : "forced");
        first = false;
        num_used += used;
    }
    ck_assert_int_eq(num_used, 1); // a shader in use has nothing that the device lacks
    cJSON_Delete(json);
}
END_TEST

// Until the test's daemon is stopped, which the command tells as any other.
START_TEST(watch_prints_again_until_the_daemon_is_gone)
{
    char line[512];
    snprintf(line, sizeof line, "exec " CTL " ping --watch 0.01 --socket %s 2>/dev/null",
             server.socket);
    FILE *watch = popen(line, "re");
    ck_assert_ptr_nonnull(watch);
    for (int i = 0; i < 2; i++) {
        ck_assert_ptr_nonnull(fgets(line, sizeof line, watch));
        ck_assert_msg(strstr(line, " answered in ") != NULL, "%s", line);
        ck_assert_ptr_nonnull(fgets(line, sizeof line, watch));
        ck_assert_str_eq(line, "\n");
    }
    ck_assert_int_eq(daemon_stop(&server), 0);
    while (fgets(line, sizeof line, watch))
        ;
    int status = pclose(watch);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == GONE, "status 0x%x",
                  (unsigned)status);
    ck_assert(daemon_start(&server, NULL)); // for the fixture
}
END_TEST

// The row of this name; NULL: there is none.
static const cJSON *tier_row(const cJSON *json, const char *name)
{
    const cJSON *row;
    cJSON_ArrayForEach(row, cJSON_GetObjectItemCaseSensitive(
                                json, "tiers")) if (!strcmp(string(row, "name"), name)) return row;
    return NULL;
}

START_TEST(tiers_show_a_folder_with_its_limit_and_its_blocks)
{
    char url[128];
    int32_t blocks[2];
    double stored = 0;
    snprintf(url, sizeof url, "files://%s/blocks?size=1M", server.folder);
    ck_assert_int_eq(daemon_stop(&server), 0);
    ck_assert(daemon_start(&server, (const char *const[]){"--tier", url, NULL}));
    open_worker("worker");
    publish_two_blocks(blocks);
    while (stored < 2) { // stores end beside the daemon's other work
        cJSON *json = document(ASK("tiers", "--json"));
        const cJSON *row = tier_row(json, "files");
        ck_assert_ptr_nonnull(row);
        ck_assert_double_eq(number(row, "limit_bytes"), 1 << 20);
        ck_assert_double_eq(number(row, "broken"), 0);
        stored = number(row, "stored");
        if (stored == 2)
            ck_assert_double_eq(number(row, "blocks"), 2);
        cJSON_Delete(json);
    }
    snprintf(url, sizeof url, "rm -r %s/blocks", server.folder);
    ck_assert_int_eq(system(url), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("ctl, views");
    TCase *tests = tcase_create("with a daemon");
    tcase_add_checked_fixture(tests, start, stop);
    tcase_add_loop_test(tests, every_command_prints_one_document, 0, NUM_ASKING);
    tcase_add_test(tests, the_socket_may_come_from_the_environment);
    tcase_add_test(tests, status_shows_what_the_workers_did);
    tcase_add_test(tests, metrics_show_every_figure_of_the_status);
    tcase_add_test(tests, caches_show_shape_states_and_what_is_published);
    tcase_add_test(tests, caches_show_scales_and_mla);
    tcase_add_test(tests, a_narrow_terminal_gets_the_same_columns_in_parts);
    tcase_add_test(tests, words_that_a_narrow_terminal_has_no_room_for_go_on_below);
    tcase_add_test(tests, names_reach_neither_the_terminal_nor_the_document_raw);
    tcase_add_test(tests, blocks_can_be_chosen_by_cache_and_state);
    tcase_add_test(tests, an_unknown_cache_or_state_is_refused);
    tcase_add_test(tests, a_cache_is_known_by_its_name_before_its_id);
    tcase_add_test(tests, device_says_what_the_daemon_runs_on);
    tcase_add_test(tests, device_shows_every_shader_and_why_it_is_used_or_not);
    tcase_add_test(tests, a_forced_shader_is_said_to_be_forced);
    tcase_add_test(tests, tiers_show_a_folder_with_its_limit_and_its_blocks);
    tcase_add_test(tests, watch_prints_again_until_the_daemon_is_gone);
    suite_add_tcase(suite, tests);
    return check_main(suite);
}
