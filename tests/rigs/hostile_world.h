// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// hostile_world.h - helpers for tests of hostile clients of a real aule-daemon: one token is
// written and attended to, so the output is its V; and a check that the daemon still serves.
// Asserts (check).

#ifndef AULE_TESTS_HOSTILE_WORLD_H
#define AULE_TESTS_HOSTILE_WORLD_H

#include "daemon_step.h"
#include "daemon_suite.h"

extern const int32_t token_cu_seqlens_q[2], token_seq_lens_kv[1];

struct wire_request token_request(uint64_t cache, const int32_t *block, const int64_t *slot);
uint64_t create_token_batch(struct raw_client *raw, uint64_t cache); // in a block that it leases
struct wire_request token_run(uint64_t batch);

// The daemon must be unharmed: a session, a cache, a run, the right answer.
void check_served(void);

#endif
