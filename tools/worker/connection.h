// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// connection.h - what the two paths through aule share: a session, and a step's q, k, v and out in
// its arena. It knows neither cache nor blocks. One thread.

#ifndef WORKER_CONNECTION_H
#define WORKER_CONNECTION_H

#include "attention.h"

struct connection {
    struct attention base;
    struct attention_params params;
    struct aule_session *session;
    void *qkv, *out; // in the arena, of params.dtype: [max_count, MODEL_QKV_WIDTH] and [max_count,
                     // MODEL_OUT_WIDTH]
    struct aule_run_params run; // q, k, v, out, and what all runs have in common
};

// Opens the session, with `more` bytes of arena for the caller, and places the tensors.
// `connection` must be zero except base.ops. False: base.failure says why. End with
// connection_close() in either case.
bool connection_open(struct connection *connection, const struct attention_params *params,
                     uint64_t more);
void connection_close(struct connection *connection);

// Sets base.failure to what was being done, the status and the library's own sentence. Returns
// false.
bool connection_failed(struct connection *connection, const char *doing, enum aule_status status);

// A dense view of some heads, from first_head on, of rows of row_heads heads at `offset`.
struct aule_tensor connection_slice(uint64_t offset, uint32_t row_heads, uint32_t first_head,
                                    enum aule_dtype dtype);

// Copies the step's rows into the arena, and its results out of it.
void connection_store(struct connection *connection, const float *qkv, uint32_t count);
void connection_load(const struct connection *connection, float *out, uint32_t count);

#endif
