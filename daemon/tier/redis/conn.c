// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// conn.c - see conn.h. Knows no slots, breakers or jobs: node.c chooses what goes over the
// connection, and is told of each value, each failure and each unit that was lost. Never blocks.
// Its I/O thread's thread.
//
// Sending. conn_put() makes a command of a unit: pieces, which are text that stands in
// conn->text, or memory of the job. Values are not copied, so a store's job stays until its
// last piece was sent. conn_takes() tells beforehand whether there is room.
//
// Answers. They come in the order of the commands, so conn->sents is a ring and the first one
// is the one that is answered. reply.c reads the stream; a value goes straight to the job's memory,
// and is checked when it is whole.
//
// States. DOWN -> CONNECTING -> SECURING (TLS only) -> HELLO -> UP. In each one conn_event() goes
// on as far as the socket allows, and watch() asks epoll for what is needed next. Any answer that
// Redis cannot give closes the connection (node_conn_failed()); the units under way are lost, and
// node.c decides what becomes of them.
//
// Units may be forgotten while their answer is on its way (conn_forget()): the answer is then read
// and dropped. Only a store that is not sent yet cannot be forgotten.

#include "conn.h"

#include "base/clock.h"
#include "io_thread.h"
#include "node.h"
#include "tls.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>

enum {
    MOST_UNIT_PIECES = 6,
    MOST_UNIT_TEXT = UNIT_PARTS * (STORED_NAME_ROOM + 16) + 128,
    READS_AT_ONCE = 16, // then other connections have their turn
    HELLO_TIMES = 8,    // a welcome as a whole may take so many times what a byte may
};

static const char *const commands[] = {
    [SENT_ASKING] = "ASKING", [SENT_EXISTS] = "EXISTS", [SENT_LOAD] = "MGET",
    [SENT_STORE] = "SET",     [SENT_DELETE] = "UNLINK",
};

void conn_init(struct conn *conn, struct node *node)
{
    conn->node = node;
    conn->state = CONN_DOWN;
    conn->stream.fd = -1;
}

static struct sent *front(struct conn *conn)
{
    return conn->num_sents > 0 ? &conn->sents[conn->first_sent] : NULL;
}

bool conn_waits(const struct conn *conn)
{
    return conn->state == CONN_CONNECTING || conn->state == CONN_SECURING ||
           conn->state == CONN_HELLO || conn->num_sents > 0;
}

int64_t conn_stalls_ns(const struct conn *conn)
{
    const int64_t stall_ns = conn->node->redis->stall_ns;
    const int64_t still_ns = conn->progress_ns + stall_ns;
    return conn->state == CONN_HELLO
               ? clock_earlier(still_ns, conn->greeted_ns + HELLO_TIMES * stall_ns)
               : still_ns;
}

static void watch(struct conn *conn)
{
    const bool writes = conn->state == CONN_CONNECTING || conn->piece < conn->num_pieces ||
                        stream_wants_room(&conn->stream) ||
                        (conn->state == CONN_HELLO && conn->hello.out_at < conn->hello.out_size);
    const uint32_t events = EPOLLIN | (writes ? EPOLLOUT : 0);
    if (conn->events != events)
        io_thread_watch(conn->node->io, conn, events);
}

// ---- commands ----

static void add_piece(struct conn *conn, const void *data, size_t size)
{
    conn->pieces[conn->num_pieces++] = (struct iovec){(void *)data, size};
}

// Text that stands behind the piece before becomes part of that piece.
static void add_text(struct conn *conn, const char *text, size_t size)
{
    char *to = conn->text + conn->text_size;
    memcpy(to, text, size);
    conn->text_size += (uint32_t)size;
    struct iovec *last =
        conn->num_pieces > conn->piece ? &conn->pieces[conn->num_pieces - 1] : NULL;
    if (last && (char *)last->iov_base + last->iov_len == to)
        last->iov_len += size;
    else
        add_piece(conn, to, size);
}

static void add_words(struct conn *conn, uint32_t num_words, const char *word)
{
    char text[64];
    const int size =
        snprintf(text, sizeof text, "*%u\r\n$%zu\r\n%s\r\n", num_words, strlen(word), word);
    add_text(conn, text, (size_t)size);
}

static void add_name(struct conn *conn, const struct unit *unit, uint32_t part)
{
    const struct tier_job *job = unit->work->job;
    char name[STORED_NAME_ROOM], text[STORED_NAME_ROOM + 16];
    const size_t length =
        stored_name(name, &job->space, &job->blocks[unit->block].chain, unit->part + part);
    const int size = snprintf(text, sizeof text, "$%zu\r\n%s\r\n", length, name);
    add_text(conn, text, (size_t)size);
}

static void add_names(struct conn *conn, const struct unit *unit, const char *command)
{
    add_words(conn, unit->num_parts + 1u, command);
    for (uint32_t i = 0; i < unit->num_parts; i++)
        add_name(conn, unit, i);
}

static void add_store(struct conn *conn, struct unit *unit)
{
    const struct tier_job *job = unit->work->job;
    const uint32_t expire_s = conn->node->redis->expire_s, bytes = unit_part_bytes(unit, 0);
    char text[64], seconds[16];
    stored_header_fill(&unit->header, &job->space, &job->blocks[unit->block].chain, unit->part,
                       unit_part_data(unit, 0));
    add_words(conn, expire_s ? 5 : 3, "SET");
    add_name(conn, unit, 0);
    int size = snprintf(text, sizeof text, "$%zu\r\n", sizeof unit->header + bytes);
    add_text(conn, text, (size_t)size);
    add_piece(conn, &unit->header, sizeof unit->header);
    add_piece(conn, unit_part_data(unit, 0), bytes);
    const int digits = snprintf(seconds, sizeof seconds, "%u", expire_s);
    size = expire_s ? snprintf(text, sizeof text, "\r\n$2\r\nEX\r\n$%d\r\n%s\r\n", digits, seconds)
                    : snprintf(text, sizeof text, "\r\n");
    add_text(conn, text, (size_t)size);
}

static struct sent *add_sent(struct conn *conn, enum sent_kind kind, struct unit *unit)
{
    struct sent *sent = &conn->sents[(conn->first_sent + conn->num_sents++) % CONN_DEPTH];
    *sent = (struct sent){.kind = kind, .unit = unit};
    return sent;
}

bool conn_takes(const struct conn *conn, const struct unit *unit)
{
    return conn->state == CONN_UP && conn->num_sents + 2 <= CONN_DEPTH &&
           conn->num_pieces + MOST_UNIT_PIECES <= CONN_PIECES &&
           conn->text_size + MOST_UNIT_TEXT <= CONN_TEXT && node_has_room(conn->node, unit);
}

void conn_put(struct conn *conn, struct unit *unit, int64_t now_ns)
{
    static const enum sent_kind kinds[TIER_NUM_KINDS] = {
        [TIER_LOOKUP] = SENT_EXISTS,
        [TIER_STORE] = SENT_STORE,
        [TIER_LOAD] = SENT_LOAD,
        [TIER_DELETE] = SENT_DELETE,
    };
    if (conn->num_sents == 0)
        conn->progress_ns = now_ns;
    if (unit->asking) {
        add_words(conn, 1, "ASKING");
        add_sent(conn, SENT_ASKING, NULL);
    }
    struct sent *sent = add_sent(conn, kinds[unit->work->job->kind], unit);
    if (sent->kind == SENT_STORE)
        add_store(conn, unit);
    else
        add_names(conn, unit, commands[sent->kind]);
    sent->num_parts = unit->num_parts;
    sent->bytes = unit_bytes(unit);
    sent->last_piece = conn->pieces_sent + (conn->num_pieces - conn->piece) - 1;
    conn->node->bytes_under_way += sent->bytes;
    unit->sent = sent;
    unit->place = UNIT_SENT;
}

// ---- sending ----

static void pieces_went(struct conn *conn, size_t bytes)
{
    while (bytes > 0) {
        struct iovec *piece = &conn->pieces[conn->piece];
        const size_t step = bytes < piece->iov_len ? bytes : piece->iov_len;
        piece->iov_base = (char *)piece->iov_base + step;
        piece->iov_len -= step;
        bytes -= step;
        if (piece->iov_len == 0) {
            conn->piece++;
            conn->pieces_sent++;
        }
    }
    if (conn->piece == conn->num_pieces) {
        conn->piece = conn->num_pieces = 0;
        conn->text_size = 0;
    }
}

void conn_send(struct conn *conn, int64_t now_ns)
{
    while (conn->piece < conn->num_pieces) {
        const ssize_t put = stream_write(&conn->stream, conn->pieces + conn->piece,
                                         (int)(conn->num_pieces - conn->piece));
        if (put < 0 && errno != EAGAIN) {
            node_conn_failed(conn, STORED_CONNECTION, strerror(errno), now_ns);
            return;
        }
        if (put <= 0)
            break;
        conn->progress_ns = now_ns;
        pieces_went(conn, (size_t)put);
    }
    watch(conn);
}

// ---- answers ----

// The first command is over.
static void answer(struct conn *conn, enum stored_reason reason)
{
    const struct sent sent = *front(conn);
    conn->first_sent = (conn->first_sent + 1) % CONN_DEPTH;
    conn->num_sents--;
    conn->node->bytes_under_way -= sent.bytes;
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

static void answer_elsewhere(struct conn *conn, const char *text)
{
    struct unit *unit = front(conn)->unit;
    front(conn)->unit = NULL;
    answer(conn, STORED_OK);
    if (!unit)
        return;
    unit->sent = NULL;
    unit->place = UNIT_NOWHERE;
    node_sent_elsewhere(unit, text);
}

static void answer_error(struct conn *conn, const char *text, int64_t now_ns)
{
    if (begins(text, "MOVED ") || begins(text, "ASK ")) {
        answer_elsewhere(conn, text);
    } else if (begins(text, "OOM ")) {
        node_full(conn->node, now_ns);
        answer(conn, STORED_FULL);
    } else if (begins(text, "NOAUTH") || begins(text, "NOPERM") || begins(text, "ERR unknown")) {
        answer(conn, STORED_DENIED);
    } else {
        node_value(conn->node, text); // LOADING, CLUSTERDOWN, READONLY, MISCONF and others
        answer(conn, STORED_STORE);
    }
}

static struct iovec place_of_payload(const struct unit *unit, uint32_t index)
{
    return (struct iovec){unit_part_data(unit, index), unit_part_bytes(unit, index)};
}

// A value of an array begins. One of another length than ours goes nowhere, except for its header.
static void begin_value(struct conn *conn)
{
    const struct sent *sent = front(conn);
    const struct unit *unit = sent->unit;
    const uint64_t size = (uint64_t)conn->reply.number;
    struct iovec places[2] = {{&conn->header, sizeof conn->header}};
    if (!unit || size < sizeof conn->header)
        return;
    const struct iovec payload = place_of_payload(unit, sent->num_parts - sent->to_come);
    if (size == sizeof conn->header + payload.iov_len)
        places[1] = payload;
    reply_places(&conn->reply, places, 2);
}

static enum stored_reason check_value(struct conn *conn, struct unit *unit, uint32_t index)
{
    struct tier_job *job = unit->work->job;
    const uint64_t size = (uint64_t)conn->reply.number;
    const uint32_t part = unit->part + index;
    if (size == sizeof conn->header + unit_part_bytes(unit, index))
        return tier_part_check(job, unit->block, part, &conn->header, size - sizeof conn->header);
    if (size < sizeof conn->header)
        return STORED_LENGTH;
    const enum stored_reason reason =
        stored_header_check(&conn->header, &job->space, &job->blocks[unit->block].chain, part);
    return reason == STORED_OK ? STORED_LENGTH : reason;
}

static void end_element(struct conn *conn, enum stored_reason reason)
{
    struct sent *sent = front(conn);
    if (sent->unit)
        unit_note(sent->unit, reason);
    if (--sent->to_come == 0)
        answer(conn, STORED_OK); // of the whole command; each value has been noted
}

static void end_value(struct conn *conn)
{
    const struct sent *sent = front(conn);
    enum stored_reason reason = STORED_OK;
    if (sent->unit) {
        reason = check_value(conn, sent->unit, sent->num_parts - sent->to_come);
        node_value(conn->node, reason == STORED_OK ? NULL : stored_reason_labels[reason]);
    }
    end_element(conn, reason);
}

// Inside an array. False: it cannot be an answer to this command.
static bool take_element(struct conn *conn)
{
    if (conn->reply.type != '$')
        return false;
    if (conn->reply.number < 0)
        end_element(conn, STORED_ABSENT);
    else
        begin_value(conn);
    return true;
}

static bool take_number(struct conn *conn, const struct sent *sent)
{
    const int64_t number = conn->reply.number;
    if (number < 0 || number > sent->num_parts)
        return false;
    if (sent->kind == SENT_EXISTS)
        answer(conn, number == sent->num_parts ? STORED_OK : STORED_ABSENT);
    else if (sent->kind == SENT_DELETE)
        answer(conn, number > 0 ? STORED_OK : STORED_ABSENT);
    else
        return false;
    return true;
}

static bool take_line(struct conn *conn, int64_t now_ns)
{
    struct sent *sent = front(conn);
    if (!sent)
        return false;
    if (sent->to_come > 0)
        return take_element(conn);
    switch (conn->reply.type) {
    case '-': answer_error(conn, conn->reply.text, now_ns); return true;
    case ':': return take_number(conn, sent);
    case '+':
        if (sent->kind != SENT_STORE && sent->kind != SENT_ASKING)
            return false;
        answer(conn, STORED_OK);
        return true;
    case '*':
        if (sent->kind != SENT_LOAD || conn->reply.number != sent->num_parts)
            return false;
        sent->to_come = sent->num_parts;
        return true;
    default: return false;
    }
}

static void fail_wrong(struct conn *conn, int64_t now_ns)
{
    char why[128];
    reply_quote(&conn->reply, front(conn) ? commands[front(conn)->kind] : "nothing", why,
                sizeof why);
    node_conn_failed(conn, STORED_STORE, why, now_ns);
}

// False: the connection failed and is closed.
static bool consume(struct conn *conn, int64_t now_ns)
{
    for (;;) {
        bool right = true;
        switch (reply_next(&conn->reply)) {
        case REPLY_MORE: return true;
        case REPLY_LINE: right = take_line(conn, now_ns); break;
        case REPLY_BULK: end_value(conn); break;
        case REPLY_BROKEN: right = false; break;
        }
        if (!right) {
            fail_wrong(conn, now_ns);
            return false;
        }
    }
}

// The other side is gone. Without a command under way this is no failure of the server: it may
// close connections that are idle.
static void end_of_stream(struct conn *conn, const char *why, int64_t now_ns)
{
    if (conn_waits(conn))
        node_conn_failed(conn, STORED_CONNECTION, why, now_ns);
    else
        conn_close(conn, STORED_CONNECTION);
}

// Reads once. False: nothing came, or the connection is closed. *filled: there may be more.
static bool read_some(struct conn *conn, int64_t now_ns, bool *filled)
{
    struct iovec to[REPLY_VECTORS];
    const int count = reply_wants(&conn->reply, to);
    size_t wanted = 0;
    for (int v = 0; v < count; v++)
        wanted += to[v].iov_len;
    const ssize_t got = stream_read(&conn->stream, to, count);
    if (got < 0 && errno == EAGAIN)
        return false;
    if (got <= 0) {
        end_of_stream(conn, got < 0 ? strerror(errno) : "it closed the connection", now_ns);
        return false;
    }
    conn->progress_ns = now_ns;
    reply_got(&conn->reply, (size_t)got);
    *filled = (size_t)got == wanted;
    return true;
}

static void receive(struct conn *conn, int64_t now_ns)
{
    bool filled;
    for (int i = 0; i < READS_AT_ONCE || stream_has_more(&conn->stream); i++) {
        if (!read_some(conn, now_ns, &filled) || !consume(conn, now_ns) || !filled)
            return;
    }
}

// ---- hello ----

static void send_hello(struct conn *conn, int64_t now_ns)
{
    struct hello *hello = &conn->hello;
    while (hello->out_at < hello->out_size) {
        struct iovec piece = {hello->out + hello->out_at, hello->out_size - hello->out_at};
        const ssize_t put = stream_write(&conn->stream, &piece, 1);
        if (put < 0 && errno != EAGAIN) {
            node_conn_failed(conn, STORED_CONNECTION, strerror(errno), now_ns);
            return;
        }
        if (put <= 0)
            break;
        hello->out_at += (size_t)put;
    }
    watch(conn);
}

void conn_greet(struct conn *conn, int64_t now_ns)
{
    struct tier_backend *redis = conn->node->redis;
    conn->state = CONN_HELLO;
    conn->progress_ns = conn->greeted_ns = now_ns;
    if (hello_begin(&conn->hello, &redis->url, atomic_load(&redis->wants_map)))
        send_hello(conn, now_ns);
    else
        node_conn_failed(conn, STORED_MEMORY, "no memory", now_ns);
}

static void welcome(struct conn *conn, int64_t now_ns)
{
    conn->state = CONN_UP;
    node_connected(conn);
    conn->greeted = true;
    hello_finish(&conn->hello);
    if (consume(conn, now_ns)) // more than was asked is a failure
        watch(conn);
}

static void hear_some(struct conn *conn, int64_t now_ns)
{
    bool filled;
    if (!read_some(conn, now_ns, &filled))
        return;
    switch (hello_take(&conn->hello, &conn->reply)) {
    case HELLO_GOES_ON: send_hello(conn, now_ns); break;
    case HELLO_DONE: welcome(conn, now_ns); break;
    case HELLO_DENIED: node_conn_failed(conn, STORED_DENIED, conn->hello.why, now_ns); break;
    case HELLO_LOADING:
    case HELLO_FAILED: node_conn_failed(conn, STORED_STORE, conn->hello.why, now_ns); break;
    }
}

static void hear_hello(struct conn *conn, int64_t now_ns)
{
    do
        hear_some(conn, now_ns);
    while (conn->state == CONN_HELLO && stream_has_more(&conn->stream));
}

// ---- TLS ----

static void secure(struct conn *conn, int64_t now_ns)
{
    switch (tls_shake(conn->stream.tls)) {
    case TLS_DONE: conn_greet(conn, now_ns); break;
    case TLS_AGAIN: watch(conn); break;
    case TLS_FAILED:
        node_conn_failed(conn, STORED_DENIED, tls_why(conn->stream.tls), now_ns);
        break;
    }
}

static void begin_to_secure(struct conn *conn, int64_t now_ns)
{
    const struct node *node = conn->node;
    conn->state = CONN_SECURING;
    conn->progress_ns = now_ns; // of the whole handshake
    if (stream_begin_tls(&conn->stream, node->redis->tls, node->host))
        secure(conn, now_ns);
    else
        node_conn_failed(conn, STORED_MEMORY, "no memory for TLS", now_ns);
}

// ---- the life of a connection ----

bool conn_open(struct conn *conn, const char *ip, uint16_t port, int64_t now_ns)
{
    if (!stream_open(&conn->stream, ip, port))
        return false;
    conn->state = CONN_CONNECTING;
    conn->greeted = false;
    conn->progress_ns = now_ns;
    conn->events = 0;
    reply_init(&conn->reply);
    watch(conn);
    return true;
}

static void finish_connect(struct conn *conn, int64_t now_ns)
{
    struct pollfd ready = {.fd = conn->stream.fd, .events = POLLOUT};
    const int outcome = stream_outcome(&conn->stream);
    if (outcome == 0 && poll(&ready, 1, 0) == 0)
        return; // still under way
    if (outcome != 0)
        node_conn_failed(conn, STORED_CONNECTION, strerror(outcome), now_ns);
    else if (conn->node->redis->tls)
        begin_to_secure(conn, now_ns);
    else
        conn_greet(conn, now_ns);
}

void conn_event(struct conn *conn, uint32_t events, int64_t now_ns)
{
    if (conn->state == CONN_CONNECTING) {
        finish_connect(conn, now_ns);
    } else if (conn->state == CONN_SECURING) {
        secure(conn, now_ns);
    } else if (conn->state == CONN_HELLO) {
        if (events & EPOLLOUT)
            send_hello(conn, now_ns);
        if (conn->state == CONN_HELLO && (events & ~(uint32_t)EPOLLOUT))
            hear_hello(conn, now_ns);
    } else if (conn->state == CONN_UP) {
        if (events & ~(uint32_t)EPOLLOUT || stream_wants_room(&conn->stream))
            receive(conn, now_ns);
        if (conn->state == CONN_UP && (events & EPOLLOUT))
            conn_send(conn, now_ns);
        else if (conn->state == CONN_UP)
            watch(conn); // TLS may want room now
    }
}

bool conn_forget(struct conn *conn, struct unit *unit)
{
    struct sent *sent = unit->sent;
    if (sent->kind == SENT_STORE && conn->pieces_sent <= sent->last_piece)
        return false;
    if (sent == front(conn))
        reply_drop(&conn->reply);
    sent->unit = NULL;
    unit->sent = NULL;
    unit->place = UNIT_NOWHERE;
    return true;
}

void conn_close(struct conn *conn, enum stored_reason reason)
{
    io_thread_unwatch(conn->node->io, conn);
    stream_close(&conn->stream);
    hello_finish(&conn->hello);
    conn->state = CONN_DOWN;
    conn->piece = conn->num_pieces = 0;
    conn->text_size = 0;
    while (conn->num_sents > 0) {
        struct unit *unit = front(conn)->unit;
        conn->node->bytes_under_way -= front(conn)->bytes;
        conn->first_sent = (conn->first_sent + 1) % CONN_DEPTH;
        conn->num_sents--;
        if (!unit)
            continue;
        unit->sent = NULL;
        unit->place = UNIT_NOWHERE;
        node_lost_unit(unit, reason);
    }
}
