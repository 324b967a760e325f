// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// socket_path.c - see socket_path.h.

#include "socket_path.h"

#include "schema/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

static enum status too_long(const char *path, struct error *error)
{
    return error_set(error, STATUS_INVALID,
                     "socket path \"%.200s\" has %zu bytes; at most %d fit, because the control "
                     "socket's name adds " SOCKET_CONTROL " (see --socket)",
                     path, strlen(path), SOCKET_DAEMON_MAX);
}

// Makes only the last folder of the path: if more is missing, the path is probably a mistake.
static enum status make_folder(const char *folder, const char *advice, struct error *error)
{
    if (mkdir(folder, 0700) == 0 || errno == EEXIST)
        return STATUS_OK;
    return error_set(error, errno == ENOENT ? STATUS_INVALID : STATUS_DENIED,
                     "cannot make the folder %s: %s%s", folder, strerror(errno), advice);
}

// A user who can write into the folder can replace the socket and the lock.
static enum status check_folder(const char *folder, struct error *error)
{
    struct stat info;
    if (stat(folder, &info) != 0)
        return error_set(error, STATUS_INVALID, "folder %s of the socket: %s", folder,
                         strerror(errno));
    if (!S_ISDIR(info.st_mode))
        return error_set(error, STATUS_INVALID, "%s is not a folder", folder);
    if (info.st_uid != geteuid() && info.st_uid != 0)
        return error_set(error, STATUS_DENIED,
                         "folder %s belongs to uid %u; this daemon runs as uid %u", folder,
                         info.st_uid, geteuid());
    if ((info.st_mode & (S_IWGRP | S_IWOTH)) && !(info.st_mode & S_ISVTX))
        return error_set(error, STATUS_DENIED,
                         "folder %s has mode %04o: others could replace the socket", folder,
                         info.st_mode & 07777);
    return STATUS_OK;
}

// `name` in the real path of `folder`, so that one place has one lock and one segment prefix.
static enum status join_real(const char *folder, const char *name, const char *advice,
                             char path[SOCKET_PATH_ROOM], struct error *error)
{
    char real[PATH_MAX];
    enum status status = make_folder(folder, advice, error);
    if (status != STATUS_OK)
        return status;
    if (!realpath(folder, real))
        return error_set(error, STATUS_INVALID, "folder %s of the socket: %s", folder,
                         strerror(errno));
    status = check_folder(real, error);
    if (status != STATUS_OK)
        return status;
    char whole[2 * PATH_MAX + 1];
    snprintf(whole, sizeof whole, "%s/%s", strcmp(real, "/") == 0 ? "" : real, name);
    if (strlen(whole) >= SOCKET_PATH_ROOM)
        return too_long(whole, error);
    strcpy(path, whole);
    return STATUS_OK;
}

static enum status resolve_option(const char *option, char path[SOCKET_PATH_ROOM],
                                  struct error *error)
{
    const char *slash = strrchr(option, '/'), *name = slash ? slash + 1 : option;
    if (name[0] == 0 || strcmp(name, ".") == 0 || strcmp(name, "..") == 0)
        return error_set(error, STATUS_INVALID, "--socket \"%s\" names a folder; name a file in it",
                         option);
    if (strlen(option) >= PATH_MAX)
        return too_long(option, error);
    char folder[PATH_MAX] = ".";
    if (slash == option)
        strcpy(folder, "/");
    else if (slash)
        snprintf(folder, sizeof folder, "%.*s", (int)(slash - option), option);
    return join_real(folder, name, "", path, error);
}

enum status socket_path_resolve(const char *option, uint32_t number, char path[SOCKET_PATH_ROOM],
                                struct error *error)
{
    if (option)
        return resolve_option(option, path, error);
    char folder[PATH_MAX], name[SOCKET_FILE_SIZE];
    const size_t length = socket_rule_folder(folder, sizeof folder);
    if (length >= sizeof folder)
        return error_set(error, STATUS_INVALID,
                         "the runtime folder's name has %zu bytes, too many for a socket", length);
    socket_rule_file(number, name);
    return join_real(folder, name, " (set AULE_RUNTIME_DIR or --socket)", path, error);
}

static enum status lock_refused(const struct socket_lock *lock, int fd, struct error *error)
{
    char owner[32] = "";
    ssize_t size = pread(fd, owner, sizeof owner - 1, 0);
    owner[size > 0 ? size : 0] = 0;
    owner[strcspn(owner, "\n")] = 0;
    return error_set(error, STATUS_BUSY,
                     "another aule-daemon (pid %s) already serves this socket: it holds %s",
                     owner[0] ? owner : "unknown", lock->path);
}

// The last owner may have removed the file between open() and flock(). Then the lock is on a file
// that no other process finds.
static bool lock_is_current(const struct socket_lock *lock, int fd)
{
    struct stat held, seen;
    return fstat(fd, &held) == 0 && lstat(lock->path, &seen) == 0 && held.st_dev == seen.st_dev &&
           held.st_ino == seen.st_ino;
}

enum status socket_lock_take(const char *socket_path, struct socket_lock *lock, struct error *error)
{
    lock->fd = -1;
    snprintf(lock->path, sizeof lock->path, "%s.lock", socket_path);
    for (;;) {
        int fd = open(lock->path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0)
            return error_set(error, STATUS_DENIED, "cannot open the lock file %s: %s", lock->path,
                             strerror(errno));
        if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
            enum status status = lock_refused(lock, fd, error);
            close(fd);
            return status;
        }
        if (lock_is_current(lock, fd)) {
            lock->fd = fd;
            lock->bound = bound_at(lock->path);
            break;
        }
        close(fd);
    }
    if (ftruncate(lock->fd, 0) != 0 || dprintf(lock->fd, "%d\n", getpid()) < 0)
        return error_set(error, STATUS_DENIED, "cannot write the lock file %s: %s", lock->path,
                         strerror(errno));
    return STATUS_OK;
}

void socket_lock_release(struct socket_lock *lock)
{
    if (lock->fd < 0)
        return;
    bound_remove(&lock->bound, lock->path);
    close(lock->fd);
    lock->fd = -1;
}

// Under the lock no aule-daemon listens here; a program that accepts is another one.
static bool somebody_listens(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return true; // cannot tell: do not delete
    bool listens =
        connect(fd, (struct sockaddr *)&address, sizeof address) == 0 || errno != ECONNREFUSED;
    close(fd);
    return listens;
}

enum status socket_path_clear(const char *path, struct error *error)
{
    struct stat info;
    if (lstat(path, &info) != 0) {
        if (errno == ENOENT)
            return STATUS_OK;
        return error_set(error, STATUS_INVALID, "socket %s: %s", path, strerror(errno));
    }
    if (S_ISDIR(info.st_mode))
        return error_set(error, STATUS_INVALID,
                         "%s is a folder; name a file in it, as %s/0.sock (see --socket)", path,
                         path);
    if (!S_ISSOCK(info.st_mode))
        return error_set(error, STATUS_INVALID,
                         "%s exists and is not a socket; it was left alone (see --socket)", path);
    if (somebody_listens(path))
        return error_set(error, STATUS_INVALID,
                         "another program listens at %s; it was left alone (see --socket)", path);
    if (unlink(path) != 0)
        return error_set(error, STATUS_DENIED, "cannot remove the stale socket %s: %s", path,
                         strerror(errno));
    return STATUS_OK;
}
