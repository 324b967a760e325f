// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// redis_server.h - real redis-servers on free loopback ports, with a temporary folder each. A
// server ends with the thread that started it. Asserts with check.

#ifndef AULE_TESTS_REDIS_SERVER_H
#define AULE_TESTS_REDIS_SERVER_H

#include <hiredis/hiredis.h>
#include <stdbool.h>
#include <sys/types.h>

enum { NUM_SERVERS = 4 };

struct redis_server {
    pid_t pid; // 0: it does not run
    int port;
    char folder[32];
};
extern struct redis_server servers[NUM_SERVERS];

bool server_is_there(void); // the program
int server_free_port(void); // on loopback

// Starts servers[i]; `arguments` end with NULL, or are NULL. It answers when this returns.
void server_start(int i, const char *const *arguments);
void server_start_again(int i, const char *const *arguments); // on the port that it had
void server_kill(int i);
void server_signal(int i, int signal);
void server_make_cluster(int num); // of servers 0 .. num - 1, which run with --cluster-enabled yes

// Runs a command on servers[i] and returns its reply, never NULL.
redisReply *server_ask(int i, const char *format, ...);
// The same; the reply is not looked at.
void server_tell(int i, const char *format, ...);
long server_number(int i, const char *section, const char *key); // of INFO
void servers_end(void); // kills all of them, and removes their folders

#endif
