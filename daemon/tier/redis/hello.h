// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// hello.h - the first commands on a connection: AUTH, INFO, and CLUSTER SLOTS where it is a
// cluster. hiredis writes them. Their answers come through the connection's reader (reply.h), and
// each has bounds: its bytes, the depth of its arrays and their elements. Knows no sockets: the
// caller sends `out` and says what came. One thread.

#ifndef AULE_TIER_REDIS_HELLO_H
#define AULE_TIER_REDIS_HELLO_H

#include "reply.h"
#include "url.h"

#include <stddef.h>

enum hello_result {
    HELLO_GOES_ON, // the reader wants more; `out` may have more to send
    HELLO_DONE,    // `facts` are known, and perhaps a map
    HELLO_DENIED,  // the server refuses the user, the password or the command; `why`
    HELLO_LOADING, // it reads its own file, and will be ready later; `why`
    HELLO_FAILED,  // this is no Redis; `why`
};

// What INFO says.
struct server_facts {
    bool cluster, replica, appends;
    uint64_t maxmemory, used_memory; // bytes; maxmemory 0 = no limit
    char policy[32];                 // maxmemory_policy
    char version[24];
};

// An array of CLUSTER SLOTS: all ranges, a range, a server of it, and what else this one tells.
enum { HELLO_DEPTH = 4 };

// Slots first..last of a cluster; `host` "" is the server that was asked.
struct slot_range {
    int64_t first, last, port; // -1: not told
    char host[REDIS_HOST_SIZE];
};

struct hello {
    enum { HELLO_AUTH, HELLO_INFO, HELLO_SLOTS } step;
    bool wants_map;
    char *out; // owned; of hiredis
    size_t out_size, out_at;
    uint64_t asked; // bytes of values that the answers announced
    struct server_facts facts;
    char *info; // INFO's text, while it is read; owned
    // the map, while it is read and then
    uint32_t sizes[HELLO_DEPTH], at[HELLO_DEPTH], depth;
    struct slot_range *ranges; // [num_ranges]; owned
    uint32_t num_ranges, room;
    struct slot_range range; // the one that is being read
    char why[192];
};

// Ends with hello_finish(). False: no memory.
bool hello_begin(struct hello *hello, const struct redis_url *url, bool wants_map);
// Takes what the reader has. On HELLO_GOES_ON it has taken all.
enum hello_result hello_take(struct hello *hello, struct reply *reply);
// Calls `each` for each range of slots of the map.
void hello_each_range(const struct hello *hello,
                      void (*each)(void *context, uint32_t first, uint32_t last, const char *host,
                                   uint16_t port),
                      void *context);
void hello_finish(struct hello *hello); // takes a zeroed one

#endif
