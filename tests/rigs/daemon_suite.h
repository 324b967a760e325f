// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// daemon_suite.h - helpers for suites with a real aule-daemon: one daemon for each test, its clean
// end, cases from a table. Asserts (check).

#ifndef AULE_TESTS_DAEMON_SUITE_H
#define AULE_TESTS_DAEMON_SUITE_H

#include "daemon_harness.h"

#include <check.h>

enum { ARENA = 65536, DEADLINE_S = 100 };

extern struct daemon daemon_; // of the current test

// Options of start(), by the index of a loop test: import (if the device supports it) or staging.
const char *const *memory_path(int index);

void start(const char *const *options); // as daemon_launch()
void stop_clean(void);                  // it must end with 0 and leave neither socket nor segment
void nap(void);                         // some milliseconds
int count_fds(pid_t pid);

// A case of `tests` (up to a NULL), each run for 0 .. loops - 1. After each test, a daemon that
// still runs is ended.
void suite_add(Suite *suite, const char *name, const TTest *const *tests, int loops);

#endif
