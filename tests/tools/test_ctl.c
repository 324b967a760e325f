// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_ctl.c - aule-ctl as a program, without a daemon: usage, exit codes, the error on stderr and
// its document. What it shows: test_ctl_views.c. What it changes: test_ctl_actions.c.

#include "base/quote.h"
#include "rigs/ctl_world.h"
#include "tools/ctl/units.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

START_TEST(version_needs_no_daemon)
{
    struct outcome outcome = RUN("version");
    ck_assert_int_eq(outcome.code, OK);
    ck_assert_ptr_nonnull(strstr(outcome.out, aule_version()));
    outcome_finish(&outcome);
    outcome = RUN("--version");
    ck_assert_int_eq(outcome.code, OK);
    ck_assert_str_eq(outcome.out, "aule-ctl " AULE_VERSION_STRING "\n");
    outcome_finish(&outcome);
    cJSON *json = document(RUN("version", "--json"));
    ck_assert_str_eq(string(json, "version"), AULE_VERSION_STRING);
    ck_assert_str_eq(string(json, "library"), aule_version());
    cJSON_Delete(json);
}
END_TEST

START_TEST(without_a_daemon_nothing_can_be_asked)
{
    assert_fails(RUN(asking[_i], "--socket", "/tmp/aule-test-nobody.sock"), GONE,
                 "/tmp/aule-test-nobody.sock");
    assert_fails(
        RUN(asking[_i], "--socket=/tmp/aule-test-nobody.sock"), GONE,
        "there is no such socket; aule-daemon --socket /tmp/aule-test-nobody.sock starts one");
    assert_fails_as_json(RUN("--json", asking[_i], "--socket=/tmp/aule-test-nobody.sock"), GONE,
                         "DAEMON_GONE", "/tmp/aule-test-nobody.sock");
}
END_TEST

START_TEST(a_daemon_is_advised_only_where_it_would_find_or_make_its_folder)
{
    assert_fails(RUN("ping", "--socket=/tmp/aule-test-nowhere/s"), GONE,
                 "aule-daemon --socket /tmp/aule-test-nowhere/s");
    assert_fails(RUN("ping", "--socket=/tmp/aule-test-nowhere/x/s"), GONE,
                 "the folder of the socket does not exist");
}
END_TEST

// A daemon listens, and one descriptor is enough to find that out.
START_TEST(without_descriptors_nothing_can_be_asked)
{
    char text[1024] = "";
    const struct sockaddr_un address = {.sun_family = AF_UNIX,
                                        .sun_path = "/tmp/aule-test-listens.sock"};
    unlink(address.sun_path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(fd, (const struct sockaddr *)&address, sizeof address), 0);
    ck_assert_int_eq(listen(fd, 1), 0);
    FILE *shell = popen("exec 2>&1 3>&- 4>&- 5>&- 6>&-; ulimit -n 4; exec " CTL
                        " ping --socket /tmp/aule-test-listens.sock",
                        "re");
    ck_assert_ptr_nonnull(shell);
    ck_assert_uint_gt(fread(text, 1, sizeof text - 1, shell), 0);
    int status = pclose(shell);
    close(fd);
    unlink(address.sun_path);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == FAILED, "status 0x%x: %s",
                  (unsigned)status, text);
    ck_assert_msg(strstr(text, "may have 4 (ulimit -n)") != NULL, "%s", text);
}
END_TEST

START_TEST(bad_usage_is_refused_with_the_offending_word)
{
    assert_fails(RUN("frobnicate"), USAGE, "\"frobnicate\" is no command");
    assert_fails(run_to(NULL, (const char *const[]){NULL}), USAGE, "name a command");
    assert_fails(RUN("status", "--cache", "x"), USAGE, "status takes no --cache");
    assert_fails(RUN("status", "--state", "free"), USAGE, "status takes no --state; blocks does");
    assert_fails(RUN("version", "--socket", "x"), USAGE, "version takes no --socket");
    assert_fails(RUN("status", "now"), USAGE, "\"status\" takes no arguments; there are 1");
    assert_fails(RUN("close-session"), USAGE, "takes one ID");
    assert_fails(RUN("ping", "--timeout", "soon"), USAGE,
                 "--timeout \"soon\" is not a whole number from 1 to 2147483647");
    assert_fails(RUN("ping", "--timeout", "0"), USAGE, "--timeout \"0\"");
    assert_fails(RUN("ping", "--timeout", "99999999999"), USAGE, "--timeout \"99999999999\"");
    assert_fails(RUN("status", "--frob"), USAGE, "--frob is no option");
    assert_fails(RUN("status", "--json=yes"), USAGE, "--json takes no value, but got \"yes\"");
    assert_fails(RUN("ping", "--socket"), USAGE, "--socket needs a value: PATH");
}
END_TEST

// No daemon listens there, but that is not the error.
START_TEST(arguments_are_looked_at_before_the_daemon_is_asked)
{
    static const char socket[] = "--socket=/tmp/aule-test-nobody.sock";
    assert_fails(RUN("close-session", "seven", socket), USAGE, "\"seven\" is no session's id");
    assert_fails(RUN("log-level", "loud", socket), USAGE,
                 "log-level \"loud\": there are show, error, warn, info and debug");
    assert_fails(
        RUN("blocks", "--state", "stolen", socket), USAGE,
        "--state \"stolen\" is none of free, leased, held, cached, quarantined and absent");
    assert_fails_as_json(RUN("blocks", "--state", "stolen", socket, "--json"), USAGE, NULL,
                         "--state \"stolen\"");
}
END_TEST

START_TEST(bad_usage_is_a_document_wherever_json_stands)
{
    assert_fails_as_json(RUN("frobnicate", "--json"), USAGE, NULL, "there are status");
    assert_fails_as_json(RUN("--json"), USAGE, NULL, "name a command");
    assert_fails_as_json(RUN("ping", "--timeout", "soon\xff", "--json"), USAGE, NULL,
                         "--timeout \"soon?\"");
    assert_fails_as_json(RUN("--json", "status", "--frob"), USAGE, NULL, "--frob is no option");
    assert_fails(RUN("status", "--frob", "--", "--json"), USAGE, "--frob is no option");
}
END_TEST

START_TEST(help_lists_every_command_and_the_exit_codes)
{
    struct outcome outcome = RUN("--help");
    ck_assert_int_eq(outcome.code, OK);
    for (size_t i = 0; i < sizeof asking / sizeof *asking; i++)
        ck_assert_ptr_nonnull(strstr(outcome.out, asking[i]));
    ck_assert_ptr_nonnull(strstr(outcome.out, "close-session ID"));
    ck_assert_ptr_nonnull(strstr(outcome.out, "Exit codes: 0"));
    outcome_finish(&outcome);
    outcome = RUN("-h");
    ck_assert_int_eq(outcome.code, OK);
    ck_assert_ptr_nonnull(strstr(outcome.out, "Exit codes: 0"));
    outcome_finish(&outcome);
    outcome = RUN("blocks", "--help");
    ck_assert_int_eq(outcome.code, OK);
    ck_assert_ptr_nonnull(strstr(outcome.out, "--state STATE"));
    outcome_finish(&outcome);
}
END_TEST

START_TEST(output_that_cannot_be_written_is_a_failure)
{
    struct outcome outcome = run_to("/dev/full", (const char *const[]){"version", NULL});
    ck_assert_int_eq(outcome.code, FAILED);
    ck_assert_ptr_nonnull(strstr(outcome.err, "could not be written"));
    outcome_finish(&outcome);
}
END_TEST

// A process listens, but it is no daemon and never answers.
START_TEST(a_listener_that_never_answers_is_given_up)
{
    char folder[] = "/tmp/aule-test-ctl.XXXXXX", deadline[] = "300";
    ck_assert_ptr_nonnull(mkdtemp(folder));
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s/sock", folder);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    ck_assert_int_eq(listen(fd, 8), 0);
    time_t start = time(NULL);
    struct outcome outcome = RUN("ping", "--socket", address.sun_path, "--timeout", deadline);
    ck_assert_int_eq(outcome.code, GONE);
    ck_assert_uint_gt(strlen(outcome.err), 20);
    ck_assert_int_lt(time(NULL) - start, 100);
    outcome_finish(&outcome);
    close(fd);
    unlink(address.sun_path);
    rmdir(folder);
}
END_TEST

START_TEST(numbers_are_shown_as_people_read_them)
{
    char text[UNITS_SIZE];
    ck_assert_str_eq(units_bytes(0, text), "0 B");
    ck_assert_str_eq(units_bytes(1023, text), "1023 B");
    ck_assert_str_eq(units_bytes(1536, text), "1.5 KiB");
    ck_assert_str_eq(units_bytes((UINT64_C(1) << 30) - 1, text), "1.0 GiB");
    ck_assert_str_eq(units_bytes(UINT64_MAX, text), "16.0 EiB");
    ck_assert_str_eq(units_count(9999, text), "9999");
    ck_assert_str_eq(units_count(12345, text), "12.3 k");
    ck_assert_str_eq(units_count(999999, text), "1.0 M");
    ck_assert_str_eq(units_ms(999, text), "999 ms");
    ck_assert_str_eq(units_ms(12340, text), "12.3 s");
    ck_assert_str_eq(units_ms(200000, text), "3 min 20 s");
    ck_assert_str_eq(units_ms(3600000, text), "1 h 0 min");
    ck_assert_str_eq(units_ms(UINT64_C(360000000), text), "4 d 4 h");
    ck_assert_str_eq(units_ns(850, text), "850 ns");
    ck_assert_str_eq(units_ns(12345, text), "12.3 us");
    ck_assert_str_eq(units_ns(1500000000, text), "1.5 s");
}
END_TEST

START_TEST(what_is_quoted_for_a_shell_is_the_word_itself)
{
    static const char *const words[] = {"model", "/tmp/0.sock",      "",  "a b",      "it's",
                                        "''",    "$HOME `ls` \\ \"", "~", "\xc3\xa4", "a\nb"};
    char quoted[QUOTE_SIZE(32)], command[sizeof quoted + 16], said[64] = "";
    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        snprintf(command, sizeof command, "printf %%s %s", quote(quoted, sizeof quoted, words[i]));
        FILE *shell = popen(command, "re");
        ck_assert_ptr_nonnull(shell);
        said[fread(said, 1, sizeof said - 1, shell)] = '\0';
        ck_assert_int_eq(pclose(shell), 0);
        ck_assert_str_eq(said, words[i]);
    }
    ck_assert_str_eq(quote(quoted, sizeof quoted, "/tmp/0.sock"), "/tmp/0.sock");
    // a quoted word that was cut is still one word
    ck_assert_str_eq(quote(quoted, QUOTE_SIZE(1), "a''"), "'a'");
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("ctl");
    TCase *tests = tcase_create("without a daemon");
    tcase_add_test(tests, version_needs_no_daemon);
    tcase_add_loop_test(tests, without_a_daemon_nothing_can_be_asked, 0, NUM_ASKING);
    tcase_add_test(tests, a_daemon_is_advised_only_where_it_would_find_or_make_its_folder);
    tcase_add_test(tests, without_descriptors_nothing_can_be_asked);
    tcase_add_test(tests, bad_usage_is_refused_with_the_offending_word);
    tcase_add_test(tests, arguments_are_looked_at_before_the_daemon_is_asked);
    tcase_add_test(tests, bad_usage_is_a_document_wherever_json_stands);
    tcase_add_test(tests, help_lists_every_command_and_the_exit_codes);
    tcase_add_test(tests, output_that_cannot_be_written_is_a_failure);
    tcase_add_test(tests, a_listener_that_never_answers_is_given_up);
    tcase_add_test(tests, numbers_are_shown_as_people_read_them);
    tcase_add_test(tests, what_is_quoted_for_a_shell_is_the_word_itself);
    suite_add_tcase(suite, tests);
    return check_main(suite);
}
