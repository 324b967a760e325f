// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// core.c - creates and destroys the core, and passes the engine's events on to cache and scheduler.
// Knows neither the state of a block nor the queue of a session. Dispatcher thread only.

#include "core.h"

#include "base/list.h"
#include "core/pool/claim.h"
#include "core/pool/evict.h"
#include "core/pool/pieces.h"
#include "core/pool/prefix.h"
#include "core/pool/tenant.h"
#include "session_life.h"
#include "state.h"

#include <inttypes.h>
#include <stdlib.h>
#include <xxhash.h>

static uint64_t hash_prefix(uint64_t seed, const void *key, size_t size)
{
    return XXH3_64bits_withSeed(key, size, seed);
}

static enum status declare_groups(struct core *core, struct error *error)
{
    const struct core_params *params = &core->params;
    enum status status = limits_check(&params->tenant_limits, "*", error);
    for (uint32_t i = 0; status == STATUS_OK && i < params->num_groups; i++) {
        const struct core_group *group = &params->groups[i];
        status = limits_check(&group->limits, group->name, error);
        struct tenant *tenant = status == STATUS_OK ? tenant_get(&core->pool, group->name) : NULL;
        if (tenant) {
            tenant->is_group = true;
            tenant_declare(tenant, &group->limits);
        } else if (status == STATUS_OK) {
            status =
                error_set(error, STATUS_NO_MEMORY, "no memory for tenant \"%.64s\"", group->name);
        }
        tenant_unref(tenant);
    }
    return status;
}

enum status core_create(const struct core_params *params, struct core **out, struct error *error)
{
    *out = NULL;
    struct {
        uint32_t value;
        const char *option;
    } limits[] = {
        {params->max_sessions, "--max-sessions"},
        {params->max_caches, "--max-caches"},
        {params->max_batches, "--max-batches"},
        {params->max_tickets, "--max-tickets"},
    };
    for (size_t i = 0; i < sizeof limits / sizeof *limits; i++) {
        if (!limits[i].value)
            return error_set(error, STATUS_INVALID, "%s is 0; it must be at least 1",
                             limits[i].option);
    }
    struct core *core = calloc(1, sizeof *core);
    if (!core)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the core");
    core->params = *params;
    if (!core->params.piece_blocks)
        core->params.piece_blocks = CORE_PIECE;
    core->ledger.params = &core->params;
    core->ledger.engine = params->engine;
    core->pool.ledger = &core->ledger;
    core->pool.limit_bytes = params->pool_limit_bytes;
    core->pool.limit_blocks = params->max_blocks ? params->max_blocks : UINT64_MAX;
    core->pool.fixed_blocks = params->export_pool;
    core->pool.has_tiers = params->tiers.host != NULL;
    core->ledger.hash = hash_prefix;
    core->wake_ns = FOREVER;
    scheduler_init(&core->scheduler, engine_device(params->engine)->software, params->slice_ns);
    delay_init(&core->delay, params->look_ns);
    enum status status = declare_groups(core, error);
    if (status != STATUS_OK) {
        core_destroy(core);
        return status;
    }
    *out = core;
    return STATUS_OK;
}

// Waits until the GPU uses no arena of a closed session any more.
static void drain(struct core *core)
{
    const struct scheduler *s = &core->scheduler;
    struct engine *engine = core->ledger.engine;
    while ((s->num_in_flight || s->hauls.num_flying) && !core->ledger.lost) {
        const enum status status =
            s->num_in_flight ? engine_wait(engine, s->in_flight[s->first_in_flight].sequence, -1)
                             : engine_haul_wait(engine, s->hauls.flying[0].number, -1);
        if (status != STATUS_OK)
            break;
        core_step(core, core->ledger.now_ns);
    }
    if (s->num_in_flight || s->hauls.num_flying)
        scheduler_lost(core);
}

void core_destroy(struct core *core)
{
    if (!core)
        return;
    core->tiers.finished = true;
    while (core->sessions)
        core_session_close(core->sessions, false);
    drain(core);
    while (core->leaving) // their blocks wait for a proof of death
        session_let_go(core->leaving);
    tiers_finish(core);
    while (core->pool.num_caches)
        cache_destroy(core->pool.caches[core->pool.num_caches - 1]);
    offers_finish(&core->offers);
    heap_finish(&core->pool.due);
    tenants_finish(&core->pool);
    turns_finish(&core->scheduler.turns);
    free(core->pool.caches);
    free(core->pool.zeroes);
    free(core->pool.zero_blocks);
    free(core);
}

enum status core_cache_drop(struct core *core, uint64_t id, struct error *error)
{
    struct cache *cache;
    enum status status = cache_find(&core->pool, id, &cache, error);
    if (status != STATUS_OK)
        return status;
    if (cache->open_sessions)
        return error_set(error, STATUS_BUSY,
                         "cache %" PRIu64 " \"%.64s\" is open in %" PRIu32 " session%s", id,
                         cache->name, cache->open_sessions, cache->open_sessions > 1 ? "s" : "");
    if (cache->num_tables)
        return error_set(error, STATUS_BUSY,
                         "work that uses cache %" PRIu64 " \"%.64s\" is not done yet", id,
                         cache->name);
    cache_destroy(cache);
    return STATUS_OK;
}

enum status core_prefix_unpin(struct core *core, uint64_t id, int32_t index,
                              struct core_unpinned *out, struct error *error)
{
    struct cache *cache;
    *out = (struct core_unpinned){0};
    enum status status = cache_find(&core->pool, id, &cache, error);
    if (status != STATUS_OK)
        return status;
    const struct block *block = block_find(cache, index);
    const uint64_t before = cache_evictable(cache);
    if (index == -1)
        out->num_prefixes = prefix_unpin_all(cache, NULL);
    else if (block && block->node)
        out->num_prefixes = prefix_unpin(cache, block->node);
    if (index != -1 && !out->num_prefixes)
        return error_set(error, STATUS_NOT_FOUND,
                         "block %" PRId32 " of cache %" PRIu64 " is in no pinned prefix", index,
                         id);
    out->num_blocks = cache_evictable(cache) - before;
    evict_trim(&core->pool);
    core->ledger.news = true;
    return STATUS_OK;
}

// ---- the engine's events ----

static void chunk_news(struct core *core, const struct engine_event *event)
{
    for (uint32_t i = 0; i < core->pool.num_caches; i++) {
        if (core->pool.caches[i]->engine == event->cache) {
            cache_grown(core->pool.caches[i], event->chunk, &event->error);
            return;
        }
    }
}

static void device_news(struct core *core, const struct engine_event *event)
{
    if (core->ledger.lost)
        return;
    core->ledger.lost_why = event->error;
    ledger_log(&core->ledger, CORE_LOG_ERROR, "the device is lost: %s", event->error.text);
    scheduler_lost(core);
}

static int64_t first_of(int64_t a_ns, int64_t b_ns)
{
    return a_ns < b_ns ? a_ns : b_ns;
}

bool core_step(struct core *core, int64_t now_ns)
{
    struct engine_event event;
    core->ledger.now_ns = now_ns;
    while (engine_poll(core->ledger.engine, &event)) {
        switch (event.kind) {
        case ENGINE_EVENT_DONE: scheduler_done(core, &event); break;
        case ENGINE_EVENT_HAULED: hauls_done(core, &event); break;
        case ENGINE_EVENT_CHUNK: chunk_news(core, &event); break;
        case ENGINE_EVENT_COMPILED: scheduler_compiled(core); break;
        case ENGINE_EVENT_LOST: device_news(core, &event); break;
        }
    }
    offers_expire(&core->offers, now_ns);
    claims_expire(&core->pool, now_ns);
    tenants_expire(&core->pool, now_ns);
    tiers_step(core);
    evict_trim(&core->pool);
    scheduler_submit(core);
    const int64_t times_ns[] = {offers_wake_ns(&core->offers), claims_wake_ns(&core->pool),
                                tenants_wake_ns(&core->pool), tiers_wake_ns(core)};
    core->wake_ns = scheduler_wake_ns(core);
    for (size_t i = 0; i < sizeof times_ns / sizeof *times_ns; i++)
        core->wake_ns = first_of(core->wake_ns, times_ns[i]);
    core->woken = false;
    bool news = core->ledger.news;
    core->ledger.news = false;
    return news;
}

uint32_t core_piece_blocks(const struct core *core)
{
    return core->params.piece_blocks;
}

int64_t core_wake_ns(const struct core *core)
{
    return core->wake_ns;
}

void core_slept(struct core *core, int64_t until_ns, int64_t now_ns, bool woken)
{
    core->ledger.now_ns = now_ns;
    forecast_watch_slept(&core->delay.watch, until_ns, now_ns);
    core->woken = woken;
}

enum status core_device_status(const struct core *core)
{
    return core->ledger.lost ? STATUS_DEVICE_LOST : STATUS_OK;
}

// No session's work is queued or in flight.
static bool sessions_rest(const struct core *core)
{
    const struct core_session *session;
    LIST_EACH(core->sessions, session)
        if (session->runs.put_off)
            return false;
    return !core->scheduler.num_in_flight && !core->scheduler.turns.num_ready;
}

bool core_idle(const struct core *core)
{
    return sessions_rest(core) && !core->scheduler.hauls.num_flying && !core->tiers.num_errands;
}

bool core_waits_for_tiers(const struct core *core)
{
    return sessions_rest(core) && !core_idle(core);
}
