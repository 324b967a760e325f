// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// segment.c - maps the one shared-memory segment of a session. The daemon makes and unlinks it;
// this side maps it while it has a name. Knows the layout of wire.h, but not what lies in the
// arena. Runs on the thread that opens the session.

#include "segment.h"

#include "client/src/error.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static enum aule_status check_layout(const struct wire_hello_reply *hello)
{
    if (strncmp(hello->segment_name, WIRE_SEGMENT_PREFIX, sizeof WIRE_SEGMENT_PREFIX - 1) != 0 ||
        strchr(hello->segment_name + 1, '/'))
        return fail(AULE_MISMATCH, "%s is not the name of an aule segment", hello->segment_name);
    if (hello->header_offset != 0 || hello->arena_offset % WIRE_PAGE != 0 ||
        hello->arena_offset < sizeof(struct wire_segment_header) ||
        hello->arena_offset > hello->segment_size ||
        hello->arena_size > hello->segment_size - hello->arena_offset ||
        hello->places_size > hello->segment_size - hello->arena_offset - hello->arena_size ||
        (hello->places_size && hello->arena_size % WIRE_PAGE != 0) ||
        hello->segment_size > SIZE_MAX)
        return fail(AULE_MISMATCH,
                    "segment %s: a header at %" PRIu64 " and an arena of %" PRIu64
                    " bytes at %" PRIu64 " with %" PRIu64 " bytes of places do not fit its %" PRIu64
                    " bytes",
                    hello->segment_name, hello->header_offset, hello->arena_size,
                    hello->arena_offset, hello->places_size, hello->segment_size);
    return AULE_OK;
}

static enum aule_status check_header(const struct wire_hello_reply *hello,
                                     const struct wire_segment_header *header)
{
    if (header->magic != WIRE_SEGMENT_MAGIC || header->version != WIRE_SEGMENT_VERSION)
        return fail(AULE_MISMATCH, "segment %s: magic 0x%x and version %u, not 0x%x and %u",
                    hello->segment_name, header->magic, header->version, WIRE_SEGMENT_MAGIC,
                    WIRE_SEGMENT_VERSION);
    if (header->epoch != hello->epoch || header->session != hello->session)
        return fail(AULE_MISMATCH,
                    "segment %s belongs to session %" PRIu64 " of epoch %" PRIu64 ", not %" PRIu64
                    " of %" PRIu64,
                    hello->segment_name, header->session, header->epoch, hello->session,
                    hello->epoch);
    if (header->segment_size != hello->segment_size ||
        header->arena_offset != hello->arena_offset || header->arena_size != hello->arena_size)
        return fail(AULE_MISMATCH,
                    "segment %s: its header says %" PRIu64 " bytes and an arena of %" PRIu64
                    " at %" PRIu64 ", the daemon %" PRIu64 ", %" PRIu64 " and %" PRIu64,
                    hello->segment_name, header->segment_size, header->arena_size,
                    header->arena_offset, hello->segment_size, hello->arena_size,
                    hello->arena_offset);
    return AULE_OK;
}

static enum aule_status map(const struct wire_hello_reply *hello, int fd, struct segment *segment)
{
    struct stat info;
    if (fstat(fd, &info) != 0)
        return fail(AULE_INTERNAL, "segment %s: %s", hello->segment_name, strerror(errno));
    if (info.st_size < 0 || (uint64_t)info.st_size != hello->segment_size)
        return fail(AULE_MISMATCH, "segment %s has %jd bytes, the daemon said %" PRIu64,
                    hello->segment_name, (intmax_t)info.st_size, hello->segment_size);
    void *base = mmap(NULL, (size_t)hello->segment_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (base == MAP_FAILED)
        return fail(AULE_NO_MEMORY, "segment %s: mapping %" PRIu64 " bytes: %s",
                    hello->segment_name, hello->segment_size, strerror(errno));
    *segment = (struct segment){.base = base,
                                .size = (size_t)hello->segment_size,
                                .arena = (char *)base + hello->arena_offset,
                                .arena_size = hello->arena_size,
                                .places_size = hello->places_size};
    return AULE_OK;
}

static enum aule_status open_error(const char *name, int error)
{
    switch (error) {
    case ENOENT:
        return fail(AULE_DAEMON_GONE, "segment %s is gone; the daemon may see another /dev/shm",
                    name);
    case EMFILE:
    case ENFILE: return fail_no_descriptor(name);
    case ENOMEM: return fail(AULE_NO_MEMORY, "no memory to open segment %s", name);
    case EACCES:
    case EPERM: return fail(AULE_DENIED, "segment %s: %s", name, strerror(error));
    default: return fail(AULE_INTERNAL, "segment %s: %s", name, strerror(error));
    }
}

enum aule_status segment_open(const struct wire_hello_reply *hello, struct segment *segment)
{
    *segment = (struct segment){.base = NULL};
    enum aule_status status = check_layout(hello);
    if (status != AULE_OK)
        return status;
    int fd = shm_open(hello->segment_name, O_RDWR | O_CLOEXEC, 0);
    if (fd < 0)
        return open_error(hello->segment_name, errno);
    status = map(hello, fd, segment);
    close(fd);
    if (status == AULE_OK)
        status = check_header(hello, segment->base);
    if (status != AULE_OK)
        segment_close(segment);
    return status;
}

void segment_close(struct segment *segment)
{
    if (segment->base)
        munmap(segment->base, segment->size);
    *segment = (struct segment){.base = NULL};
}
