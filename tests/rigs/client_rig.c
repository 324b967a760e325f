// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// client_rig.c - see client_rig.h.

#include "client_rig.h"

#include "monitor_state.h"

#include <string.h>
#include <time.h>

enum { ARENA = 32 << 20, TRIES = 6000, TRY_MS = 10 };

struct daemon rig_daemon;

void rig_launch(const char *const *options)
{
    ck_assert(daemon_launch(&rig_daemon, options));
}

void rig_setup(void)
{
    rig_launch(NULL);
}

void rig_setup_staging(void)
{
    rig_launch((const char *const[]){DAEMON_STAGED, NULL});
}

void rig_teardown(void)
{
    ck_assert_int_eq(daemon_end(&rig_daemon), 0);
}

struct aule_session *rig_session(uint32_t paged_threshold)
{
    struct aule_session *session = NULL;
    const struct aule_session_params params = {.socket = rig_daemon.socket,
                                               .arena_size = ARENA,
                                               .timeout_ms = WAIT_MS,
                                               .paged_threshold = paged_threshold};
    ok(aule_session_open(&params, &session));
    return session;
}

size_t rig_size(const struct rig_shape *shape)
{
    return (size_t)shape->outer * shape->rows * shape->heads * shape->dim *
           aule_dtype_size(shape->dtype);
}

// The upper half of an f32 is a bf16. For an f16 any bits will do if the exponent is moderate.
static void put(void *data, enum aule_dtype dtype, uint32_t i, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (dtype == AULE_F32)
        ((float *)data)[i] = value;
    else if (dtype == AULE_BF16)
        ((uint16_t *)data)[i] = (uint16_t)(bits >> 16);
    else
        ((uint16_t *)data)[i] = (uint16_t)((bits >> 16 & 0x8000) | 0x3000 | (bits >> 10 & 0x0fff));
}

struct aule_tensor rig_tensor(struct aule_session *session, const struct rig_shape *shape,
                              uint32_t seed)
{
    struct aule_tensor tensor;
    ok(aule_tensor_create(session, shape->dtype, shape->outer * shape->rows, shape->heads,
                          shape->dim, &tensor));
    uint32_t count = shape->outer * shape->rows * shape->heads * shape->dim;
    void *data = aule_tensor_data(session, &tensor);
    for (uint32_t i = 0; i < count; i++)
        put(data, shape->dtype, i, 2 * value_at(seed, i));
    uint64_t row = shape->dim * (uint64_t)aule_dtype_size(shape->dtype);
    tensor.token_stride = shape->tokens_first ? row * shape->heads : row;
    tensor.head_stride = shape->tokens_first ? row : row * shape->rows;
    tensor.outer_stride = row * shape->heads * shape->rows;
    return tensor;
}

static bool is_nothing_held(struct aule_monitor *monitor)
{
    struct aule_session_state *sessions = NULL;
    uint32_t count = 0;
    const struct daemon_state state = monitor_state(monitor);
    ok(aule_monitor_sessions(monitor, &sessions, &count));
    uint64_t rest = state.leased_blocks + state.held_blocks + state.quarantined_blocks;
    for (uint32_t i = 0; i < count; i++)
        rest += sessions[i].batches + sessions[i].tickets_unreaped + sessions[i].blocks_held;
    free(sessions);
    return rest == 0;
}

void rig_expect_nothing_held(void)
{
    struct aule_monitor *monitor = NULL;
    bool none = false;
    ok(aule_monitor_open(rig_daemon.socket, WAIT_MS, &monitor));
    for (int i = 0; i < TRIES && !(none = is_nothing_held(monitor)); i++)
        nanosleep(&(struct timespec){.tv_nsec = TRY_MS * 1000000L}, NULL);
    aule_monitor_close(monitor);
    ck_assert_msg(none, "blocks, batches or tickets are still held");
}

void rig_add(Suite *suite, const char *name, void (*setup)(void), const TTest *const *tests)
{
    check_case(suite, name, setup, rig_teardown, tests, 1);
}

static void end_shared(void)
{
    daemon_end_shared(&rig_daemon);
}

void rig_share(Suite *suite, const TTest *const *tests)
{
    check_shared_either(suite, (const char *const[]){"imported arena", "staged arena"},
                        (const SFun[]){rig_setup, rig_setup_staging}, end_shared, tests);
}
