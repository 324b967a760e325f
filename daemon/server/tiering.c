// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// tiering.c - see tiering.h.

#include "tiering.h"

#include "base/clock.h"
#include "log.h"
#include "tier/host.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    HUGE_PAGE = 2 << 20,
    KEY_LEAST = 16, // bytes
    KEY_MOST = 4096,
    ABANDON_TIMES = 8, // a job is abandoned after so many times its deadline
};

// ---- the key ----

static enum status read_key(struct tiering *tiering, const char *path, struct error *error)
{
    tiering->key = malloc(KEY_MOST + 1);
    const int fd = tiering->key ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    const ssize_t size = fd >= 0 ? read(fd, tiering->key, KEY_MOST + 1) : -1;
    const int why = errno;
    if (fd >= 0)
        close(fd);
    if (size < 0)
        return error_set(error, STATUS_NOT_FOUND, "--tier-key %s: %s", path, strerror(why));
    if (size < KEY_LEAST || size > KEY_MOST)
        return error_set(error, STATUS_INVALID, "--tier-key %s has %zd bytes; a key has %d to %d",
                         path, size, KEY_LEAST, KEY_MOST);
    tiering->core.key = tiering->key;
    tiering->core.key_size = (uint32_t)size;
    return STATUS_OK;
}

// ---- the memory ----

static enum status map(struct tiering *tiering, uint64_t size, struct error *error)
{
    tiering->size = (size + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    void *base =
        mmap(NULL, tiering->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (base == MAP_FAILED)
        return error_set(error, STATUS_NO_MEMORY, "--host-tier: %" PRIu64 " bytes: %s",
                         tiering->size, strerror(errno));
    madvise(base, tiering->size, MADV_HUGEPAGE); // fewer pages to lock; works without, too
    tiering->core.base = base;
    return STATUS_OK;
}

static enum status import(struct tiering *tiering, struct engine *engine, struct error *error)
{
    enum status status =
        engine_arena_create(engine, tiering->core.base, tiering->size, &tiering->core.arena, error);
    if (status != STATUS_OK || engine_arena_imported(tiering->core.arena))
        return status;
    return error_set(error, STATUS_UNSUPPORTED,
                     "--host-tier %" PRIu64 ": device %s cannot use %" PRIu64
                     " bytes of host memory in place",
                     tiering->size, engine_device(engine)->name, tiering->size);
}

static enum status open_host(struct tiering *tiering, struct error *error)
{
    enum status status = host_open(tiering->core.base, tiering->size, &tiering->core.area, error);
    return status == STATUS_OK
               ? tier_create(&host_ops, tiering->core.area, &tiering->core.host, error)
               : status;
}

enum status tiering_open(struct tiering *tiering, struct engine *engine,
                         const struct server_params *params, struct error *error)
{
    if (!params->host_tier)
        return STATUS_OK;
    tiering->core.deadline_ns = params->tier_deadline_ms * NS_PER_MS;
    tiering->core.abandon_ns = ABANDON_TIMES * tiering->core.deadline_ns;
    tiering->core.max_errands = params->max_tier_jobs;
    enum status status = params->tier_key ? read_key(tiering, params->tier_key, error) : STATUS_OK;
    if (status == STATUS_OK)
        status = map(tiering, params->host_tier, error);
    if (status == STATUS_OK)
        status = import(tiering, engine, error);
    if (status == STATUS_OK)
        status = open_host(tiering, error);
    if (status == STATUS_OK)
        log_info("host tier of %" PRIu64 " bytes", tiering->size);
    return status;
}

bool tiering_close(struct tiering *tiering, int64_t deadline_ns)
{
    for (uint32_t i = 0; i < tiering->core.num_more; i++) {
        if (!tier_close(tiering->core.more[i], deadline_ns))
            return false;
    }
    if (!tier_close(tiering->core.host, deadline_ns) || !engine_arena_destroy(tiering->core.arena))
        return false;
    if (tiering->core.base)
        munmap(tiering->core.base, tiering->size);
    free(tiering->key);
    *tiering = (struct tiering){.size = 0};
    return true;
}
