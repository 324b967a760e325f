// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// savefile.c - see savefile.h.

#include "savefile.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "records are stored as they lie here");

enum { TOKENS_MOST = 256, EXTRA_KEY_MOST = 256, NAMES_MOST = 100 };

// The file's first record.
struct head {
    char magic[8]; // "AULESAVE"
    uint32_t version, head_bytes;
    uint64_t expected;
    struct savefile_identity identity;
    uint64_t checksum; // of all before
};

// Before each block: then come its token ids, its extra key and its bytes. The last record, "END ",
// has nothing behind it, and as `number` the count of blocks.
struct record {
    char magic[4]; // "BLCK"
    uint32_t num_tokens, extra_key_size, reserved;
    uint64_t number, parent;
    uint64_t key_checksum, bytes_checksum;
    uint64_t checksum; // of all before
};

static bool refuse(struct savefile *file, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

static bool refuse(struct savefile *file, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(file->error, sizeof file->error, format, arguments);
    va_end(arguments);
    return false;
}

// All bytes of `record` before its checksum.
#define CHECKSUM(record) XXH3_64bits(&(record), offsetof(__typeof__(record), checksum))

static uint64_t key_checksum(const struct aule_block_tokens *key)
{
    return XXH3_64bits_withSeed(key->tokens, key->num_tokens * sizeof *key->tokens,
                                XXH3_64bits(key->extra_key, key->extra_key_size));
}

// ---- writing ----

static bool put(struct savefile *file, const void *bytes, uint64_t size)
{
    const uint8_t *from = bytes;
    while (size) {
        const ssize_t done = write(file->fd, from, size);
        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0)
            return refuse(file, "%s cannot be written: %s", file->path, strerror(errno));
        from += done;
        size -= (uint64_t)done;
        file->offset += (uint64_t)done;
    }
    return true;
}

// Only a regular file is replaced, and through a symlink its target: a device, a socket or a FIFO
// would be lost, and would not get the data either.
static bool find_target(struct savefile *file)
{
    struct stat there;
    if (stat(file->path, &there) != 0) {
        if (errno != ENOENT)
            return refuse(file, "%s: %s", file->path, strerror(errno));
        if (lstat(file->path, &there) == 0)
            return refuse(file, "%s is a symlink to a file that does not exist", file->path);
        file->target = strdup(file->path);
    } else if (!S_ISREG(there.st_mode)) {
        return refuse(file, "%s is no regular file, so it is not replaced", file->path);
    } else {
        file->target = realpath(file->path, NULL);
    }
    return file->target || refuse(file, "%s: %s", file->path, strerror(errno));
}

// The signals that usually end a program remove the unfinished file first.
static const int ends[] = {SIGHUP, SIGINT, SIGPIPE, SIGQUIT, SIGTERM};
enum { NUM_ENDS = sizeof ends / sizeof *ends };
static const char *volatile removed_at_end; // of the file that is being written; NULL = none

static void on_end(int number)
{
    if (removed_at_end)
        unlink(removed_at_end);
    raise(number); // SA_RESETHAND: as without this handler
}

// Between these two none of the signals comes, so that a name and `removed_at_end` agree.
static sigset_t hold_ends(void)
{
    sigset_t held, before;
    sigemptyset(&held);
    for (int i = 0; i < NUM_ENDS; i++)
        sigaddset(&held, ends[i]);
    sigprocmask(SIG_BLOCK, &held, &before);
    return before;
}

static void release_ends(sigset_t before)
{
    sigprocmask(SIG_SETMASK, &before, NULL);
}

// `name`: of a file that this process has made; NULL: none.
static void watch_ends(const char *name)
{
    const struct sigaction remove = {.sa_handler = on_end, .sa_flags = (int)SA_RESETHAND};
    const struct sigaction usual = {.sa_handler = SIG_DFL};
    struct sigaction now;
    removed_at_end = name;
    for (int i = 0; i < NUM_ENDS; i++) {
        sigaction(ends[i], NULL, &now);
        if (now.sa_handler != SIG_IGN)
            sigaction(ends[i], name ? &remove : &usual, NULL);
    }
}

// A file without a name, where the file system has such files: then even SIGKILL leaves nothing.
static int open_nameless(const struct savefile *file)
{
    const char *slash = strrchr(file->target, '/');
    char *folder = slash ? strndup(file->target, (size_t)(slash - file->target) + 1) : strdup(".");
    const int fd = folder ? open(folder, O_WRONLY | O_TMPFILE | O_CLOEXEC, 0600) : -1;
    free(folder);
    return fd;
}

// Gives the open file the name, or makes one with it. False with errno.
static bool make_name(struct savefile *file, const char *name)
{
    char open_file[64];
    if (file->fd < 0) {
        file->fd = open(name, O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
        return file->fd >= 0;
    }
    snprintf(open_file, sizeof open_file, "/proc/self/fd/%d", file->fd);
    return linkat(AT_FDCWD, open_file, AT_FDCWD, name, AT_SYMLINK_FOLLOW) == 0;
}

// A file that has the name may be another process's, of another pid namespace, so it stays.
static bool name_it(struct savefile *file)
{
    const sigset_t before = hold_ends();
    char *name = NULL;
    errno = EEXIST;
    for (int i = 0; i < NAMES_MOST && !file->unfinished && errno == EEXIST; i++) {
        free(name);
        if (asprintf(&name, "%s.part-%d-%d", file->target, (int)getpid(), i) < 0) {
            name = NULL;
            break;
        }
        if (make_name(file, name))
            file->unfinished = name;
    }
    if (file->unfinished)
        watch_ends(file->unfinished);
    else
        refuse(file, "%s cannot be made: %s", name ? name : file->path, strerror(errno));
    release_ends(before);
    if (!file->unfinished)
        free(name);
    return file->unfinished;
}

static bool open_unfinished(struct savefile *file)
{
    file->fd = open_nameless(file);
    return file->fd >= 0 || name_it(file);
}

bool savefile_create(struct savefile *file, const char *path,
                     const struct savefile_identity *identity, uint64_t expected)
{
    struct head head = {.version = SAVEFILE_VERSION,
                        .head_bytes = sizeof head,
                        .expected = expected,
                        .identity = *identity};
    *file = (struct savefile){.fd = -1, .path = path, .identity = *identity, .expected = expected};
    if (!find_target(file) || !open_unfinished(file))
        return false;
    memcpy(head.magic, "AULESAVE", sizeof head.magic);
    head.checksum = CHECKSUM(head);
    return put(file, &head, sizeof head);
}

bool savefile_write(struct savefile *file, const struct savefile_block *block, const void *bytes)
{
    const struct aule_block_tokens *key = &block->key;
    struct record record = {.num_tokens = key->num_tokens,
                            .extra_key_size = key->extra_key_size,
                            .number = file->count,
                            .parent = block->parent,
                            .key_checksum = key_checksum(key),
                            .bytes_checksum = XXH3_64bits(bytes, file->identity.block_bytes)};
    memcpy(record.magic, "BLCK", sizeof record.magic);
    record.checksum = CHECKSUM(record);
    file->count++;
    return put(file, &record, sizeof record) &&
           put(file, key->tokens, key->num_tokens * sizeof *key->tokens) &&
           put(file, key->extra_key, key->extra_key_size) &&
           put(file, bytes, file->identity.block_bytes);
}

// From then on the old name may be another process's.
static bool rename_it(struct savefile *file)
{
    const sigset_t before = hold_ends();
    const bool renamed = rename(file->unfinished, file->target) == 0;
    const int reason = errno;
    if (renamed) {
        watch_ends(NULL);
        free(file->unfinished);
        file->unfinished = NULL;
    }
    release_ends(before);
    return renamed || refuse(file, "%s cannot be completed: %s", file->path, strerror(reason));
}

bool savefile_finish(struct savefile *file)
{
    struct record record = {.number = file->count};
    memcpy(record.magic, "END ", sizeof record.magic);
    record.checksum = CHECKSUM(record);
    if (!put(file, &record, sizeof record))
        return false;
    if (fsync(file->fd))
        return refuse(file, "%s cannot be completed: %s", file->path, strerror(errno));
    if ((!file->unfinished && !name_it(file)) || !rename_it(file))
        return false;
    savefile_close(file); // there is nothing left to remove
    return true;
}

void savefile_close(struct savefile *file)
{
    if (file->unfinished) {
        const sigset_t before = hold_ends();
        unlink(file->unfinished);
        watch_ends(NULL);
        release_ends(before);
        free(file->unfinished);
        file->unfinished = NULL;
    }
    free(file->target);
    file->target = NULL;
    if (file->path && file->fd >= 0)
        close(file->fd);
    file->fd = -1;
}

// ---- reading ----

// False: the file ends before, or cannot be read.
static bool get(struct savefile *file, uint64_t offset, void *bytes, uint64_t size)
{
    uint8_t *to = bytes;
    for (uint64_t done = 0; done < size;) {
        const ssize_t more = pread(file->fd, to + done, size - done, (off_t)(offset + done));
        if (more < 0 && errno == EINTR)
            continue;
        if (more < 0)
            return refuse(file, "%s cannot be read at byte %" PRIu64 ": %s", file->path,
                          offset + done, strerror(errno));
        if (more == 0)
            return refuse(
                file, "%s was cut: it ends at byte %" PRIu64 ", in block %" PRIu64 " of %" PRIu64,
                file->path, offset + done, file->count, file->expected);
        done += (uint64_t)more;
    }
    return true;
}

static bool is_sane(const struct savefile_identity *identity)
{
    return identity->block_size >= 1 && identity->block_size <= TOKENS_MOST &&
           identity->fingerprint_size <= sizeof identity->fingerprint &&
           memchr(identity->name, 0, sizeof identity->name) && identity->block_bytes &&
           identity->block_bytes <= INT64_MAX / 2;
}

bool savefile_open(struct savefile *file, const char *path)
{
    struct head head;
    struct stat stat;
    *file = (struct savefile){.path = path};
    file->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (file->fd < 0 || fstat(file->fd, &stat))
        return refuse(file, "%s: %s", path, strerror(errno));
    if (!S_ISREG(stat.st_mode))
        return refuse(file, "%s is no regular file", path);
    if ((uint64_t)stat.st_size < sizeof head || !get(file, 0, &head, sizeof head) ||
        memcmp(head.magic, "AULESAVE", sizeof head.magic) != 0)
        return refuse(file, "%s was not written by aule-ctl save", path);
    if (head.version != SAVEFILE_VERSION || head.head_bytes != sizeof head)
        return refuse(file, "%s has version %" PRIu32 "; this aule-ctl reads version %d", path,
                      head.version, SAVEFILE_VERSION);
    if (head.checksum != CHECKSUM(head) || !is_sane(&head.identity))
        return refuse(file, "%s is damaged in its first %zu bytes; nothing can be loaded", path,
                      sizeof head);
    file->identity = head.identity;
    file->expected = head.expected;
    file->offset = sizeof head;
    return true;
}

static enum savefile_next damaged(struct savefile *file)
{
    refuse(file, "%s is damaged at byte %" PRIu64 ", in block %" PRIu64 " of %" PRIu64, file->path,
           file->offset, file->count, file->expected);
    return SAVEFILE_DAMAGED;
}

static bool is_end(const struct savefile *file, const struct record *record)
{
    return !memcmp(record->magic, "END ", sizeof record->magic) && record->number == file->count;
}

static bool is_block(const struct savefile *file, const struct record *record)
{
    return !memcmp(record->magic, "BLCK", sizeof record->magic) && record->number == file->count &&
           record->num_tokens == file->identity.block_size &&
           record->extra_key_size <= EXTRA_KEY_MOST &&
           (record->parent == SAVEFILE_NO_PARENT || record->parent < file->count);
}

static enum savefile_next at_end(struct savefile *file, uint64_t end)
{
    struct stat stat;
    if (fstat(file->fd, &stat) == 0 && (uint64_t)stat.st_size == end)
        return SAVEFILE_END;
    refuse(file, "%s goes on behind its end, at byte %" PRIu64 "; two files in one?", file->path,
           end);
    return SAVEFILE_DAMAGED;
}

enum savefile_next savefile_next(struct savefile *file, struct savefile_block *block)
{
    struct record record;
    uint64_t at = file->offset;
    if (!get(file, at, &record, sizeof record))
        return SAVEFILE_DAMAGED;
    if (record.checksum != CHECKSUM(record))
        return damaged(file);
    if (is_end(file, &record))
        return at_end(file, at + sizeof record);
    if (!is_block(file, &record))
        return damaged(file);
    *block = (struct savefile_block){
        .parent = record.parent,
        .key = {.num_tokens = record.num_tokens, .extra_key_size = record.extra_key_size},
        .checksum = record.bytes_checksum,
    };
    at += sizeof record;
    const uint64_t tokens_bytes = record.num_tokens * sizeof *block->key.tokens;
    if (!get(file, at, block->key.tokens, tokens_bytes) ||
        !get(file, at + tokens_bytes, block->key.extra_key, record.extra_key_size))
        return SAVEFILE_DAMAGED;
    if (key_checksum(&block->key) != record.key_checksum)
        return damaged(file);
    block->offset = at + tokens_bytes + record.extra_key_size;
    file->offset = block->offset + file->identity.block_bytes;
    file->count++;
    return SAVEFILE_BLOCK;
}

bool savefile_read(struct savefile *file, const struct savefile_block *block, void *bytes)
{
    if (!get(file, block->offset, bytes, file->identity.block_bytes))
        return false;
    if (XXH3_64bits(bytes, file->identity.block_bytes) == block->checksum)
        return true;
    return refuse(file,
                  "%s is damaged: the bytes of a block, from byte %" PRIu64
                  " on, have another checksum",
                  file->path, block->offset);
}
