// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// daemon_suite.h - what suites of tests over a real aule-daemon share: one daemon a test, its clean
// end, cases from a table. Asserts (check).

#ifndef AULE_TESTS_DAEMON_SUITE_H
#define AULE_TESTS_DAEMON_SUITE_H

#include "daemon_harness.h"

#include <check.h>

enum { ARENA = 65536, DEADLINE_S = 100 };

extern struct daemon daemon_; // of the test that runs

// Import (where the device can) or staging, by the index of a loop test: options for start().
const char *const *memory_path(int index);

void start(const char *const *options); // as daemon_launch()
void stop_clean(void);                  // it must end with 0 and leave neither socket nor segment
void nap(void);                         // some milliseconds
int count_fds(pid_t pid);

// A case of `tests` (up to a NULL), each run for 0 .. loops - 1; what is left of a daemon ends
// after each.
void suite_add(Suite *suite, const char *name, const TTest *const *tests, int loops);

#endif
