// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_ctl_drawings.c - what aule-ctl draws: the map of a real daemon's blocks, and the tree of its
// prefixes.

#include "rigs/ctl_world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void expect_part(const char *text, const char *part)
{
    ck_assert_msg(strstr(text, part) != NULL, "%s lacks %s", text, part);
}

// Two held blocks, then a leased one, of as many as the daemon has in a chunk.
static void hold_and_lease(void)
{
    int32_t blocks[2], leased;
    open_worker("worker");
    publish_two_blocks(blocks);
    CHECK_OK(aule_blocks_lease(cache, 1, 60000, &leased));
}

START_TEST(blocks_are_drawn_line_by_line)
{
    hold_and_lease();
    struct outcome outcome = ASK("blocks", "--map");
    ck_assert_msg(outcome.code == OK, "%s", outcome.err);
    expect_part(outcome.out, ". free  L leased  H held  c cached  Q quarantined\n");
    expect_part(outcome.out, "\"model\": ");
    expect_part(outcome.out, " blocks, 1 to a character; ");
    expect_part(outcome.out, "leased 1, held 2");
    expect_part(outcome.out, "\n      0  HHL");
    ck_assert_ptr_null(strchr(outcome.out, '\033'));
    outcome_finish(&outcome);
    outcome = ASK("blocks", "--map", "--state", "held");
    expect_part(outcome.out, "\n      0  HH\n");
    outcome_finish(&outcome);
    assert_fails(ASK("blocks", "--map", "--cache", "nothing"), FAILED, "no cache \"nothing\"");
    assert_fails_as_json(ASK("blocks", "--map", "--json"), USAGE, NULL, "--map draws for people");
}
END_TEST

START_TEST(a_terminal_gets_colours_and_its_own_width)
{
    char text[16384];
    hold_and_lease();
    ck_assert_int_eq(setenv("TERM", "xterm", 1), 0);
    unsetenv("NO_COLOR");
    show_on_terminal(45, "blocks", "--map", text, sizeof text);
    expect_part(text, "\033[32mHH\033[0m\033[33mL");
    ck_assert_int_eq(setenv("NO_COLOR", "1", 1), 0);
    show_on_terminal(45, "blocks", "--map", text, sizeof text);
    ck_assert_ptr_null(strchr(text, '\033'));
    char *line = strstr(text, "      0  HHL");
    ck_assert_ptr_nonnull(line);
    ck_assert_uint_le(strcspn(line, "\r\n"), 45);
}
END_TEST

// ---- the prefix index ----

static const cJSON *line_at(const cJSON *json, int index)
{
    return cJSON_GetArrayItem(cJSON_GetObjectItem(json, "prefix"), index);
}

START_TEST(prefix_shows_a_chain_with_tokens_holders_hits_and_tenant)
{
    int32_t blocks[2];
    char tenant[64];
    open_worker("worker");
    publish_two_blocks(blocks);
    cJSON *json = document(ASK("prefix", "--json"));
    const cJSON *entry = cJSON_GetArrayItem(list(json, "prefix", 1), 0);
    ck_assert_str_eq(string(entry, "cache_name"), "model");
    ck_assert_str_eq(string(entry, "begins"), "100 101 102 103 ...");
    ck_assert_double_eq(number(entry, "tokens"), 2 * BLOCK_SIZE);
    ck_assert_double_eq(number(entry, "blocks"), 2);
    ck_assert_double_eq(number(entry, "holders"), 1);
    ck_assert_double_eq(number(entry, "hits"), 1);
    ck_assert_double_eq(number(entry, "block"), blocks[0]);
    ck_assert_double_eq(number(entry, "parent"), -1);
    ck_assert_double_lt(number(entry, "age_ms"), 60000);
    snprintf(tenant, sizeof tenant, "uid:%u/tenant-a", (unsigned)geteuid());
    ck_assert_str_eq(string(entry, "tenant"), tenant);
    ck_assert_str_eq(string(entry, "keep"), "");
    ck_assert_str_eq(string(entry, "state"), "held");
    cJSON_Delete(json);
    struct outcome outcome = ASK("prefix", "--cache", "model");
    expect_part(outcome.out, "100 101 102 103 ...");
    outcome_finish(&outcome);
    assert_fails(ASK("prefix", "--cache", "nothing"), FAILED, "no cache \"nothing\"");
}
END_TEST

// One block released, so the chain is two lines: the second continues the first.
START_TEST(a_line_of_the_tree_ends_where_holders_differ)
{
    int32_t blocks[2];
    open_worker("worker");
    publish_two_blocks(blocks);
    const int32_t released[] = {blocks[1], blocks[1]};
    CHECK_OK(aule_blocks_release(cache, 2, released));
    cJSON *json = document(ASK("prefix", "--json"));
    list(json, "prefix", 2);
    ck_assert_double_eq(number(line_at(json, 0), "holders"), 1);
    ck_assert_double_eq(number(line_at(json, 0), "level"), 0);
    ck_assert_str_eq(string(line_at(json, 1), "state"), "cached");
    ck_assert_double_eq(number(line_at(json, 1), "level"), 1);
    ck_assert_double_eq(number(line_at(json, 1), "parent"), blocks[0]);
    ck_assert_str_eq(string(line_at(json, 1), "begins"), "  108 109 110 111 ...");
    cJSON_Delete(json);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("ctl, drawings");
    check_case(suite, "map", start, stop,
               (const TTest *const[]){blocks_are_drawn_line_by_line,
                                      a_terminal_gets_colours_and_its_own_width, NULL},
               1);
    check_case(suite, "tree", start, stop,
               (const TTest *const[]){prefix_shows_a_chain_with_tokens_holders_hits_and_tenant,
                                      a_line_of_the_tree_ends_where_holders_differ, NULL},
               1);
    return check_main(suite);
}
