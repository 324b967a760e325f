// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// server.c - see server.h.

#include "server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static struct sockaddr_in address_of(int port)
{
    return (struct sockaddr_in){.sin_family = AF_INET,
                                .sin_port = htons((uint16_t)port),
                                .sin_addr = {htonl(INADDR_LOOPBACK)}};
}

static int free_port(void)
{
    struct sockaddr_in address = address_of(0);
    socklen_t size = sizeof address;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool bound = fd >= 0 && bind(fd, (struct sockaddr *)&address, size) == 0 &&
                       getsockname(fd, (struct sockaddr *)&address, &size) == 0;
    if (fd >= 0)
        close(fd);
    return bound ? ntohs(address.sin_port) : 0;
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

bool server_start(struct server *server, const char *maxmemory)
{
    server->port = free_port();
    server->pid = fork();
    if (server->pid == 0)
        become(server->port, maxmemory);
    while (server->pid > 0 && !listens(server->port)) {
        if (waitpid(server->pid, NULL, WNOHANG) == server->pid)
            server->pid = 0;
        usleep(10000);
    }
    if (server->pid > 0)
        return true;
    fprintf(stderr, "a redis-server did not start\n");
    server->pid = 0;
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
