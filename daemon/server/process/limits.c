// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// limits.c - see limits.h.

#include "limits.h"

#include "server/exports.h"
#include "server/log.h"

#include <inttypes.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

enum {
    OWN_DESCRIPTORS = 160, // of the daemon, of drivers and tiers, of the control socket's clients
    OF_A_SESSION = 2,      // besides its connection: a pidfd; its segment until it is mapped
};
// lavapipe takes 0.9 GB when it starts, and compiles in what is left. With less than 1.2 GB it ends
// the process at the first shader.
static const uint64_t least_address_space = UINT64_C(2) << 30, compile_room = UINT64_C(1) << 30;

static uint64_t limit_of(__rlimit_resource_t resource)
{
    struct rlimit limit;
    if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        return UINT64_MAX;
    return limit.rlim_cur;
}

uint64_t limits_file_size(void)
{
    return limit_of(RLIMIT_FSIZE);
}

// ---- descriptors ----

enum status limits_no_descriptor(struct error *error)
{
    return error_set(
        error, STATUS_LIMIT,
        "the daemon has no descriptor for another connection (RLIMIT_NOFILE of its process)");
}

static void raise_descriptors(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

static uint64_t needed(const struct server_params *params)
{
    return (uint64_t)params->max_connections + exports_most(params->max_connections) +
           (uint64_t)OF_A_SESSION * params->core.max_sessions;
}

static void lower(uint32_t *value, double share)
{
    *value = *value * share < 1 ? 1 : (uint32_t)(*value * share);
}

static enum status fit_descriptors(struct server_params *params, struct error *error)
{
    const uint64_t limit = limit_of(RLIMIT_NOFILE), needs = needed(params);
    if (limit >= OWN_DESCRIPTORS + needs)
        return STATUS_OK;
    if (limit < OWN_DESCRIPTORS + OF_A_SESSION + 2)
        return error_set(error, STATUS_NO_MEMORY,
                         "RLIMIT_NOFILE allows %" PRIu64
                         " descriptors (ulimit -n, LimitNOFILE=); the daemon needs %d of its own "
                         "and %d for a session",
                         limit, OWN_DESCRIPTORS, OF_A_SESSION + 2);
    const struct server_params asked = *params;
    const double share = (double)(limit - OWN_DESCRIPTORS) / (double)needs;
    lower(&params->core.max_sessions, share);
    lower(&params->max_connections, share);
    log_warn("daemon: RLIMIT_NOFILE allows %" PRIu64 " descriptors (ulimit -n, LimitNOFILE=), but "
             "--max-sessions %u and --max-connections %u may need %" PRIu64
             "; they are %u and %u now",
             limit, asked.core.max_sessions, asked.max_connections, OWN_DESCRIPTORS + needs,
             params->core.max_sessions, params->max_connections);
    return STATUS_OK;
}

// ---- address space ----

// Pages of the whole address space and of its data segment, which are bytes for the two limits.
static void read_usage(uint64_t *all, uint64_t *data)
{
    unsigned long pages[6] = {0};
    const uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    FILE *file = fopen("/proc/self/statm", "re");
    if (file && fscanf(file, "%lu %lu %lu %lu %lu %lu", &pages[0], &pages[1], &pages[2], &pages[3],
                       &pages[4], &pages[5]) < 6)
        pages[0] = pages[5] = 0;
    if (file)
        fclose(file);
    *all = pages[0] * page;
    *data = pages[5] * page;
}

static uint64_t room(uint64_t limit, uint64_t used)
{
    if (limit == UINT64_MAX)
        return limit;
    return limit > used + compile_room ? limit - used - compile_room : 0;
}

uint64_t limits_address_room(void)
{
    const uint64_t all = limit_of(RLIMIT_AS), data = limit_of(RLIMIT_DATA);
    uint64_t all_used, data_used;
    if (all == UINT64_MAX && data == UINT64_MAX)
        return UINT64_MAX;
    read_usage(&all_used, &data_used);
    const uint64_t a = room(all, all_used), d = room(data, data_used);
    return a < d ? a : d;
}

static enum status check_address_space(struct error *error)
{
    static const struct {
        __rlimit_resource_t resource;
        const char *name, *ulimit;
    } limits[] = {{RLIMIT_AS, "RLIMIT_AS", "-v"}, {RLIMIT_DATA, "RLIMIT_DATA", "-d"}};
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        const uint64_t limit = limit_of(limits[i].resource);
        if (limit < least_address_space)
            return error_set(
                error, STATUS_NO_MEMORY,
                "%s allows %" PRIu64 " MiB of memory (ulimit %s); a GPU's driver needs "
                "at least %" PRIu64 " MiB, and ends the process where it gets none; a "
                "limit that only counts what is used is MemoryMax= of systemd",
                limits[i].name, limit >> 20, limits[i].ulimit, least_address_space >> 20);
        if (limit != UINT64_MAX)
            log_warn("daemon: %s allows %" PRIu64 " MiB of memory (ulimit %s); arenas and the pool "
                     "get no more than it leaves",
                     limits[i].name, limit >> 20, limits[i].ulimit);
    }
    return STATUS_OK;
}

// ---- threads ----

static void *wait_for_end(void *end)
{
    while (sem_wait(end) != 0) // a signal
        ;
    return NULL;
}

// How many of `count` threads can be started at a time; *why: an errno.
static uint32_t try_threads(pthread_t *threads, uint32_t count, int *why)
{
    sem_t end;
    uint32_t started = 0;
    *why = 0;
    sem_init(&end, 0, 0);
    while (started < count &&
           (*why = pthread_create(&threads[started], NULL, wait_for_end, &end)) == 0)
        started++;
    for (uint32_t i = 0; i < started; i++)
        sem_post(&end);
    for (uint32_t i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    sem_destroy(&end);
    return started;
}

// A driver, and nng, may end the process where they get no thread.
static enum status check_threads(struct error *error)
{
    enum { OWN = 32, OF_A_CORE = 3, MOST_CORES = 16 };
    pthread_t threads[OWN + OF_A_CORE * MOST_CORES];
    const long cores = sysconf(_SC_NPROCESSORS_ONLN);
    const uint32_t count = OWN + OF_A_CORE * (cores < 1            ? 1
                                              : cores < MOST_CORES ? (uint32_t)cores
                                                                   : MOST_CORES);
    int why;
    const uint32_t started = try_threads(threads, count, &why);
    if (started == count)
        return STATUS_OK;
    return error_set(error, STATUS_NO_MEMORY,
                     "only %u of the %u threads that the daemon and a driver may need can be "
                     "started: %s (RLIMIT_NPROC, ulimit -u; TasksMax= of systemd)",
                     started, count, strerror(why));
}

enum status limits_fit(struct server_params *params, struct error *error)
{
    raise_descriptors();
    enum status status = check_address_space(error);
    if (status == STATUS_OK)
        status = check_threads(error);
    return status == STATUS_OK ? fit_descriptors(params, error) : status;
}
