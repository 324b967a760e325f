// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// file.c - see file.h. Any thread and any number of processes; a lock on "PATH.new" keeps writers
// apart.

#include "file.h"

#include "base/clock.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static enum status failed(struct error *error)
{
    enum status status = errno == ENOENT   ? STATUS_NOT_FOUND
                         : errno == ENOMEM ? STATUS_NO_MEMORY
                                           : STATUS_INTERNAL;
    return error_set(error, status, "%s", strerror(errno));
}

// Reads up to `size` bytes; fewer at the end of the file. -1 with errno.
static ssize_t read_up_to(int fd, char *data, size_t size)
{
    size_t done = 0;
    while (done < size) {
        ssize_t got = read(fd, data + done, size - done);
        if (got == 0)
            break;
        if (got < 0 && errno != EINTR)
            return -1;
        done += got > 0 ? (size_t)got : 0;
    }
    return (ssize_t)done;
}

static enum status read_open(int fd, size_t most, char **data, size_t *size, struct error *error)
{
    struct stat info;
    if (fstat(fd, &info) != 0)
        return failed(error);
    if (!S_ISREG(info.st_mode) || info.st_size < 0)
        return error_set(error, STATUS_LIMIT, "it is no file");
    if (info.st_uid != geteuid() && info.st_uid != 0)
        return error_set(error, STATUS_DENIED, "it belongs to user %u, not to %u or root",
                         (unsigned)info.st_uid, (unsigned)geteuid());
    if (info.st_mode & (S_IWGRP | S_IWOTH))
        return error_set(error, STATUS_DENIED, "other users may write to it (mode %04o)",
                         (unsigned)(info.st_mode & 07777));
    if ((uint64_t)info.st_size > most)
        return error_set(error, STATUS_LIMIT, "it has %lld bytes, and no more than %zu are read",
                         (long long)info.st_size, most);
    char *text = malloc((size_t)info.st_size + 1);
    if (!text)
        return error_set(error, STATUS_NO_MEMORY, "there is no memory to read it");
    ssize_t got = read_up_to(fd, text, (size_t)info.st_size);
    if (got < 0) {
        free(text);
        return failed(error);
    }
    text[got] = '\0';
    *data = text;
    *size = (size_t)got;
    return STATUS_OK;
}

enum status file_read(const char *path, size_t most, char **data, size_t *size, struct error *error)
{
    // Does not wait on a FIFO.
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    if (fd < 0 && errno == ELOOP)
        return error_set(error, STATUS_DENIED, "it is a symbolic link");
    if (fd < 0)
        return failed(error);
    enum status status = read_open(fd, most, data, size, error);
    close(fd);
    return status;
}

// ---- replacing ----

// Makes the folder of `path` if only its last part is missing. A failure shows when the file is
// opened.
static void make_folder(const char *path)
{
    char *folder = strdup(path), *slash = folder ? strrchr(folder, '/') : NULL;
    if (slash && slash != folder) {
        *slash = '\0';
        mkdir(folder, 0700);
    }
    free(folder);
}

enum { LOCK_NAP_MS = 5 };

// flock() has no timeout.
static bool lock_within(int fd, int timeout_ms)
{
    const int64_t deadline_ns = clock_deadline_ns(timeout_ms);
    while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        if ((errno != EWOULDBLOCK && errno != EINTR) || clock_now_ns() >= deadline_ns)
            return false;
        nanosleep(&(struct timespec){.tv_nsec = LOCK_NAP_MS * 1000000}, NULL);
    }
    return true;
}

static bool write_all(int fd, const void *data, size_t size)
{
    for (const char *at = data; size > 0;) {
        ssize_t put = write(fd, at, size);
        if (put < 0 && errno != EINTR)
            return false;
        at += put > 0 ? put : 0;
        size -= put > 0 ? (size_t)put : 0;
    }
    return true;
}

static bool write_pieces(int fd, const struct iovec *pieces, int num_pieces)
{
    bool done = ftruncate(fd, 0) == 0;
    for (int i = 0; i < num_pieces && done; i++)
        done = write_all(fd, pieces[i].iov_base, pieces[i].iov_len);
    return done && fsync(fd) == 0;
}

static bool is_at(int fd, const char *path)
{
    struct stat open, there;
    return fstat(fd, &open) == 0 && lstat(path, &there) == 0 && open.st_dev == there.st_dev &&
           open.st_ino == there.st_ino;
}

// Without locks in the file system, the file is whole unless two processes write at the same
// moment.
static bool has_no_locks(void)
{
    return errno == ENOLCK || errno == EOPNOTSUPP || errno == ENOSYS;
}

// Whether the file belongs to us; its mode becomes 0600. Else errno is EEXIST.
static bool is_own(int fd)
{
    struct stat there;
    if (fstat(fd, &there) == 0 && S_ISREG(there.st_mode) && there.st_uid == geteuid() &&
        fchmod(fd, 0600) == 0)
        return true;
    errno = EEXIST;
    return false;
}

enum { BESIDE_MS = 1000 }; // enough for another process to write its file

// Opens and locks "PATH.new". All processes use this one name, so the next one takes over what a
// killed one left. The file may be renamed while we wait for the lock; then we open it again. -1
// with errno.
static int open_beside(const char *beside)
{
    for (;;) {
        int fd = open(beside, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600);
        bool locked = fd >= 0 && (lock_within(fd, BESIDE_MS) || has_no_locks()) && is_own(fd);
        int why = errno;
        if (fd < 0 || (locked && is_at(fd, beside)))
            return fd;
        close(fd);
        errno = why;
        if (!locked)
            return -1;
    }
}

static char *name_beside(const char *path)
{
    size_t size = strlen(path) + sizeof ".new";
    char *beside = malloc(size);
    if (beside)
        snprintf(beside, size, "%s.new", path);
    return beside;
}

void file_sweep(const char *path)
{
    char *beside = name_beside(path);
    int fd = beside ? open(beside, O_WRONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK) : -1;
    if (fd >= 0 && lock_within(fd, 0) && is_at(fd, beside))
        unlink(beside);
    if (fd >= 0)
        close(fd);
    free(beside);
}

enum status file_replace(const char *path, const struct iovec *pieces, int num_pieces,
                         struct error *error)
{
    struct stat there;
    if (lstat(path, &there) == 0 && !S_ISREG(there.st_mode) && !S_ISLNK(there.st_mode))
        return error_set(error, STATUS_LIMIT, "it is no file");
    char *beside = name_beside(path);
    if (!beside)
        return error_set(error, STATUS_NO_MEMORY, "no memory");
    make_folder(path);
    int fd = open_beside(beside);
    bool done = fd >= 0 && write_pieces(fd, pieces, num_pieces) && rename(beside, path) == 0;
    enum status status = done ? STATUS_OK : failed(error);
    if (!done && fd >= 0)
        unlink(beside);
    if (fd >= 0)
        close(fd); // also unlocks
    free(beside);
    return status;
}
