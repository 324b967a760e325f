// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_redis_faults.c - the redis tier on servers that die, stop, fill up or lie: each job ends,
// no loaded block has a wrong byte, and the reasons say why. A server that lies beyond what a real
// one can be made to do is a thread of the test.

#include "redis_world.h"
#include "rigs/dice.h"
#include "test_redis.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <signal.h>
#include <stddef.h>
#include <sys/socket.h>
#include <unistd.h>

#define MIB (UINT64_C(1) << 20)

enum { DEADLINE_MS = 50 };

static const struct redis_params impatient = {.stall_ms = 200};

// ---- wrong values ----

enum damage {
    TRUNCATED,
    LONGER,
    EMPTY,
    HEADER_ONLY,
    FLIPPED,
    FLIPPED_CHECKSUM,
    OLDER,
    ANOTHERS,
    NIL,
    NO_STRING,
    NUM_DAMAGES
};

static const enum stored_reason damage_reasons[NUM_DAMAGES] = {
    [TRUNCATED] = STORED_LENGTH,    [LONGER] = STORED_LENGTH,
    [EMPTY] = STORED_LENGTH,        [HEADER_ONLY] = STORED_LENGTH,
    [FLIPPED] = STORED_CHECKSUM,    [FLIPPED_CHECKSUM] = STORED_CHECKSUM,
    [OLDER] = STORED_OTHER_VERSION, [ANOTHERS] = STORED_IDENTITY,
    [NIL] = STORED_ABSENT,          [NO_STRING] = STORED_ABSENT,
};

static redisReply *get_value(uint32_t block, uint32_t part, char name[STORED_NAME_ROOM])
{
    world_name(block, part, name);
    redisReply *reply = server_ask(0, "GET %s", name);
    ck_assert_int_eq(reply->type, REDIS_REPLY_STRING);
    return reply;
}

static void damage(uint32_t block, uint32_t part, enum damage kind)
{
    char name[STORED_NAME_ROOM], other[STORED_NAME_ROOM];
    redisReply *reply = get_value(kind == ANOTHERS ? block + 1 : block, part, other);
    char *value = malloc((size_t)reply->len + 1);
    size_t size = (size_t)reply->len;
    memcpy(value, reply->str, size);
    freeReplyObject(reply);
    world_name(block, part, name);
    switch (kind) {
    case TRUNCATED: size -= 7; break;
    case LONGER: value[size++] = 'x'; break;
    case EMPTY: size = 0; break;
    case HEADER_ONLY: size = sizeof(struct stored_header); break;
    case FLIPPED: value[size / 2] ^= 4; break;
    case FLIPPED_CHECKSUM: value[offsetof(struct stored_header, checksum)] ^= 1; break;
    case OLDER: value[offsetof(struct stored_header, version)] ^= 1; break;
    case ANOTHERS: break;
    default: server_tell(0, "DEL %s", name); break;
    }
    if (kind == NO_STRING)
        server_tell(0, "LPUSH %s a", name);
    else if (kind != NIL)
        server_tell(0, "SET %s %b", name, value, size);
    free(value);
}

START_TEST(a_wrong_value_is_a_miss_and_is_counted_by_its_reason)
{
    server_start(0, NULL);
    world_open(1, NULL, MIB + 4096);
    for (uint32_t kind = 0; kind < NUM_DAMAGES; kind++) {
        const enum stored_reason reason = damage_reasons[kind];
        struct tier_counts before, after;
        const uint32_t part = kind % 2;
        world_expect(TIER_STORE, 0, 4, STORED_OK);
        damage(1, part, kind);
        tier_counts(world.tier, &before);
        struct tier_job *job = world_run(TIER_LOAD, 0, 4);
        for (uint32_t i = 0; i < 4; i++)
            ck_assert_int_eq(job->blocks[i].reason, i == 1 ? reason : STORED_OK);
        world_free(job);
        tier_counts(world.tier, &after);
        ck_assert_uint_eq(after.failed[reason], before.failed[reason] + (reason != STORED_ABSENT));
        ck_assert_uint_eq(after.misses, before.misses);
        world_expect(TIER_LOOKUP, 1, 1, STORED_ABSENT); // so that it is stored again
        tier_counts(world.tier, &after);
        ck_assert_uint_eq(after.misses, before.misses + 1);
        if (kind == NO_STRING)
            world_expect(TIER_DELETE, 1, 1, STORED_OK);
    }
}
END_TEST

// ---- a server that dies ----

START_TEST(a_server_that_is_killed_in_the_middle_leaves_no_job_and_is_used_again_when_it_is_back)
{
    struct tier_job *jobs[6];
    server_start(0, NULL);
    world_open(1, NULL, 2 * MIB);
    world_expect(TIER_STORE, 0, 16, STORED_OK);
    for (uint32_t i = 0; i < 6; i++)
        jobs[i] = world_start(i % 2 ? TIER_STORE : TIER_LOAD, i % 2 ? 16 : 0, 16, 60000);
    world_end(jobs[0]);
    server_kill(0);
    for (uint32_t i = 0; i < 6; i++) {
        world_end(jobs[i]);
        ck_assert_uint_eq(world_count(jobs[i], STORED_TIMEOUT), 0); // it is noticed at once
        world_free(jobs[i]);
    }
    server_start_again(0, NULL);
    world_await(0, STORED_ABSENT); // it is empty
    world_expect(TIER_LOAD, 0, 8, STORED_ABSENT);
    world_expect(TIER_STORE, 0, 8, STORED_OK);
    world_expect(TIER_LOAD, 0, 8, STORED_OK);
}
END_TEST

START_TEST(a_server_that_was_killed_opens_the_breaker)
{
    struct tier_counts counts;
    server_start(0, NULL);
    world_open(1, &impatient, 1000);
    world_await(0, STORED_ABSENT);
    server_kill(0);
    world_await(0, STORED_BREAKER);
    tier_counts(world.tier, &counts);
    ck_assert_uint_ge(counts.failed[STORED_CONNECTION], 1);
}
END_TEST

START_TEST(a_server_that_is_not_there_delays_nobody_and_is_used_when_it_comes)
{
    struct tier_counts counts;
    server_start(0, NULL);
    server_kill(0);
    world_open(1, NULL, 1000);
    struct tier_job *job = world_run(TIER_STORE, 0, 4); // its deadline is far away
    ck_assert_uint_eq(world_count(job, STORED_CONNECTION) + world_count(job, STORED_BREAKER), 4);
    world_free(job);
    tier_counts(world.tier, &counts);
    ck_assert_uint_eq(counts.failed[STORED_CONNECTION] + counts.failed[STORED_BREAKER], 4);
    server_start_again(0, NULL);
    world_await(0, STORED_ABSENT);
    world_expect(TIER_STORE, 0, 4, STORED_OK);
}
END_TEST

START_TEST(connections_that_the_server_closes_are_made_again)
{
    struct tier_state state;
    server_start(0, NULL);
    world_open(1, NULL, MIB);
    world_expect(TIER_STORE, 0, 8, STORED_OK);
    for (int i = 0; i < 3; i++) {
        struct tier_job *job = world_start(TIER_LOAD, 0, 8, 60000);
        server_tell(0, "CLIENT KILL TYPE normal SKIPME yes");
        world_end(job);
        ck_assert_uint_eq(world_count(job, STORED_OK) + world_count(job, STORED_CONNECTION), 8);
        world_free(job);
        world_expect(TIER_LOOKUP, 0, 8, STORED_OK);
    }
    tier_state(world.tier, &state);
    ck_assert_uint_ge(state.connects, 2);
}
END_TEST

// ---- a server that is slow ----

static void run_until_broken(void)
{
    struct tier_state state = {0};
    while (!state.broken) {
        struct tier_job *job = world_start(TIER_LOAD, 0, 4, DEADLINE_MS);
        world_end(job);
        ck_assert_uint_eq(world_count(job, STORED_OK), 0);
        ck_assert_uint_eq(world_count(job, STORED_ABSENT), 0);
        world_free(job);
        tier_state(world.tier, &state);
    }
}

START_TEST(a_server_that_stands_still_costs_the_deadline_until_the_breaker_opens)
{
    struct tier_counts counts;
    server_start(0, NULL);
    world_open(1, &impatient, 1000);
    world_expect(TIER_STORE, 0, 4, STORED_OK);
    server_signal(0, SIGSTOP);
    run_until_broken();
    tier_counts(world.tier, &counts);
    ck_assert_uint_gt(counts.failed[STORED_TIMEOUT], 0);
    world_expect(TIER_LOAD, 0, 4, STORED_BREAKER);
    world_expect(TIER_LOOKUP, 0, 4, STORED_BREAKER);
    const struct stored_chain chain = world_chain(0);
    ck_assert_int_eq(tier_probe(world.tier, &world.space, &chain), TIER_MISS);
    server_signal(0, SIGCONT);
    world_await(0, STORED_OK);
    world_expect(TIER_LOAD, 0, 4, STORED_OK);
}
END_TEST

START_TEST(a_large_store_and_load_to_a_server_that_stands_still_end_at_their_deadlines)
{
    server_start(0, NULL);
    world_open(1, &(struct redis_params){.stall_ms = 60000}, 2 * MIB);
    world_expect(TIER_STORE, 0, 8, STORED_OK);
    for (int i = 0; i < 3; i++) {
        server_signal(0, SIGSTOP);
        struct tier_job *store = world_start(TIER_STORE, 8, 8, DEADLINE_MS);
        struct tier_job *load = world_start(TIER_LOAD, 0, 8, DEADLINE_MS);
        struct tier_job *patient = world_start(TIER_LOAD, 0, 8, 60000);
        world_end(store);
        ck_assert_uint_eq(world_count(store, STORED_TIMEOUT), 8);
        world_free(store); // its memory is not touched any more
        world_end(load);
        ck_assert_uint_eq(world_count(load, STORED_TIMEOUT), 8);
        world_free(load);
        server_signal(0, SIGCONT);
        world_end(patient);
        ck_assert_uint_eq(world_count(patient, STORED_OK), 8);
        world_free(patient);
    }
}
END_TEST

START_TEST(a_server_that_sleeps_for_a_while_is_used_again)
{
    char command[128];
    server_start(0, NULL);
    world_open(1, &impatient, 100000);
    world_expect(TIER_STORE, 0, 4, STORED_OK);
    snprintf(command, sizeof command, "redis-cli -p %d DEBUG SLEEP 1", servers[0].port);
    FILE *sleep = popen(command, "re"); // on a busy machine the sleep may begin late
    ck_assert_ptr_nonnull(sleep);
    for (int i = 0; i < 20; i++) {
        struct tier_job *job = world_start(TIER_LOAD, 0, 4, DEADLINE_MS);
        world_end(job);
        world_free(job);
    }
    ck_assert_ptr_nonnull(fgets(command, sizeof command, sleep)); // it is over
    ck_assert_int_eq(pclose(sleep), 0);
    world_await(0, STORED_OK);
    world_expect(TIER_LOAD, 0, 4, STORED_OK);
}
END_TEST

// ---- a server that is full ----

static const char *const policies[] = {
    "noeviction",   "allkeys-lru",  "allkeys-lfu",     "allkeys-random",
    "volatile-lru", "volatile-lfu", "volatile-random", "volatile-ttl",
};
enum { NUM_POLICIES = sizeof policies / sizeof *policies };

static void fill_server(int policy, bool never_expires, bool refuses)
{
    const char *const arguments[] = {"--maxmemory", "24mb", "--maxmemory-policy", policies[policy],
                                     NULL};
    struct tier_counts counts;
    server_start(0, arguments);
    world_open(1, &(struct redis_params){.never_expires = never_expires}, MIB);
    struct tier_job *store = world_run(TIER_STORE, 0, 64);
    const uint32_t stored = world_count(store, STORED_OK), full = world_count(store, STORED_FULL);
    world_free(store);
    ck_assert_uint_eq(stored + full, 64);
    ck_assert_int_eq(full > 0, refuses);
    tier_counts(world.tier, &counts);
    ck_assert_uint_eq(counts.failed[STORED_FULL], full);
    struct tier_job *load = world_run(TIER_LOAD, 0, 64);
    const uint32_t loaded = world_count(load, STORED_OK);
    ck_assert_uint_eq(loaded + world_count(load, STORED_ABSENT), 64);
    ck_assert_uint_gt(loaded, 0);
    ck_assert_uint_lt(loaded, 64);
    world_free(load);
}

START_TEST(a_full_server_evicts_or_refuses_as_its_policy_says)
{
    for (int i = 0; i < NUM_POLICIES; i++) {
        fill_server(i, false, i == 0);
        world_close();
    }
}
END_TEST

START_TEST(a_policy_that_evicts_only_what_expires_refuses_when_keys_never_do)
{
    fill_server(4, true, true);
    ck_assert(world_was_told("evicts only keys that expire"));
}
END_TEST

START_TEST(a_queue_that_is_full_refuses_jobs)
{
    server_start(0, NULL);
    world_open(1, &(struct redis_params){.queue_bytes = 8000, .queue_commands = 16}, 1000);
    world_expect(TIER_STORE, 0, 9, STORED_FULL);
    world_expect(TIER_STORE, 0, 8, STORED_OK);
    world_expect(TIER_LOOKUP, 0, 17, STORED_FULL);
    world_expect(TIER_LOOKUP, 0, 8, STORED_OK);
    world_expect(TIER_LOAD, 0, 8, STORED_OK);
}
END_TEST

START_TEST(a_tier_closes_while_jobs_wait_for_a_server_that_stands_still)
{
    uint8_t *memory[3][4];
    server_start(0, NULL);
    world_open(1, &(struct redis_params){.stall_ms = 60000}, 2 * MIB);
    world_expect(TIER_STORE, 0, 4, STORED_OK);
    server_signal(0, SIGSTOP);
    for (int i = 0; i < 3; i++) {
        struct tier_job *job = world_start(i == 0   ? TIER_STORE
                                           : i == 1 ? TIER_LOAD
                                                    : TIER_LOOKUP,
                                           0, 4, 60000);
        for (int block = 0; block < 4; block++)
            memory[i][block] = job->blocks[block].data;
    }
    usleep(20000); // some may be under way, some not
    ck_assert(tier_close(world.tier, clock_deadline_ns(60000)));
    world.tier = NULL;
    for (int i = 0; i < 3; i++)
        for (int block = 0; block < 4; block++)
            free(memory[i][block]);
}
END_TEST

// ---- a server that lies ----

struct liar {
    int listener;
    const char *info, *slots; // what it answers to INFO, and to CLUSTER SLOTS
    const char *lie;          // and to each other command
    bool closes;              // then it closes the connection
    bool drips;               // it sends the answer to INFO byte by byte, again and again
    _Atomic bool stops;       // the test is over
};

static bool say_all(int fd, const char *text)
{
    return send(fd, text, strlen(text), MSG_NOSIGNAL) >= 0;
}

static bool drip(const struct liar *liar, int fd)
{
    for (size_t at = 0; !liar->stops; at = (at + 1) % strlen(liar->info)) {
        if (send(fd, liar->info + at, 1, MSG_NOSIGNAL) < 0)
            return false;
        usleep(2000);
    }
    return false;
}

static bool asks(const char *data, ssize_t size, const char *word)
{
    return memmem(data, (size_t)size, word, strlen(word)) != NULL;
}

static void serve_lies(const struct liar *liar, int fd)
{
    char data[65536];
    ssize_t got;
    bool goes_on = true;
    while (goes_on && (got = read(fd, data, sizeof data)) > 0) {
        if (asks(data, got, "INFO"))
            goes_on = liar->drips ? drip(liar, fd) : say_all(fd, liar->info);
        else if (asks(data, got, "SLOTS"))
            goes_on = say_all(fd, liar->slots);
        else
            goes_on = say_all(fd, liar->lie) && !liar->closes;
    }
    close(fd);
}

static void *lie(void *argument)
{
    struct liar *liar = argument;
    while (!liar->stops) {
        const int fd = accept4(liar->listener, NULL, NULL, SOCK_CLOEXEC);
        if (fd >= 0 && !liar->stops)
            serve_lies(liar, fd);
        else if (fd >= 0)
            close(fd);
    }
    return NULL;
}

static int listen_somewhere(int *port)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof address;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(fd, (struct sockaddr *)&address, size), 0);
    ck_assert_int_eq(listen(fd, 16), 0);
    ck_assert_int_eq(getsockname(fd, (struct sockaddr *)&address, &size), 0);
    *port = ntohs(address.sin_port);
    return fd;
}

static void knock(int port)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_port = htons((uint16_t)port),
                                  .sin_addr = {htonl(INADDR_LOOPBACK)}};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    close(fd);
}

// Asks the liar until the breaker opens. The operator is told `told`.
static void meet_liar(struct liar liar, const char *told)
{
    int port;
    char url[64];
    pthread_t thread;
    struct tier_state state = {0};
    liar.listener = listen_somewhere(&port);
    ck_assert_int_eq(pthread_create(&thread, NULL, lie, &liar), 0);
    snprintf(url, sizeof url, "redis://127.0.0.1:%d", port);
    world_open(0, &(struct redis_params){.url = url, .connections = 1, .stall_ms = 20}, 1000);
    for (int kind = 0; !state.broken; kind = (kind + 1) % TIER_NUM_KINDS) {
        struct tier_job *job = world_start((enum tier_kind)kind, 0, 3, DEADLINE_MS);
        world_end(job);
        if (kind == TIER_LOAD)
            ck_assert_uint_eq(world_count(job, STORED_OK), 0);
        world_free(job);
        tier_state(world.tier, &state);
    }
    ck_assert_msg(world_was_told(told), "%s, not: %.1000s", told, world.said);
    world_close();
    liar.stops = true;
    knock(port);
    pthread_join(thread, NULL);
    close(liar.listener);
}

START_TEST(a_server_that_lies_opens_the_breaker)
{
    static const struct {
        const char *text;
        bool closes;
        const char *told;
    } lies[] = {
        {"hello\r\n", false, "with \"hello\", which Redis does not"},
        {"*2\r\n$3\r\nabc\r\n$3\r\nabc\r\n", false, "with \"*2\""},
        {"*1\r\n*1\r\n$-1\r\n", false, "with \"*1\""},
        {"*1\r\n$1064\r\nabc", true, ""},
        {"*1\r\n$1064\r\nabc", false, ""},
        {"*1\r\n$2097152\r\nabc", false, ""},
        {"*1\r\n$2097153\r\n", false, ""},
        {"*2147483647\r\n*2147483647\r\n", false, "with \"*2147483647\""},
        {"$5\r\nabcde\r\n", false, "with \"$5\""},
        {":-5\r\n", false, "with \":-5\""},
        {":77\r\n", false, "with \":77\""},
        {"+OK\r\n+OK\r\n+OK\r\n+OK\r\n+OK\r\n", false, "with \"+OK\""},
        {"%1\r\n+a\r\n:1\r\n", false, "with \"%1\""},
        {">2\r\n+a\r\n:1\r\n", false, "with \">2\""},
        {"|1\r\n+a\r\n:1\r\n:1\r\n", false, "with \"|1\""},
        {"=5\r\ntxt:a\r\n", false, "with \"=5\""},
        {"(3492890328409238509324850943850943825024385\r\n", false, "with \"(349"},
        {"-\x1b[2JLOADING it reads its file\r\n", false, "?[2JLOADING it reads"},
        {"-MOVED 99999 127.0.0.1:1\r\n", false,
         "3 answers in a row were wrong; the last: MOVED 999"},
        {"-MOVED 1\r\n", false, "MOVED 1"},
        {"", false, ""},
        {"", true, ""},
    };
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++)
        meet_liar(
            (struct liar){.info = "$0\r\n\r\n", .lie = lies[i].text, .closes = lies[i].closes},
            lies[i].told);
}
END_TEST

#define MANY "*2147483647\r\n"
#define LINE "some thirty bytes of a long line"

START_TEST(a_welcome_that_lies_opens_the_breaker)
{
    static const char *const lies[] = {
        MANY MANY MANY MANY MANY MANY MANY,
        "*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n",
        "$2147483647\r\nabc",
        "$1048577\r\nabc",
        "$-1\r\n",
        "$3\r\nabcde",
        "+" LINE LINE LINE LINE LINE LINE LINE LINE LINE LINE LINE LINE LINE LINE LINE LINE LINE
            LINE LINE LINE LINE LINE LINE LINE LINE LINE LINE LINE LINE LINE LINE LINE LINE LINE
                LINE LINE LINE LINE LINE LINE LINE LINE LINE LINE LINE LINE LINE LINE LINE LINE
                    LINE,
        "%2147483647\r\n",
        "~1\r\n:1\r\n",
        ">1\r\n+message\r\n",
        "|1\r\n+key\r\n+value\r\n",
        "=15\r\ntxt:Some string\r\n",
        "(3492890328409238509324850943850943825024385\r\n",
        ",1.5\r\n",
        "#t\r\n",
        "_\r\n",
        "$?\r\n;4\r\nword\r\n;0\r\n",
        "HTTP/1.1 400 Bad Request\r\n",
    };
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++)
        meet_liar((struct liar){.info = lies[i], .lie = ""},
                  "no welcome: it answered INFO with \"");
}
END_TEST

START_TEST(a_map_of_a_cluster_that_lies_opens_the_breaker)
{
    static const char cluster[] = "$19\r\ncluster_enabled:1\r\n\r\n";
    static const char *const lies[] = {
        MANY MANY MANY MANY MANY MANY MANY,
        "*16384\r\n" MANY,
        "*16385\r\n",
        "*1\r\n*1\r\n*1\r\n*1\r\n*1\r\n",
        "*1\r\n*3\r\n:0\r\n:9\r\n*2\r\n$256\r\n",
        "*1\r\n*3\r\n:0\r\n:9\r\n*2\r\n$2000000\r\n",
        "*1\r\n%1\r\n",
        "*1\r\n-ERR no\r\n",
        ":1\r\n",
        "*-1\r\n",
    };
    for (size_t i = 0; i < sizeof lies / sizeof *lies; i++)
        meet_liar((struct liar){.info = cluster, .slots = lies[i], .lie = ""},
                  "it answered CLUSTER SLOTS with \"");
}
END_TEST

START_TEST(a_welcome_that_never_ends_opens_the_breaker)
{
    meet_liar((struct liar){.info = "$1000000\r\na", .lie = "", .drips = true},
              "it does not answer in time");
}
END_TEST

// ---- all of it ----

static void harm(struct dice *dice)
{
    switch (dice_below(dice, 6)) {
    case 0: server_tell(0, "CLIENT KILL TYPE normal SKIPME yes"); break;
    case 1: server_tell(0, "FLUSHALL"); break;
    case 2:
        server_signal(0, SIGSTOP);
        usleep(dice_below(dice, 30000));
        server_signal(0, SIGCONT);
        break;
    case 3:
        if (dice_chance(dice, 10)) {
            server_kill(0);
            server_start_again(0, NULL);
        }
        break;
    default: {
        char name[STORED_NAME_ROOM];
        world_name(dice_below(dice, 32), dice_below(dice, 2), name);
        redisReply *reply = server_ask(0, "STRLEN %s", name);
        const long long size = reply->integer;
        freeReplyObject(reply);
        if (size > 0)
            server_tell(0, "SETRANGE %s %d %s", name, (int)dice_below(dice, (uint32_t)size),
                        "wrong");
    }
    }
}

START_TEST(whatever_happens_no_byte_is_wrong_and_each_job_ends)
{
    struct dice dice = {check_draw("redis faults")};
    struct tier_job *jobs[4] = {NULL};
    uint64_t loaded = 0;
    server_start(0, NULL);
    world_open(1, &impatient, MIB + 30000);
    for (int round = 0; round < (check_is_long() ? 5000 : 400); round++) {
        struct tier_job **job = &jobs[dice_below(&dice, 4)];
        if (*job) {
            world_end(*job);
            loaded += (*job)->kind == TIER_LOAD ? world_count(*job, STORED_OK) : 0;
            world_free(*job);
        }
        *job = world_start((enum tier_kind)dice_below(&dice, TIER_NUM_KINDS), dice_below(&dice, 28),
                           dice_between(&dice, 1, 4),
                           dice_chance(&dice, 20) ? (int)dice_below(&dice, 5) : 1000);
        if (dice_chance(&dice, 10))
            harm(&dice);
    }
    for (int i = 0; i < 4; i++) {
        world_end(jobs[i]);
        world_free(jobs[i]);
    }
    ck_assert_uint_gt(loaded, 0);
}
END_TEST

void add_redis_faults(Suite *suite)
{
    const TTest *const tests[] = {
        a_wrong_value_is_a_miss_and_is_counted_by_its_reason,
        a_server_that_is_killed_in_the_middle_leaves_no_job_and_is_used_again_when_it_is_back,
        a_server_that_was_killed_opens_the_breaker,
        a_server_that_is_not_there_delays_nobody_and_is_used_when_it_comes,
        connections_that_the_server_closes_are_made_again,
        a_server_that_stands_still_costs_the_deadline_until_the_breaker_opens,
        a_large_store_and_load_to_a_server_that_stands_still_end_at_their_deadlines,
        a_server_that_sleeps_for_a_while_is_used_again,
        a_full_server_evicts_or_refuses_as_its_policy_says,
        a_policy_that_evicts_only_what_expires_refuses_when_keys_never_do,
        a_queue_that_is_full_refuses_jobs,
        a_tier_closes_while_jobs_wait_for_a_server_that_stands_still,
        a_server_that_lies_opens_the_breaker,
        a_welcome_that_lies_opens_the_breaker,
        a_map_of_a_cluster_that_lies_opens_the_breaker,
        a_welcome_that_never_ends_opens_the_breaker,
        whatever_happens_no_byte_is_wrong_and_each_job_ends,
        NULL,
    };
    check_case(suite, "faults", NULL, world_close, tests, 1);
}
