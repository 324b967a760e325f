// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// failing_daemon.h - allocations of a daemon fail. A library that is loaded into the daemon
// counts the allocations by the program's own code, that of static libraries included; those of
// drivers and of the C library do not count. The test shares this struct with it by a file.

#ifndef AULE_TESTS_FAILING_DAEMON_H
#define AULE_TESTS_FAILING_DAEMON_H

#include <stdatomic.h>
#include <stdint.h>

#define FAILING_DAEMON_VARIABLE "AULE_TEST_FAILING" // the file's path

struct failing_daemon {
    atomic_uint seen;                // allocations since the test set this to 0
    atomic_uint fail_at;             // the number of the first one that fails; 0: none does
    atomic_uint fails;               // how many in a row fail from there on
    atomic_uint_least64_t failed_at; // where in the program the last one was
};

#endif
