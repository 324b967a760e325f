// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// check_main.h - the cases of a check suite from tables, and the suite as a program, which fails
// when nothing ran (an unknown CK_RUN_CASE would pass otherwise). AULE_TEST_ONE_IN=N runs one in N
// iterations of each check_loop(), other ones with another AULE_TEST_SEED; AULE_TEST_PART=NAME only
// Check's case of that name. AULE_TEST_LONG=1 overrules both. Vulkan and nng must be started inside
// a test or a checked fixture, never before the fork.

#ifndef AULE_CHECK_MAIN_H
#define AULE_CHECK_MAIN_H

#include <check.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

// Of an environment variable.
static inline uint64_t check_number(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    char *end;
    if (!text || !*text)
        return otherwise;
    uint64_t number = strtoull(text, &end, 0);
    if (!*end)
        return number;
    fprintf(stderr, "%s is \"%s\", which is no number\n", name, text);
    exit(2);
}

static inline bool check_is_long(void)
{
    return check_number("AULE_TEST_LONG", 0) != 0;
}

// `test` for some of 0 .. loops - 1, at least one: which ones is drawn from the seed. For loops
// over a table whose every entry costs seconds.
static inline void check_loop(TCase *tcase, const TTest *test, int loops)
{
    int one_in = check_is_long() ? 1 : (int)check_number("AULE_TEST_ONE_IN", 1);
    int first = one_in > 1 ? (int)(check_number("AULE_TEST_SEED", 0) % (uint64_t)loops) : 0;
    for (int i = 0; i<loops; i += one_in> 1 ? one_in : 1)
        tcase_add_loop_test(tcase, test, (first + i) % loops, (first + i) % loops + 1);
}

// A case of `tests` (up to a NULL), each run for 0 .. loops - 1, before and after it what sets it
// up and clears it away (or NULL). check keeps `name` as it is.
static inline void check_case(Suite *suite, const char *name, SFun open, SFun close,
                              const TTest *const *tests, int loops)
{
    TCase *tcase = tcase_create(name);
    tcase_add_checked_fixture(tcase, open, close);
    for (; *tests; tests++)
        tcase_add_loop_test(tcase, *tests, 0, loops);
    suite_add_tcase(suite, tcase);
}

// Takes the suite over; returns what main() should return.
static inline int check_main(Suite *suite)
{
    const char *part = getenv("AULE_TEST_PART");
    if (part && !check_is_long())
        setenv("CK_RUN_CASE", part, 0);
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int ran = srunner_ntests_run(runner), failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    if (ran == 0)
        fprintf(stderr, "no test ran\n");
    return ran > 0 && failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

#endif
