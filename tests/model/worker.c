// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// worker.c - a worker's process: a session of libaule-client that does one order after another. A
// token's key has one number, which follows from the token, all tokens before it and the layer.
// After each step the worker reads all keys of the sequence back, whoever computed them, so blocks
// that were found, forked, copied or handed over have the bits of a fresh computation.

#include "aule/sequence.h"
#include "world.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { LAYERS = 2, DIM = 8, WAIT_MS = 120000, ARENA = 1 << 20 };

static struct aule_session *session;
static struct aule_cache *cache;
static struct aule_step *step;
static struct aule_sequence *sequences[SEQUENCES];
static struct aule_tensor q, k, v, out, k_back, v_back;
static struct aule_step_entry entry; // of the step that was made

static void open_session(const char *socket_path, const struct order *order, struct reply *reply)
{
    const char *const tenants[TENANTS] = {"one", "two"};
    struct aule_session_info info = {0};
    struct aule_tensor *const tensors[] = {&q, &k, &v, &out, &k_back, &v_back};
    const struct aule_session_params params = {.socket = socket_path,
                                               .tenant = tenants[order->other],
                                               .arena_size = ARENA,
                                               .timeout_ms = WAIT_MS};
    const struct aule_cache_params cache_params = {.name = "model",
                                                   .num_layers = LAYERS,
                                                   .num_kv_heads = 1,
                                                   .head_dim = DIM,
                                                   .k_dtype = AULE_F32,
                                                   .v_dtype = AULE_F32,
                                                   .block_size = BLOCK};
    reply->status = aule_session_open(&params, &session);
    if (reply->status == AULE_OK)
        reply->status = aule_session_info(session, &info);
    if (reply->status == AULE_OK)
        reply->status = aule_cache_open(session, &cache_params, &cache);
    if (reply->status == AULE_OK)
        reply->status = aule_step_create(cache, &step);
    for (size_t i = 0; reply->status == AULE_OK && i < sizeof tensors / sizeof *tensors; i++)
        reply->status = aule_tensor_create(session, AULE_F32, TOKENS, 1, DIM, tensors[i]);
    reply->session = info.session;
}

static void close_session(void)
{
    for (int s = 0; s < SEQUENCES; s++) {
        aule_sequence_destroy(sequences[s]);
        sequences[s] = NULL;
    }
    aule_step_destroy(step);
    aule_cache_close(cache);
    aule_session_close(session);
    step = NULL;
    cache = NULL;
    session = NULL;
}

// ---- steps ----

// The number of the token at `position`.
static int32_t number(const int32_t *tokens, uint32_t position, uint32_t layer)
{
    uint32_t hash = 17 + layer;
    for (uint32_t i = 0; i <= position; i++)
        hash = (hash ^ (uint32_t)tokens[i]) * 0x9e3779b1u;
    return (int32_t)(hash >> 4 | 1u << 20); // a finite f32
}

static struct aule_run_params layer_run(uint32_t layer)
{
    uint8_t *rows = aule_tensor_data(session, &k);
    const int32_t *tokens = aule_sequence_tokens(entry.sequence);
    struct aule_sequence_info info;
    aule_sequence_info(entry.sequence, &info);
    for (uint32_t i = 0; i < entry.num_tokens; i++) {
        int32_t value = number(tokens, info.num_computed - entry.num_tokens + i, layer);
        memcpy(rows + (size_t)(entry.row + i) * DIM * sizeof(float), &value, sizeof value);
    }
    return (struct aule_run_params){
        .layer = layer, .num_heads = 1, .q = q, .k = k, .v = v, .out = out, .causal = true};
}

static enum aule_status run_layers(void)
{
    enum aule_status status = AULE_OK;
    for (uint32_t layer = 0; status == AULE_OK && layer < LAYERS; layer++) {
        const struct aule_run_params run = layer_run(layer);
        status = aule_run(aule_step_batch(step), &run, WAIT_MS, NULL);
    }
    return status;
}

static enum aule_status read_back(struct reply *reply)
{
    const int32_t *tokens = aule_sequence_tokens(entry.sequence);
    const uint8_t *rows = aule_tensor_data(session, &k_back);
    struct aule_sequence_info info;
    enum aule_status status = aule_sequence_info(entry.sequence, &info);
    for (uint32_t layer = 0; status == AULE_OK && layer < LAYERS; layer++) {
        const struct aule_kv_gather into = {.layer = layer, .k = k_back, .v = v_back};
        struct aule_ticket ticket;
        status = aule_kv_gather(aule_step_batch(step), &into, WAIT_MS, &ticket);
        if (status == AULE_OK)
            status = aule_ticket_wait(session, ticket, WAIT_MS, NULL);
        for (uint32_t i = 0; status == AULE_OK && i < info.num_computed; i++) {
            int32_t value;
            memcpy(&value, rows + (size_t)i * DIM * sizeof(float), sizeof value);
            if (value != number(tokens, i, layer)) {
                snprintf(reply->text, sizeof reply->text,
                         "key %u of layer %u has number %d, not %d", i, layer, value,
                         number(tokens, i, layer));
                return status;
            }
        }
    }
    return status;
}

static enum aule_status make(const struct order *order)
{
    enum aule_status status =
        aule_sequence_append(sequences[order->sequence], order->tokens, order->count);
    entry = (struct aule_step_entry){.sequence = sequences[order->sequence]};
    return status == AULE_OK ? aule_step_make(step, &entry, 1, order->waits ? -1 : 0) : status;
}

static enum aule_status whole_step(const struct order *order, struct reply *reply)
{
    enum aule_status status = make(order);
    if (status != AULE_OK)
        return status;
    status = run_layers();
    if (status == AULE_OK)
        status = read_back(reply);
    if (status != AULE_OK)
        snprintf(reply->text, sizeof reply->text, "a run or a read: %.150s", aule_error());
    aule_step_rest(step);
    return status;
}

static enum aule_status submit(void)
{
    enum aule_status status = AULE_OK;
    for (uint32_t layer = 0; status == AULE_OK && layer < LAYERS; layer++) {
        const struct aule_run_params run = layer_run(layer);
        struct aule_ticket ticket;
        status = aule_run_submit(aule_step_batch(step), &run, 0, &ticket);
    }
    return status;
}

// ---- orders ----

static enum aule_status fill(uint32_t count)
{
    int32_t blocks[BLOCKS];
    enum aule_status status = aule_blocks_lease(cache, count, WAIT_MS, blocks);
    return status == AULE_OK ? aule_blocks_release(cache, count, blocks) : status;
}

static enum aule_status attach(void)
{
    struct aule_pool_info info;
    return aule_cache_attach(cache, &info);
}

static enum aule_status report_passed(void)
{
    const struct aule_report report = {.passed = AULE_PASSED_ALL};
    return aule_cache_report(cache, &report, NULL);
}

static enum aule_status serve(const struct order *order, struct reply *reply)
{
    struct aule_sequence **at = &sequences[order->sequence];
    const struct aule_sequence_params params = {.tokens = order->tokens,
                                                .num_tokens = order->count,
                                                .publish = order->publish,
                                                .claim = order->claim,
                                                .load = order->loads ? AULE_LOAD_ALWAYS
                                                                     : AULE_LOAD_AUTO};
    const struct aule_prefix prefix = {.tokens = order->tokens, .num_tokens = order->count};
    char name[16];
    enum aule_status status = AULE_OK;
    snprintf(name, sizeof name, "offer %d", order->other);
    switch (order->kind) {
    case ORDER_CLOSE: close_session(); return AULE_OK;
    case ORDER_CREATE: return aule_sequence_create(cache, &params, at);
    case ORDER_WAIT: return aule_sequence_wait(*at, order->waits ? -1 : 0);
    case ORDER_STEP: return whole_step(order, reply);
    case ORDER_MAKE: return make(order);
    case ORDER_SUBMIT: return submit();
    case ORDER_TRUNCATE: return aule_sequence_truncate(*at, order->count);
    case ORDER_FORK: return aule_sequence_fork(*at, &sequences[order->other]);
    case ORDER_PUBLISH: return aule_sequence_publish(*at);
    case ORDER_DESTROY: aule_sequence_destroy(*at); break;
    case ORDER_OFFER: status = aule_sequence_offer(*at, name, -1); break;
    case ORDER_TAKE: return aule_sequence_take(cache, name, order->waits ? -1 : 0, at);
    case ORDER_ACCEPT: return aule_sequence_accept(*at);
    case ORDER_KEEP:
        return aule_prefix_keep(cache, &prefix, (enum aule_keep)order->other, &reply->kept);
    case ORDER_ATTACH: return attach();
    case ORDER_REPORT: return report_passed();
    case ORDER_FILL: return fill(order->count);
    default: return AULE_INVALID;
    }
    if (status == AULE_OK)
        *at = NULL;
    return status;
}

void worker_serve(int fd, const char *socket_path)
{
    struct order order;
    while (read(fd, &order, sizeof order) == sizeof order) {
        struct reply reply = {.status = AULE_OK};
        struct aule_sequence_info info;
        if (order.kind == ORDER_OPEN)
            open_session(socket_path, &order, &reply);
        else
            reply.status = serve(&order, &reply);
        int shown = order.kind == ORDER_FORK ? order.other : order.sequence;
        if (sequences[shown] && aule_sequence_info(sequences[shown], &info) == AULE_OK) {
            reply.num_tokens = info.num_tokens;
            reply.num_computed = info.num_computed;
            reply.num_found = info.num_found;
            reply.num_blocks = info.num_blocks;
            reply.num_published = info.num_published;
            reply.num_promised = info.num_promised;
        }
        if (reply.status != AULE_OK && !reply.text[0])
            snprintf(reply.text, sizeof reply.text, "%.150s", aule_error());
        if (write(fd, &reply, sizeof reply) != sizeof reply)
            _exit(1);
    }
    _exit(0);
}
