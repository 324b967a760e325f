// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_ctl_actions.c - what aule-ctl does to sessions and caches of a real daemon, and that the
// commands that its errors suggest work.

#include "rigs/ctl_world.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

START_TEST(close_session_ends_the_session_and_gives_its_blocks_back)
{
    char id[32];
    int32_t blocks[3];
    open_worker("worker");
    CHECK_OK(aule_blocks_lease(cache, 3, 60000, blocks));
    struct aule_session_info info;
    CHECK_OK(aule_session_info(session, &info));
    snprintf(id, sizeof id, "%" PRIu64, info.session);
    cJSON *json = document(ASK("close-session", id, "--json"));
    ck_assert_double_eq(number(json, "closed_session"), (double)info.session);
    cJSON_Delete(json);
    ck_assert_int_ne(aule_blocks_lease(cache, 1, 60000, blocks), AULE_OK);
    json = document(ASK("status", "--json"));
    ck_assert_double_eq(number(json, "leased_blocks"), 0);
    ck_assert_double_eq(number(json, "num_sessions"), 0);
    cJSON_Delete(json);
    assert_fails(ASK("close-session", id), FAILED, id);
}
END_TEST

START_TEST(close_session_refuses_what_is_no_session)
{
    assert_fails(ASK("close-session", "123456"), FAILED, "123456");
    assert_fails_as_json(ASK("close-session", "123456", "--json"), FAILED, "NOT_FOUND", "123456");
    assert_fails(ASK("close-session", "x1"), USAGE, "\"x1\" is no session's id");
    assert_fails(ASK("close-session", "-1"), USAGE, "-1");
    assert_fails(ASK("close-session", "99999999999999999999"), USAGE, "99999999999999999999");
}
END_TEST

static enum aule_status open_otherwise(const char *name)
{
    return aule_cache_open(session,
                           &(struct aule_cache_params){.name = name,
                                                       .num_layers = 2,
                                                       .num_kv_heads = 1,
                                                       .head_dim = HEAD_DIM,
                                                       .block_size = BLOCK_SIZE},
                           &cache);
}

START_TEST(limits_of_tenants_and_sessions_change_while_the_daemon_serves)
{
    char name[64], tenant_limit[96], session_limit[64];
    int32_t blocks[4];
    uint32_t num_tokens;
    struct aule_session_info info;
    open_worker("worker");
    publish_two_blocks(blocks);
    snprintf(name, sizeof(name), "uid:%u", (unsigned)geteuid());
    cJSON *json = document(ASK("tenants", "--json"));
    const cJSON *entry = cJSON_GetArrayItem(list(json, "tenants", 1), 0);
    ck_assert_str_eq(cJSON_GetStringValue(cJSON_GetObjectItem(entry, "name")), name);
    ck_assert_double_eq(number(entry, "sessions"), 1);
    ck_assert_double_eq(number(entry, "limit_blocks"), 0);
    const double used = number(entry, "used_blocks");
    cJSON_Delete(json);

    snprintf(tenant_limit, sizeof(tenant_limit), "%s=blocks:%d,cached:9", name, (int)used + 1);
    json = document(ASK("limit", tenant_limit, "--json"));
    ck_assert_double_eq(number(json, "limit_blocks"), used + 1);
    ck_assert_double_eq(number(json, "limit_cached"), 9);
    cJSON_Delete(json);
    ck_assert_int_eq(aule_blocks_lease(cache, 2, 0, blocks + 2), AULE_QUOTA);
    ck_assert_ptr_nonnull(strstr(aule_error(), name));
    CHECK_OK(aule_blocks_lease(cache, 1, 60000, blocks + 2));

    CHECK_OK(aule_session_info(session, &info));
    snprintf(tenant_limit, sizeof(tenant_limit), "%s=blocks:0", name);
    snprintf(session_limit, sizeof(session_limit), "session:%" PRIu64 "=blocks:1", info.session);
    json = document(ASK("limit", tenant_limit, "--json"));
    ck_assert_double_eq(number(json, "limit_cached"), 9); // it was not named
    cJSON_Delete(json);
    json = document(ASK("limit", session_limit, "--json"));
    ck_assert_double_eq(number(json, "limit_blocks"), 1);
    cJSON_Delete(json);
    ck_assert_int_eq(aule_blocks_lease(cache, 1, 0, blocks + 3), AULE_QUOTA);
    json = document(ASK("tenants", "--json"));
    ck_assert_double_eq(number(cJSON_GetArrayItem(list(json, "tenants", 1), 0), "refused_quota"),
                        2);
    cJSON_Delete(json);
    const struct aule_prefix prefix = {.tokens = (const int32_t[]){1}, .num_tokens = 1};
    CHECK_OK(aule_prefix_keep(cache, &prefix, AULE_KEEP_PINNED, &num_tokens));
    ck_assert_uint_eq(num_tokens, 0); // less than a block

    assert_fails(ASK("limit", "nobody=blocks:1"), FAILED, "no tenant \"nobody\" among its 1");
    assert_fails(ASK("limit", "session:99=blocks:1"), FAILED, "there is no session 99");
    snprintf(tenant_limit, sizeof(tenant_limit), "%s=floor:10", name);
    assert_fails(ASK("limit", tenant_limit), USAGE, "floor 10 exceeds cached 9");
    assert_fails(ASK("limit", "session:1=cached:1"), USAGE, "is not session:ID=blocks:N");
    assert_fails(ASK("limit", "x=blocks"), USAGE, "\"x=blocks\" is not TENANT=LIMIT:N");
}
END_TEST

static void assert_unpinned(struct outcome outcome, int block, int num_prefixes, int num_blocks)
{
    cJSON *json = document(outcome);
    ck_assert_str_eq(string(json, "name"), "model");
    ck_assert_double_eq(number(json, "block"), block);
    ck_assert_double_eq(number(json, "unpinned_prefixes"), num_prefixes);
    ck_assert_double_eq(number(json, "unpinned_blocks"), num_blocks);
    cJSON_Delete(json);
}

static void assert_kept(const char *how, int num_lines)
{
    cJSON *json = document(ASK("prefix", "--kept", how, "--json"));
    list(json, "prefix", num_lines);
    cJSON_Delete(json);
}

// Pins the prompt of publish_two_blocks(), and says which block `aule-ctl prefix` shows for it.
static int pin(void)
{
    uint32_t num_tokens;
    int32_t tokens[2 * BLOCK_SIZE];
    for (int i = 0; i < 2 * BLOCK_SIZE; i++)
        tokens[i] = 100 + i;
    const struct aule_prefix prefix = {.tokens = tokens, .num_tokens = 2 * BLOCK_SIZE};
    CHECK_OK(aule_prefix_keep(cache, &prefix, AULE_KEEP_PINNED, &num_tokens));
    ck_assert_uint_eq(num_tokens, 2 * BLOCK_SIZE);
    assert_kept("preferred", 0);
    cJSON *json = document(ASK("prefix", "--kept", "pinned", "--json"));
    const cJSON *line = cJSON_GetArrayItem(list(json, "prefix", 1), 0);
    ck_assert_str_eq(string(line, "keep"), "pinned");
    const int block = (int)number(line, "block");
    cJSON_Delete(json);
    return block;
}

START_TEST(unpin_lets_a_pinned_prefix_go_that_its_worker_left)
{
    char of_block[32];
    int32_t blocks[2];
    open_worker("worker");
    publish_two_blocks(blocks);
    const int block = pin();
    aule_cache_close(cache);
    aule_session_close(session);
    session = NULL;
    cache = NULL;
    cJSON *json = document(ASK("tenants", "--json"));
    ck_assert_double_eq(number(cJSON_GetArrayItem(list(json, "tenants", 1), 0), "pinned_blocks"),
                        2);
    cJSON_Delete(json);
    snprintf(of_block, sizeof of_block, "model:%d", block);
    assert_unpinned(ASK("unpin", of_block, "--json"), block, 1, 2);
    assert_kept("pinned", 0);
    json = document(ASK("prefix", "--json"));
    list(json, "prefix", 1);
    cJSON_Delete(json);
    assert_fails(ASK("unpin", of_block), FAILED, "is in no pinned prefix (NOT_FOUND)");
    assert_fails_as_json(ASK("unpin", of_block, "--json"), FAILED, "NOT_FOUND", "is in no pinned");
    assert_unpinned(ASK("unpin", "model", "--json"), -1, 0, 0);
    json = document(ASK("tenants", "--json"));
    ck_assert_double_eq(number(cJSON_GetArrayItem(list(json, "tenants", 1), 0), "cached_blocks"),
                        2);
    cJSON_Delete(json);
    assert_fails(ASK("unpin", "none:1"), FAILED, "no cache \"none\" among its 1");
    assert_fails(ASK("unpin", "none:x"), FAILED, "no cache \"none:x\" among its 1");
    assert_fails(ASK("unpin"), USAGE, "\"unpin\" takes one CACHE[:BLOCK]");
}
END_TEST

static void start_forgetful(void)
{
    ck_assert(daemon_launch(
        &server, (const char *const[]){"--tenant-timeout", "1", "--tenant-pinned", "0.5", NULL}));
}

// The daemon has nothing else to do meanwhile, so its own clock ends the pin.
START_TEST(a_pin_ends_after_its_tenants_last_session)
{
    int32_t blocks[2];
    open_worker("worker");
    publish_two_blocks(blocks);
    pin();
    sleep(2);
    assert_kept("pinned", 1);
    aule_cache_close(cache);
    aule_session_close(session);
    session = NULL;
    cache = NULL;
    for (int lines = 1; lines; usleep(100000)) {
        cJSON *json = document(ASK("prefix", "--kept", "pinned", "--json"));
        lines = cJSON_GetArraySize(cJSON_GetObjectItem(json, "prefix"));
        cJSON_Delete(json);
    }
    cJSON *json = document(ASK("prefix", "--json")); // the blocks are still cached
    list(json, "prefix", 1);
    cJSON_Delete(json);
}
END_TEST

static void start_with_groups(void)
{
    char one[64], other[64];
    snprintf(one, sizeof one, "tenant-a=uid:%u", (unsigned)geteuid());
    snprintf(other, sizeof other, "tenant-b=uid:%u", (unsigned)geteuid());
    ck_assert(
        daemon_launch(&server, (const char *const[]){"--tenant", one, "--tenant", other, NULL}));
}

START_TEST(two_tenants_give_one_name_to_caches_of_two_shapes_and_commands_ask_for_an_id)
{
    char ids[64], id[32];
    open_worker("worker"); // of tenant-a
    struct aule_session *worker = session;
    struct aule_cache *model = cache;
    session = open_session("worker", "tenant-b");
    CHECK_OK(open_otherwise("model"));
    cJSON *json = document(ASK("caches", "--json"));
    const cJSON *caches = list(json, "caches", 2);
    const double first = number(cJSON_GetArrayItem(caches, 0), "cache"),
                 second = number(cJSON_GetArrayItem(caches, 1), "cache");
    cJSON_Delete(json);
    snprintf(ids, sizeof ids, "give an id: %.0f, %.0f", first, second);
    assert_fails(ASK("blocks", "--cache", "model"), FAILED, ids);
    assert_fails(ASK("unpin", "model"), FAILED, ids);
    assert_fails(ASK("save", "/nonexistent/file", "--cache", "model"), FAILED, ids);
    aule_cache_close(cache);
    cache = model;
    aule_session_close(session);
    session = worker;
    assert_fails(ASK("drop-cache", "model"), FAILED, "is open in 1 session"); // the other has gone
    snprintf(id, sizeof id, "%.0f", first);
    json = document(ASK("prefix", "--cache", id, "--json"));
    list(json, "prefix", 0);
    cJSON_Delete(json);
}
END_TEST

// The colon may be part of the name.
START_TEST(unpin_without_a_block_means_all_of_the_cache)
{
    int32_t blocks[2];
    open_worker("worker");
    publish_two_blocks(blocks);
    pin();
    struct aule_cache *other = open_cache("model:0");
    cJSON *json = document(ASK("unpin", "model:0", "--json"));
    ck_assert_str_eq(string(json, "name"), "model:0");
    ck_assert_double_eq(number(json, "unpinned_prefixes"), 0);
    cJSON_Delete(json);
    assert_unpinned(ASK("unpin", "model", "--json"), -1, 1, 0); // the worker holds the blocks
    aule_cache_close(other);
}
END_TEST

// Cached blocks stay after their sessions, and keep the cache's name from another model until the
// cache is dropped.
START_TEST(drop_cache_ends_what_nobody_has_open)
{
    int32_t blocks[2];
    open_worker("worker");
    publish_two_blocks(blocks);
    assert_fails(ASK("drop-cache", "model"), FAILED,
                 "\"model\" is open in 1 session (BUSY); aule-ctl sessions --socket ");
    assert_fails_as_json(ASK("drop-cache", "model", "--json"), FAILED, "BUSY",
                         "is open in 1 session");
    aule_cache_close(cache);
    cache = NULL;
    cJSON *json = document(ASK("caches", "--json"));
    const cJSON *entry = cJSON_GetArrayItem(list(json, "caches", 1), 0);
    ck_assert_double_eq(number(entry, "cached_blocks"), 2);
    const double id = number(entry, "cache");
    cJSON_Delete(json);
    json = document(ASK("drop-cache", "model", "--json"));
    ck_assert_double_eq(number(json, "dropped_cache"), id);
    ck_assert_str_eq(cJSON_GetStringValue(cJSON_GetObjectItem(json, "name")), "model");
    ck_assert_double_eq(number(json, "cached_blocks"), 2);
    cJSON_Delete(json);
    json = document(ASK("status", "--json"));
    ck_assert_double_eq(number(json, "num_caches"), 0);
    ck_assert_double_eq(number(json, "pool_blocks"), 0);
    cJSON_Delete(json);
    assert_fails(ASK("drop-cache", "model"), FAILED, "no cache \"model\" among its 0");
    assert_fails_as_json(ASK("drop-cache", "model", "--json"), FAILED, "NOT_FOUND", "among its 0");
    CHECK_OK(open_otherwise("model"));
}
END_TEST

static const char *const odd_names[] = {"model", "the model's \"$HOME\"", "-7", "--json"};

// As a user would type it, with nothing in the environment that names the daemon.
START_TEST(the_command_that_drops_a_cache_in_the_way_works_as_it_is_told)
{
    char command[2048];
    int32_t blocks[2];
    session = open_session("worker", NULL);
    cache = open_cache(odd_names[_i]);
    publish_two_blocks(blocks);
    aule_cache_close(cache);
    ck_assert_int_eq(open_otherwise(odd_names[_i]), AULE_MISMATCH);
    const char *told = strstr(aule_error(), "drop it: aule-ctl ");
    ck_assert_msg(told != NULL, "%s", aule_error());
    snprintf(command, sizeof command, "%s %s >/dev/null", CTL, told + strlen("drop it: aule-ctl "));
    ck_assert_msg(system(command) == 0, "%s",
                  command); // NOLINT(cert-env33-c): a shell is what is tested
    CHECK_OK(open_otherwise(odd_names[_i]));
}
END_TEST

START_TEST(commands_that_a_complaint_names_ask_the_same_daemon)
{
    char words[512];
    snprintf(words, sizeof words,
             "aule-ctl sessions --socket %s and aule-ctl caches --socket %s list what there is",
             server.socket, server.socket);
    assert_fails(ASK("close-session", "123456"), FAILED, words);
    snprintf(words, sizeof words, "aule-ctl caches --socket %s lists them", server.socket);
    assert_fails(ASK("drop-cache", "none"), FAILED, words);
    assert_fails(RUN("close-session", "--socket", "/tmp/a b", "x"), USAGE,
                 "; aule-ctl sessions --socket '/tmp/a b' lists");
    ck_assert_int_eq(setenv("AULE_SOCKET", server.socket, 1), 0);
    assert_fails(RUN("drop-cache", "none"), FAILED, "; aule-ctl caches lists them");
    ck_assert_int_eq(unsetenv("AULE_SOCKET"), 0);
}
END_TEST

static void expect_level(struct outcome outcome, const char *level, const char *before)
{
    cJSON *json = document(outcome);
    ck_assert_str_eq(string(json, "level"), level);
    ck_assert_str_eq(string(json, "before"), before);
    cJSON_Delete(json);
}

// A refusal is a line of level debug, written before the answer.
START_TEST(log_level_changes_what_the_running_daemon_writes)
{
    expect_level(ASK("log-level", "--json"), "debug", "debug"); // the harness starts it so
    expect_level(ASK("log-level", "info", "--json"), "info", "debug");
    assert_fails(ASK("close-session", "111111"), FAILED, "111111");
    ck_assert(!daemon_log_contains_now(&server, "no session 111111"));
    expect_level(ASK("log-level", "debug", "--json"), "debug", "info");
    assert_fails(ASK("close-session", "222222"), FAILED, "222222");
    ck_assert(daemon_log_contains(&server, "no session 222222"));
    expect_level(ASK("log-level", "show", "--json"), "debug", "debug");
}
END_TEST

// The value of option `name`; NULL: it is not listed.
static const char *option_value(cJSON *json, const char *name, bool *given)
{
    cJSON *row;
    cJSON_ArrayForEach(row, cJSON_GetObjectItem(json, "options"))
    {
        *given = cJSON_IsTrue(cJSON_GetObjectItem(row, "given"));
        if (strcmp(string(row, "name"), name) == 0)
            return string(row, "value");
    }
    return NULL;
}

START_TEST(options_shows_what_the_command_line_names_and_the_defaults)
{
    bool given;
    cJSON *json = document(ASK("options", "--json"));
    ck_assert_str_eq(option_value(json, "socket", &given), server.socket);
    ck_assert(given);
    ck_assert_str_eq(option_value(json, "max-caches", &given), "64");
    ck_assert(!given);
    ck_assert_str_eq(option_value(json, "ring-spin", &given), "auto");
    ck_assert_ptr_null(option_value(json, "help", &given));
    cJSON_Delete(json);
    json = document(ASK("options", "--given", "--json"));
    ck_assert_str_eq(option_value(json, "socket", &given), server.socket);
    ck_assert_ptr_null(option_value(json, "max-caches", &given));
    cJSON_Delete(json);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("ctl, actions");
    TCase *tests = tcase_create("with a daemon");
    tcase_add_checked_fixture(tests, start, stop);
    tcase_add_test(tests, close_session_ends_the_session_and_gives_its_blocks_back);
    tcase_add_test(tests, close_session_refuses_what_is_no_session);
    tcase_add_test(tests, drop_cache_ends_what_nobody_has_open);
    tcase_add_test(tests, unpin_lets_a_pinned_prefix_go_that_its_worker_left);
    tcase_add_test(tests, unpin_without_a_block_means_all_of_the_cache);
    tcase_add_test(tests, limits_of_tenants_and_sessions_change_while_the_daemon_serves);
    tcase_add_loop_test(tests, the_command_that_drops_a_cache_in_the_way_works_as_it_is_told, 0,
                        sizeof odd_names / sizeof *odd_names);
    tcase_add_test(tests, commands_that_a_complaint_names_ask_the_same_daemon);
    tcase_add_test(tests, log_level_changes_what_the_running_daemon_writes);
    tcase_add_test(tests, options_shows_what_the_command_line_names_and_the_defaults);
    suite_add_tcase(suite, tests);
    tests = tcase_create("with groups");
    tcase_add_checked_fixture(tests, start_with_groups, stop);
    tcase_add_test(tests,
                   two_tenants_give_one_name_to_caches_of_two_shapes_and_commands_ask_for_an_id);
    suite_add_tcase(suite, tests);
    tests = tcase_create("with a daemon that forgets");
    tcase_add_checked_fixture(tests, start_forgetful, stop);
    tcase_add_test(tests, a_pin_ends_after_its_tenants_last_session);
    suite_add_tcase(suite, tests);
    return check_main(suite);
}
