// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_redis_parts.c - the parts of the redis tier that need no server: the URL, the reader of
// replies, the breaker, the filter and the table of slots.

#include "rigs/check_main.h"
#include "rigs/dice.h"
#include "tier/redis/absent.h"
#include "tier/redis/breaker.h"
#include "tier/redis/redis.h"
#include "tier/redis/reply.h"
#include "tier/redis/slots.h"
#include "tier/redis/url.h"

#include <base/clock.h>
#include <sys/stat.h>
#include <unistd.h>

// ---- the URL ----

START_TEST(a_url_names_servers_a_user_and_a_password)
{
    struct redis_url url;
    struct error error;
    ck_assert_int_eq(
        redis_url_parse("rediss://me:p%40ss:w@a.example:7000,10.0.0.2,[::1]:7002/0", &url, &error),
        STATUS_OK);
    ck_assert(url.tls);
    ck_assert_str_eq(url.user, "me");
    ck_assert_str_eq(url.password, "p@ss:w");
    ck_assert_uint_eq(url.num_hosts, 3);
    ck_assert_str_eq(url.hosts[0].name, "a.example");
    ck_assert_uint_eq(url.hosts[0].port, 7000);
    ck_assert_str_eq(url.hosts[1].name, "10.0.0.2");
    ck_assert_uint_eq(url.hosts[1].port, REDIS_PORT);
    ck_assert_str_eq(url.hosts[2].name, "::1");
    ck_assert_uint_eq(url.hosts[2].port, 7002);
    ck_assert_int_eq(redis_url_parse("redis://:secret@host", &url, &error), STATUS_OK);
    ck_assert_str_eq(url.user, "");
    ck_assert_str_eq(url.password, "secret");
    ck_assert(!url.tls);
}
END_TEST

START_TEST(a_wrong_url_is_refused_and_its_password_is_not_shown)
{
    static const char *const wrong[] = {
        "http://host",
        "redis://",
        "redis://u:verysecret@",
        "redis://verysecret@host",
        "redis://u:verysecret/host:1",
        "redis://u:verysecret",
        "redis://u:verysecret@host:0",
        "redis://u:verysecret@host:65536",
        "redis://u:verysecret@host:port",
        "redis://u:verysecret%4@host",
        "redis://u:verysecret%00@host",
        "redis://u:verysecret@host/1",
        "redis://u:verysecret@[::1",
        "redis://u:verysecret@[::1]7",
        "redis://u:verysecret@ho st",
        "redis://u:verysecret@a,,b",
        "redis://u:verysecret@a,b,c,d,e,f,g,h,i,j,k,l,m,n,o,p,q",
    };
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        struct redis_url url, nothing = {0};
        struct error error;
        ck_assert_msg(redis_url_parse(wrong[i], &url, &error) == STATUS_INVALID, "%s", wrong[i]);
        ck_assert_msg(!strstr(error.text, "verysecret"), "%s", error.text);
        ck_assert(memcmp(&url, &nothing, sizeof url) == 0);
    }
}
END_TEST

static void write_file(const char *path, const char *text, mode_t mode)
{
    FILE *file = fopen(path, "w");
    ck_assert_ptr_nonnull(file);
    fputs(text, file);
    fclose(file);
    ck_assert_int_eq(chmod(path, mode), 0);
}

START_TEST(a_password_comes_from_a_file_that_only_its_owner_may_read)
{
    char path[] = "/tmp/aule-password-XXXXXX";
    struct redis_url url;
    struct error error;
    close(mkstemp(path));
    ck_assert_int_eq(redis_url_parse("redis://host", &url, &error), STATUS_OK);
    write_file(path, "verysecret\nrest", 0640);
    ck_assert_int_eq(redis_url_password_file(&url, path, &error), STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "chmod 600"));
    write_file(path, "verysecret\nrest", 0600);
    ck_assert_int_eq(redis_url_password_file(&url, path, &error), STATUS_OK);
    ck_assert_str_eq(url.password, "verysecret");
    ck_assert_int_eq(redis_url_password_file(&url, path, &error), STATUS_INVALID); // two of them
    ck_assert_ptr_null(strstr(error.text, "verysecret"));
    redis_url_forget(&url);
    write_file(path, "\n", 0600);
    ck_assert_int_eq(redis_url_password_file(&url, path, &error), STATUS_INVALID);
    ck_assert_int_eq(redis_url_password_file(&url, "/nowhere/at/all", &error), STATUS_NOT_FOUND);
    unlink(path);
}
END_TEST

START_TEST(what_the_backend_cannot_do_is_refused_with_a_sentence)
{
    struct tier_backend *backend;
    struct error error;
    const struct redis_params threads = {.url = "redis://127.0.0.1:1", .threads = 5};
    const struct redis_params encrypted = {.url = "rediss://127.0.0.1:1",
                                           .ca_file = "/nowhere/ca.pem"};
    ck_assert_int_eq(redis_create(&threads, &backend, &error), STATUS_INVALID);
    ck_assert_ptr_null(backend);
    const enum status status = redis_create(&encrypted, &backend, &error);
#ifdef AULE_HAVE_TLS
    ck_assert_int_eq(status, STATUS_INVALID);
    ck_assert_ptr_nonnull(strstr(error.text, "ca) /nowhere/ca.pem"));
#else
    ck_assert_int_eq(status, STATUS_UNSUPPORTED);
    ck_assert_ptr_nonnull(strstr(error.text, "TLS"));
#endif
}
END_TEST

// ---- replies ----

static const char answers[] =
    "+OK\r\n:3\r\n-OOM no\r\n*3\r\n$10\r\nabcdefghij\r\n$-1\r\n$4\r\nwxyz\r\n+E\r\n";

struct reading {
    struct reply reply;
    char log[256];
    char value[16];
};

static void take(struct reading *reading)
{
    struct reply *reply = &reading->reply;
    char *log = reading->log + strlen(reading->log);
    if (reply->type == '+' || reply->type == '-')
        sprintf(log, "%c%.20s ", reply->type, reply->text);
    else
        sprintf(log, "%c%d ", reply->type, (int)reply->number);
    if (reply->type != '$' || reply->number < 0)
        return;
    memset(reading->value, 0, sizeof reading->value);
    const struct iovec places[] = {{reading->value, 3}, {reading->value + 8, 4}};
    reply_places(reply, places, 2);
}

// Gives `size` bytes in steps that `dice` chooses; stops at an error.
static enum reply_event read_all(struct reading *reading, const char *data, size_t size,
                                 struct dice *dice)
{
    struct reply *reply = &reading->reply;
    reply_init(reply);
    reading->log[0] = '\0';
    for (;;) {
        const enum reply_event event = reply_next(reply);
        if (event == REPLY_BROKEN || (event == REPLY_MORE && size == 0))
            return event;
        if (event == REPLY_LINE) {
            take(reading);
        } else if (event == REPLY_BULK) {
            sprintf(reading->log + strlen(reading->log), "[%.3s %.4s] ", reading->value,
                    reading->value + 8);
        } else {
            struct iovec to[REPLY_VECTORS];
            const int count = reply_wants(reply, to);
            const size_t step = 1 + dice_below(dice, (uint32_t)size);
            size_t put = 0;
            for (int v = 0; v < count && put < step; v++) {
                const size_t bytes = to[v].iov_len < step - put ? to[v].iov_len : step - put;
                memcpy(to[v].iov_base, data + put, bytes);
                put += bytes;
            }
            reply_got(reply, put);
            data += put;
            size -= put;
        }
    }
}

START_TEST(replies_are_the_same_however_their_bytes_arrive)
{
    struct reading *reading = malloc(sizeof *reading);
    struct dice dice = {check_seed()};
    for (int i = 0; i < 2000; i++) {
        ck_assert_int_eq(read_all(reading, answers, sizeof answers - 1, &dice), REPLY_MORE);
        ck_assert_str_eq(reading->log, "+OK :3 -OOM no *3 $10 [abc defg] $-1 $4 [wxy z] +E ");
    }
    free(reading);
}
END_TEST

START_TEST(what_is_no_reply_is_refused)
{
    static const char *const wrong[] = {
        "hello\r\n",
        "\r\n",
        "+OK\n",
        ":12x\r\n",
        ":\r\n",
        "$-2\r\n",
        "$2097153\r\n",
        "$99999999999\r\n",
        "$9999999999999999999999\r\n",
        "*-7\r\n",
        "$2\r\nabcd\r\n",
        "%3\r\n",
        "~1\r\n",
        ">1\r\n",
        "|1\r\n",
        "=5\r\ntxt:a\r\n",
        "(123\r\n",
        ",1.5\r\n",
        "#t\r\n",
        "_\r\n",
        "$?\r\n",
        "*?\r\n",
    };
    struct reading *reading = malloc(sizeof *reading);
    struct dice dice = {check_seed()};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        ck_assert_msg(read_all(reading, wrong[i], strlen(wrong[i]), &dice) == REPLY_BROKEN, "%s",
                      wrong[i]);
    char *endless = malloc(2000);
    memset(endless, '+', 2000);
    ck_assert_int_eq(read_all(reading, endless, 2000, &dice), REPLY_BROKEN);
    free(endless);
    free(reading);
}
END_TEST

START_TEST(any_bytes_are_read_without_harm)
{
    static const char letters[] = "+-:$*0123456789\r\n\r\n\r\nab";
    struct reading *reading = malloc(sizeof *reading);
    struct dice dice = {check_seed()};
    for (int i = 0; i < 20000; i++) {
        char data[24];
        const uint32_t size = dice_between(&dice, 1, sizeof data);
        for (uint32_t at = 0; at < size; at++)
            data[at] = letters[dice_below(&dice, sizeof letters - 1)];
        read_all(reading, data, size, &dice);
    }
    free(reading);
}
END_TEST

// ---- the breaker ----

START_TEST(a_breaker_opens_after_failures_in_a_row_and_pauses_longer_each_time)
{
    struct breaker breaker;
    int64_t now = NS_PER_S;
    breaker_init(&breaker, 50 * NS_PER_MS);
    ck_assert(!breaker_failure(&breaker, now));
    ck_assert(!breaker_failure(&breaker, now + 1)); // the same moment
    ck_assert(!breaker_failure(&breaker, now += 60 * NS_PER_MS));
    breaker_success(&breaker);
    ck_assert(!breaker_failure(&breaker, now += 60 * NS_PER_MS));
    ck_assert(!breaker_failure(&breaker, now += 60 * NS_PER_MS));
    ck_assert(breaker_failure(&breaker, now += 60 * NS_PER_MS));
    int64_t pause = BREAKER_FIRST_NS;
    for (int i = 0; i < 8; i++) {
        ck_assert_int_eq(breaker_state(&breaker), BREAKER_OPEN);
        ck_assert(!breaker_tries(&breaker, now + pause - 1));
        ck_assert(breaker_tries(&breaker, now += pause));
        ck_assert_int_eq(breaker_state(&breaker), BREAKER_HALF_OPEN);
        ck_assert(!breaker_tries(&breaker, now));
        ck_assert(breaker_failure(&breaker, now));
        pause = 2 * pause < BREAKER_LAST_NS ? 2 * pause : BREAKER_LAST_NS;
    }
    ck_assert(breaker_tries(&breaker, now + pause));
    breaker_success(&breaker);
    ck_assert_int_eq(breaker_state(&breaker), BREAKER_CLOSED);
    ck_assert_uint_eq(atomic_load(&breaker.opens), 1);
    ck_assert(breaker_trip(&breaker, now));
    ck_assert(!breaker_tries(&breaker, now + BREAKER_FIRST_NS - 1));
}
END_TEST

// ---- the filter ----

START_TEST(the_filter_knows_what_is_absent_until_it_is_old_or_stored)
{
    struct absent *absent = absent_create(1024, 1000);
    ck_assert(!absent_has(absent, 7, 5000));
    absent_note_missing(absent, 7, 5000);
    ck_assert(absent_has(absent, 7, 5999));
    ck_assert(!absent_has(absent, 7, 6000)); // another machine may have stored it
    absent_note_missing(absent, 7, 6000);
    absent_note_stored(absent, 7, 6500);
    ck_assert(!absent_has(absent, 7, 6501));
    absent_note_missing(absent, 7, 6400); // asked before it was stored
    ck_assert(!absent_has(absent, 7, 6501));
    absent_note_missing(absent, 7, 6600);
    ck_assert(absent_has(absent, 7, 6601));
    absent_destroy(absent);
}
END_TEST

START_TEST(the_filter_forgets_and_never_invents)
{
    struct absent *absent = absent_create(64, INT64_MAX / 2);
    struct dice dice = {check_seed()};
    uint64_t *hashes = malloc(4096 * sizeof *hashes);
    uint32_t known = 0;
    for (int i = 0; i < 4096; i++) {
        hashes[i] = dice_next(&dice);
        absent_note_missing(absent, hashes[i], 100 + i * 2);
    }
    for (int i = 0; i < 4096; i++) {
        known += absent_has(absent, hashes[i], 100000);
        ck_assert(!absent_has(absent, dice_next(&dice), 100000));
    }
    ck_assert_uint_le(known, 64);
    ck_assert_uint_ge(known, 32); // the last ones
    free(hashes);
    absent_destroy(absent);
}
END_TEST

// ---- slots ----

START_TEST(slots_are_those_of_a_redis_cluster)
{
    struct stored_chain chain;
    char hex[33];
    struct dice dice = {check_seed()};
    ck_assert_uint_eq(slot_of_text("123456789", 9), 0x31c3);
    for (int i = 0; i < 100; i++) {
        for (int byte = 0; byte < 16; byte++) {
            chain.id[byte] = (uint8_t)dice_next(&dice);
            sprintf(hex + 2 * byte, "%02x", chain.id[byte]);
        }
        ck_assert_uint_eq(slot_of(&chain), slot_of_text(hex, 32));
    }
}
END_TEST

START_TEST(servers_share_slots_whatever_their_order_and_one_more_moves_only_its_share)
{
    static const char *const four[] = {"a:1", "b:1", "c:1", "d:1"};
    static const char *const turned[] = {"d:1", "b:1", "a:1", "c:1"};
    static const char *const five[] = {"a:1", "b:1", "c:1", "d:1", "e:1"};
    static uint8_t first[NUM_SLOTS], second[NUM_SLOTS], third[NUM_SLOTS];
    uint32_t shares[5] = {0};
    slots_share(first, four, 4);
    slots_share(second, turned, 4);
    slots_share(third, five, 5);
    for (int i = 0; i < NUM_SLOTS; i++) {
        ck_assert_str_eq(four[first[i]], turned[second[i]]);
        ck_assert(third[i] == first[i] || third[i] == 4);
        shares[third[i]]++;
    }
    for (int i = 0; i < 5; i++)
        ck_assert_uint_ge(shares[i], NUM_SLOTS / 5 * 9 / 10);
}
END_TEST

int main(void)
{
    const TTest *const urls[] = {
        a_url_names_servers_a_user_and_a_password,
        a_wrong_url_is_refused_and_its_password_is_not_shown,
        a_password_comes_from_a_file_that_only_its_owner_may_read,
        what_the_backend_cannot_do_is_refused_with_a_sentence,
        NULL,
    };
    const TTest *const replies[] = {
        replies_are_the_same_however_their_bytes_arrive,
        what_is_no_reply_is_refused,
        any_bytes_are_read_without_harm,
        NULL,
    };
    const TTest *const others[] = {
        a_breaker_opens_after_failures_in_a_row_and_pauses_longer_each_time,
        the_filter_knows_what_is_absent_until_it_is_old_or_stored,
        the_filter_forgets_and_never_invents,
        slots_are_those_of_a_redis_cluster,
        servers_share_slots_whatever_their_order_and_one_more_moves_only_its_share,
        NULL,
    };
    Suite *suite = suite_create("redis_parts");
    check_seed();
    check_case(suite, "urls", NULL, NULL, urls, 1);
    check_case(suite, "replies", NULL, NULL, replies, 1);
    check_case(suite, "parts", NULL, NULL, others, 1);
    return check_main(suite);
}
