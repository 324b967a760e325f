// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// client_world.c - see client_world.h.

#include "client_world.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

char folder[64], path[108];
struct fake_daemon fake;

void make_folder(void)
{
    snprintf(folder, sizeof folder, "/tmp/aule-fake-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(path, sizeof path, "%s/0.sock", folder);
}

void remove_folder(void)
{
    fake_stop(&fake);
    unlink(path);
    ck_assert_int_eq(rmdir(folder), 0);
}

struct aule_session_params params_of(int timeout_ms)
{
    return (struct aule_session_params){.socket = path, .name = "test", .timeout_ms = timeout_ms};
}

struct aule_session *open_session(int timeout_ms)
{
    struct aule_session *session = NULL;
    struct aule_session_params params = params_of(timeout_ms);
    enum aule_status status = aule_session_open(&params, &session);
    ck_assert_msg(status == AULE_OK, "%s: %s", aule_status_name(status), aule_error());
    return session;
}

struct aule_cache *open_cache(struct aule_session *session)
{
    struct aule_cache *cache = NULL;
    const struct aule_cache_params params = {
        .name = "c", .num_layers = 1, .num_kv_heads = 1, .head_dim = 64, .block_size = 8};
    ck_assert_int_eq(aule_cache_open(session, &params, &cache), AULE_OK);
    return cache;
}

struct aule_batch *create_batch(struct aule_cache *cache)
{
    struct aule_batch *batch = NULL;
    const int32_t cu[] = {0, 1}, lens[] = {1}, table[] = {0};
    const struct aule_batch_params params = {.num_seqs = 1,
                                             .max_blocks = 1,
                                             .cu_seqlens_q = cu,
                                             .seq_lens_kv = lens,
                                             .block_table = table};
    ck_assert_int_eq(aule_batch_create(cache, &params, &batch), AULE_OK);
    return batch;
}

void wait_until_seen(enum wire_command command, unsigned count)
{
    for (int i = 0; i < DEADLINE_S * 1000 && atomic_load(&fake.seen[command]) < count; i++)
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
    ck_assert_uint_eq(atomic_load(&fake.seen[command]), count);
}

struct aule_ticket submit_one(struct aule_batch *batch)
{
    struct aule_ticket ticket = {0};
    const struct aule_run_params run = {.num_heads = 1};
    ck_assert_int_eq(aule_run_submit(batch, &run, 0, &ticket), AULE_OK);
    return ticket;
}

void expect_empty_arena(struct aule_session *session)
{
    void *all;
    ck_assert_int_eq(aule_arena_alloc(session, FAKE_ARENA, &all, NULL), AULE_OK);
    aule_arena_free(session, all);
}

void add(Suite *suite, const char *name, const struct entry *entries)
{
    TCase *group = tcase_create(name);
    tcase_add_checked_fixture(group, make_folder, remove_folder);
    for (; entries->test; entries++)
        tcase_add_loop_test(group, entries->test, 0, entries->count ? entries->count : 1);
    suite_add_tcase(suite, group);
}
