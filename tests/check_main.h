// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// check_main.h - the cases of a check suite from tables, and the suite as a program, which fails when nothing ran (an unknown CK_RUN_CASE
// would pass otherwise).
// Vulkan and nng must be started inside a test or a checked fixture, never before the fork.

#ifndef AULE_CHECK_MAIN_H
#define AULE_CHECK_MAIN_H

#include <check.h>
#include <stdio.h>
#include <stdlib.h>

// A case of `tests` (up to a NULL), each run for 0 .. loops - 1, before and after it what sets it up and clears it away (or NULL). check keeps
// `name` as it is.
static inline void check_case(Suite *suite, const char *name, SFun open, SFun close, const TTest *const *tests,
                              int loops)
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
    SRunner *runner = srunner_create(suite);
    srunner_run_all(runner, CK_NORMAL);
    int ran = srunner_ntests_run(runner), failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    if (ran == 0)
        fprintf(stderr, "no test ran\n");
    return ran > 0 && failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

#endif
