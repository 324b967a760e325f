// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// client_rig.h - helpers for tests of the client library's attention with the real daemon: a daemon
// for each test, sessions, tensors full of numbers, and a check of what is still held. Asserts with
// check.

#ifndef AULE_TESTS_CLIENT_RIG_H
#define AULE_TESTS_CLIENT_RIG_H

#include "aule/aule.h"
#include "check_main.h"
#include "client_expect.h"
#include "daemon_harness.h"

enum { WAIT_MS = 60000 };

extern struct daemon rig_daemon;

// Checked fixtures; wrap them to add options.
void rig_launch(const char *const *options);
void rig_setup(void);
void rig_setup_staging(void);
void rig_teardown(void); // the daemon must end with 0

// An arena of 32 MiB.
struct aule_session *rig_session(uint32_t paged_threshold);

// [outer, heads, rows, dim], or with `tokens_first` [outer, rows, heads, dim], dense. `seed`
// decides the numbers, which are between -2 and 2.
struct rig_shape {
    enum aule_dtype dtype; // f32, f16 or bf16
    uint32_t outer, rows, heads, dim;
    bool tokens_first;
};
struct aule_tensor rig_tensor(struct aule_session *session, const struct rig_shape *shape,
                              uint32_t seed);
size_t rig_size(const struct rig_shape *shape); // bytes

// Waits until the runs in flight have released their blocks. Then no block of any cache is leased,
// held or quarantined, and no session has a batch or an unreaped ticket.
void rig_expect_nothing_held(void);

// A case of `tests` (NULL-terminated), each with a daemon of its own, which `setup` launches.
void rig_add(Suite *suite, const char *name, void (*setup)(void), const TTest *const *tests);
// Two cases with one daemon each for all of them, whose arenas are imported and staged. Each test
// finds what the tests before it left there: caches, prefixes, counters, compiled kernels. With
// AULE_TEST_ONE_IN above 1 one of the cases, drawn.
void rig_share(Suite *suite, const TTest *const *tests);

#endif
