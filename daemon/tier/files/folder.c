// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// folder.c - see folder.h. An unfinished file is locked by its writer as long as the writer lives.
// Nothing waits until a file is on the disk: what a power failure cuts has a wrong length or
// checksum, and is a miss.

#include "folder.h"

#include "base/clock.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static const char ending[] = ".aule1", unfinished[] = ".aule-part-";
_Static_assert(STORED_VERSION == 1, "the names of files end with the version");

// ---- the folder ----

static enum status check_owner(const char *path, int fd, struct error *error)
{
    struct stat stat;
    if (fstat(fd, &stat))
        return error_set(error, STATUS_INVALID, "files://%s: %s", path, strerror(errno));
    if (stat.st_uid != geteuid())
        return error_set(error, STATUS_INVALID, "files://%s belongs to uid %u, not to uid %u", path,
                         (unsigned)stat.st_uid, (unsigned)geteuid());
    if (stat.st_mode & 077)
        return error_set(error, STATUS_INVALID,
                         "files://%s has mode %04o; others could use it. Set mode 0700", path,
                         (unsigned)stat.st_mode & 07777);
    return STATUS_OK;
}

enum status folder_check_path(const char *path, struct error *error)
{
    if (path[0] == '/')
        return STATUS_OK;
    return error_set(error, STATUS_INVALID,
                     "files://%s: the path must begin with /, as in files:///folder", path);
}

enum status folder_open(struct folder *folder, const char *path, struct error *error)
{
    *folder = (struct folder){.fd = -1, .path = path};
    enum status status = folder_check_path(path, error);
    if (status != STATUS_OK)
        return status;
    if (mkdir(path, 0700) && errno != EEXIST)
        return error_set(error, STATUS_INVALID, "files://%s: %s", path, strerror(errno));
    folder->fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (folder->fd < 0)
        return error_set(error, STATUS_INVALID, "files://%s: %s", path, strerror(errno));
    status = check_owner(path, folder->fd, error);
    if (status != STATUS_OK)
        folder_close(folder);
    return status;
}

void folder_close(struct folder *folder)
{
    if (folder->fd >= 0)
        close(folder->fd);
    folder->fd = -1;
}

enum status folder_follow(struct folder *folder, bool *follows, struct error *error)
{
    struct stat own, there;
    *follows = false;
    if (fstat(folder->fd, &own) || stat(folder->path, &there) ||
        (own.st_dev == there.st_dev && own.st_ino == there.st_ino))
        return STATUS_OK;
    struct folder next;
    enum status status = folder_open(&next, folder->path, error);
    if (status != STATUS_OK)
        return status;
    *follows = dup3(next.fd, folder->fd, O_CLOEXEC) >= 0;
    if (!*follows)
        status = error_set(error, STATUS_INVALID, "files://%s: %s", folder->path, strerror(errno));
    folder_close(&next);
    return status;
}

// ---- names: "<fingerprint>-<salt>-<chain>.aule1", ids in hex ----

static char *put_id(char *to, const uint8_t id[STORED_ID_BYTES], char behind)
{
    for (int i = 0; i < STORED_ID_BYTES; i++)
        to += sprintf(to, "%02x", id[i]);
    *to++ = behind;
    return to;
}

static void name_of(const struct shelf_key *key, char name[FOLDER_NAME_ROOM])
{
    char *to = put_id(name, key->fingerprint, '-');
    to = put_id(to, key->salt, '-');
    to = put_id(to, key->chain, 0);
    memcpy(to - 1, ending, sizeof ending);
}

// -1: it is no digit that put_id() writes.
static int digit_of(char c)
{
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

// Returns what stands behind the id and `behind`; NULL: it is none, also if `from` is NULL.
static const char *take_id(const char *from, uint8_t id[STORED_ID_BYTES], char behind)
{
    for (int i = 0; from && i < STORED_ID_BYTES; i++, from += 2) {
        const int high = digit_of(from[0]), low = high < 0 ? -1 : digit_of(from[1]);
        if (low < 0)
            return NULL;
        id[i] = (uint8_t)(high << 4 | low);
    }
    return from && *from == behind ? from + 1 : NULL;
}

bool folder_parse(const char *name, struct shelf_key *key)
{
    const char *from = take_id(name, key->fingerprint, '-');
    from = take_id(from, key->salt, '-');
    from = take_id(from, key->chain, ending[0]);
    return from && !strcmp(from, ending + 1);
}

// ---- looking ----

bool folder_look(const struct folder *folder, const struct shelf_key *key, struct folder_file *file)
{
    char name[FOLDER_NAME_ROOM];
    struct stat stat;
    name_of(key, name);
    if (fstatat(folder->fd, name, &stat, AT_SYMLINK_NOFOLLOW) || !S_ISREG(stat.st_mode))
        return false;
    *file = (struct folder_file){*key, (uint64_t)stat.st_size,
                                 stat.st_mtim.tv_sec * NS_PER_S + stat.st_mtim.tv_nsec};
    return true;
}

// Removes it if its writer has died: then nobody has it locked.
static void remove_unfinished(const struct folder *folder, const char *name)
{
    const int fd = openat(folder->fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return;
    if (!flock(fd, LOCK_EX | LOCK_NB))
        unlinkat(folder->fd, name, 0);
    close(fd);
}

bool folder_scan(const struct folder *folder,
                 void (*visit)(void *context, const struct folder_file *file), void *context,
                 uint32_t *foreign)
{
    const int fd = openat(folder->fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = fd < 0 ? NULL : fdopendir(fd);
    const struct dirent *entry;
    struct folder_file file;
    *foreign = 0;
    if (!entries) {
        if (fd >= 0)
            close(fd);
        return false;
    }
    while ((entry = readdir(entries))) {
        struct shelf_key key;
        if (!strncmp(entry->d_name, unfinished, sizeof unfinished - 1))
            remove_unfinished(folder, entry->d_name);
        else if (folder_parse(entry->d_name, &key) && folder_look(folder, &key, &file))
            visit(context, &file);
        else
            *foreign += strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0;
    }
    closedir(entries);
    return true;
}

bool folder_remove(const struct folder *folder, const struct shelf_key *key)
{
    char name[FOLDER_NAME_ROOM];
    name_of(key, name);
    return unlinkat(folder->fd, name, 0) == 0 || errno == ENOENT;
}

void folder_touch(const struct folder *folder, const struct shelf_key *key)
{
    char name[FOLDER_NAME_ROOM];
    name_of(key, name);
    utimensat(folder->fd, name, NULL, AT_SYMLINK_NOFOLLOW);
}

// ---- moving bytes ----

uint64_t folder_file_bytes(uint64_t block_bytes)
{
    return block_bytes + stored_num_parts(block_bytes) * sizeof(struct stored_header);
}

static enum stored_reason reason_of(int why)
{
    switch (why) {
    case ENOENT: return STORED_ABSENT;
    case ENOSPC:
    case EDQUOT:
    case EFBIG: return STORED_FULL;
    case EACCES:
    case EPERM:
    case EROFS:
    case ELOOP: return STORED_DENIED;
    case ENOMEM:
    case EMFILE:
    case ENFILE: return STORED_MEMORY;
    default: return STORED_STORE;
    }
}

// Moves all bytes of the two pieces by `move`, which is readv or writev. Returns how many came
// before the file's end; -1: it failed, see errno.
static int64_t move_all(int fd, ssize_t (*move)(int, const struct iovec *, int),
                        struct iovec pieces[2])
{
    int64_t done = 0;
    while (pieces[0].iov_len + pieces[1].iov_len) {
        const ssize_t size = move(fd, pieces, 2);
        if (size < 0 && errno == EINTR)
            continue;
        if (size <= 0)
            return size ? -1 : done;
        done += size;
        size_t first = (size_t)size < pieces[0].iov_len ? (size_t)size : pieces[0].iov_len;
        for (int i = 0; i < 2; i++) {
            pieces[i].iov_base = (uint8_t *)pieces[i].iov_base + first;
            pieces[i].iov_len -= first;
            first = (size_t)size - first;
        }
    }
    return done;
}

static bool is_late(const struct tier_job *job)
{
    return clock_now_ns() >= job->deadline_ns;
}

// An errno of a file that is being written. ENOENT: the folder is gone.
static enum stored_reason reason_of_store(int *why)
{
    *why = errno;
    return errno == ENOENT ? STORED_STORE : reason_of(errno);
}

static enum stored_reason write_parts(int fd, const struct tier_job *job,
                                      const struct tier_block *block, int *why)
{
    const struct stored_space *space = &job->space;
    const uint32_t num_parts = stored_num_parts(space->block_bytes);
    for (uint32_t i = 0; i < num_parts; i++) {
        struct stored_header header;
        uint8_t *payload = block->data + stored_part_offset(i);
        if (is_late(job))
            return STORED_TIMEOUT;
        stored_header_fill(&header, space, &block->chain, i, payload);
        struct iovec pieces[2] = {{&header, sizeof header}, {payload, header.payload_bytes}};
        if (move_all(fd, writev, pieces) < 0)
            return reason_of_store(why);
    }
    return STORED_OK;
}

enum stored_reason folder_store(struct folder *folder, const struct tier_job *job,
                                const struct tier_block *block, int *why)
{
    const struct shelf_key key = shelf_key_of(&job->space, &block->chain);
    char part[sizeof unfinished + 32], name[FOLDER_NAME_ROOM];
    int fd;
    name_of(&key, name);
    do {
        snprintf(part, sizeof part, "%s%d-%u", unfinished, (int)getpid(),
                 atomic_fetch_add(&folder->last_part, 1));
        fd = openat(folder->fd, part, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    } while (fd < 0 && errno == EEXIST); // of a daemon with the same pid in another namespace
    if (fd < 0)
        return reason_of_store(why);
    enum stored_reason reason =
        flock(fd, LOCK_EX | LOCK_NB) ? reason_of_store(why) : write_parts(fd, job, block, why);
    if (reason == STORED_OK && renameat(folder->fd, part, folder->fd, name))
        reason = reason_of_store(why);
    if (reason != STORED_OK)
        unlinkat(folder->fd, part, 0);
    close(fd);
    return reason;
}

static enum stored_reason read_parts(int fd, struct tier_job *job, uint32_t index)
{
    const uint64_t block_bytes = job->space.block_bytes;
    enum stored_reason reason = STORED_OK;
    for (uint32_t i = 0; reason == STORED_OK && i < stored_num_parts(block_bytes); i++) {
        struct stored_header header;
        uint8_t *payload = job->blocks[index].data + stored_part_offset(i);
        struct iovec pieces[2] = {{&header, sizeof header},
                                  {payload, stored_part_bytes(block_bytes, i)}};
        if (is_late(job))
            return STORED_TIMEOUT;
        const int64_t size = move_all(fd, readv, pieces);
        if (size < 0)
            return reason_of(errno);
        if (size < (int64_t)sizeof header)
            return STORED_LENGTH;
        reason = tier_part_check(job, index, i, &header, (uint64_t)size - sizeof header);
    }
    return reason;
}

// Another length than the block's is told even if all parts are right. A file whose first header is
// of another kind ends with the header's reason.
static enum stored_reason check_file(int fd, const struct tier_job *job,
                                     const struct stored_chain *chain)
{
    struct stored_header header;
    struct stat stat;
    if (fstat(fd, &stat))
        return reason_of(errno);
    if (!S_ISREG(stat.st_mode) || stat.st_uid != geteuid())
        return STORED_DENIED;
    const ssize_t size = pread(fd, &header, sizeof header, 0);
    if (size < 0)
        return reason_of(errno);
    const enum stored_reason reason = (size_t)size < sizeof header
                                          ? STORED_LENGTH
                                          : stored_header_check(&header, &job->space, chain, 0);
    if (reason != STORED_OK)
        return reason;
    return (uint64_t)stat.st_size == folder_file_bytes(job->space.block_bytes) ? STORED_OK
                                                                               : STORED_LENGTH;
}

enum stored_reason folder_load(const struct folder *folder, struct tier_job *job, uint32_t index)
{
    const struct stored_chain *chain = &job->blocks[index].chain;
    const struct shelf_key key = shelf_key_of(&job->space, chain);
    char name[FOLDER_NAME_ROOM];
    name_of(&key, name);
    const int fd = openat(folder->fd, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return reason_of(errno);
    enum stored_reason reason = check_file(fd, job, chain);
    if (reason == STORED_OK)
        reason = read_parts(fd, job, index);
    if (reason == STORED_OK)
        futimens(fd, NULL);
    close(fd);
    return reason;
}
