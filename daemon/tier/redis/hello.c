// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// hello.c - see hello.h.

#include "hello.h"

#include "slots.h"

#include <hiredis/hiredis.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    MOST_BYTES = 1 << 20,    // of all values of the answers
    MOST_ELEMENTS = 1 << 14, // of an array; a cluster has as many slots
};

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
    *hello = (struct hello){.wants_map = wants_map};
    return url->password[0] ? say_auth(hello, url) : say_info(hello);
}

void hello_finish(struct hello *hello)
{
    free(hello->info);
    free(hello->ranges);
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

static const char *command(const struct hello *hello)
{
    return hello->step == HELLO_AUTH   ? "AUTH"
           : hello->step == HELLO_INFO ? "INFO"
                                       : "CLUSTER SLOTS";
}

static enum hello_result refused(struct hello *hello, const char *text)
{
    snprintf(hello->why, sizeof hello->why, "%s: %.128s", command(hello), text);
    return begins(text, "LOADING") || begins(text, "CLUSTERDOWN") ? HELLO_LOADING : HELLO_DENIED;
}

static enum hello_result no_redis(struct hello *hello, const struct reply *reply)
{
    reply_quote(reply, command(hello), hello->why, sizeof hello->why);
    return HELLO_FAILED;
}

static enum hello_result no_memory(struct hello *hello)
{
    snprintf(hello->why, sizeof hello->why, "%s: no memory", command(hello));
    return HELLO_FAILED;
}

// A value begins. False: its answer is larger than any of Redis.
static bool may_ask(struct hello *hello, const struct reply *reply)
{
    if (reply->number > 0)
        hello->asked += (uint64_t)reply->number;
    return hello->asked <= MOST_BYTES;
}

// ---- AUTH ----

static enum hello_result take_auth(struct hello *hello, const struct reply *reply)
{
    if (reply->type == '-')
        return refused(hello, reply->text);
    if (reply->type != '+')
        return no_redis(hello, reply);
    return say_info(hello) ? HELLO_GOES_ON : no_memory(hello);
}

// ---- the end of INFO ----

static enum hello_result know_facts(struct hello *hello)
{
    if (!hello->wants_map || !hello->facts.cluster)
        return HELLO_DONE;
    return say_slots(hello) ? HELLO_GOES_ON : no_memory(hello);
}

// A user without the right to INFO may still read and write: the facts stay unknown.
static enum hello_result take_info(struct hello *hello, struct reply *reply)
{
    if (reply->type == '-')
        return begins(reply->text, "NOPERM") ? know_facts(hello) : refused(hello, reply->text);
    if (reply->type != '$' || reply->number < 0 || !may_ask(hello, reply))
        return no_redis(hello, reply);
    hello->info = calloc(1, (size_t)reply->number + 1);
    if (!hello->info)
        return no_memory(hello);
    const struct iovec place = {hello->info, (size_t)reply->number};
    reply_places(reply, &place, 1);
    return HELLO_GOES_ON;
}

static enum hello_result end_info(struct hello *hello)
{
    if (find_number(hello->info, "loading") == 1)
        return refused(hello, "LOADING its data from disk");
    read_info(&hello->facts, hello->info);
    return know_facts(hello);
}

// ---- CLUSTER SLOTS: [first, last, [host, port, ...], replicas...] for each range ----

static bool keep_range(struct hello *hello)
{
    const struct slot_range *range = &hello->range;
    if (range->first < 0 || range->last < range->first || range->last >= NUM_SLOTS ||
        range->port <= 0 || range->port > UINT16_MAX)
        return true; // of no use
    if (hello->num_ranges == hello->room) {
        const uint32_t room = 2 * hello->room + 16;
        struct slot_range *more = reallocarray(hello->ranges, room, sizeof *more);
        if (!more)
            return false;
        hello->ranges = more;
        hello->room = room;
    }
    hello->ranges[hello->num_ranges++] = *range;
    return true;
}

// The element is over, and perhaps arrays that it is the last one of.
static enum hello_result end_element(struct hello *hello)
{
    while (hello->depth > 0 && hello->at[hello->depth - 1] == hello->sizes[hello->depth - 1]) {
        if (hello->depth-- == 2 && !keep_range(hello))
            return no_memory(hello);
        if (hello->depth == 0)
            return HELLO_DONE;
        hello->at[hello->depth - 1]++;
    }
    return HELLO_GOES_ON;
}

// A range's first server is its master.
static bool is_of_master(const struct hello *hello, uint32_t index)
{
    return hello->depth == 3 && hello->at[1] == 2 && hello->at[2] == index;
}

static void take_slots_number(struct hello *hello, int64_t number)
{
    if (hello->depth == 2 && hello->at[1] == 0)
        hello->range.first = number;
    else if (hello->depth == 2 && hello->at[1] == 1)
        hello->range.last = number;
    else if (is_of_master(hello, 1))
        hello->range.port = number;
}

static bool begin_array(struct hello *hello, const struct reply *reply)
{
    if (hello->depth == HELLO_DEPTH || reply->number < 0 || reply->number > MOST_ELEMENTS)
        return false;
    if (hello->depth == 1)
        hello->range = (struct slot_range){-1, -1, -1, ""};
    hello->sizes[hello->depth] = (uint32_t)reply->number;
    hello->at[hello->depth++] = 0;
    return true;
}

// A name that is too long belongs to no range.
static bool begin_host(struct hello *hello, struct reply *reply)
{
    const struct iovec place = {hello->range.host, (size_t)reply->number};
    if (!is_of_master(hello, 0))
        return true;
    if (reply->number >= REDIS_HOST_SIZE)
        return false;
    reply_places(reply, &place, 1);
    return true;
}

static enum hello_result take_slots(struct hello *hello, struct reply *reply)
{
    bool right = hello->depth > 0;
    if (!right && reply->type == '-')
        return refused(hello, reply->text);
    switch (reply->type) {
    case '*':
        right = begin_array(hello, reply);
        return right ? end_element(hello) : no_redis(hello, reply);
    case ':': take_slots_number(hello, reply->number); break;
    case '$':
        right = right && may_ask(hello, reply);
        if (right && reply->number >= 0)
            return begin_host(hello, reply) ? HELLO_GOES_ON : no_redis(hello, reply);
        break;
    default: right = false;
    }
    if (!right)
        return no_redis(hello, reply);
    hello->at[hello->depth - 1]++;
    return end_element(hello);
}

// ---- what came ----

static enum hello_result take_line(struct hello *hello, struct reply *reply)
{
    switch (hello->step) {
    case HELLO_AUTH: return take_auth(hello, reply);
    case HELLO_INFO: return take_info(hello, reply);
    default: return take_slots(hello, reply);
    }
}

static enum hello_result take_value(struct hello *hello)
{
    if (hello->step == HELLO_INFO)
        return end_info(hello);
    hello->at[hello->depth - 1]++;
    return end_element(hello);
}

enum hello_result hello_take(struct hello *hello, struct reply *reply)
{
    enum hello_result result = HELLO_GOES_ON;
    while (result == HELLO_GOES_ON) {
        switch (reply_next(reply)) {
        case REPLY_MORE: return HELLO_GOES_ON;
        case REPLY_LINE: result = take_line(hello, reply); break;
        case REPLY_BULK: result = take_value(hello); break;
        case REPLY_BROKEN: return no_redis(hello, reply);
        }
    }
    return result;
}

// ---- the map ----

void hello_each_range(const struct hello *hello,
                      void (*each)(void *context, uint32_t first, uint32_t last, const char *host,
                                   uint16_t port),
                      void *context)
{
    for (uint32_t i = 0; i < hello->num_ranges; i++) {
        const struct slot_range *range = &hello->ranges[i];
        each(context, (uint32_t)range->first, (uint32_t)range->last, range->host,
             (uint16_t)range->port);
    }
}
