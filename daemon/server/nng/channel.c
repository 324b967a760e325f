// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// channel.c - see channel.h.

#include "channel.h"

#include "base/list.h"
#include "streams.h"

#include <stdlib.h>
#include <string.h>

// A larger request is no request. Those above `most` and below this are dropped and answered.
enum { MAX_DROPPED = 8 << 20 };

struct channel_answer {
    struct channel_answer *prev, *next;
    size_t size, sent; // bytes
    uint8_t bytes[];   // [size]
};

void channel_open(struct channel *channel, struct ipc_stream *stream)
{
    const struct iovec greeting = {(void *)frame_daemon_greeting, sizeof frame_daemon_greeting};
    *channel = (struct channel){.stream = stream};
    (void)ipc_stream_send(stream, &greeting, 1, true); // the buffer of a new stream takes all of it
}

void channel_close(struct channel *channel)
{
    struct channel_answer *answer, *next;
    if (!channel->stream)
        return;
    ipc_stream_close(channel->stream);
    free(channel->body);
    LIST_EACH_SAFE(channel->answers, answer, next) {
        free(answer);
    }
    *channel = (struct channel){.stream = NULL};
}

bool channel_is_amid(const struct channel *channel)
{
    return !channel->greeted || channel->in_body || channel->got > 0;
}

size_t channel_held(const struct channel *channel)
{
    return (channel->body ? channel->size : 0) + channel->unread;
}

// ---- in ----

// Receives until `to` has `size` bytes, channel->got of which have come before.
static enum channel_news fill(struct channel *channel, uint8_t *to, size_t size)
{
    while (channel->got < size) {
        ssize_t count = ipc_stream_receive(channel->stream, to + channel->got, size - channel->got);
        if (count <= 0)
            return count < 0 ? CHANNEL_NOTHING : CHANNEL_OVER;
        channel->got += (size_t)count;
    }
    return CHANNEL_REQUEST;
}

// The same for bytes that nobody wants.
static enum channel_news drop(struct channel *channel)
{
    uint8_t dropped[4096];
    while (channel->got < channel->size) {
        const size_t rest = channel->size - channel->got;
        ssize_t count = ipc_stream_receive(channel->stream, dropped,
                                           rest < sizeof dropped ? rest : sizeof dropped);
        if (count <= 0)
            return count < 0 ? CHANNEL_NOTHING : CHANNEL_OVER;
        channel->got += (size_t)count;
    }
    return CHANNEL_REQUEST;
}

static enum channel_news read_greeting(struct channel *channel)
{
    enum channel_news news = fill(channel, channel->head, FRAME_GREETING);
    if (news != CHANNEL_REQUEST)
        return news;
    channel->greeted = true;
    channel->got = 0;
    return memcmp(channel->head, frame_client_greeting, FRAME_GREETING) == 0 ? CHANNEL_REQUEST
                                                                             : CHANNEL_OVER;
}

static bool head_is_sound(const struct channel *channel)
{
    const uint64_t length = frame_length(channel->head);
    return channel->got < FRAME_LENGTH_END ||
           (channel->head[0] == 1 && length >= FRAME_NUMBER_SIZE && length <= MAX_DROPPED);
}

static enum channel_news read_head(struct channel *channel, size_t most)
{
    enum channel_news news = fill(channel, channel->head, FRAME_HEAD);
    if (news == CHANNEL_OVER || !head_is_sound(channel))
        return CHANNEL_OVER;
    if (news != CHANNEL_REQUEST)
        return news;
    channel->in_body = true;
    channel->got = 0;
    channel->size = (size_t)frame_length(channel->head) - FRAME_NUMBER_SIZE;
    if (channel->size > most)
        return CHANNEL_REQUEST;
    channel->body = malloc(channel->size ? channel->size : 1);
    return channel->body ? CHANNEL_REQUEST : CHANNEL_OVER;
}

static enum channel_news read_body(struct channel *channel, struct channel_request *out)
{
    enum channel_news news =
        channel->body ? fill(channel, channel->body, channel->size) : drop(channel);
    if (news != CHANNEL_REQUEST)
        return news;
    *out = (struct channel_request){frame_number(channel->head), channel->body, channel->size};
    channel->body = NULL;
    channel->in_body = false;
    channel->got = 0;
    return CHANNEL_REQUEST;
}

enum channel_news channel_read(struct channel *channel, size_t most, struct channel_request *out)
{
    enum channel_news news = channel->greeted ? CHANNEL_REQUEST : read_greeting(channel);
    if (news == CHANNEL_REQUEST && !channel->in_body)
        news = read_head(channel, most);
    if (news == CHANNEL_REQUEST)
        news = read_body(channel, out);
    // Without the bit it is a number of a forwarder's, and no answer would find its way.
    if (news != CHANNEL_REQUEST || out->number & FRAME_TOP_BIT)
        return news;
    free(out->data);
    return CHANNEL_OVER;
}

// ---- out ----

static bool keep(struct channel *channel, const uint8_t *head, const void *data, size_t size,
                 size_t sent)
{
    struct channel_answer *answer = malloc(sizeof *answer + FRAME_HEAD + size);
    if (!answer)
        return false;
    *answer = (struct channel_answer){.size = FRAME_HEAD + size, .sent = sent};
    memcpy(answer->bytes, head, FRAME_HEAD);
    memcpy(answer->bytes + FRAME_HEAD, data, size);
    LIST_APPEND(channel->answers, answer);
    channel->unread += answer->size;
    return true;
}

bool channel_write(struct channel *channel, uint32_t number, const void *data, size_t size)
{
    uint8_t head[FRAME_HEAD];
    frame_write_head(head, number, size);
    struct iovec parts[] = {{head, sizeof head}, {(void *)data, size}};
    ssize_t sent = channel->answers ? 0 : ipc_stream_send(channel->stream, parts, 2, false);
    if (sent < 0 || (size_t)sent == FRAME_HEAD + size)
        return sent >= 0;
    return keep(channel, head, data, size, (size_t)sent);
}

bool channel_flush(struct channel *channel)
{
    if (ipc_stream_send(channel->stream, NULL, 0, false) < 0) // what its buffer has
        return false;
    while (channel->answers) {
        struct channel_answer *answer = channel->answers;
        struct iovec rest = {answer->bytes + answer->sent, answer->size - answer->sent};
        ssize_t sent = ipc_stream_send(channel->stream, &rest, 1, false);
        if (sent <= 0)
            return sent == 0;
        answer->sent += (size_t)sent;
        if (answer->sent < answer->size)
            continue;
        LIST_DELETE(channel->answers, answer);
        channel->unread -= answer->size;
        free(answer);
    }
    return true;
}
