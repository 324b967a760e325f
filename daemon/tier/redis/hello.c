// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// hello.c - see hello.h.

#include "hello.h"

#include <hiredis/hiredis.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_FED = 1 << 20 }; // bytes of all answers; a cluster's map is the largest

// ---- commands ----

static bool say(struct hello *hello, int argc, const char **argv)
{
    char *text = NULL;
    const int size = redisFormatCommandArgv(&text, argc, argv, NULL);
    if (size < 0)
        return false;
    if (hello->out) {
        explicit_bzero(hello->out, hello->out_size); // perhaps a password
        redisFreeCommand(hello->out);
    }
    hello->out = text;
    hello->out_size = (size_t)size;
    hello->out_at = 0;
    return true;
}

static bool say_auth(struct hello *hello, const struct redis_url *url)
{
    const char *long_form[] = {"AUTH", url->user, url->password};
    const char *short_form[] = {"AUTH", url->password};
    hello->step = HELLO_AUTH;
    return url->user[0] ? say(hello, 3, long_form) : say(hello, 2, short_form);
}

static bool say_info(struct hello *hello)
{
    const char *words[] = {"INFO"};
    hello->step = HELLO_INFO;
    return say(hello, 1, words);
}

static bool say_slots(struct hello *hello)
{
    const char *words[] = {"CLUSTER", "SLOTS"};
    hello->step = HELLO_SLOTS;
    return say(hello, 2, words);
}

bool hello_begin(struct hello *hello, const struct redis_url *url, bool wants_map)
{
    *hello = (struct hello){.wants_map = wants_map, .reader = redisReaderCreate()};
    return hello->reader && (url->password[0] ? say_auth(hello, url) : say_info(hello));
}

void hello_finish(struct hello *hello)
{
    if (hello->reader)
        redisReaderFree(hello->reader);
    if (hello->map)
        freeReplyObject(hello->map);
    if (hello->out) {
        explicit_bzero(hello->out, hello->out_size);
        redisFreeCommand(hello->out);
    }
    *hello = (struct hello){0};
}

// ---- INFO ----

// The value of "key:" in the lines of INFO, or "".
static void find_line(const char *info, const char *key, char *to, size_t size)
{
    const size_t length = strlen(key);
    to[0] = '\0';
    for (const char *line = info; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, key, length) == 0 && line[length] == ':') {
            const char *value = line + length + 1;
            snprintf(to, size, "%.*s", (int)strcspn(value, "\r\n"), value);
            return;
        }
    }
}

static uint64_t find_number(const char *info, const char *key)
{
    char text[24];
    find_line(info, key, text, sizeof text);
    return strtoull(text, NULL, 10);
}

static void read_info(struct server_facts *facts, const char *info)
{
    char role[16];
    find_line(info, "role", role, sizeof role);
    facts->replica = strcmp(role, "slave") == 0;
    facts->cluster = find_number(info, "cluster_enabled") == 1;
    facts->appends = find_number(info, "aof_enabled") == 1;
    facts->maxmemory = find_number(info, "maxmemory");
    facts->used_memory = find_number(info, "used_memory");
    find_line(info, "maxmemory_policy", facts->policy, sizeof facts->policy);
    find_line(info, "redis_version", facts->version, sizeof facts->version);
}

// ---- answers ----

static bool begins(const char *text, const char *word)
{
    return strncmp(text, word, strlen(word)) == 0;
}

static enum hello_result refused(struct hello *hello, const char *text)
{
    snprintf(hello->why, sizeof hello->why, "%s: %s",
             hello->step == HELLO_AUTH   ? "AUTH"
             : hello->step == HELLO_INFO ? "INFO"
                                         : "CLUSTER SLOTS",
             text);
    return begins(text, "LOADING") || begins(text, "CLUSTERDOWN") ? HELLO_LOADING : HELLO_DENIED;
}

static enum hello_result no_redis(struct hello *hello, const char *why)
{
    snprintf(hello->why, sizeof hello->why, "it does not answer as Redis does: %.80s", why);
    return HELLO_FAILED;
}

// A user without the right to INFO may still read and write: the facts stay unknown.
static enum hello_result take_info(struct hello *hello, const redisReply *reply)
{
    if (reply->type == REDIS_REPLY_ERROR && !begins(reply->str, "NOPERM"))
        return refused(hello, reply->str);
    if (reply->type == REDIS_REPLY_STRING && find_number(reply->str, "loading") == 1)
        return refused(hello, "LOADING its data from disk");
    if (reply->type == REDIS_REPLY_STRING)
        read_info(&hello->facts, reply->str);
    else if (reply->type != REDIS_REPLY_ERROR)
        return no_redis(hello, "INFO gives no text");
    if (!hello->wants_map || !hello->facts.cluster)
        return HELLO_DONE;
    return say_slots(hello) ? HELLO_GOES_ON : no_redis(hello, "no memory");
}

// Takes the reply or frees it.
static enum hello_result take(struct hello *hello, redisReply *reply)
{
    enum hello_result result;
    if (hello->step == HELLO_INFO) {
        result = take_info(hello, reply);
    } else if (reply->type == REDIS_REPLY_ERROR) {
        result = refused(hello, reply->str);
    } else if (hello->step == HELLO_AUTH) {
        result = say_info(hello) ? HELLO_GOES_ON : no_redis(hello, "no memory");
    } else {
        hello->map = reply;
        return HELLO_DONE;
    }
    freeReplyObject(reply);
    return result;
}

enum hello_result hello_feed(struct hello *hello, const char *data, size_t size)
{
    enum hello_result result = HELLO_GOES_ON;
    hello->fed += size;
    if (hello->fed > MOST_FED)
        return no_redis(hello, "it sends more than 1 MiB");
    redisReaderFeed(hello->reader, data, size);
    while (result == HELLO_GOES_ON) {
        void *reply = NULL;
        if (redisReaderGetReply(hello->reader, &reply) != REDIS_OK)
            return no_redis(hello, hello->reader->errstr);
        if (!reply)
            break;
        result = take(hello, reply);
    }
    return result;
}

// ---- the map ----

static const redisReply *element(const redisReply *array, size_t index, int type)
{
    return array && array->type == REDIS_REPLY_ARRAY && index < array->elements &&
                   array->element[index]->type == type
               ? array->element[index]
               : NULL;
}

// [first, last, [host, port, ...], replicas...]
void hello_each_range(const struct hello *hello,
                      void (*each)(void *context, uint32_t first, uint32_t last, const char *host,
                                   uint16_t port),
                      void *context)
{
    const redisReply *map = hello->map;
    for (size_t i = 0; map && map->type == REDIS_REPLY_ARRAY && i < map->elements; i++) {
        const redisReply *range = map->element[i], *first = element(range, 0, REDIS_REPLY_INTEGER),
                         *last = element(range, 1, REDIS_REPLY_INTEGER),
                         *server = element(range, 2, REDIS_REPLY_ARRAY),
                         *host = element(server, 0, REDIS_REPLY_STRING),
                         *port = element(server, 1, REDIS_REPLY_INTEGER);
        if (first && last && port && first->integer >= 0 && last->integer >= first->integer &&
            last->integer < 16384 && port->integer > 0 && port->integer <= UINT16_MAX)
            each(context, (uint32_t)first->integer, (uint32_t)last->integer, host ? host->str : "",
                 (uint16_t)port->integer);
    }
}
