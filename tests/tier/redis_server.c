// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// redis_server.c - see redis_server.h.

#include "redis_server.h"

#include "port.h"

#include <check.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

struct redis_server servers[NUM_SERVERS];

bool server_is_there(void)
{
    return system("command -v redis-server >/dev/null 2>&1") == 0;
}

int server_free_port(void)
{
    const int port = port_unused();
    ck_assert_int_ne(port, 0);
    // A cluster's servers talk to each other on this port and 10000.
    return port + 10000 <= UINT16_MAX ? port : port - 10000;
}

static void become_server(const struct redis_server *server, const char *const *arguments)
{
    const char *words[64] = {
        "redis-server", "--bind", "127.0.0.1",    "--save",  "",
        "--appendonly", "no",     "--loglevel",   "warning", "--enable-debug-command",
        "yes",          "--dir",  server->folder, "--port",
    };
    char port[8];
    int count = 14;
    snprintf(port, sizeof port, "%d", server->port);
    words[count++] = port;
    for (; arguments && *arguments; arguments++)
        words[count++] = *arguments;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int nothing = open("/dev/null", O_RDWR);
    dup2(nothing, STDIN_FILENO);
    dup2(nothing, STDOUT_FILENO);
    execvp("redis-server", (char *const *)words);
    _exit(127);
}

static redisContext *talk(const struct redis_server *server)
{
    return redisConnectWithTimeout("127.0.0.1", server->port, (struct timeval){.tv_sec = 30});
}

static bool answers(const struct redis_server *server)
{
    redisContext *context = talk(server);
    redisReply *reply = context && !context->err ? redisCommand(context, "PING") : NULL;
    const bool answers = reply != NULL; // NOAUTH is an answer, too
    if (reply)
        freeReplyObject(reply);
    if (context)
        redisFree(context);
    return answers;
}

void server_start_again(int i, const char *const *arguments)
{
    struct redis_server *server = &servers[i];
    if (!server->folder[0]) {
        strcpy(server->folder, "/tmp/aule-redis-XXXXXX");
        ck_assert_ptr_nonnull(mkdtemp(server->folder));
    }
    server->pid = fork();
    ck_assert_int_ge(server->pid, 0);
    if (server->pid == 0)
        become_server(server, arguments);
    while (!answers(server)) {
        ck_assert_msg(waitpid(server->pid, NULL, WNOHANG) == 0, "redis-server did not start");
        usleep(5000);
    }
}

void server_start(int i, const char *const *arguments)
{
    servers[i].port = server_free_port();
    server_start_again(i, arguments);
}

void server_kill(int i)
{
    struct redis_server *server = &servers[i];
    if (!server->pid)
        return;
    kill(server->pid, SIGKILL);
    waitpid(server->pid, NULL, 0);
    server->pid = 0;
}

void server_signal(int i, int number)
{
    ck_assert_int_eq(kill(servers[i].pid, number), 0);
}

static redisReply *ask(int i, const char *format, va_list list)
{
    redisContext *context = talk(&servers[i]);
    ck_assert(context && !context->err);
    redisReply *reply = redisvCommand(context, format, list);
    ck_assert_msg(reply != NULL, "%s", context->errstr);
    redisFree(context);
    return reply;
}

redisReply *server_ask(int i, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    redisReply *reply = ask(i, format, list);
    va_end(list);
    return reply;
}

void server_tell(int i, const char *format, ...)
{
    va_list list;
    va_start(list, format);
    redisReply *reply = ask(i, format, list);
    va_end(list);
    ck_assert_msg(reply->type != REDIS_REPLY_ERROR, "%s: %s", format, reply->str);
    freeReplyObject(reply);
}

long server_number(int i, const char *section, const char *key)
{
    redisReply *reply = server_ask(i, "INFO %s", section);
    const char *line = strstr(reply->str, key);
    const long number = line ? strtol(line + strlen(key) + 1, NULL, 10) : 0;
    freeReplyObject(reply);
    return number;
}

static bool cluster_is_ready(int num)
{
    for (int i = 0; i < num; i++) {
        redisReply *reply = server_ask(i, "CLUSTER INFO");
        const bool ready = strstr(reply->str, "cluster_state:ok") &&
                           strstr(reply->str, "cluster_slots_assigned:16384");
        freeReplyObject(reply);
        if (!ready)
            return false;
    }
    return true;
}

void server_make_cluster(int num)
{
    for (int i = 0; i < num; i++) {
        const int first = 16384 * i / num, last = 16384 * (i + 1) / num - 1;
        server_tell(i, "CLUSTER ADDSLOTSRANGE %d %d", first, last);
        server_tell(i, "CLUSTER SET-CONFIG-EPOCH %d", i + 1);
        if (i > 0)
            server_tell(i, "CLUSTER MEET 127.0.0.1 %d", servers[0].port);
    }
    while (!cluster_is_ready(num))
        usleep(20000);
}

static void remove_folder(struct redis_server *server)
{
    char command[64];
    if (!server->folder[0])
        return;
    snprintf(command, sizeof command, "rm -rf %s", server->folder);
    ck_assert_int_eq(system(command), 0);
}

void servers_end(void)
{
    for (int i = 0; i < NUM_SERVERS; i++) {
        server_kill(i);
        remove_folder(&servers[i]);
    }
    memset(servers, 0, sizeof servers);
}
