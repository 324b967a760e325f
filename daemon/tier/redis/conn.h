// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// conn.h - one connection to a server: units become commands, which are sent without waiting for
// the answers before; the answers come in the same order. Bytes of values go from and to the job's
// memory without a copy. A connection never blocks. Its I/O thread only.

#ifndef AULE_TIER_REDIS_CONN_H
#define AULE_TIER_REDIS_CONN_H

#include "hello.h"
#include "redis_job.h"
#include "reply.h"
#include "stream.h"

enum {
    CONN_DEPTH = 64,     // commands under way
    CONN_PIECES = 128,   // of what is to be sent
    CONN_TEXT = 1 << 15, // bytes of commands' text that is to be sent
};

// SECURING: the handshake of TLS.
enum conn_state { CONN_DOWN, CONN_CONNECTING, CONN_SECURING, CONN_HELLO, CONN_UP };
enum sent_kind { SENT_ASKING, SENT_EXISTS, SENT_LOAD, SENT_STORE, SENT_DELETE };

// A command whose answer has not come.
struct sent {
    struct unit *unit; // NULL: nobody waits for the answer
    enum sent_kind kind;
    uint32_t num_parts;
    uint32_t to_come; // values of an array that is being read
    uint64_t bytes;
    uint64_t last_piece; // number of its last piece to send
};

struct conn {
    struct node *node;
    enum conn_state state;
    struct stream stream;
    uint32_t events;     // that epoll watches
    int64_t progress_ns; // a byte moved, or the connection began to wait
    struct hello hello;
    int64_t greeted_ns; // CONN_HELLO: since when
    bool greeted;       // the server has said hello on this connection

    struct sent sents[CONN_DEPTH]; // a ring
    uint32_t first_sent, num_sents;

    struct iovec pieces[CONN_PIECES];
    uint32_t piece, num_pieces;
    uint64_t pieces_sent; // all of them, so far
    char text[CONN_TEXT];
    uint32_t text_size;

    struct reply reply;
    struct stored_header header; // of the value that is being read
};

void conn_init(struct conn *conn, struct node *node);
// Begins to connect to a numeric address. The node is told what becomes of it. False: nothing can.
bool conn_open(struct conn *conn, const char *ip, uint16_t port, int64_t now_ns);
// Whether the connection can take the unit now.
bool conn_takes(const struct conn *conn, const struct unit *unit);
void conn_put(struct conn *conn, struct unit *unit, int64_t now_ns);
// Sends what the socket takes.
void conn_send(struct conn *conn, int64_t now_ns);
// Says hello on a connection that is up and has nothing under way, for INFO and the cluster's map.
void conn_greet(struct conn *conn, int64_t now_ns);
// What epoll says.
void conn_event(struct conn *conn, uint32_t events, int64_t now_ns);
// Takes a unit out that nobody waits for any more. False: a part of its memory is not sent yet, so
// the caller must close the connection.
bool conn_forget(struct conn *conn, struct unit *unit);
// Closes the socket. Each unit under way goes to node_lost_unit().
void conn_close(struct conn *conn, enum stored_reason reason);
// It waits for its server.
bool conn_waits(const struct conn *conn);
// When a connection that waits has waited too long.
int64_t conn_stalls_ns(const struct conn *conn);

#endif
