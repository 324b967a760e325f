// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// hello.h - the first commands on a connection: AUTH, INFO, and CLUSTER SLOTS where it is a
// cluster. hiredis writes them and reads their answers, which are small and have many forms. Knows
// no sockets: the caller sends `out` and feeds what comes. One thread.

#ifndef AULE_TIER_REDIS_HELLO_H
#define AULE_TIER_REDIS_HELLO_H

#include "url.h"

#include <stddef.h>

struct redisReader;

enum hello_result {
    HELLO_GOES_ON, // feed more; `out` may have more to send
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

struct hello {
    struct redisReader *reader;
    enum { HELLO_AUTH, HELLO_INFO, HELLO_SLOTS } step;
    bool wants_map;
    char *out; // owned; of hiredis
    size_t out_size, out_at;
    size_t fed;
    struct server_facts facts;
    void *map; // the answer to CLUSTER SLOTS, or NULL
    char why[128];
};

// Ends with hello_finish(). False: no memory.
bool hello_begin(struct hello *hello, const struct redis_url *url, bool wants_map);
enum hello_result hello_feed(struct hello *hello, const char *data, size_t size);
// Calls `each` for each range of slots. `host` "" is the server that was asked.
void hello_each_range(const struct hello *hello,
                      void (*each)(void *context, uint32_t first, uint32_t last, const char *host,
                                   uint16_t port),
                      void *context);
void hello_finish(struct hello *hello); // takes a zeroed one

#endif
