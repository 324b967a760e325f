// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// peer.c - see peer.h. The kernel notes a listener's user when listen() is called, so a daemon that
// changes its user later still counts as the first one. A user that this user namespace does not
// map has the overflow id, as all such users have.

#include "peer.h"

#include "client/src/error.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

static const char VARIABLE[] = "AULE_DAEMON_UID";

// *uid: -1 if the variable is not set.
static enum aule_status read_variable(uid_t *uid)
{
    const char *text = getenv(VARIABLE);
    *uid = (uid_t)-1;
    if (!text || !*text)
        return AULE_OK;
    char *end;
    errno = 0;
    const unsigned long number = strtoul(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || errno || number >= UINT_MAX)
        return fail(AULE_INVALID, "%s is \"%s\"; it is a user id, a number", VARIABLE, text);
    *uid = (uid_t)number;
    return AULE_OK;
}

static bool is_overflow(uid_t uid)
{
    unsigned overflow = 65534;
    FILE *file = fopen("/proc/sys/kernel/overflowuid", "re");
    if (file && fscanf(file, "%u", &overflow) != 1)
        overflow = 65534;
    if (file)
        fclose(file);
    return uid == (uid_t)overflow;
}

// `what` and `verb` begin the sentence, such as "daemon" and "runs as".
static enum aule_status check_user(uid_t uid, const char *what, const char *path, const char *verb)
{
    uid_t trusted;
    enum aule_status status = read_variable(&trusted);
    if (status != AULE_OK || uid == geteuid() || uid == 0 ||
        (trusted != (uid_t)-1 && uid == trusted))
        return status;
    return fail(AULE_DENIED,
                "the %s at %s %s user %u%s, whom this process (user %u) does not trust. If you do, "
                "set %s=%u.",
                what, path, verb, (unsigned)uid,
                is_overflow(uid) ? " (one that this container has no number for)" : "",
                (unsigned)geteuid(), VARIABLE, (unsigned)uid);
}

// In a folder with the sticky bit, such as /tmp, only a file's owner can replace the file.
static enum aule_status check_folder(const char *path)
{
    char folder[PATH_MAX];
    const char *slash = strrchr(path, '/');
    const int length = slash ? (int)(slash - path) + (slash == path) : 0;
    struct stat info;
    snprintf(folder, sizeof folder, "%.*s", length, path);
    if (stat(slash ? folder : ".", &info) != 0)
        return fail(AULE_DENIED, "the folder of %s cannot be looked at: %s", path, strerror(errno));
    if (!(info.st_mode & S_IWOTH) || info.st_mode & S_ISVTX)
        return AULE_OK;
    return fail(AULE_DENIED,
                "any user can replace the socket %s: its folder has mode %04o; use a folder that "
                "others cannot write to",
                path, (unsigned)(info.st_mode & 07777));
}

enum aule_status peer_check(int fd, const char *path)
{
    struct ucred peer = {.uid = (uid_t)-1};
    socklen_t size = sizeof peer;
    enum aule_status status = check_folder(path);
    if (status != AULE_OK)
        return status;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0)
        return fail(AULE_DENIED, "the kernel does not say whose daemon is at %s: %s", path,
                    strerror(errno));
    return check_user(peer.uid, "daemon", path, "runs as");
}

enum aule_status peer_check_file(const char *path)
{
    struct stat info;
    if (lstat(path, &info) != 0)
        return fail(AULE_DAEMON_GONE, "the socket %s: %s", path, strerror(errno));
    return check_user(info.st_uid, "socket", path, "belongs to");
}
