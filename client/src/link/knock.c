// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// knock.c - see knock.h. It tries to connect a datagram socket. If the kernel finds a live stream
// socket that this process may write to, it refuses with EPROTOTYPE. Nothing enters the listener's
// queue. No state.

#include "knock.h"

#include "base/quote.h"
#include "client/src/error.h"
#include "client/src/socket_path.h"

#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

// True if a daemon could listen at `path`: it makes the last folder of the path, but none above it.
static bool folder_can_be(const char *path)
{
    char room[PATH_MAX];
    struct stat info;
    snprintf(room, sizeof room, "%s", path);
    char *folder = dirname(room);
    return (stat(folder, &info) == 0 || stat(dirname(folder), &info) == 0) && S_ISDIR(info.st_mode);
}

// The sentence advises to start a daemon only if one could start there. Python's connect() waits
// for a daemon that is absent only after a sentence that begins "no daemon listens".
static enum aule_status nobody_listens(const char *path)
{
    struct stat info;
    const char *why = "the socket is there, but the daemon that made it has ended";
    if (stat(path, &info) != 0)
        why = errno == ENOENT || errno == ENOTDIR ? "there is no such socket" : strerror(errno);
    else if (!S_ISSOCK(info.st_mode))
        return fail(AULE_DAEMON_GONE,
                    "no daemon can listen at %s: this is %s, no socket, and a daemon leaves it "
                    "alone",
                    path, S_ISDIR(info.st_mode) ? "a folder" : "another file");
    if (!folder_can_be(path))
        return fail(AULE_DAEMON_GONE,
                    "no daemon listens at %s: the folder of the socket does not exist", path);
    char word[QUOTE_SIZE(SOCKET_PATH_MAX)];
    return fail(AULE_DAEMON_GONE, "no daemon listens at %s: %s; aule-daemon --socket %s starts one",
                path, why, quote(word, sizeof word, path));
}

// The errno of connecting to the path. EPROTOTYPE: a stream socket is there. EDESTADDRREQ: a
// datagram socket is there, so the connect succeeded.
static int ask_kernel(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return errno;
    strncpy(address.sun_path, path, sizeof address.sun_path - 1);
    int error =
        connect(fd, (const struct sockaddr *)&address, sizeof address) == 0 ? EDESTADDRREQ : errno;
    close(fd);
    return error;
}

enum aule_status knock(const char *path)
{
    int error = ask_kernel(path);
    switch (error) {
    case EPROTOTYPE: return AULE_OK;
    case ENOENT:
    case ENOTDIR:
    case ECONNREFUSED: return nobody_listens(path);
    case EACCES:
    case EPERM: return fail(AULE_DENIED, "the permissions of %s refuse this process", path);
    case EMFILE:
    case ENFILE: return fail_no_descriptor(path);
    case ENOMEM:
    case ENOBUFS: return fail(AULE_NO_MEMORY, "no memory to connect to %s", path);
    case EDESTADDRREQ:
        return fail(AULE_DAEMON_GONE,
                    "no daemon can listen at %s: that socket takes datagrams and no connections",
                    path);
    default: return fail(AULE_DAEMON_GONE, "no daemon can listen at %s: %s", path, strerror(error));
    }
}
