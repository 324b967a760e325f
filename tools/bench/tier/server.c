// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// server.c - see server.h.

#include "server.h"

#include "base/clock.h"
#include "port.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { START_MS = 30000 };

static struct sockaddr_in address_of(int port)
{
    return (struct sockaddr_in){.sin_family = AF_INET,
                                .sin_port = htons((uint16_t)port),
                                .sin_addr = {htonl(INADDR_LOOPBACK)}};
}

static bool listens(int port)
{
    struct sockaddr_in address = address_of(port);
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool listens = fd >= 0 && connect(fd, (struct sockaddr *)&address, sizeof address) == 0;
    if (fd >= 0)
        close(fd);
    return listens;
}

static void become(int port, const char *maxmemory)
{
    char number[8];
    snprintf(number, sizeof number, "%d", port);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int nothing = open("/dev/null", O_RDWR);
    dup2(nothing, STDIN_FILENO);
    dup2(nothing, STDOUT_FILENO);
    execlp("redis-server", "redis-server", "--bind", "127.0.0.1", "--port", number, "--save", "",
           "--appendonly", "no", "--dir", "/tmp", "--maxmemory", maxmemory, "--maxmemory-policy",
           "allkeys-lru", (char *)NULL);
    perror("redis-server");
    _exit(127);
}

// Why the server does not listen; NULL: it does.
static const char *wait_until_it_listens(struct server *server)
{
    const int64_t deadline_ns = clock_now_ns() + START_MS * NS_PER_MS;
    while (!listens(server->port)) {
        if (waitpid(server->pid, NULL, WNOHANG) == server->pid) {
            server->pid = 0;
            return "it ended";
        }
        if (clock_now_ns() >= deadline_ns)
            return "it does not listen after 30 seconds";
        usleep(10000);
    }
    return NULL;
}

bool server_start(struct server *server, const char *maxmemory)
{
    *server = (struct server){.port = port_unused()};
    if (!server->port) {
        perror("no free port for a redis-server");
        return false;
    }
    server->pid = fork();
    if (server->pid == 0)
        become(server->port, maxmemory);
    if (server->pid < 0) {
        perror("a redis-server did not start");
        server->pid = 0;
        return false;
    }
    const char *why = wait_until_it_listens(server);
    if (!why)
        return true;
    fprintf(stderr, "the redis-server on port %d did not start: %s\n", server->port, why);
    server_stop(server);
    return false;
}

void server_stop(struct server *server)
{
    if (!server->pid)
        return;
    kill(server->pid, SIGKILL);
    waitpid(server->pid, NULL, 0);
    server->pid = 0;
}
