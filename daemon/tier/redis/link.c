// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// link.c - see link.h. Knows no slots, breakers or jobs: node.c chooses what goes over the link,
// and is told of each value, each failure and each unit that was lost. Never blocks. Its lane's
// thread.
//
// Sending. link_put() makes a command of a unit: pieces, which are text that stands in link->text,
// or memory of the job. Values are not copied, so a store's job stays until its last piece was
// sent. link_takes() tells beforehand whether there is room.
//
// Answers. They come in the order of the commands, so link->sents is a ring and the first one is
// the one that is answered. reply.c reads the stream; a value goes straight to the job's memory,
// and is checked when it is whole.
//
// States. DOWN -> CONNECTING -> SECURING (TLS only) -> HELLO -> UP. In each one link_event() goes
// on as far as the socket allows, and watch() asks epoll for what is needed next. Any answer that
// Redis cannot give closes the link (node_link_failed()); the units under way are lost, and node.c
// decides what becomes of them.
//
// Units may be forgotten while their answer is on its way (link_forget()): the answer is then read
// and dropped. Only a store that is not sent yet cannot be forgotten.

#include "link.h"

#include "base/clock.h"
#include "lane.h"
#include "node.h"
#include "tls.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>

enum {
    MOST_UNIT_PIECES = 6,
    MOST_UNIT_TEXT = UNIT_PARTS * (RECORD_NAME_ROOM + 16) + 128,
    READS_AT_ONCE = 16, // then other links have their turn
    HELLO_TIMES = 8,    // a welcome as a whole may take so many times what a byte may
};

static const char *const commands[] = {
    [SENT_ASKING] = "ASKING", [SENT_EXISTS] = "EXISTS", [SENT_LOAD] = "MGET",
    [SENT_STORE] = "SET",     [SENT_DELETE] = "UNLINK",
};

void link_init(struct link *link, struct node *node)
{
    link->node = node;
    link->state = LINK_DOWN;
    link->stream.fd = -1;
}

static struct sent *front(struct link *link)
{
    return link->num_sents > 0 ? &link->sents[link->first_sent] : NULL;
}

bool link_waits(const struct link *link)
{
    return link->state == LINK_CONNECTING || link->state == LINK_SECURING ||
           link->state == LINK_HELLO || link->num_sents > 0;
}

int64_t link_stalls_ns(const struct link *link)
{
    const int64_t stall_ns = link->node->redis->stall_ns;
    const int64_t still_ns = link->progress_ns + stall_ns;
    return link->state == LINK_HELLO
               ? clock_earlier(still_ns, link->greeted_ns + HELLO_TIMES * stall_ns)
               : still_ns;
}

static void watch(struct link *link)
{
    const bool writes = link->state == LINK_CONNECTING || link->piece < link->num_pieces ||
                        stream_wants_room(&link->stream) ||
                        (link->state == LINK_HELLO && link->hello.out_at < link->hello.out_size);
    const uint32_t events = EPOLLIN | (writes ? EPOLLOUT : 0);
    if (link->events != events)
        lane_watch(link->node->lane, link, events);
}

// ---- commands ----

static void add_piece(struct link *link, const void *data, size_t size)
{
    link->pieces[link->num_pieces++] = (struct iovec){(void *)data, size};
}

// Text that stands behind the piece before becomes part of that piece.
static void add_text(struct link *link, const char *text, size_t size)
{
    char *to = link->text + link->text_size;
    memcpy(to, text, size);
    link->text_size += (uint32_t)size;
    struct iovec *last =
        link->num_pieces > link->piece ? &link->pieces[link->num_pieces - 1] : NULL;
    if (last && (char *)last->iov_base + last->iov_len == to)
        last->iov_len += size;
    else
        add_piece(link, to, size);
}

static void add_words(struct link *link, uint32_t num_words, const char *word)
{
    char text[64];
    const int size =
        snprintf(text, sizeof text, "*%u\r\n$%zu\r\n%s\r\n", num_words, strlen(word), word);
    add_text(link, text, (size_t)size);
}

static void add_name(struct link *link, const struct unit *unit, uint32_t part)
{
    const struct tier_job *job = unit->work->job;
    char name[RECORD_NAME_ROOM], text[RECORD_NAME_ROOM + 16];
    const size_t length =
        record_name(name, &job->space, &job->blocks[unit->block].chain, unit->part + part);
    const int size = snprintf(text, sizeof text, "$%zu\r\n%s\r\n", length, name);
    add_text(link, text, (size_t)size);
}

static void add_names(struct link *link, const struct unit *unit, const char *command)
{
    add_words(link, unit->num_parts + 1u, command);
    for (uint32_t i = 0; i < unit->num_parts; i++)
        add_name(link, unit, i);
}

static void add_store(struct link *link, struct unit *unit)
{
    const struct tier_job *job = unit->work->job;
    const uint32_t expire_s = link->node->redis->expire_s, bytes = unit_part_bytes(unit, 0);
    char text[64], seconds[16];
    record_header_fill(&unit->header, &job->space, &job->blocks[unit->block].chain, unit->part,
                       unit_part_data(unit, 0));
    add_words(link, expire_s ? 5 : 3, "SET");
    add_name(link, unit, 0);
    int size = snprintf(text, sizeof text, "$%zu\r\n", sizeof unit->header + bytes);
    add_text(link, text, (size_t)size);
    add_piece(link, &unit->header, sizeof unit->header);
    add_piece(link, unit_part_data(unit, 0), bytes);
    const int digits = snprintf(seconds, sizeof seconds, "%u", expire_s);
    size = expire_s ? snprintf(text, sizeof text, "\r\n$2\r\nEX\r\n$%d\r\n%s\r\n", digits, seconds)
                    : snprintf(text, sizeof text, "\r\n");
    add_text(link, text, (size_t)size);
}

static struct sent *add_sent(struct link *link, enum sent_kind kind, struct unit *unit)
{
    struct sent *sent = &link->sents[(link->first_sent + link->num_sents++) % LINK_DEPTH];
    *sent = (struct sent){.kind = kind, .unit = unit};
    return sent;
}

bool link_takes(const struct link *link, const struct unit *unit)
{
    return link->state == LINK_UP && link->num_sents + 2 <= LINK_DEPTH &&
           link->num_pieces + MOST_UNIT_PIECES <= LINK_PIECES &&
           link->text_size + MOST_UNIT_TEXT <= LINK_TEXT && node_has_room(link->node, unit);
}

void link_put(struct link *link, struct unit *unit, int64_t now_ns)
{
    static const enum sent_kind kinds[TIER_NUM_KINDS] = {
        [TIER_LOOKUP] = SENT_EXISTS,
        [TIER_STORE] = SENT_STORE,
        [TIER_LOAD] = SENT_LOAD,
        [TIER_DELETE] = SENT_DELETE,
    };
    if (link->num_sents == 0)
        link->progress_ns = now_ns;
    if (unit->asking) {
        add_words(link, 1, "ASKING");
        add_sent(link, SENT_ASKING, NULL);
    }
    struct sent *sent = add_sent(link, kinds[unit->work->job->kind], unit);
    if (sent->kind == SENT_STORE)
        add_store(link, unit);
    else
        add_names(link, unit, commands[sent->kind]);
    sent->num_parts = unit->num_parts;
    sent->bytes = unit_bytes(unit);
    sent->last_piece = link->pieces_sent + (link->num_pieces - link->piece) - 1;
    link->node->bytes_under_way += sent->bytes;
    unit->sent = sent;
    unit->place = UNIT_SENT;
}

// ---- sending ----

static void pieces_went(struct link *link, size_t bytes)
{
    while (bytes > 0) {
        struct iovec *piece = &link->pieces[link->piece];
        const size_t step = bytes < piece->iov_len ? bytes : piece->iov_len;
        piece->iov_base = (char *)piece->iov_base + step;
        piece->iov_len -= step;
        bytes -= step;
        if (piece->iov_len == 0) {
            link->piece++;
            link->pieces_sent++;
        }
    }
    if (link->piece == link->num_pieces) {
        link->piece = link->num_pieces = 0;
        link->text_size = 0;
    }
}

void link_send(struct link *link, int64_t now_ns)
{
    while (link->piece < link->num_pieces) {
        const ssize_t put = stream_write(&link->stream, link->pieces + link->piece,
                                         (int)(link->num_pieces - link->piece));
        if (put < 0 && errno != EAGAIN) {
            node_link_failed(link, RECORD_CONNECTION, strerror(errno), now_ns);
            return;
        }
        if (put <= 0)
            break;
        link->progress_ns = now_ns;
        pieces_went(link, (size_t)put);
    }
    watch(link);
}

// ---- answers ----

// The first command is over.
static void answer(struct link *link, enum record_reason reason)
{
    const struct sent sent = *front(link);
    link->first_sent = (link->first_sent + 1) % LINK_DEPTH;
    link->num_sents--;
    link->node->bytes_under_way -= sent.bytes;
    if (!sent.unit)
        return;
    sent.unit->sent = NULL;
    sent.unit->place = UNIT_NOWHERE;
    node_answered(sent.unit, reason);
}

static bool begins(const char *text, const char *word)
{
    return strncmp(text, word, strlen(word)) == 0;
}

static void answer_elsewhere(struct link *link, const char *text)
{
    struct unit *unit = front(link)->unit;
    front(link)->unit = NULL;
    answer(link, RECORD_OK);
    if (!unit)
        return;
    unit->sent = NULL;
    unit->place = UNIT_NOWHERE;
    node_sent_elsewhere(unit, text);
}

static void answer_error(struct link *link, const char *text, int64_t now_ns)
{
    if (begins(text, "MOVED ") || begins(text, "ASK ")) {
        answer_elsewhere(link, text);
    } else if (begins(text, "OOM ")) {
        node_full(link->node, now_ns);
        answer(link, RECORD_FULL);
    } else if (begins(text, "NOAUTH") || begins(text, "NOPERM") || begins(text, "ERR unknown")) {
        answer(link, RECORD_DENIED);
    } else {
        node_value(link->node, text); // LOADING, CLUSTERDOWN, READONLY, MISCONF and others
        answer(link, RECORD_STORE);
    }
}

static struct iovec place_of_payload(const struct unit *unit, uint32_t index)
{
    return (struct iovec){unit_part_data(unit, index), unit_part_bytes(unit, index)};
}

// A value of an array begins. One of another length than ours goes nowhere, except for its header.
static void begin_value(struct link *link)
{
    const struct sent *sent = front(link);
    const struct unit *unit = sent->unit;
    const uint64_t size = (uint64_t)link->reply.number;
    struct iovec places[2] = {{&link->header, sizeof link->header}};
    if (!unit || size < sizeof link->header)
        return;
    const struct iovec payload = place_of_payload(unit, sent->num_parts - sent->to_come);
    if (size == sizeof link->header + payload.iov_len)
        places[1] = payload;
    reply_places(&link->reply, places, 2);
}

static enum record_reason check_value(struct link *link, struct unit *unit, uint32_t index)
{
    struct tier_job *job = unit->work->job;
    const uint64_t size = (uint64_t)link->reply.number;
    const uint32_t part = unit->part + index;
    if (size == sizeof link->header + unit_part_bytes(unit, index))
        return tier_part_check(job, unit->block, part, &link->header, size - sizeof link->header);
    if (size < sizeof link->header)
        return RECORD_LENGTH;
    const enum record_reason reason =
        record_header_check(&link->header, &job->space, &job->blocks[unit->block].chain, part);
    return reason == RECORD_OK ? RECORD_LENGTH : reason;
}

static void end_element(struct link *link, enum record_reason reason)
{
    struct sent *sent = front(link);
    if (sent->unit)
        unit_note(sent->unit, reason);
    if (--sent->to_come == 0)
        answer(link, RECORD_OK); // of the whole command; each value has been noted
}

static void end_value(struct link *link)
{
    const struct sent *sent = front(link);
    enum record_reason reason = RECORD_OK;
    if (sent->unit) {
        reason = check_value(link, sent->unit, sent->num_parts - sent->to_come);
        node_value(link->node, reason == RECORD_OK ? NULL : record_reason_labels[reason]);
    }
    end_element(link, reason);
}

// Inside an array. False: it cannot be an answer to this command.
static bool take_element(struct link *link)
{
    if (link->reply.type != '$')
        return false;
    if (link->reply.number < 0)
        end_element(link, RECORD_ABSENT);
    else
        begin_value(link);
    return true;
}

static bool take_number(struct link *link, const struct sent *sent)
{
    const int64_t number = link->reply.number;
    if (number < 0 || number > sent->num_parts)
        return false;
    if (sent->kind == SENT_EXISTS)
        answer(link, number == sent->num_parts ? RECORD_OK : RECORD_ABSENT);
    else if (sent->kind == SENT_DELETE)
        answer(link, number > 0 ? RECORD_OK : RECORD_ABSENT);
    else
        return false;
    return true;
}

static bool take_line(struct link *link, int64_t now_ns)
{
    struct sent *sent = front(link);
    if (!sent)
        return false;
    if (sent->to_come > 0)
        return take_element(link);
    switch (link->reply.type) {
    case '-': answer_error(link, link->reply.text, now_ns); return true;
    case ':': return take_number(link, sent);
    case '+':
        if (sent->kind != SENT_STORE && sent->kind != SENT_ASKING)
            return false;
        answer(link, RECORD_OK);
        return true;
    case '*':
        if (sent->kind != SENT_LOAD || link->reply.number != sent->num_parts)
            return false;
        sent->to_come = sent->num_parts;
        return true;
    default: return false;
    }
}

static void fail_wrong(struct link *link, int64_t now_ns)
{
    char why[128];
    reply_quote(&link->reply, front(link) ? commands[front(link)->kind] : "nothing", why,
                sizeof why);
    node_link_failed(link, RECORD_STORE, why, now_ns);
}

// False: the link failed and is closed.
static bool consume(struct link *link, int64_t now_ns)
{
    for (;;) {
        bool right = true;
        switch (reply_next(&link->reply)) {
        case REPLY_MORE: return true;
        case REPLY_LINE: right = take_line(link, now_ns); break;
        case REPLY_BULK: end_value(link); break;
        case REPLY_BROKEN: right = false; break;
        }
        if (!right) {
            fail_wrong(link, now_ns);
            return false;
        }
    }
}

// The other side is gone. Without a command under way this is no failure of the server: it may
// close connections that are idle.
static void end_of_stream(struct link *link, const char *why, int64_t now_ns)
{
    if (link_waits(link))
        node_link_failed(link, RECORD_CONNECTION, why, now_ns);
    else
        link_close(link, RECORD_CONNECTION);
}

// Reads once. False: nothing came, or the link is closed. *filled: there may be more.
static bool read_some(struct link *link, int64_t now_ns, bool *filled)
{
    struct iovec to[REPLY_VECTORS];
    const int count = reply_wants(&link->reply, to);
    size_t wanted = 0;
    for (int v = 0; v < count; v++)
        wanted += to[v].iov_len;
    const ssize_t got = stream_read(&link->stream, to, count);
    if (got < 0 && errno == EAGAIN)
        return false;
    if (got <= 0) {
        end_of_stream(link, got < 0 ? strerror(errno) : "it closed the connection", now_ns);
        return false;
    }
    link->progress_ns = now_ns;
    reply_got(&link->reply, (size_t)got);
    *filled = (size_t)got == wanted;
    return true;
}

static void receive(struct link *link, int64_t now_ns)
{
    bool filled;
    for (int i = 0; i < READS_AT_ONCE || stream_has_more(&link->stream); i++) {
        if (!read_some(link, now_ns, &filled) || !consume(link, now_ns) || !filled)
            return;
    }
}

// ---- hello ----

static void send_hello(struct link *link, int64_t now_ns)
{
    struct hello *hello = &link->hello;
    while (hello->out_at < hello->out_size) {
        struct iovec piece = {hello->out + hello->out_at, hello->out_size - hello->out_at};
        const ssize_t put = stream_write(&link->stream, &piece, 1);
        if (put < 0 && errno != EAGAIN) {
            node_link_failed(link, RECORD_CONNECTION, strerror(errno), now_ns);
            return;
        }
        if (put <= 0)
            break;
        hello->out_at += (size_t)put;
    }
    watch(link);
}

void link_greet(struct link *link, int64_t now_ns)
{
    struct tier_backend *redis = link->node->redis;
    link->state = LINK_HELLO;
    link->progress_ns = link->greeted_ns = now_ns;
    if (hello_begin(&link->hello, &redis->url, atomic_load(&redis->wants_map)))
        send_hello(link, now_ns);
    else
        node_link_failed(link, RECORD_MEMORY, "no memory", now_ns);
}

static void welcome(struct link *link, int64_t now_ns)
{
    link->state = LINK_UP;
    node_connected(link);
    link->greeted = true;
    hello_finish(&link->hello);
    if (consume(link, now_ns)) // more than was asked is a failure
        watch(link);
}

static void hear_some(struct link *link, int64_t now_ns)
{
    bool filled;
    if (!read_some(link, now_ns, &filled))
        return;
    switch (hello_take(&link->hello, &link->reply)) {
    case HELLO_GOES_ON: send_hello(link, now_ns); break;
    case HELLO_DONE: welcome(link, now_ns); break;
    case HELLO_DENIED: node_link_failed(link, RECORD_DENIED, link->hello.why, now_ns); break;
    case HELLO_LOADING:
    case HELLO_FAILED: node_link_failed(link, RECORD_STORE, link->hello.why, now_ns); break;
    }
}

static void hear_hello(struct link *link, int64_t now_ns)
{
    do
        hear_some(link, now_ns);
    while (link->state == LINK_HELLO && stream_has_more(&link->stream));
}

// ---- TLS ----

static void secure(struct link *link, int64_t now_ns)
{
    switch (tls_shake(link->stream.tls)) {
    case TLS_DONE: link_greet(link, now_ns); break;
    case TLS_AGAIN: watch(link); break;
    case TLS_FAILED:
        node_link_failed(link, RECORD_DENIED, tls_why(link->stream.tls), now_ns);
        break;
    }
}

static void begin_to_secure(struct link *link, int64_t now_ns)
{
    const struct node *node = link->node;
    link->state = LINK_SECURING;
    link->progress_ns = now_ns; // of the whole handshake
    if (stream_begin_tls(&link->stream, node->redis->tls, node->host))
        secure(link, now_ns);
    else
        node_link_failed(link, RECORD_MEMORY, "no memory for TLS", now_ns);
}

// ---- the life of a link ----

bool link_open(struct link *link, const char *ip, uint16_t port, int64_t now_ns)
{
    if (!stream_open(&link->stream, ip, port))
        return false;
    link->state = LINK_CONNECTING;
    link->greeted = false;
    link->progress_ns = now_ns;
    link->events = 0;
    reply_init(&link->reply);
    watch(link);
    return true;
}

static void finish_connect(struct link *link, int64_t now_ns)
{
    struct pollfd ready = {.fd = link->stream.fd, .events = POLLOUT};
    const int outcome = stream_outcome(&link->stream);
    if (outcome == 0 && poll(&ready, 1, 0) == 0)
        return; // still under way
    if (outcome != 0)
        node_link_failed(link, RECORD_CONNECTION, strerror(outcome), now_ns);
    else if (link->node->redis->tls)
        begin_to_secure(link, now_ns);
    else
        link_greet(link, now_ns);
}

void link_event(struct link *link, uint32_t events, int64_t now_ns)
{
    if (link->state == LINK_CONNECTING) {
        finish_connect(link, now_ns);
    } else if (link->state == LINK_SECURING) {
        secure(link, now_ns);
    } else if (link->state == LINK_HELLO) {
        if (events & EPOLLOUT)
            send_hello(link, now_ns);
        if (link->state == LINK_HELLO && (events & ~(uint32_t)EPOLLOUT))
            hear_hello(link, now_ns);
    } else if (link->state == LINK_UP) {
        if (events & ~(uint32_t)EPOLLOUT || stream_wants_room(&link->stream))
            receive(link, now_ns);
        if (link->state == LINK_UP && (events & EPOLLOUT))
            link_send(link, now_ns);
        else if (link->state == LINK_UP)
            watch(link); // TLS may want room now
    }
}

bool link_forget(struct link *link, struct unit *unit)
{
    struct sent *sent = unit->sent;
    if (sent->kind == SENT_STORE && link->pieces_sent <= sent->last_piece)
        return false;
    if (sent == front(link))
        reply_drop(&link->reply);
    sent->unit = NULL;
    unit->sent = NULL;
    unit->place = UNIT_NOWHERE;
    return true;
}

void link_close(struct link *link, enum record_reason reason)
{
    lane_unwatch(link->node->lane, link);
    stream_close(&link->stream);
    hello_finish(&link->hello);
    link->state = LINK_DOWN;
    link->piece = link->num_pieces = 0;
    link->text_size = 0;
    while (link->num_sents > 0) {
        struct unit *unit = front(link)->unit;
        link->node->bytes_under_way -= front(link)->bytes;
        link->first_sent = (link->first_sent + 1) % LINK_DEPTH;
        link->num_sents--;
        if (!unit)
            continue;
        unit->sent = NULL;
        unit->place = UNIT_NOWHERE;
        node_lost_unit(unit, reason);
    }
}
