// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_redis.c - the redis tier on servers that work: alone, several, and as a cluster.

#include "test_redis.h"

#include "redis_world.h"

#include <unistd.h>

#define MIB (UINT64_C(1) << 20)

static const char *const clustered[] = {"--cluster-enabled", "yes", NULL};

START_TEST(what_is_stored_is_found_loaded_and_deleted)
{
    static const uint64_t sizes[] = {1, 64, 4096, MIB, MIB + 1, 9 * MIB + 5};
    server_start(0, NULL);
    world_open(1, NULL, sizes[_i]);
    world_expect_round_trip();
}
END_TEST

START_TEST(a_part_is_a_key_that_expires_and_has_a_header)
{
    char name[STORED_NAME_ROOM];
    server_start(0, NULL);
    world_open(1, NULL, MIB + 100);
    world_expect(TIER_STORE, 3, 1, STORED_OK);
    world_name(3, 1, name);
    ck_assert_int_eq(strncmp(name, "aule:1:", 7), 0);
    redisReply *reply = server_ask(0, "STRLEN %s", name);
    ck_assert_int_eq(reply->integer, 164);
    freeReplyObject(reply);
    reply = server_ask(0, "TTL %s", name);
    ck_assert_int_le(reply->integer, 86400);
    ck_assert_int_gt(reply->integer, 86400 - 3600);
    freeReplyObject(reply);
    reply = server_ask(0, "DBSIZE");
    ck_assert_int_eq(reply->integer, 2);
    freeReplyObject(reply);
}
END_TEST

START_TEST(keys_can_expire_sooner_or_never)
{
    const struct redis_params params = {.expire_s = 100, .never_expires = _i};
    char name[STORED_NAME_ROOM];
    server_start(0, NULL);
    world_open(1, &params, 1000);
    world_expect(TIER_STORE, 0, 1, STORED_OK);
    world_name(0, 0, name);
    redisReply *reply = server_ask(0, "TTL %s", name);
    ck_assert(_i ? reply->integer == -1 : reply->integer > 50 && reply->integer <= 100);
    freeReplyObject(reply);
}
END_TEST

START_TEST(many_jobs_at_once_all_get_their_own_bytes)
{
    struct tier_job *jobs[8];
    server_start(0, NULL);
    world_open(1, NULL, 3 * MIB / 2);
    for (uint32_t i = 0; i < 8; i++)
        jobs[i] = world_start(TIER_STORE, 4 * i, 4, 60000);
    for (uint32_t i = 0; i < 8; i++) {
        world_end(jobs[i]);
        ck_assert_uint_eq(world_count(jobs[i], STORED_OK), 4);
        world_free(jobs[i]);
    }
    for (uint32_t i = 0; i < 8; i++)
        jobs[i] = world_start(i % 2 ? TIER_LOOKUP : TIER_LOAD, 4 * i, 4, 60000);
    for (uint32_t i = 0; i < 8; i++) {
        world_end(jobs[i]);
        ck_assert_uint_eq(world_count(jobs[i], STORED_OK), 4);
        world_free(jobs[i]);
    }
}
END_TEST

START_TEST(what_the_filter_knows_to_be_absent_makes_no_round_trip)
{
    const struct redis_params params = {.absent_ms = 3600000};
    server_start(0, NULL);
    world_open(1, &params, 1000);
    world_expect(TIER_LOOKUP, 0, 8, STORED_ABSENT);
    const long asked = server_number(0, "commandstats", "cmdstat_exists:calls");
    ck_assert_int_eq(asked, 8);
    const struct stored_chain chain = world_chain(5), other = world_chain(9);
    ck_assert_int_eq(tier_probe(world.tier, &world.space, &chain), TIER_MISS);
    ck_assert_int_eq(tier_probe(world.tier, &world.space, &other), TIER_UNKNOWN);
    world_expect(TIER_LOOKUP, 0, 8, STORED_ABSENT);
    ck_assert_int_eq(server_number(0, "commandstats", "cmdstat_exists:calls"), asked);
    world_expect(TIER_STORE, 5, 1, STORED_OK); // its own stores are seen at once
    ck_assert_int_eq(tier_probe(world.tier, &world.space, &chain), TIER_UNKNOWN);
    world_expect(TIER_LOOKUP, 5, 1, STORED_OK);
}
END_TEST

START_TEST(what_another_machine_stores_becomes_visible_when_the_filters_age_is_over)
{
    const struct redis_params params = {.absent_ms = 100};
    struct tier *one, *other;
    server_start(0, NULL);
    world_open(1, &params, 1000);
    one = world.tier;
    world_open(1, NULL, 1000);
    other = world.tier;
    world.tier = one;
    world_expect(TIER_LOOKUP, 0, 1, STORED_ABSENT);
    world.tier = other;
    world_expect(TIER_STORE, 0, 1, STORED_OK);
    world.tier = one;
    world_await(0, STORED_OK);
    world_expect(TIER_LOAD, 0, 1, STORED_OK);
    ck_assert(tier_close(other, FOREVER));
}
END_TEST

START_TEST(a_password_is_used_and_never_told)
{
    static const char *const locked[] = {"--requirepass", "verysecret", NULL};
    char url[128];
    server_start(0, locked);
    snprintf(url, sizeof url, "redis://:verysecret@127.0.0.1:%d", servers[0].port);
    world_open(1, &(struct redis_params){.url = url}, 1000);
    world_expect(TIER_STORE, 0, 4, STORED_OK);
    world_expect(TIER_LOAD, 0, 4, STORED_OK);
    ck_assert(!world_was_told("verysecret"));
}
END_TEST

START_TEST(a_wrong_password_opens_the_breaker_and_is_said)
{
    static const char *const locked[] = {"--requirepass", "right", NULL};
    char url[128];
    struct tier_state state;
    server_start(0, locked);
    snprintf(url, sizeof url, _i ? "redis://127.0.0.1:%d" : "redis://me:verysecret@127.0.0.1:%d",
             servers[0].port);
    world_open(1, &(struct redis_params){.url = url}, 1000);
    world_await(0, STORED_BREAKER);
    world_expect(TIER_STORE, 0, 4, STORED_BREAKER);
    ck_assert(world_was_told(_i ? "NOAUTH" : "WRONGPASS"));
    ck_assert(!world_was_told("verysecret"));
    tier_state(world.tier, &state);
    ck_assert(state.broken);
    ck_assert_uint_eq(state.breaks, 1);
}
END_TEST

static struct tier_state await_limit(uint64_t limit_bytes)
{
    struct tier_state state;
    do {
        usleep(10000);
        tier_state(world.tier, &state);
    } while (state.limit_bytes != limit_bytes);
    return state;
}

START_TEST(the_servers_memory_is_shown_and_asked_for_again)
{
    server_start(0, (const char *const[]){"--maxmemory", "100mb", NULL});
    server_start(1, (const char *const[]){"--maxmemory", "50mb", NULL});
    world_open(2, NULL, 100000);
    const struct tier_state before = await_limit(UINT64_C(150) << 20);
    world_expect(TIER_STORE, 0, 32, STORED_OK);
    server_tell(1, "CONFIG SET maxmemory 70mb");
    const struct tier_state after = await_limit(UINT64_C(170) << 20);
    ck_assert_uint_ge(after.bytes, before.bytes + 3200000 / 4); // one of the two was asked again
    ck_assert_uint_eq(after.connects, before.connects);
    world_expect(TIER_LOAD, 0, 32, STORED_OK);
}
END_TEST

START_TEST(several_servers_share_the_blocks)
{
    for (int i = 0; i < 3; i++)
        server_start(i, NULL);
    world_open(3, NULL, 1000);
    world_expect(TIER_STORE, 0, 64, STORED_OK);
    world_expect(TIER_LOOKUP, 0, 64, STORED_OK);
    world_expect(TIER_LOAD, 0, 64, STORED_OK);
    for (int i = 0; i < 3; i++)
        ck_assert_int_gt(server_number(i, "keyspace", "db0:keys"), 5);
}
END_TEST

static void open_cluster(void)
{
    char url[64];
    for (int i = 0; i < 3; i++)
        server_start(i, clustered);
    server_make_cluster(3);
    snprintf(url, sizeof url, "redis://localhost:%d", servers[1].port); // one is enough
    world_open(3, &(struct redis_params){.url = url}, MIB + 1000);
}

START_TEST(a_cluster_is_found_from_one_of_its_servers)
{
    open_cluster();
    world_expect(TIER_STORE, 0, 48, STORED_OK);
    world_expect(TIER_LOOKUP, 0, 48, STORED_OK);
    world_expect(TIER_LOAD, 0, 48, STORED_OK);
    for (int i = 0; i < 3; i++)
        ck_assert_int_gt(server_number(i, "keyspace", "db0:keys"), 2);
    world_expect(TIER_DELETE, 0, 48, STORED_OK);
    world_expect(TIER_LOAD, 0, 48, STORED_ABSENT);
}
END_TEST

// The id of server `i` in its cluster.
static void read_id(int i, char id[41])
{
    redisReply *reply = server_ask(i, "CLUSTER MYID");
    snprintf(id, 41, "%s", reply->str);
    freeReplyObject(reply);
}

// Which server has the block's slot.
static int slot_and_owner(uint32_t block, int *slot)
{
    char name[STORED_NAME_ROOM];
    world_name(block, 0, name);
    redisReply *reply = server_ask(0, "CLUSTER KEYSLOT %s", name);
    *slot = (int)reply->integer;
    freeReplyObject(reply);
    return *slot * 3 / 16384; // as server_make_cluster() gives them
}

START_TEST(a_slot_that_moves_is_followed)
{
    char from_id[41], to_id[41];
    int slot;
    open_cluster();
    world_expect(TIER_STORE, 0, 8, STORED_OK);
    const int from = slot_and_owner(0, &slot), to = (from + 1) % 3;
    read_id(from, from_id);
    read_id(to, to_id);
    server_tell(to, "CLUSTER SETSLOT %d IMPORTING %s", slot, from_id);
    server_tell(from, "CLUSTER SETSLOT %d MIGRATING %s", slot, to_id);
    for (uint32_t part = 0; part < 2; part++) { // now both are at `to`, and `from` says ASK
        char name[STORED_NAME_ROOM];
        world_name(0, part, name);
        server_tell(from, "MIGRATE 127.0.0.1 %d %s 0 5000", servers[to].port, name);
    }
    world_expect(TIER_LOOKUP, 0, 1, STORED_OK);
    world_expect(TIER_LOAD, 0, 8, STORED_OK);
    world_expect(TIER_STORE, 0, 1, STORED_OK);
    server_tell(to, "CLUSTER SETSLOT %d NODE %s", slot, to_id); // now it says MOVED
    server_tell(from, "CLUSTER SETSLOT %d NODE %s", slot, to_id);
    world_expect(TIER_LOAD, 0, 8, STORED_OK);
    world_expect(TIER_STORE, 0, 8, STORED_OK);
}
END_TEST

START_TEST(a_cluster_without_one_of_its_servers_serves_the_others_blocks)
{
    int slot;
    const char *const partial[] = {"--cluster-enabled", "yes", "--cluster-require-full-coverage",
                                   "no", NULL};
    for (int i = 0; i < 3; i++)
        server_start(i, partial);
    server_make_cluster(3);
    world_open(3, NULL, 5000);
    world_expect(TIER_STORE, 0, 48, STORED_OK);
    server_kill(2);
    struct tier_job *job = world_run(TIER_LOAD, 0, 48);
    for (uint32_t i = 0; i < 48; i++) {
        const enum stored_reason reason = job->blocks[i].reason;
        if (slot_and_owner(i, &slot) != 2)
            ck_assert_int_eq(reason, STORED_OK);
        else
            ck_assert(reason == STORED_CONNECTION || reason == STORED_BREAKER);
    }
    world_free(job);
}
END_TEST

START_TEST(a_policy_that_does_not_fit_is_told)
{
    static const struct {
        const char *arguments[5], *sentence;
    } table[] = {
        {{"--maxmemory", "0", NULL}, "maxmemory is 0"},
        {{"--maxmemory", "64mb", "--maxmemory-policy", "noeviction", NULL}, "is noeviction"},
        {{"--maxmemory", "64mb", "--maxmemory-policy", "allkeys-random", NULL}, "regard to use"},
        {{"--maxmemory", "64mb", "--maxmemory-policy", "volatile-lru", NULL}, NULL},
        {{"--maxmemory", "64mb", "--maxmemory-policy", "allkeys-lru", NULL}, NULL},
    };
    struct tier_state state;
    server_start(0, table[_i].arguments);
    world_open(1, NULL, 1000);
    world_expect(TIER_STORE, 0, 1, STORED_OK);
    tier_state(world.tier, &state);
    ck_assert_int_eq(state.note[0] != '\0', table[_i].sentence != NULL);
    ck_assert(!table[_i].sentence || world_was_told(table[_i].sentence));
}
END_TEST

static void add_loop(Suite *suite, const char *name, const TTest *test, int loops)
{
    TCase *tcase = tcase_create(name);
    tcase_add_loop_test(tcase, test, 0, loops);
    tcase_add_checked_fixture(tcase, NULL, world_close);
    suite_add_tcase(suite, tcase);
}

int main(void)
{
    const TTest *const tests[] = {
        a_part_is_a_key_that_expires_and_has_a_header,
        many_jobs_at_once_all_get_their_own_bytes,
        what_the_filter_knows_to_be_absent_makes_no_round_trip,
        what_another_machine_stores_becomes_visible_when_the_filters_age_is_over,
        a_password_is_used_and_never_told,
        the_servers_memory_is_shown_and_asked_for_again,
        several_servers_share_the_blocks,
        a_cluster_is_found_from_one_of_its_servers,
        a_slot_that_moves_is_followed,
        a_cluster_without_one_of_its_servers_serves_the_others_blocks,
        NULL,
    };
    Suite *suite = suite_create("redis");
    if (!server_is_there()) {
        puts("skipped: redis-server is not installed");
        return 77;
    }
    check_seed();
    check_case(suite, "servers", NULL, world_close, tests, 1);
    add_loop(suite, "sizes", what_is_stored_is_found_loaded_and_deleted, 6);
    add_loop(suite, "expiry", keys_can_expire_sooner_or_never, 2);
    add_loop(suite, "passwords", a_wrong_password_opens_the_breaker_and_is_said, 2);
    add_loop(suite, "policies", a_policy_that_does_not_fit_is_told, 5);
    add_redis_faults(suite);
    return check_main(suite);
}
