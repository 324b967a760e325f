// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// client_rig.h - what tests of the client library's attention against the real daemon have in
// common: a daemon a test, sessions, tensors full of numbers, and a look at what is still held.
// Asserts with check.

#ifndef AULE_TESTS_CLIENT_RIG_H
#define AULE_TESTS_CLIENT_RIG_H

#include "aule/aule.h"
#include "check_main.h"
#include "client_expect.h"
#include "daemon_harness.h"

enum { WAIT_MS = 60000 };

extern struct daemon rig_daemon;

// Checked fixtures, to be wrapped where options are wanted.
void rig_launch(const char *const *options);
void rig_setup(void);
void rig_setup_staging(void);
void rig_teardown(void); // the daemon ends well

// An arena of 32 MiB.
struct aule_session *rig_session(uint32_t paged_threshold);

// [outer, heads, rows, dim], or with `tokens_first` [outer, rows, heads, dim], dense, of numbers
// between -2 and 2 that `seed` decides.
struct rig_shape {
    enum aule_dtype dtype; // f32, f16 or bf16
    uint32_t outer, rows, heads, dim;
    bool tokens_first;
};
struct aule_tensor rig_tensor(struct aule_session *session, const struct rig_shape *shape,
                              uint32_t seed);
size_t rig_size(const struct rig_shape *shape); // bytes

// No block is leased, held or quarantined, in no cache, once the runs in flight have let go of
// theirs; no session has a batch or an unreaped ticket.
void rig_expect_nothing_held(void);

void rig_add(Suite *suite, const char *name, void (*setup)(void), const TTest *const *tests);

#endif
