// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// node.h - one server: its connections, the units that wait for it, and its breaker. It decides
// when to connect and what a failure means. Its I/O thread only, except what is said.

#ifndef AULE_TIER_REDIS_NODE_H
#define AULE_TIER_REDIS_NODE_H

#include "breaker.h"
#include "conn.h"
#include "store.h"

enum { MOST_CONNS = 8, MOST_IPS = 4, NODE_QUEUES = 3 };

// Bytes of values under way to and from a server, unless one command has more. A Redis server
// keeps all answers that are not read yet. If they are few, their memory stays in its caches and is
// not mapped anew: with 4 MiB its core loaded three times as much as with 16 MiB on each of 8
// connections. But with 4 MiB server and client wait for each other. With 8 MiB one server's loads
// rose from 2.2 to 2.9 GB/s; NOTEBOOK.md has the ranges.
#define NODE_BYTES (UINT64_C(8) << 20)

struct resolver;

struct node {
    // constant; any thread
    struct tier_backend *redis;
    struct io_thread *io;
    uint8_t index;
    uint16_t port;
    char host[REDIS_HOST_SIZE];
    char address[ADDRESS_SIZE]; // "host:port"

    struct breaker breaker; // any thread may read its state
    char note[160];         // guarded by the backend's lock

    struct resolver *resolver; // a name is being looked up
    char ips[MOST_IPS][48];    // INET6_ADDRSTRLEN and a zone
    uint32_t num_ips, ip;

    struct conn conns[MOST_CONNS];
    struct unit *queues[NODE_QUEUES]; // look-ups and deletes, loads, stores
    uint32_t num_queued;
    uint64_t bytes_under_way; // on all connections
    uint32_t odd;             // answers in a row that were wrong
    char oddity[64];          // the last one of them
    int64_t full_until_ns;    // stores are refused for lack of memory
    bool wants_trial;         // connect, although nothing is queued

    // What INFO said last; any thread may read it. maxmemory 0 = no limit.
    atomic_uint_least64_t used_memory, maxmemory;
    atomic_int_least64_t facts_ns;
    atomic_bool wants_facts; // ask again
};

struct node *node_create(struct tier_backend *redis, struct io_thread *io, uint8_t index,
                         const char *host, uint16_t port);
// All connections are closed, and no unit is queued. Takes NULL.
void node_destroy(struct node *node);

bool node_has_room(const struct node *node, const struct unit *unit); // by NODE_BYTES
bool node_is_broken(const struct node *node);                         // any thread
// Queues the unit, or ends it.
void node_take(struct node *node, struct unit *unit);
// The unit leaves its queue.
void node_unqueue(struct node *node, struct unit *unit);
// Moves everything on. Returns when it wants to be called again; FOREVER: when a connection has an
// event.
int64_t node_drive(struct node *node, int64_t now_ns);
// Closes all connections, and ends all units with this reason.
void node_stop(struct node *node, enum stored_reason reason);

// ---- what a connection tells ----

void node_connected(struct conn *conn); // the server has said hello
void node_answered(struct unit *unit, enum stored_reason reason);
void node_sent_elsewhere(struct unit *unit, const char *text); // "MOVED ..." or "ASK ..."
// An answer came. `wrong`: what is wrong with it; may have the server's words. NULL: it is right.
void node_value(struct node *node, const char *wrong);
void node_full(struct node *node, int64_t now_ns); // it has no memory for a store
// The connection failed and is closed by this. `why` may have the server's words.
void node_conn_failed(struct conn *conn, enum stored_reason reason, const char *why,
                      int64_t now_ns);
// A unit was under way on a connection that closes.
void node_lost_unit(struct unit *unit, enum stored_reason reason);

#endif
