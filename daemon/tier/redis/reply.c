// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// reply.c - see reply.h. While a value is being read, bytes go to its places first and to the
// buffer behind them, so that one call of readv() takes the end of a value and the next lines.

#include "reply.h"

#include <stdio.h>
#include <string.h>

void reply_init(struct reply *reply)
{
    reply->in_bulk = false;
    reply->begin = reply->end = 0;
    reply->num_places = reply->place = 0;
    reply->said[0] = '\0';
}

// ---- a value ----

static uint64_t places_left(const struct reply *reply)
{
    uint64_t bytes = 0;
    for (uint32_t i = reply->place; i < reply->num_places; i++)
        bytes += reply->places[i].iov_len;
    return bytes;
}

// `bytes` of the first places are filled.
static void advance_places(struct reply *reply, size_t bytes)
{
    reply->bulk_left -= bytes;
    while (bytes > 0) {
        struct iovec *place = &reply->places[reply->place];
        size_t step = bytes < place->iov_len ? bytes : place->iov_len;
        place->iov_base = (char *)place->iov_base + step;
        place->iov_len -= step;
        bytes -= step;
        if (place->iov_len == 0)
            reply->place++;
    }
}

static void take_from_buffer(struct reply *reply, size_t bytes)
{
    reply->begin += (uint32_t)bytes;
    if (reply->begin == reply->end)
        reply->begin = reply->end = 0;
}

// Moves what the buffer has of the value to its place.
static void copy_to_places(struct reply *reply)
{
    while (reply->place < reply->num_places && reply->begin < reply->end) {
        struct iovec *place = &reply->places[reply->place];
        size_t have = reply->end - reply->begin;
        size_t step = have < place->iov_len ? have : place->iov_len;
        memcpy(place->iov_base, reply->buffer + reply->begin, step);
        take_from_buffer(reply, step);
        advance_places(reply, step);
    }
}

static void drop_surplus(struct reply *reply)
{
    size_t have = reply->end - reply->begin;
    uint64_t surplus = reply->bulk_left - 2; // all but CR LF
    size_t step = have < surplus ? have : (size_t)surplus;
    take_from_buffer(reply, step);
    reply->bulk_left -= step;
}

static enum reply_event next_of_bulk(struct reply *reply)
{
    copy_to_places(reply);
    if (reply->place < reply->num_places)
        return REPLY_MORE;
    if (reply->bulk_left > 2)
        drop_surplus(reply);
    if (reply->bulk_left > 2 || reply->end - reply->begin < 2)
        return REPLY_MORE;
    if (memcmp(reply->buffer + reply->begin, "\r\n", 2) != 0)
        return REPLY_BROKEN;
    take_from_buffer(reply, 2);
    reply->in_bulk = false;
    return REPLY_BULK;
}

void reply_places(struct reply *reply, const struct iovec *places, uint32_t num_places)
{
    uint64_t left = (uint64_t)reply->number;
    reply->num_places = reply->place = 0;
    for (uint32_t i = 0; i < num_places && left > 0; i++) {
        if (!places[i].iov_base || places[i].iov_len == 0)
            continue;
        struct iovec *place = &reply->places[reply->num_places++];
        *place = places[i];
        if (place->iov_len > left)
            place->iov_len = (size_t)left;
        left -= place->iov_len;
    }
}

void reply_drop(struct reply *reply)
{
    reply->num_places = reply->place = 0;
}

// ---- a line ----

// "-1" or digits; anything else is refused.
static bool parse_number(const char *from, const char *end, int64_t *number)
{
    int64_t value = 0;
    if (end - from == 2 && memcmp(from, "-1", 2) == 0) {
        *number = -1;
        return true;
    }
    if (from == end || end - from > 18)
        return false;
    for (; from < end; from++) {
        if (*from < '0' || *from > '9')
            return false;
        value = value * 10 + (*from - '0');
    }
    *number = value;
    return true;
}

// The text goes into sentences, and a terminal obeys control characters.
static void copy_printable(char *to, const char *from, size_t size)
{
    for (size_t i = 0; i < size; i++)
        to[i] = from[i] >= ' ' && from[i] <= '~' ? from[i] : '?';
    to[size] = '\0';
}

static enum reply_event parse_line(struct reply *reply, const char *from, const char *end)
{
    reply->type = *from++;
    reply->number = 0;
    reply->text[0] = '\0';
    switch (reply->type) {
    case '+':
    case '-': copy_printable(reply->text, from, (size_t)(end - from)); return REPLY_LINE;
    case '$':
        if (!parse_number(from, end, &reply->number) || reply->number > (int64_t)REPLY_BULK_MOST)
            return REPLY_BROKEN;
        reply->in_bulk = reply->number >= 0;
        reply->bulk_left = reply->in_bulk ? (uint64_t)reply->number + 2 : 0;
        reply_drop(reply);
        return REPLY_LINE;
    case ':':
    case '*': return parse_number(from, end, &reply->number) ? REPLY_LINE : REPLY_BROKEN;
    default: return REPLY_BROKEN;
    }
}

static void note_line(struct reply *reply, const char *from, size_t have)
{
    size_t size = 0;
    while (size < have && size < REPLY_SAID && from[size] != '\r' && from[size] != '\n')
        size++;
    copy_printable(reply->said, from, size);
}

void reply_quote(const struct reply *reply, const char *command, char *to, size_t size)
{
    snprintf(to, size, "it answered %s with \"%s\", which Redis does not", command, reply->said);
}

enum reply_event reply_next(struct reply *reply)
{
    if (reply->in_bulk)
        return next_of_bulk(reply);
    const char *from = reply->buffer + reply->begin;
    size_t have = reply->end - reply->begin;
    note_line(reply, from, have);
    const char *line_feed = memchr(from, '\n', have < REPLY_LINE_MOST ? have : REPLY_LINE_MOST);
    if (!line_feed)
        return have < REPLY_LINE_MOST ? REPLY_MORE : REPLY_BROKEN;
    if (line_feed - from < 2 || line_feed[-1] != '\r')
        return REPLY_BROKEN;
    enum reply_event event = parse_line(reply, from, line_feed - 1);
    take_from_buffer(reply, (size_t)(line_feed + 1 - from));
    return event;
}

// ---- bytes ----

int reply_wants(struct reply *reply, struct iovec to[REPLY_VECTORS])
{
    int count = 0;
    if (reply->begin > 0) {
        memmove(reply->buffer, reply->buffer + reply->begin, reply->end - reply->begin);
        reply->end -= reply->begin;
        reply->begin = 0;
    }
    if (reply->in_bulk)
        for (uint32_t i = reply->place; i < reply->num_places; i++)
            to[count++] = reply->places[i];
    to[count++] = (struct iovec){reply->buffer + reply->end, REPLY_BUFFER - reply->end};
    return count;
}

void reply_got(struct reply *reply, size_t bytes)
{
    uint64_t direct = reply->in_bulk ? places_left(reply) : 0;
    if (bytes < direct)
        direct = bytes;
    advance_places(reply, (size_t)direct);
    reply->end += (uint32_t)(bytes - direct);
}
