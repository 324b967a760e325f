// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// check_main.h - runs one check suite as a program. Fails when nothing ran (an unknown CK_RUN_CASE would pass otherwise).
// Vulkan and nng must be started inside a test or a checked fixture, never before the fork.

#ifndef AULE_CHECK_MAIN_H
#define AULE_CHECK_MAIN_H

#include <check.h>
#include <stdio.h>
#include <stdlib.h>

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
