// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// client.c - see client.h.

#include "client.h"

#include "caller.h"
#include "world.h"

#include <math.h>
#include <stdio.h>

enum { LEAST_STEPS = 3 };

struct client {
    const struct options *options;
    struct engine *engine; // --via engine
    struct world world;
    struct caller caller; // --via nng, ring
    struct lane lane;
};

static bool owns(const struct client *c)
{
    return c->options->via == VIA_ENGINE;
}

static bool open_world(struct client *c, const struct world_params *params,
                       const struct workload *workload)
{
    c->engine = world_engine(c->options);
    if (!c->engine || !world_open(&c->world, c->engine, workload, params))
        return false;
    c->lane = world_lane(&c->world);
    c->lane.most = 1; // as a client of a daemon submits it
    c->lane.in_flight = c->options->in_flight;
    return true;
}

static bool open_caller(struct client *c, const struct caller_params *params)
{
    if (!caller_open(&c->caller, params))
        return false;
    c->lane = caller_lane(&c->caller);
    return true;
}

static bool client_open(struct client *c, const struct workload *workload)
{
    const struct options *o = c->options;
    uint64_t all = workload_num_seqs(workload), pool_bytes = (uint64_t)(o->pool_gib * 0x1p30);
    uint32_t first = (uint32_t)(all * o->part / o->clients),
             end = (uint32_t)(all * (o->part + 1) / o->clients);
    enum dtype kv_dtype = o->kv_dtype ? o->kv_dtype : o->dtype;
    const struct world_params world = {
        .dtype = o->dtype,
        .kv_dtype = kv_dtype,
        .pool_bytes = pool_bytes / o->clients,
        .num_splits = o->splits,
        .first = first,
        .count = end - first,
        .host = true,
        .append = o->append,
    };
    const struct caller_params caller = {
        .socket = o->socket,
        .lane = via_name(o->via),
        .workload = workload,
        .dtype = o->dtype,
        .kv_dtype = kv_dtype,
        .first = first,
        .count = end - first,
        .splits = o->splits,
        .pool_bytes = pool_bytes,
        .in_flight = o->in_flight,
        .append = o->append,
    };
    return owns(c) ? open_world(c, &world, workload) : open_caller(c, &caller);
}

static void client_close(struct client *c)
{
    if (c->world.engine)
        world_close(&c->world);
    engine_destroy(c->engine);
    caller_close(&c->caller);
}

static bool keep(struct verdict *verdict, const struct verdict *now, bool right)
{
    verdict->num_rows = now->num_rows;
    verdict->worst = fmax(verdict->worst, now->worst);
    return right;
}

static bool check(struct client *c, uint32_t set, struct verdict *verdict)
{
    struct verdict now = {0};
    bool right = owns(c) ? world_check(&c->world, set, &now) : caller_check(&c->caller, set, &now);
    return keep(verdict, &now, right);
}

static bool poison(struct client *c)
{
    return owns(c) ? world_poison(&c->world) : caller_poison(&c->caller);
}

// Checks the result of the last timed run, which ran beside the other clients.
static bool look(struct client *c, struct verdict *verdict)
{
    struct verdict now = {0};
    bool right = owns(c) ? world_look(&c->world, c->world.last_set, &now)
                         : caller_look(&c->caller, c->caller.last_set, &now);
    return keep(verdict, &now, right);
}

// All clients begin at the same time.
static bool meet(void)
{
    char line[16];
    puts("ready");
    fflush(stdout);
    return fgets(line, sizeof line, stdin) != NULL;
}

static void say(const struct samples *samples, const struct verdict *verdict)
{
    for (uint32_t i = 0; i < samples->count; i++)
        printf("%.3f %.3f\n", samples->wall_us[i], samples->gpu_us[i]);
    printf("done %.3f %u %.9g\n", samples->elapsed_us, verdict->num_rows, verdict->worst);
    fflush(stdout);
}

bool client_run(const struct options *options, const struct workload *workload)
{
    struct client c = {.options = options};
    struct samples samples = {0};
    struct verdict verdict = {0};
    bool ok = client_open(&c, workload) && check(&c, 0, &verdict) && poison(&c) && meet();
    if (ok && !options->check)
        ok = measure(&c.lane, options->seconds, LEAST_STEPS, NULL, &samples) &&
             look(&c, &verdict) && check(&c, c.lane.num_sets - 1, &verdict);
    if (ok)
        say(&samples, &verdict);
    samples_finish(&samples);
    client_close(&c);
    return ok;
}
