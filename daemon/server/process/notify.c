// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// notify.c - see notify.h. A failure is only logged, because the daemon works without a manager.

#include "notify.h"

#include "server/log.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

void notify_manager(const char *state)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    const char *path = getenv("NOTIFY_SOCKET");
    if (!path || !path[0])
        return;
    size_t size = strlen(path);
    if (size >= sizeof address.sun_path) {
        log_warn("NOTIFY_SOCKET has %zu bytes, too many for a socket", size);
        return;
    }
    memcpy(address.sun_path, path, size);
    if (path[0] == '@')
        address.sun_path[0] = 0; // an abstract address, unix(7)
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    // A manager that does not read must not stop the daemon.
    const struct timeval patience = {.tv_sec = 1};
    if (fd >= 0)
        setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
    socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + size);
    if (fd < 0 ||
        sendto(fd, state, strlen(state), MSG_NOSIGNAL, (struct sockaddr *)&address, length) < 0)
        log_warn("cannot tell the service manager %s: %s", state, strerror(errno));
    if (fd >= 0)
        close(fd);
}
