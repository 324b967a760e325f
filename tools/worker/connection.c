// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// connection.c - see connection.h.

#include "connection.h"

#include "element.h"
#include "model.h"

#include <stdio.h>

// After these the daemon must be started before a worker is started again.
static bool is_gone(enum aule_status status)
{
    return status == AULE_DAEMON_GONE || status == AULE_TIMEOUT || status == AULE_DEVICE_LOST ||
           status == AULE_STOPPING;
}

bool connection_failed(struct connection *connection, const char *doing, enum aule_status status)
{
    struct failure *failure = &connection->base.failure;
    failure_set(failure, is_gone(status) ? EXIT_CODE_GONE : EXIT_CODE_FAILED, "%s: %s", doing,
                aule_error());
    failure->status = aule_status_name(status);
    return false;
}

static bool open_session(struct connection *connection, uint64_t more)
{
    const struct attention_params *params = &connection->params;
    const uint64_t row = (MODEL_QKV_WIDTH + MODEL_OUT_WIDTH) * sizeof(float);
    const struct aule_session_params session_params = {
        .socket = params->socket,
        .name = params->name,
        .tenant = params->tenant,
        // Bytes of the arena: tensors, and metadata that is too large for a message.
        .arena_size =
            params->max_count * row + (uint64_t)params->max_tokens * 16 + (1 << 20) + more,
        .timeout_ms = params->timeout_ms};
    enum aule_status status = aule_session_open(&session_params, &connection->session);
    if (status)
        return connection_failed(connection, "opening a session", status);
    struct aule_session_info info;
    status = aule_session_info(connection->session, &info);
    if (status)
        return connection_failed(connection, "asking about the session", status);
    connection->base.session = info.session;
    snprintf(connection->base.device, sizeof connection->base.device, "%s", info.device_name);
    return true;
}

struct aule_tensor connection_slice(uint64_t offset, uint32_t row_heads, uint32_t first_head,
                                    enum aule_dtype dtype)
{
    const uint64_t head_stride = MODEL_HEAD_DIM * aule_dtype_size(dtype);
    return (struct aule_tensor){.dtype = dtype,
                                .offset = offset + first_head * head_stride,
                                .token_stride = row_heads * head_stride,
                                .head_stride = head_stride};
}

static bool place_tensors(struct connection *connection)
{
    const enum aule_dtype dtype = connection->params.dtype;
    const uint64_t rows = connection->params.max_count, size = aule_dtype_size(dtype);
    const uint32_t qkv_heads = MODEL_HEADS + 2 * MODEL_KV_HEADS;
    uint64_t qkv, out;
    enum aule_status status = aule_arena_alloc(connection->session, rows * MODEL_QKV_WIDTH * size,
                                               &connection->qkv, &qkv);
    if (!status)
        status = aule_arena_alloc(connection->session, rows * MODEL_OUT_WIDTH * size,
                                  &connection->out, &out);
    if (status)
        return connection_failed(connection, "allocating tensors in the arena", status);
    connection->run = (struct aule_run_params){
        .num_heads = MODEL_HEADS,
        .q = connection_slice(qkv, qkv_heads, 0, dtype),
        .k = connection_slice(qkv, qkv_heads, MODEL_HEADS, dtype),
        .v = connection_slice(qkv, qkv_heads, MODEL_HEADS + MODEL_KV_HEADS, dtype),
        .out = connection_slice(out, MODEL_HEADS, 0, dtype),
        .causal = true};
    return true;
}

bool connection_open(struct connection *connection, const struct attention_params *params,
                     uint64_t more)
{
    connection->params = *params;
    return open_session(connection, more) && place_tensors(connection);
}

void connection_close(struct connection *connection)
{
    aule_session_close(connection->session);
}

void connection_store(struct connection *connection, const float *qkv, uint32_t count)
{
    element_store(connection->qkv, qkv, (size_t)count * MODEL_QKV_WIDTH, connection->params.dtype);
}

void connection_load(const struct connection *connection, float *out, uint32_t count)
{
    element_load(out, connection->out, (size_t)count * MODEL_OUT_WIDTH, connection->params.dtype);
}
