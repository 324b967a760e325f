// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// tiering.c - see tiering.h.

#include "tiering.h"

#include "base/clock.h"
#include "log.h"
#include "tier/files/files.h"
#include "tier/host.h"
#include "tier/redis/redis.h"

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

// What --host-tier says; 0: there are no tiers.
static uint64_t memory_size(const struct server_params *params)
{
    const uint64_t automatic = params->tiers.count ? UINT64_C(256) << 20 : 0;
    return params->host_tier == SERVER_UNSET ? automatic : params->host_tier;
}

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
    struct error why;
    const enum status status = engine_arena_create_parts(engine, tiering->core.base, tiering->size,
                                                         0, &tiering->core.arena, &why);
    if (status == STATUS_OK)
        return status;
    return error_set(error, status, "--host-tier %" PRIu64 ": %s", tiering->size, why.text);
}

static enum status open_host(struct tiering *tiering, const struct server_params *params,
                             struct error *error)
{
    const struct host_params host = {
        .base = tiering->core.base,
        .size = tiering->size,
        .part_bytes = engine_arena_part_bytes(tiering->core.arena),
        .threads = params->tier_threads == SERVER_UNSET ? 0 : (uint32_t)params->tier_threads,
    };
    enum status status = host_open(&host, &tiering->core.area, error);
    return status == STATUS_OK
               ? tier_create(&host_ops, tiering->core.area, &tiering->core.host, error)
               : status;
}

// ---- further tiers ----

static void say(void *context, const char *sentence)
{
    (void)context;
    log_warn("tier %s", sentence);
}

// What the URL of a tier begins with, and what checks and opens it. Both get the whole URL; their
// errors must not show a password.
static const struct scheme {
    const char *prefix;
    const struct tier_ops *ops;
    enum status (*check)(const char *url, struct error *error);
    enum status (*open)(const char *url, const struct tier_opening *opening,
                        struct tier_backend **out, struct error *error);
} schemes[] = {
    {"redis://", &redis_ops, redis_check_url, redis_open},
    {"rediss://", &redis_ops, redis_check_url, redis_open},
    {"files://", &files_ops, files_check_url, files_open},
};
enum { NUM_SCHEMES = sizeof schemes / sizeof *schemes };

static const struct scheme *scheme_of(const char *url)
{
    for (size_t i = 0; i < NUM_SCHEMES; i++) {
        if (!strncmp(url, schemes[i].prefix, strlen(schemes[i].prefix)))
            return &schemes[i];
    }
    return NULL;
}

// The text may have a password, so it is not shown.
static enum status refuse_url(uint32_t index, struct error *error)
{
    char list[128] = "";
    for (size_t i = 0; i < NUM_SCHEMES; i++)
        snprintf(list + strlen(list), sizeof list - strlen(list), "%s%s", i ? ", " : "",
                 schemes[i].prefix);
    return error_set(error, STATUS_INVALID, "--tier %u does not begin with one of: %s", index + 1,
                     list);
}

static enum status open_further(struct tiering *tiering, const struct server_params *params,
                                uint32_t index, struct error *error)
{
    const char *url = params->tiers.texts[index];
    const struct scheme *scheme = scheme_of(url);
    const struct tier_opening opening = {.deadline_ms = params->tier_deadline_ms, .say = say};
    struct tier_backend *backend;
    struct tier *tier;
    struct error why;
    enum status status = scheme->open(url, &opening, &backend, &why);
    if (status == STATUS_OK)
        status = tier_create(scheme->ops, backend, &tier, &why);
    if (status != STATUS_OK)
        return error_set(error, status, "--tier %u: %s", index + 1, why.text);
    tiering->core.more[tiering->core.num_more++] = tier;
    return STATUS_OK;
}

static enum status open_all_further(struct tiering *tiering, const struct server_params *params,
                                    struct error *error)
{
    enum status status = STATUS_OK;
    for (uint32_t i = 0; status == STATUS_OK && i < params->tiers.count; i++)
        status = open_further(tiering, params, i, error);
    return status;
}

enum status tiering_check(const struct server_params *params, struct error *error)
{
    if (params->tiers.count && !memory_size(params))
        return error_set(error, STATUS_INVALID,
                         "--tier needs memory for its transfers, but --host-tier is 0");
    if (params->tiers.count > CORE_MAX_TIERS)
        return error_set(error, STATUS_INVALID, "--tier is given %u times; at most %d are possible",
                         params->tiers.count, CORE_MAX_TIERS);
    for (uint32_t i = 0; i < params->tiers.count; i++) {
        const struct scheme *scheme = scheme_of(params->tiers.texts[i]);
        struct error why;
        if (!scheme)
            return refuse_url(i, error);
        const enum status status = scheme->check(params->tiers.texts[i], &why);
        if (status != STATUS_OK)
            return error_set(error, status, "--tier %u: %s", i + 1, why.text);
    }
    return STATUS_OK;
}

// ---- all of it ----

enum status tiering_open(struct tiering *tiering, struct engine *engine,
                         const struct server_params *params, struct error *error)
{
    const uint64_t size = memory_size(params);
    if (!size)
        return STATUS_OK;
    tiering->core.deadline_ns = params->tier_deadline_ms * NS_PER_MS;
    tiering->core.abandon_ns = ABANDON_TIMES * tiering->core.deadline_ns;
    tiering->core.max_errands = params->max_tier_jobs;
    enum status status = params->tier_key ? read_key(tiering, params->tier_key, error) : STATUS_OK;
    if (status == STATUS_OK)
        status = map(tiering, size, error);
    if (status == STATUS_OK)
        status = import(tiering, engine, error);
    if (status == STATUS_OK)
        status = open_host(tiering, params, error);
    if (status == STATUS_OK)
        status = open_all_further(tiering, params, error);
    if (status == STATUS_OK)
        log_info("host tier of %" PRIu64 " bytes, %u further tiers", tiering->size,
                 tiering->core.num_more);
    return status;
}

bool tiering_close(struct tiering *tiering, int64_t deadline_ns)
{
    struct tier *all[CORE_MAX_TIERS + 1] = {tiering->core.host};
    memcpy(all + 1, tiering->core.more, tiering->core.num_more * sizeof *all);
    if (!tiers_close(all, tiering->core.num_more + 1, deadline_ns) ||
        !engine_arena_destroy(tiering->core.arena))
        return false;
    if (tiering->core.base)
        munmap(tiering->core.base, tiering->size);
    free(tiering->key);
    *tiering = (struct tiering){.size = 0};
    return true;
}
