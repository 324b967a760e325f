// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// check_main.h - Check's cases from tables, and a suite as a program. A program in which no test
// ran fails: Check passes if CK_RUN_CASE names no case.
//
// AULE_TEST_ONE_IN=N runs one in N entries of each check_loop(); AULE_TEST_SEED draws which ones.
// AULE_TEST_PIECE=I/N runs the Ith of N pieces of all loops, so that processes can share a table.
// AULE_TEST_PART=NAME runs Check's case of that name. AULE_TEST_LONG=1 overrules ONE_IN and PART.
//
// Start Vulkan and nng inside a test or a checked fixture, never before Check forks.

#ifndef AULE_CHECK_MAIN_H
#define AULE_CHECK_MAIN_H

#include "base/hash.h"

#include <check.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

// The number in an environment variable, or `otherwise` if there is none.
static inline uint64_t check_number(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    char *end;
    if (!text || !*text)
        return otherwise;
    uint64_t number = strtoull(text, &end, 0);
    if (!*end)
        return number;
    fprintf(stderr, "%s is \"%s\", which is not a number\n", name, text);
    exit(2);
}

static inline bool check_is_long(void)
{
    return check_number("AULE_TEST_LONG", 0) != 0;
}

// AULE_TEST_SEED. Without it the first call draws a seed, prints it and sets the variable, so that
// all of the program has one seed. Call this before Check forks.
static inline uint64_t check_seed(void)
{
    struct timespec now;
    char text[24];
    if (!getenv("AULE_TEST_SEED")) {
        clock_gettime(CLOCK_REALTIME, &now);
        snprintf(text, sizeof text, "%" PRIu64,
                 (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec);
        setenv("AULE_TEST_SEED", text, 0);
        printf("AULE_TEST_SEED=%s\n", text);
    }
    return check_number("AULE_TEST_SEED", 0);
}

// A number that follows from the seed, `name` and AULE_VARIANT. Tests and variants draw by
// themselves, so that one run covers more.
static inline uint32_t check_draw(const char *name)
{
    const char *variant = getenv("AULE_VARIANT");
    char text[256];
    uint32_t hash;
    snprintf(text, sizeof text, "%" PRIu64 " %s %s", check_seed(), variant ? variant : "", name);
    HASH_VALUE(text, strlen(text), hash);
    return hash;
}

// Whether the next entry of a loop is of this process' piece. Entries of a file go round.
static inline bool check_is_mine(void)
{
    static unsigned long num_entries;
    const char *text = getenv("AULE_TEST_PIECE");
    unsigned long piece = 1, pieces = 1;
    if (text && (sscanf(text, "%lu/%lu", &piece, &pieces) != 2 || piece < 1 || piece > pieces)) {
        fprintf(stderr, "AULE_TEST_PIECE is \"%s\", which is not I/N with I from 1 to N\n", text);
        exit(2);
    }
    return num_entries++ % pieces == piece - 1;
}

// Adds `test` for 0 .. loops - 1, or those of this process' piece.
static inline void check_whole_loop(TCase *tcase, const TTest *test, int loops)
{
    for (int entry = 0; entry < loops; entry++)
        if (check_is_mine())
            tcase_add_loop_test(tcase, test, entry, entry + 1);
}

// Adds `test` for some of 0 .. loops - 1, one at least. For a table whose entries take seconds
// each.
static inline void check_loop(TCase *tcase, const TTest *test, int loops)
{
    uint64_t one_in = check_is_long() ? 1 : check_number("AULE_TEST_ONE_IN", 1);
    if (loops <= 0)
        return;
    int step = one_in < 1 ? 1 : one_in < (uint64_t)loops ? (int)one_in : loops;
    int first = step > 1 ? (int)(check_draw(test->name) % (uint32_t)loops) : 0;
    for (int done = 0; done < loops; done += step) {
        int entry = (first + done) % loops;
        if (check_is_mine())
            tcase_add_loop_test(tcase, test, entry, entry + 1);
    }
}

static inline TCase *check_new_case(Suite *suite, const char *name, const TTest *const *tests,
                                    int loops)
{
    TCase *tcase = tcase_create(name);
    for (; *tests; tests++)
        tcase_add_loop_test(tcase, *tests, 0, loops);
    suite_add_tcase(suite, tcase);
    return tcase;
}

// Adds a case of `tests`, which end with NULL. Each runs for 0 .. loops - 1, between `open` and
// `close`; either may be NULL. Check keeps the pointer `name`.
static inline void check_case(Suite *suite, const char *name, SFun open, SFun close,
                              const TTest *const *tests, int loops)
{
    tcase_add_checked_fixture(check_new_case(suite, name, tests, loops), open, close);
}

// Two cases of the same tests that differ in how they begin, for tests that take seconds each: with
// AULE_TEST_ONE_IN above 1 each test is in one of them, drawn.
static inline void check_either(Suite *suite, const char *const names[2], const SFun opens[2],
                                SFun close, const TTest *const *tests)
{
    bool both = check_is_long() || check_number("AULE_TEST_ONE_IN", 1) <= 1;
    TCase *cases[2];
    for (int i = 0; i < 2; i++) {
        cases[i] = tcase_create(names[i]);
        tcase_add_checked_fixture(cases[i], opens[i], close);
        suite_add_tcase(suite, cases[i]);
    }
    for (; *tests; tests++)
        for (uint32_t i = 0; i < 2; i++)
            if (both || check_draw((*tests)->name) % 2 == i)
                tcase_add_test(cases[i], *tests);
}

// The same as check_case(), but `open` and `close` run once for the whole case, in the parent of
// the processes that Check forks. Use it for a daemon that the tests share, so that each kernel is
// compiled once for all of them. Check does not report asserts that fail in `close`: end the
// program there.
static inline void check_shared_case(Suite *suite, const char *name, SFun open, SFun close,
                                     const TTest *const *tests, int loops)
{
    tcase_add_unchecked_fixture(check_new_case(suite, name, tests, loops), open, close);
}

// Two such cases of the same tests that differ in how they begin: with AULE_TEST_ONE_IN above 1 one
// of the two, drawn.
static inline void check_shared_either(Suite *suite, const char *const names[2],
                                       const SFun opens[2], SFun close, const TTest *const *tests)
{
    bool both = check_is_long() || check_number("AULE_TEST_ONE_IN", 1) <= 1;
    for (uint32_t i = 0; i < 2; i++)
        if (both || check_draw((*tests)->name) % 2 == i)
            check_shared_case(suite, names[i], opens[i], close, tests, 1);
}

// Runs the suite and frees it. Returns what main() should return.
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
