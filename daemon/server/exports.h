// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// exports.h - the export socket: it passes descriptors of device memory, which messages cannot
// carry. A client connects, sends one packet with a token, and gets one packet with the descriptor
// (struct wire_export_request and wire_export_answer in wire.h). Then the connection ends. Knows
// tokens and descriptors, not what they are for. Thread: dispatcher.
//
// A connection can do nothing but wait: at most exports_most() are open, each for two seconds.
// Others wait in the kernel's queue. A user whom the daemon does not serve, and a guest above its
// share (places.h), gets a reason and no place.

#ifndef AULE_SERVER_EXPORTS_H
#define AULE_SERVER_EXPORTS_H

#include "places.h"
#include "schema/wire.h"

#include <sys/types.h>

struct exports;
struct exports_peer { // as the kernel says
    struct place_user user;
    uint64_t pid;   // 0 = of another pid namespace
    uint64_t owner; // owner_number(); 0 = unknown
};

// How many connections at a time: a sixteenth of --max-connections, rounded up.
static inline uint32_t exports_most(uint32_t max_connections)
{
    return max_connections / 16 + (max_connections % 16 != 0);
}

struct exports_params {
    const char *socket;          // the daemon's
    uint32_t max_peers;          // connections at a time
    double tenant_share;         // --tenant-share
    const struct groups *groups; // lent; NULL = other users may not connect
    int epoll_fd; // gets an event with `mark` when exports_serve() has something to do
    void *mark;
    // Gives `peer` a descriptor for its token, and forgets the token. The callee's descriptor is
    // closed after it was sent. On failure *error says why.
    enum status (*redeem)(void *context, const uint8_t token[WIRE_TOKEN_SIZE],
                          const struct exports_peer *peer, int *fd, struct error *error);
    void *context;
};

enum status exports_open(const struct exports_params *params, struct exports **out,
                         struct error *error);
void exports_close(struct exports *exports);        // removes the socket; takes NULL
void exports_remove(const struct exports *exports); // removes the socket's file alone; takes NULL
const char *exports_name(const struct exports *exports); // the file name; "" = no socket

// Accepts, reads, answers. Bounded; never blocks.
void exports_serve(struct exports *exports, int64_t now_ns);
// Ends connections that said nothing in time. Returns when the next one is due, or FOREVER.
int64_t exports_expire(struct exports *exports, int64_t now_ns);

#endif
