// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// segment.c - see segment.h.

#include "segment.h"

#include "schema/ring.h"
#include "schema/wire.h"
#include "server/process/limits.h"
#include "sigbus.h"

#include <assert.h>
#include <dirent.h>
#include <endian.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/posix_acl.h>
#include <linux/posix_acl_xattr.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/xattr.h>
#include <unistd.h>

static_assert(sizeof(struct wire_segment_header) <= WIRE_PAGE, "the header fits its page");

static const char shm_folder[] = "/dev/shm";

// A name that ends so is of a segment that its daemon locks. Other files, such as those of tests,
// have no lock.
static const char locked_mark[] = "-locked";
enum { MOST_TRIES = 16 };

// The name has 64 random bits, so that no other process can make it first. -1 with errno.
static int open_random(const char *prefix, char name[SEGMENT_NAME_ROOM])
{
    uint64_t random;
    if (getrandom(&random, sizeof random, 0) != sizeof random)
        return -1;
    snprintf(name, SEGMENT_NAME_ROOM, "/%s%016" PRIx64 "%s", prefix, random, locked_mark);
    return shm_open(name, O_RDWR | O_CREAT | O_EXCL, 0600);
}

// False: a daemon that starts took the file for a dead one's, before it was locked.
static bool take_lock(int fd)
{
    struct stat info;
    return flock(fd, LOCK_EX | LOCK_NB) == 0 && fstat(fd, &info) == 0 && info.st_nlink > 0;
}

static enum status open_locked(const char *prefix, struct segment *segment, struct error *error)
{
    for (int tries = 0; tries < MOST_TRIES; tries++) {
        segment->lock = open_random(prefix, segment->name);
        if (segment->lock < 0) {
            int reason = errno;
            segment->name[0] = 0; // it may be another process's: do not unlink it
            return error_set(error,
                             reason == EMFILE || reason == ENFILE ? STATUS_LIMIT : STATUS_NO_MEMORY,
                             "shm_open: %s%s", strerror(reason),
                             reason == EMFILE ? " (RLIMIT_NOFILE of the daemon)" : "");
        }
        if (take_lock(segment->lock))
            return STATUS_OK;
        segment_unlink(segment);
    }
    return error_set(error, STATUS_NO_MEMORY, "a file in %s cannot be locked", shm_folder);
}

static enum status no_room(uint64_t size, int reason, struct error *error)
{
    struct statvfs info;
    if (reason == EFBIG && size > limits_file_size())
        return error_set(error, STATUS_NO_MEMORY,
                         "the segment needs %" PRIu64
                         " bytes; RLIMIT_FSIZE of the daemon is %" PRIu64
                         " (ulimit -f, LimitFSIZE=)",
                         size, limits_file_size());
    uint64_t room = statvfs(shm_folder, &info) == 0 ? (uint64_t)info.f_bavail * info.f_frsize : 0;
    return error_set(error, STATUS_NO_MEMORY,
                     "the segment needs %" PRIu64 " bytes, %s has %" PRIu64 " free: %s", size,
                     shm_folder, room, strerror(reason));
}

// Lets the user open the segment, too. Root changes the owner; another user adds an entry to the
// file's access control list, so that nobody else can open it.
static enum status give_access(int fd, uint32_t uid, struct error *error)
{
    static const struct {
        uint16_t tag, perm;
    } entries[] = {
        {ACL_USER_OBJ, 6}, {ACL_USER, 6}, {ACL_GROUP_OBJ, 0}, {ACL_MASK, 6}, {ACL_OTHER, 0}};
    enum { NUM_ENTRIES = sizeof entries / sizeof *entries };
    struct {
        struct posix_acl_xattr_header header;
        struct posix_acl_xattr_entry entries[NUM_ENTRIES];
    } list = {.header.a_version = htole32(POSIX_ACL_XATTR_VERSION)};
    if (uid == geteuid() || uid == 0)
        return STATUS_OK;
    if (fchown(fd, uid, (gid_t)-1) == 0)
        return STATUS_OK;
    for (size_t i = 0; i < NUM_ENTRIES; i++) {
        list.entries[i].e_tag = htole16(entries[i].tag);
        list.entries[i].e_perm = htole16(entries[i].perm);
        list.entries[i].e_id =
            htole32(entries[i].tag == ACL_USER ? uid : (uint32_t)ACL_UNDEFINED_ID);
    }
    if (fsetxattr(fd, "system.posix_acl_access", &list, sizeof list, 0) == 0)
        return STATUS_OK;
    return error_set(error, STATUS_DENIED,
                     "uid %" PRIu32
                     " cannot get access to the session's shared memory: %s; run the "
                     "daemon as root, or use a kernel whose tmpfs has access control lists",
                     uid, strerror(errno));
}

// Allocates all pages now. After ftruncate() alone, a page that /dev/shm cannot provide would raise
// SIGBUS at its first use.
static enum status fill(int fd, uint64_t size, struct error *error)
{
    int reason;
    do
        reason = posix_fallocate(fd, 0, (off_t)size);
    while (reason == EINTR);
    return reason ? no_room(size, reason, error) : STATUS_OK;
}

// Reserves more address space than needed, so that the mapping can begin at the GPU's import
// alignment, then maps the segment over it.
static enum status map(int fd, uint64_t alignment, struct segment *segment, struct error *error)
{
    segment->reserved_size = segment->size + alignment;
    const uint64_t room = limits_address_room();
    if (segment->reserved_size > room)
        return error_set(
            error, STATUS_NO_MEMORY,
            "the segment needs %zu bytes; RLIMIT_AS or RLIMIT_DATA of the daemon leaves "
            "%" PRIu64 " (ulimit -v, -d)",
            segment->reserved_size, room);
    segment->reserved = mmap(NULL, segment->reserved_size, PROT_NONE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (segment->reserved == MAP_FAILED) {
        segment->reserved = NULL;
        return error_set(error, STATUS_NO_MEMORY, "cannot map %" PRIu64 " bytes: %s", segment->size,
                         strerror(errno));
    }
    void *place =
        (void *)(((uintptr_t)segment->reserved + alignment - 1) & ~(uintptr_t)(alignment - 1));
    segment->base =
        mmap(place, segment->size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
    if (segment->base == MAP_FAILED) {
        segment->base = NULL;
        return error_set(error, STATUS_NO_MEMORY, "cannot map %" PRIu64 " bytes: %s", segment->size,
                         strerror(errno));
    }
    segment->guard = sigbus_guard_add(segment->base, segment->size);
    if (segment->guard < 0)
        return error_set(
            error, STATUS_LIMIT,
            "too many segments of ended sessions wait for the GPU (see --max-sessions)");
    return STATUS_OK;
}

static void write_header(const struct segment_params *params, const struct segment *segment)
{
    *(struct wire_segment_header *)segment->base = (struct wire_segment_header){
        .magic = WIRE_SEGMENT_MAGIC,
        .version = WIRE_SEGMENT_VERSION,
        .header_bytes = sizeof(struct wire_segment_header),
        .epoch = params->epoch,
        .session = params->session,
        .segment_size = segment->size,
        .arena_offset = segment->arena_offset,
        .arena_size = segment->arena_size,
    };
}

static uint64_t round_up(uint64_t size, uint64_t alignment)
{
    return (size + alignment - 1) & ~(alignment - 1);
}

// Computes offsets and sizes: the header, the submission ring, the completion ring, the arena,
// the places.
static void lay_out(const struct segment_params *params, struct segment *segment)
{
    uint64_t end = WIRE_PAGE;
    static_assert(WIRE_SUBMISSION_SIZE >= WIRE_COMPLETION_SIZE, "either ring has room enough");
    if (params->ring_entries) {
        segment->ring_entries = params->ring_entries;
        segment->ring_size =
            round_up(ring_size(params->ring_entries, WIRE_SUBMISSION_SIZE), WIRE_PAGE);
        segment->submissions_offset = end;
        segment->completions_offset = end + segment->ring_size;
        end = segment->completions_offset + segment->ring_size;
    }
    segment->arena_offset =
        round_up(end, params->alignment > WIRE_PAGE ? params->alignment : WIRE_PAGE);
    segment->arena_size = params->arena_size;
    segment->places_size = params->places_size;
    segment->size = segment->arena_offset + segment->arena_size + segment->places_size;
}

uint64_t segment_size(const struct segment_params *params)
{
    struct segment segment = {.guard = -1};
    lay_out(params, &segment);
    return segment.size;
}

uint64_t segment_room(void)
{
    struct statvfs info;
    return statvfs(shm_folder, &info) == 0 ? (uint64_t)info.f_blocks * info.f_frsize : 0;
}

enum status segment_create(const struct segment_params *params, struct segment *out,
                           struct error *error)
{
    *out = (struct segment){.guard = -1, .lock = -1};
    lay_out(params, out);
    enum status status = open_locked(params->prefix, out, error);
    if (status == STATUS_OK)
        status = give_access(out->lock, params->uid, error);
    if (status == STATUS_OK)
        status = fill(out->lock, out->size, error);
    if (status == STATUS_OK)
        status = map(out->lock, params->alignment, out, error);
    if (status != STATUS_OK) {
        segment_destroy(out);
        return status;
    }
    write_header(params, out);
    return STATUS_OK;
}

void segment_unlink(struct segment *segment)
{
    if (!segment->name[0])
        return;
    shm_unlink(segment->name);
    segment->name[0] = 0;
    close(segment->lock);
    segment->lock = -1;
}

void segment_destroy(struct segment *segment)
{
    segment_unlink(segment);
    if (!segment->reserved)
        return;
    sigbus_guard_remove(segment->guard);
    munmap(segment->reserved, segment->reserved_size); // with the mapping inside
    *segment = (struct segment){.guard = -1, .lock = -1};
}

bool segment_is_dead(const struct segment *segment)
{
    return segment->base && sigbus_guard_is_dead(segment->guard);
}

static bool begins(const char *name, const char *prefix)
{
    return prefix[0] && strncmp(name, prefix, strlen(prefix)) == 0;
}

static bool is_marked(const char *name)
{
    const size_t length = strlen(name), mark = sizeof locked_mark - 1;
    return begins(name, WIRE_SEGMENT_PREFIX + 1) && length > mark &&
           strcmp(name + length - mark, locked_mark) == 0;
}

// Removes it while this process has the lock, so that no daemon takes it for its own.
static bool remove_unlocked(int folder, const char *name)
{
    const int fd = openat(folder, name, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
    const bool removed =
        fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0 && unlinkat(folder, name, 0) == 0;
    if (fd >= 0)
        close(fd);
    return removed;
}

unsigned segment_sweep_dead(void)
{
    unsigned swept = 0;
    DIR *entries = opendir(shm_folder);
    for (struct dirent *entry; entries && (entry = readdir(entries));) {
        const char *name = entry->d_name;
        if (is_marked(name))
            swept += remove_unlocked(dirfd(entries), name);
    }
    if (entries)
        closedir(entries);
    return swept;
}

void segment_sweep(const char *prefix)
{
    DIR *entries = opendir(shm_folder);
    for (struct dirent *entry; entries && (entry = readdir(entries));) {
        if (begins(entry->d_name, prefix))
            unlinkat(dirfd(entries), entry->d_name, 0);
    }
    if (entries)
        closedir(entries);
}
