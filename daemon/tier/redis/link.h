// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// link.h - one connection to a server: units become commands, which are sent without waiting for
// the answers before; the answers come in the same order. Bytes of values go from and to the job's
// memory without a copy. A link never blocks. Its lane's thread only.

#ifndef AULE_TIER_REDIS_LINK_H
#define AULE_TIER_REDIS_LINK_H

#include "hello.h"
#include "reply.h"
#include "stream.h"
#include "work.h"

enum {
    LINK_DEPTH = 64,     // commands under way
    LINK_PIECES = 128,   // of what is to be sent
    LINK_TEXT = 1 << 15, // bytes of commands' text that is to be sent
};

// SECURING: the handshake of TLS.
enum link_state { LINK_DOWN, LINK_CONNECTING, LINK_SECURING, LINK_HELLO, LINK_UP };
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

struct link {
    struct node *node;
    enum link_state state;
    struct stream stream;
    uint32_t events;     // that epoll watches
    int64_t progress_ns; // a byte moved, or the link began to wait
    struct hello hello;
    int64_t greeted_ns; // LINK_HELLO: since when
    bool greeted;       // the server has said hello on this connection

    struct sent sents[LINK_DEPTH]; // a ring
    uint32_t first_sent, num_sents;

    struct iovec pieces[LINK_PIECES];
    uint32_t piece, num_pieces;
    uint64_t pieces_sent; // all of them, so far
    char text[LINK_TEXT];
    uint32_t text_size;

    struct reply reply;
    struct record_header header; // of the value that is being read
};

void link_init(struct link *link, struct node *node);
// Begins to connect to a numeric address. The node is told what becomes of it. False: nothing can.
bool link_open(struct link *link, const char *ip, uint16_t port, int64_t now_ns);
// Whether the link can take the unit now.
bool link_takes(const struct link *link, const struct unit *unit);
void link_put(struct link *link, struct unit *unit, int64_t now_ns);
// Sends what the socket takes.
void link_send(struct link *link, int64_t now_ns);
// Says hello on a link that is up and has nothing under way, for INFO and the cluster's map.
void link_greet(struct link *link, int64_t now_ns);
// What epoll says.
void link_event(struct link *link, uint32_t events, int64_t now_ns);
// Takes a unit out that nobody waits for any more. False: a part of its memory is not sent yet, so
// the caller must close the link.
bool link_forget(struct link *link, struct unit *unit);
// Closes the socket. Each unit under way goes to node_lost_unit().
void link_close(struct link *link, enum record_reason reason);
// It waits for its server.
bool link_waits(const struct link *link);
// When a link that waits has waited too long.
int64_t link_stalls_ns(const struct link *link);

#endif
