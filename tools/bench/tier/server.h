// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// server.h - a redis-server of the bench's own, on loopback. It ends with the bench.

#ifndef AULE_BENCH_TIER_SERVER_H
#define AULE_BENCH_TIER_SERVER_H

#include <stdbool.h>
#include <sys/types.h>

struct server {
    pid_t pid; // 0: none
    int port;
};

// Starts redis-server of $PATH, which keeps nothing on disk, and waits until it listens. False:
// standard error says why.
bool server_start(struct server *server, const char *maxmemory);
void server_stop(struct server *server); // takes a zeroed one

#endif
