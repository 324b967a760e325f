// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// daemon_step.h - a tiny model step with the raw client: one layer, one head, head_dim 8, blocks of
// 8 tokens, f32. Asserts (check) that requests are granted, except where a function returns the
// status.

#ifndef AULE_TESTS_DAEMON_STEP_H
#define AULE_TESTS_DAEMON_STEP_H

#include "raw_client.h"

enum { BLOCK = 8, DIM = 8, ROW = DIM * 4 };
enum { Q_AT = 0, K_AT = 4096, V_AT = 8192, OUT_AT = 12288 }; // offsets in the arena

struct wire_request cache_request(const char *name);
uint64_t open_cache(struct raw_client *raw, const char *name);
int lease_status(struct raw_client *raw, uint64_t cache, uint32_t count, int timeout_ms,
                 int32_t *blocks);
void lease(struct raw_client *raw, uint64_t cache, uint32_t count, int32_t *blocks);
void release(struct raw_client *raw, uint64_t cache, const int32_t *blocks, uint32_t count);
float *floats_at(struct raw_client *raw, size_t offset);
// A batch of one sequence of 8 tokens that fills `block`. The metadata is in the message.
struct wire_request fill_request(uint64_t cache, const int32_t *block, const int64_t *slots);
void slots_of(int32_t block, int64_t slots[BLOCK]);
uint64_t create_batch(struct raw_client *raw, const struct wire_request *request);
struct wire_request run_request(uint64_t batch, int timeout_ms);
uint64_t submit(struct raw_client *raw, uint64_t batch);
void wait_done(struct raw_client *raw, uint64_t ticket);
// Writes what lies at the beginning of the arena into all slots of the blocks, in layer 0.
void store(struct raw_client *raw, uint64_t cache, const int32_t *blocks, uint32_t count);
// All 8 rows of V are `value`. So every row of the output must be `value`, whatever the weights
// are.
void put_step(struct raw_client *raw, float value);
void check_out(struct raw_client *raw, float value);
// Leases a block, writes 8 tokens of `value`, attends to them, and checks. Returns the block, still
// leased.
int32_t do_step(struct raw_client *raw, uint64_t cache, float value);

#endif
