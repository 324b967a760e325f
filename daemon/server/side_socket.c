// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// side_socket.c - see side_socket.h.

#include "side_socket.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

void side_socket_name(struct side_socket *side, const char *socket, const char *suffix,
                      const char *what, int type)
{
    *side = (struct side_socket){.what = what, .type = type, .fd = -1};
    snprintf(side->path, sizeof side->path, "%s%s", socket, suffix);
    const char *slash = strrchr(side->path, '/');
    side->name = slash ? slash + 1 : side->path;
}

static struct sockaddr_un address_of(const struct side_socket *side)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, side->path, strlen(side->path) + 1);
    return address;
}

// A socket that no process has bound, as a killed daemon leaves it.
static bool is_dead(const struct side_socket *side)
{
    const struct sockaddr_un address = address_of(side);
    int fd = socket(AF_UNIX, side->type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool dead = fd >= 0 && connect(fd, (const struct sockaddr *)&address, sizeof address) != 0 &&
                errno == ECONNREFUSED;
    if (fd >= 0)
        close(fd);
    return dead;
}

enum status side_socket_clear(const struct side_socket *side, struct error *error)
{
    struct stat info;
    if (lstat(side->path, &info) != 0)
        return STATUS_OK;
    if (!S_ISSOCK(info.st_mode) || !is_dead(side))
        return error_set(error, STATUS_INVALID,
                         "%s exists and is in use, or is no socket; it was left alone", side->path);
    unlink(side->path);
    return STATUS_OK;
}

enum status side_socket_open(struct side_socket *side, bool for_all, int epoll_fd, void *mark,
                             struct error *error)
{
    enum status status = side_socket_clear(side, error);
    if (status != STATUS_OK)
        return status;
    const struct sockaddr_un address = address_of(side);
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = mark};
    side->fd = socket(AF_UNIX, side->type | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    const bool made =
        side->fd >= 0 && bind(side->fd, (const struct sockaddr *)&address, sizeof address) == 0;
    if (made)
        side->bound = bound_at(side->path);
    if (!made || chmod(side->path, for_all ? 0666 : 0600) != 0 ||
        (side->type != SOCK_DGRAM && listen(side->fd, SOMAXCONN) != 0) ||
        epoll_ctl(epoll_fd, EPOLL_CTL_ADD, side->fd, &event) != 0)
        return error_set(error, STATUS_INTERNAL, "the %s %s: %s", side->what, side->path,
                         strerror(errno));
    return STATUS_OK;
}

void side_socket_remove(const struct side_socket *side)
{
    if (side->fd >= 0)
        bound_remove(&side->bound, side->path);
}

void side_socket_close(struct side_socket *side)
{
    if (side->fd < 0)
        return;
    side_socket_remove(side);
    close(side->fd);
    side->fd = -1;
}
