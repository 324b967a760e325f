// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_client_redis.c - two real daemons share prompts through a real redis-server, which dies,
// stands still, fills up and lies; workers and daemons die, too. What a daemon gives has the same
// bits as what the other one computed, whether it loaded or computed. text_step() also holds each
// row against float64.

#include "base/clock.h"
#include "rigs/text_world.h"
#include "tier/redis_server.h"

#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    POOL = 64, // blocks of a daemon's GPU
    BLOCKS = 10,
    PROMPT = BLOCKS * TEXT_BLOCK + 3,
    FOUND = BLOCKS * TEXT_BLOCK,
    ROW = TEXT_HEADS * TEXT_DIM,
    LAST = 3 * ROW,
};

// The daemons, and the worker that the test has at each.
static struct site {
    struct daemon daemon;
    struct text_world world;
} sites[2];
static int32_t prompts[16][PROMPT];
static char url[128];

// ---- daemons ----

static void use(int i)
{
    rig_daemon = sites[i].daemon;
}

static void open_worker(int i)
{
    use(i);
    text_open(&sites[i].world);
}

static void close_worker(int i)
{
    use(i);
    text_close(&sites[i].world);
}

// The deadline is patient where a test needs a load to succeed on a busy machine.
static const char *deadline_ms = "20000", *memory = "2M";

static const char *const *options(void)
{
    static const char *list[16];
    const char *const all[] = {
        "--tier",          url,         "--max-blocks", "64", "--host-tier", memory,
        "--tier-deadline", deadline_ms, NULL,
    };
    memcpy(list, all, sizeof all);
    return list;
}

// On a busy machine a load may seem slower than computing these short texts.
static void open_sites(void)
{
    text_load = AULE_LOAD_ALWAYS;
    server_start(0, NULL);
    snprintf(url, sizeof url, "redis://127.0.0.1:%d?absent=1", servers[0].port);
    for (int prompt = 0; prompt < 16; prompt++)
        for (int i = 0; i < PROMPT; i++)
            prompts[prompt][i] = 1000 + prompt * 500 + i * 7 % 97;
    for (int i = 0; i < 2; i++) {
        ck_assert(daemon_launch(&sites[i].daemon, options()));
        open_worker(i);
    }
}

static void open_hasty(void)
{
    deadline_ms = "100";
    open_sites();
    text_load = AULE_LOAD_AUTO;
}

static void open_narrow(void)
{
    memory = "8M";
    open_sites();
}

static void close_sites(void)
{
    for (int i = 0; i < 2; i++) {
        if (sites[i].world.session)
            close_worker(i);
        ck_assert_int_eq(daemon_end(&sites[i].daemon), 0);
    }
    servers_end();
}

// Kills daemon i, and starts it again.
static void restart(int i)
{
    aule_step_destroy(sites[i].world.step);
    aule_cache_close(sites[i].world.cache);
    daemon_kill(&sites[i].daemon);
    aule_session_close(sites[i].world.session);
    ck_assert(daemon_start(&sites[i].daemon, options()));
    open_worker(i);
}

static uint64_t metric(int i, const char *name)
{
    struct aule_monitor *monitor;
    struct aule_metric *metrics;
    uint32_t count;
    uint64_t value = UINT64_MAX;
    ok(aule_monitor_open(sites[i].daemon.socket, WAIT_MS, &monitor));
    ok(aule_monitor_metrics(monitor, &metrics, &count));
    for (uint32_t m = 0; m < count; m++)
        if (!strcmp(metrics[m].name, name))
            value = metrics[m].value;
    free(metrics);
    aule_monitor_close(monitor);
    ck_assert_msg(value != UINT64_MAX, "no metric %s", name);
    return value;
}

static uint64_t failed(int i, const char *reason)
{
    char name[128];
    snprintf(name, sizeof name, "aule_tier_failed_blocks_total{tier=\"redis\",reason=\"%s\"}",
             reason);
    return metric(i, name);
}

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 5000000}, NULL);
}

// Waits until the daemon's breaker is closed: it asks the server again.
static void await_breaker(int i)
{
    while (metric(i, "aule_tier_broken{tier=\"redis\"}"))
        nap();
}

// ---- prompts ----

static struct text claim(int i, const int32_t *tokens, uint32_t num_tokens)
{
    struct text text;
    struct aule_sequence_info info;
    text_claim(&sites[i].world, &text, tokens, num_tokens);
    do
        ok(aule_sequence_info(text.sequence, &info));
    while (info.num_promised && text_wait(&text, WAIT_MS) == AULE_OK);
    return text;
}

// Computes at daemon i what of the prompt is missing. `out` gets the last layer's rows of its last
// three tokens. Returns how many tokens were found.
static uint32_t compute(int i, int prompt, float *out)
{
    static float outs[PROMPT * ROW];
    struct text text = claim(i, prompts[prompt], PROMPT), *list = &text;
    const uint32_t found = text.num_computed, rows = PROMPT - found;
    text_step(&sites[i].world, &list, NULL, 1, outs);
    memcpy(out, outs + (rows - 3) * ROW, LAST * sizeof *out);
    text_destroy(&text);
    return found;
}

// Computes the first blocks of the prompt, and lets them go. Returns how many tokens were found.
static uint32_t compute_first(int i, const int32_t *tokens, uint32_t num_tokens)
{
    struct text text = claim(i, tokens, num_tokens), *list = &text;
    const uint32_t found = text.num_computed;
    text_step(&sites[i].world, &list, NULL, 1, NULL);
    text_destroy(&text);
    return found;
}

static long num_keys(void)
{
    redisReply *reply = server_ask(0, "DBSIZE");
    const long count = (long)reply->integer;
    freeReplyObject(reply);
    return count;
}

static void await_keys(long count)
{
    while (num_keys() < count)
        nap();
}

// Daemon 0 computes the prompt, and the server gets it.
static void store(int prompt, float *out)
{
    const long before = num_keys();
    ck_assert_uint_eq(compute(0, prompt, out), 0);
    await_keys(before + BLOCKS);
}

// Daemon 1 gets the same bits, and finds `found` tokens.
static void expect_same(int prompt, const float *out, uint32_t found)
{
    float own[LAST];
    ck_assert_uint_eq(compute(1, prompt, own), found);
    ck_assert_mem_eq(own, out, sizeof own);
}

static redisReply *all_keys(void)
{
    redisReply *reply = server_ask(0, "KEYS aule:1:*");
    ck_assert_int_eq(reply->type, REDIS_REPLY_ARRAY);
    return reply;
}

// ---- tests ----

START_TEST(a_second_daemon_computes_nothing_of_what_the_first_one_stored)
{
    float out[LAST];
    for (int prompt = 0; prompt < 3; prompt++) {
        store(prompt, out);
        expect_same(prompt, out, FOUND);
    }
    ck_assert_uint_eq(metric(1, "aule_tier_loaded_tokens_total"), 3 * FOUND);
    ck_assert_uint_eq(metric(1, "aule_tier_loaded_blocks_total{tier=\"redis\"}"), 3 * BLOCKS);
    ck_assert_uint_eq(metric(1, "aule_tier_stored_blocks_total{tier=\"redis\"}"), 0);
}
END_TEST

START_TEST(a_look_up_without_a_claim_waits_for_blocks_that_are_loaded)
{
    float out[LAST];
    struct text text;
    uint32_t count;
    int32_t ids[BLOCKS];
    struct aule_prefix prefix = {.tokens = prompts[0], .num_tokens = PROMPT};
    store(0, out);
    prefix.load = AULE_LOAD_NEVER;
    ok(aule_prefix_lookup(sites[1].world.cache, &prefix, 0, ids, &count));
    ck_assert_uint_eq(count, 0);
    text_create(&sites[1].world, &text, prompts[0], PROMPT, true);
    ck_assert_uint_eq(text.num_computed, FOUND);
    text_destroy(&text);
    expect_same(0, out, FOUND);
    prefix.load = (enum aule_load)3;
    expect(aule_prefix_lookup(sites[1].world.cache, &prefix, 0, ids, &count), AULE_UNSUPPORTED,
           "way 3");
}
END_TEST

// Another prompt takes all blocks of the pool. The step names them until the next one, which needs
// one block.
static void evict(int i)
{
    static int32_t other[POOL * TEXT_BLOCK];
    for (int token = 0; token < POOL * TEXT_BLOCK; token++)
        other[token] = 20000 + token;
    compute_first(i, other, POOL * TEXT_BLOCK);
    compute_first(i, other, 1);
}

START_TEST(blocks_on_the_gpu_in_host_memory_and_in_the_store_make_one_answer)
{
    float out[LAST];
    const int32_t *prompt = prompts[0];
    compute_first(1, prompt, 5 * TEXT_BLOCK + 1);
    await_keys(5);
    evict(1);
    await_keys(5 + POOL);
    server_tell(0, "FLUSHALL");
    ck_assert_uint_eq(compute_first(1, prompt, 2 * TEXT_BLOCK + 1), 2 * TEXT_BLOCK); // from host
    store(0, out);
    const uint64_t host = metric(1, "aule_tier_loaded_blocks_total{tier=\"host\"}");
    expect_same(0, out, FOUND);
    ck_assert_uint_eq(metric(1, "aule_tier_loaded_blocks_total{tier=\"host\"}"), host + 3);
    ck_assert_uint_eq(metric(1, "aule_tier_loaded_blocks_total{tier=\"redis\"}"), 5);
}
END_TEST

START_TEST(a_hole_keeps_what_stands_before_it)
{
    float out[LAST], own[LAST];
    compute_first(0, prompts[0], 7 * TEXT_BLOCK + 1);
    await_keys(7);
    redisReply *before = all_keys();
    compute(0, 0, out);
    await_keys(BLOCKS);
    redisReply *after = all_keys();
    const char *late = NULL; // a key of one of the last three blocks
    for (size_t i = 0; i < after->elements && !late; i++) {
        late = after->element[i]->str;
        for (size_t k = 0; k < before->elements && late; k++)
            late = strcmp(before->element[k]->str, late) ? late : NULL;
    }
    server_tell(0, "DEL %s", late);
    const uint32_t found = compute(1, 0, own);
    ck_assert_uint_ge(found, 7 * TEXT_BLOCK);
    ck_assert_uint_lt(found, FOUND);
    ck_assert_mem_eq(own, out, sizeof own);
    freeReplyObject(before);
    freeReplyObject(after);
}
END_TEST

START_TEST(a_restarted_daemon_finds_what_it_stored_before_it_was_killed)
{
    float out[LAST], own[LAST];
    store(0, out);
    ck_assert_uint_eq(compute(0, 1, own), 0);
    restart(0); // perhaps in the middle of storing prompt 1
    await_breaker(0);
    ck_assert_uint_eq(compute(0, 0, own), FOUND);
    ck_assert_mem_eq(own, out, sizeof own);
    compute(0, 1, out); // all, some or nothing of it is found
    const uint32_t found = compute(1, 1, own);
    ck_assert_mem_eq(own, out, sizeof own);
    ck_assert_uint_eq(found % TEXT_BLOCK, 0);
}
END_TEST

static void die(int i, int prompt, bool computes)
{
    const pid_t child = fork();
    if (!child) {
        struct text_world own;
        struct text text, *list = &text;
        use(i);
        text_open(&own);
        text_claim(&own, &text, prompts[prompt], PROMPT);
        if (computes)
            text_step(&own, &list, NULL, 1, NULL);
        kill(getpid(), SIGKILL);
    }
    ck_assert_int_eq(waitpid(child, NULL, 0), child);
}

START_TEST(workers_that_are_killed_during_a_store_and_a_load_harm_nobody)
{
    float out[LAST], own[LAST];
    for (int prompt = 0; prompt < 3; prompt++) {
        die(0, prompt, true); // what it published is stored, or it had no time to publish
        compute(0, prompt, out);
        await_keys((prompt + 1) * BLOCKS);
        die(1, prompt, false); // a load goes on
        ck_assert_uint_eq(compute(1, prompt, own), FOUND);
        ck_assert_mem_eq(own, out, sizeof own);
    }
}
END_TEST

enum damage { FLIP, TRUNCATE, LENGTHEN, SWAP, NUM_DAMAGES };
static const char *const damage_reasons[] = {"checksum", "length", "length", "identity"};

static void damage_key(enum damage damage, const char *key, const char *other)
{
    switch (damage) {
    case FLIP: server_tell(0, "SETRANGE %s 1000 %b", key, "\x7f\xc0\xff\xee", (size_t)4); break;
    case LENGTHEN: server_tell(0, "APPEND %s x", key); break;
    case SWAP: server_tell(0, "COPY %s %s REPLACE", other, key); break;
    default: {
        redisReply *value = server_ask(0, "GET %s", key);
        server_tell(0, "SET %s %b", key, value->str, (size_t)value->len - 100);
        freeReplyObject(value);
    }
    }
}

START_TEST(a_worker_that_is_killed_while_its_look_up_waits_harms_nobody)
{
    float out[LAST];
    store(0, out);
    server_signal(0, SIGSTOP);
    const pid_t child = fork();
    if (!child) {
        struct text_world own;
        struct text text;
        use(1);
        text_open(&own);
        text_create(&own, &text, prompts[0], PROMPT, true); // the daemon answers no more
        _exit(1);
    }
    while (metric(1, "aule_sessions") < 2)
        nap();
    nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL); // most likely it waits now
    kill(child, SIGKILL);
    ck_assert_int_eq(waitpid(child, NULL, 0), child);
    server_signal(0, SIGCONT);
    expect_same(0, out, FOUND);
}
END_TEST

// The look-up waits two seconds, longer than the session waits for other answers.
START_TEST(a_look_up_that_waits_for_a_tier_does_not_end_an_impatient_session)
{
    const struct aule_session_params impatient = {.socket = sites[1].daemon.socket,
                                                  .timeout_ms = 500};
    struct aule_prefix prefix = {.tokens = prompts[0], .num_tokens = PROMPT};
    struct aule_session *session;
    struct aule_cache *cache;
    int32_t found[BLOCKS];
    uint32_t num_found = 1;
    float out[LAST];
    store(0, out);
    ok(aule_session_open(&impatient, &session));
    ok(aule_cache_open(session, &text_cache, &cache));
    server_signal(0, SIGSTOP);
    ok(aule_prefix_lookup(cache, &prefix, 0, found, &num_found));
    ck_assert_uint_eq(num_found, 0);
    prefix.load = AULE_LOAD_NEVER;
    ok(aule_prefix_lookup(cache, &prefix, 0, found, &num_found)); // the session lives
    server_signal(0, SIGCONT);
    aule_cache_close(cache);
    aule_session_close(session);
}
END_TEST

START_TEST(a_worker_computes_other_texts_while_blocks_are_to_come)
{
    float out[LAST];
    struct aule_sequence_info info;
    struct text text, other = {.num_tokens = PROMPT}, *list = &other;
    const struct aule_sequence_params params = {
        .tokens = prompts[1], .num_tokens = PROMPT, .publish = true, .load = AULE_LOAD_NEVER};
    store(0, out);
    server_signal(0, SIGSTOP);
    text_claim(&sites[1].world, &text, prompts[0], PROMPT);
    ok(aule_sequence_info(text.sequence, &info));
    ck_assert_uint_eq(info.num_found, 0);
    ck_assert_uint_eq(info.num_promised, FOUND); // so many tokens are to come
    ck_assert_int_eq(text_wait(&text, 0), AULE_TIMEOUT);
    memcpy(other.tokens, prompts[1], sizeof prompts[1]);
    ok(aule_sequence_create(sites[1].world.cache, &params, &other.sequence));
    text_step(&sites[1].world, &list, NULL, 1, NULL);
    ok(aule_sequence_info(text.sequence, &info));
    ck_assert_uint_eq(info.num_promised, FOUND);
    server_signal(0, SIGCONT);
    while (text.num_computed < FOUND)
        ok(text_wait(&text, WAIT_MS));
    text_destroy(&text);
    text_destroy(&other);
    expect_same(0, out, FOUND);
}
END_TEST

START_TEST(values_that_another_client_damaged_are_computed)
{
    float out[LAST], own[LAST];
    uint64_t stored = 0;
    for (enum damage damage = 0; damage < NUM_DAMAGES; damage++) {
        server_tell(0, "FLUSHALL");
        store((int)damage, out);
        redisReply *keys = all_keys();
        ck_assert_uint_eq(keys->elements, BLOCKS);
        damage_key(damage, keys->element[3]->str, keys->element[5]->str);
        const uint64_t before = failed(1, damage_reasons[damage]);
        const uint32_t found = compute(1, (int)damage, own);
        ck_assert_mem_eq(own, out, sizeof own);
        ck_assert_uint_lt(found, FOUND);
        ck_assert_uint_eq(found % TEXT_BLOCK, 0);
        ck_assert_uint_eq(failed(1, damage_reasons[damage]), before + 1);
        stored += (FOUND - found) / TEXT_BLOCK; // what it computed replaces what is damaged
        while (metric(1, "aule_tier_stored_blocks_total{tier=\"redis\"}") < stored)
            nap();
        freeReplyObject(keys);
    }
}
END_TEST

START_TEST(a_server_that_is_full_refuses_or_evicts_and_nothing_is_wrong)
{
    float out[LAST];
    server_tell(0, "DEBUG POPULATE 200 filler 4000");
    server_tell(0, "CONFIG SET maxmemory %ld", server_number(0, "memory", "used_memory"));
    ck_assert_uint_eq(compute(0, 0, out), 0); // noeviction is the default
    while (!failed(0, "full"))
        nap();
    expect_same(0, out, 0);
    server_tell(0, "CONFIG SET maxmemory-policy allkeys-lru");
    nanosleep(&(struct timespec){.tv_sec = 1, .tv_nsec = 100000000}, NULL); // stores pause
    ck_assert_uint_eq(compute(0, 1, out), 0);
    const uint64_t wanted = failed(0, "full") + BLOCKS;
    while (metric(0, "aule_tier_stored_blocks_total{tier=\"redis\"}") + failed(0, "full") < wanted)
        nap();
    float own[LAST];
    compute(1, 1, own); // the server may have evicted some of it again
    ck_assert_mem_eq(own, out, sizeof own);
}
END_TEST

START_TEST(a_server_that_stands_still_is_not_waited_for)
{
    float out[LAST], own[LAST];
    store(0, out);
    server_signal(0, SIGSTOP);
    const int64_t began_ns = clock_now_ns();
    struct text text = claim(1, prompts[0], PROMPT);
    printf("a server that stands still delayed a look-up by %lld ms; the deadline is 100 ms\n",
           (long long)((clock_now_ns() - began_ns) / NS_PER_MS));
    ck_assert_uint_eq(text.num_computed, 0);
    text_destroy(&text);
    compute(1, 0, own);
    ck_assert_mem_eq(own, out, sizeof own);
    for (int prompt = 1; prompt < 4; prompt++) { // stores fail, too
        compute(0, prompt, out);
        compute(1, prompt, own);
        ck_assert_mem_eq(own, out, sizeof own);
    }
    server_signal(0, SIGCONT);
    for (int i = 0; i < 2; i++)
        await_breaker(i);
    // One in 32 look-ups is tried even if the estimate says that loading is slow.
    store(4, out);
    text = claim(1, prompts[4], PROMPT);
    while (text.num_computed == 0) {
        text_destroy(&text);
        text = claim(1, prompts[4], PROMPT);
    }
    text_destroy(&text);
    compute(1, 4, own);
    ck_assert_mem_eq(own, out, sizeof own);
}
END_TEST

// Kills the server some time later.
static pid_t kill_later(long us)
{
    const pid_t server = servers[0].pid, child = fork();
    if (!child) {
        nanosleep(&(struct timespec){.tv_nsec = us * 1000}, NULL);
        kill(server, SIGKILL);
        _exit(0);
    }
    return child;
}

START_TEST(a_server_that_is_killed_and_comes_back_empty_costs_only_computing)
{
    float out[LAST], own[LAST];
    const int rounds = check_is_long() ? 12 : 2;
    for (int round = 0; round < rounds; round++) {
        store(round, out);
        const pid_t killer = kill_later(round * 700L);
        compute(1, round, own); // all, some or nothing of it is found
        ck_assert_mem_eq(own, out, sizeof own);
        ck_assert_int_eq(waitpid(killer, NULL, 0), killer);
        server_kill(0);
        compute(0, 12 + round % 4, out); // its store fails
        compute(1, 12 + round % 4, own);
        ck_assert_mem_eq(own, out, sizeof own);
        server_start_again(0, NULL);
        ck_assert_int_eq(num_keys(), 0);
        for (int i = 0; i < 2; i++)
            await_breaker(i);
    }
}
END_TEST

// ---- large blocks ----

enum { LARGE_BLOCK = 256, LARGE_BLOCKS = 6, LARGE_ROWS = LARGE_BLOCK * LARGE_BLOCKS };
static const struct rig_shape large_shape = {AULE_F32, 1, LARGE_ROWS, 10, 128, true};

// Opens the cache at daemon i; its blocks have 2.5 MiB, which are three parts.
static struct aule_cache *open_large(int i, struct aule_tensor *k, struct aule_tensor *v)
{
    const struct aule_cache_params params = {.name = "large",
                                             .num_layers = 1,
                                             .num_kv_heads = large_shape.heads,
                                             .head_dim = large_shape.dim,
                                             .k_dtype = AULE_F32,
                                             .v_dtype = AULE_F32,
                                             .block_size = LARGE_BLOCK};
    struct aule_cache *cache;
    ok(aule_cache_open(sites[i].world.session, &params, &cache));
    *k = rig_tensor(sites[i].world.session, &large_shape, 1);
    *v = rig_tensor(sites[i].world.session, &large_shape, 2);
    k->outer_stride = v->outer_stride = 0;
    return cache;
}

static struct aule_prefix large_prefix(void)
{
    static int32_t tokens[LARGE_ROWS];
    for (int32_t i = 0; i < LARGE_ROWS; i++)
        tokens[i] = i;
    return (struct aule_prefix){.tokens = tokens, .num_tokens = LARGE_ROWS};
}

static void publish_large(const struct aule_prefix *prefix)
{
    struct aule_tensor k, v;
    struct aule_ticket ticket;
    int32_t ids[LARGE_BLOCKS];
    static int64_t slots[LARGE_ROWS];
    struct aule_cache *cache = open_large(0, &k, &v);
    ok(aule_blocks_lease(cache, LARGE_BLOCKS, WAIT_MS, ids));
    for (int64_t i = 0; i < LARGE_ROWS; i++)
        slots[i] = ids[i / LARGE_BLOCK] * (int64_t)LARGE_BLOCK + i % LARGE_BLOCK;
    const struct aule_kv_import params = {
        .num_rows = LARGE_ROWS, .slot_mapping = slots, .k = k, .v = v};
    ok(aule_kv_import(cache, &params, WAIT_MS, &ticket));
    ok(aule_ticket_wait(sites[0].world.session, ticket, WAIT_MS, NULL));
    ok(aule_prefix_publish(cache, prefix, ids, NULL));
    ok(aule_blocks_release(cache, LARGE_BLOCKS, ids));
    aule_cache_close(cache);
}

START_TEST(blocks_of_many_parts_come_through_little_memory_bit_for_bit)
{
    struct aule_tensor k, v;
    struct aule_claim claimed;
    struct aule_ticket ticket;
    int32_t ids[LARGE_BLOCKS];
    const struct aule_prefix prefix = large_prefix();
    const size_t size = rig_size(&large_shape);
    publish_large(&prefix);
    await_keys(3 * LARGE_BLOCKS);

    struct aule_cache *cache = open_large(1, &k, &v);
    struct aule_session *session = sites[1].world.session;
    uint8_t *wanted = malloc(2 * size);
    memcpy(wanted, aule_tensor_data(session, &k), size);
    memcpy(wanted + size, aule_tensor_data(session, &v), size);
    memset(aule_tensor_data(session, &k), 0xff, size);
    memset(aule_tensor_data(session, &v), 0xff, size);
    ok(aule_prefix_claim(cache, &prefix, 0, ids, &claimed));
    while (claimed.num_promised)
        ok(aule_claim_wait(cache, &claimed, WAIT_MS, ids));
    ck_assert_uint_eq(claimed.num_blocks, LARGE_BLOCKS);
    const struct aule_kv_export params = {.num_rows = LARGE_ROWS, .block_ids = ids, .k = k, .v = v};
    ok(aule_kv_export(cache, &params, WAIT_MS, &ticket));
    ok(aule_ticket_wait(session, ticket, WAIT_MS, NULL));
    ck_assert_mem_eq(aule_tensor_data(session, &k), wanted, size);
    ck_assert_mem_eq(aule_tensor_data(session, &v), wanted + size, size);
    ck_assert_uint_eq(metric(0, "aule_tier_skipped_blocks_total"), 0);
    ok(aule_blocks_release(cache, LARGE_BLOCKS, ids));
    aule_cache_close(cache);
    free(wanted);
}
END_TEST

START_TEST(blocks_larger_than_the_memory_are_not_kept_and_this_is_said)
{
    const struct aule_prefix prefix = large_prefix();
    publish_large(&prefix);
    while (metric(0, "aule_tier_skipped_blocks_total") < LARGE_BLOCKS)
        nap();
    ck_assert(daemon_log_contains(&sites[0].daemon, "does not fit the 2097152 bytes of"));
}
END_TEST

// ---- what is shown ----

static char *read_all(const char *path)
{
    char *text = calloc(1, 1 << 16);
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    const ssize_t size = read(fd, text, (1 << 16) - 1);
    ck_assert_int_gt(size, 0);
    for (ssize_t i = 0; i + 1 < size; i++)
        text[i] = text[i] ? text[i] : ' ';
    close(fd);
    return text;
}

START_TEST(a_password_is_shown_nowhere_and_a_wrong_policy_is_warned_of)
{
    char path[64];
    struct daemon *daemon = &sites[0].daemon;
    server_start(0, (const char *const[]){"--requirepass", "verysecret", NULL});
    snprintf(url, sizeof url, "redis://default:verysecret@127.0.0.1:%d", servers[0].port);
    ck_assert(daemon_launch(daemon, (const char *const[]){"--tier", url, NULL}));
    while (!daemon_log_contains(daemon, "maxmemory is 0"))
        nap();
    snprintf(path, sizeof path, "/proc/%d/cmdline", (int)daemon->pid);
    char *arguments = read_all(path);
    ck_assert_ptr_nonnull(strstr(arguments, "--tier redis://****"));
    ck_assert_ptr_null(strstr(arguments, "secret"));
    free(arguments);
    char *lines;
    struct aule_monitor *monitor;
    ok(aule_monitor_open(daemon->socket, WAIT_MS, &monitor));
    ok(aule_monitor_options(monitor, &lines));
    ck_assert_ptr_nonnull(strstr(lines, "tier=redis://****"));
    ck_assert_ptr_null(strstr(lines, "secret"));
    free(lines);
    aule_monitor_close(monitor);
    ck_assert(!daemon_log_contains_now(daemon, "secret"));
    ck_assert_int_eq(daemon_stop(daemon), 0);

    snprintf(url, sizeof url, "redis://:averysecretone@127.0.0.1:%d", servers[0].port);
    ck_assert(daemon_start(daemon, (const char *const[]){"--tier", url, NULL}));
    while (!daemon_log_contains(daemon, "WRONGPASS"))
        nap();
    ck_assert(!daemon_log_contains_now(daemon, "secret"));
    ck_assert_int_eq(daemon_end(daemon), 0);
    servers_end();
}
END_TEST

static void expect_refused(const char *const *arguments, const char *sentence)
{
    struct daemon daemon;
    ck_assert(daemon_init(&daemon));
    ck_assert(!daemon_start(&daemon, arguments));
    ck_assert_msg(daemon_log_contains(&daemon, sentence), "not said: %s", sentence);
    ck_assert(!daemon_log_contains_now(&daemon, "secret"));
    daemon_finish(&daemon);
}

START_TEST(what_cannot_be_a_tier_is_refused_with_a_sentence)
{
    static const struct {
        const char *url, *sentence;
    } cases[] = {
        {"http://u:secret@host", "--tier 1 does not begin with one of: redis://"},
        {"redis://u:secret@host:0",
         "--tier 1: server 1 of the URL has a port that is not a number from 1"},
        {"redis://u:secret@", "--tier 1: server 1 of the URL is empty"},
        {"redis://u:secret@host?expire=soon",
         "--tier 1: expire \"soon\" is not a whole number from 0 to 2147483647"},
        {"redis://u:secret@host?size=1M", "--tier 1: size is no option"},
        {"redis://u:secret@host?expire=1&queue", "--tier 1: queue needs a value"},
        {"redis://u:secret@host?ca=%0", "--tier 1: ca: the value has a % without two"},
        {"files:///f?size=1", "--tier 1: size \"1\" is not a whole number from 1048576"},
    };
#ifdef AULE_HAVE_TLS
    static const char secure[] = "--tier 1: the file of certificates (ca) /nowhere/ca.pem: ";
#else
    static const char secure[] = "rediss:// needs TLS, and this build has none";
#endif
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        expect_refused((const char *const[]){"--tier", cases[i].url, NULL}, cases[i].sentence);
    expect_refused(
        (const char *const[]){"--tier", "rediss://u:secret@host?ca=/nowhere/ca.pem", NULL}, secure);
    expect_refused((const char *const[]){"--tier", "redis://a", "--tier", "redis://b", "--tier",
                                         "redis://c", "--tier", "redis://d", "--tier", "redis://e",
                                         NULL},
                   "--tier is given 5 times; at most 4 are possible");
}
END_TEST

int main(void)
{
    if (!server_is_there()) {
        printf("there is no redis-server\n");
        return 77;
    }
    const TTest *const patient[] = {
        a_second_daemon_computes_nothing_of_what_the_first_one_stored,
        a_look_up_without_a_claim_waits_for_blocks_that_are_loaded,
        blocks_on_the_gpu_in_host_memory_and_in_the_store_make_one_answer,
        a_hole_keeps_what_stands_before_it,
        a_restarted_daemon_finds_what_it_stored_before_it_was_killed,
        workers_that_are_killed_during_a_store_and_a_load_harm_nobody,
        a_worker_that_is_killed_while_its_look_up_waits_harms_nobody,
        a_look_up_that_waits_for_a_tier_does_not_end_an_impatient_session,
        a_worker_computes_other_texts_while_blocks_are_to_come,
        values_that_another_client_damaged_are_computed,
        a_server_that_is_full_refuses_or_evicts_and_nothing_is_wrong,
        blocks_larger_than_the_memory_are_not_kept_and_this_is_said,
        NULL,
    };
    const TTest *const hasty[] = {
        a_server_that_stands_still_is_not_waited_for,
        a_server_that_is_killed_and_comes_back_empty_costs_only_computing,
        NULL,
    };
    const TTest *const shown[] = {
        a_password_is_shown_nowhere_and_a_wrong_policy_is_warned_of,
        what_cannot_be_a_tier_is_refused_with_a_sentence,
        NULL,
    };
    Suite *suite = suite_create("client redis");
    check_case(suite, "patient", open_sites, close_sites, patient, 1);
    check_case(suite, "hasty", open_hasty, close_sites, hasty, 1);
    check_case(
        suite, "narrow", open_narrow, close_sites,
        (const TTest *const[]){blocks_of_many_parts_come_through_little_memory_bit_for_bit, NULL},
        1);
    check_case(suite, "shown", NULL, NULL, shown, 1);
    return check_main(suite);
}
