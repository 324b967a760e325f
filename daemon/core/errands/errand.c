// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// errand.c - see errand.h. Memory of the host tier has a reference for each job and for each errand
// that uses it. A job's references end when it is given back, so an abandoned job keeps its memory.

#include "errand.h"

#include "base/clock.h"
#include "base/list.h"
#include "core/pool/hold.h"
#include "core/pool/tenant.h"
#include "core/session_life.h"
#include "tier/host.h"

#include <stdlib.h>
#include <string.h>

// Bytes that one copy moves: below a millisecond on a GPU with a fast bus.
enum { COPY_BYTES = 32 << 20 };

struct stored_space errand_space(const struct cache *cache, const struct salt *salt)
{
    struct stored_space space = {.block_bytes = cache->block_bytes};
    memcpy(space.fingerprint, cache->name_in_tiers, sizeof space.fingerprint);
    memcpy(space.salt, salt->name_in_tiers, sizeof space.salt);
    return space;
}

// A tenant that ends and comes back has another id, but the same label. Tiers may still keep its
// blocks, and count them against its limits.
static uint64_t number_in_tiers(const struct tenant *tenant)
{
    uint8_t id[STORED_ID_BYTES];
    uint64_t number;
    stored_fingerprint(tenant->label, strlen(tenant->label), id);
    memcpy(&number, id, sizeof number);
    return number ? number : 1; // 0 is nobody
}

struct tier_share errand_share(const struct tenant *tenant)
{
    return (struct tier_share){number_in_tiers(tenant), tenant_floor(tenant),
                               tenant->limits.cached};
}

struct tier *errand_tier(const struct core *core, uint32_t source)
{
    return source ? core->params.tiers.more[source - 1] : core->params.tiers.host;
}

static void give_back(const struct core *core, uint8_t *data)
{
    if (data)
        host_ops.give_back(core->params.tiers.area, data);
}

// ---- the life of an errand ----

static bool open_session(struct errand *errand, struct cache *cache, struct salt *salt)
{
    errand->session = session_open_errand(errand->core, salt);
    errand->table = errand->session ? hold_table_get(errand->session, cache) : NULL;
    if (!errand->table) {
        if (errand->session)
            core_session_close(errand->session, false);
        return false;
    }
    hold_table_open(errand->table);
    return true;
}

struct errand *errand_create(struct core *core, struct cache *cache, struct salt *salt,
                             uint32_t count)
{
    struct tiers *tiers = &core->tiers;
    if (tiers->stopped || core->ledger.lost || tiers->num_errands >= core->params.tiers.max_errands)
        return NULL;
    struct errand *errand = calloc(1, sizeof *errand + count * sizeof *errand->blocks);
    if (!errand)
        return NULL;
    errand->core = core;
    errand->count = count;
    if (!open_session(errand, cache, salt)) {
        free(errand);
        return NULL;
    }
    for (uint32_t i = 0; i < count; i++)
        errand->blocks[i] = (struct errand_block){.block = -1, .source = ERRAND_NO_SOURCE};
    errand->space = errand_space(cache, salt);
    errand->share = errand_share(salt->tenant);
    errand->started_ns = core->ledger.now_ns;
    const int64_t abandon_ns = core->params.tiers.abandon_ns;
    errand->give_up_ns = abandon_ns == FOREVER ? FOREVER : errand->started_ns + abandon_ns;
    LIST_APPEND(tiers->errands, errand);
    tiers->num_errands++;
    return errand;
}

void errand_give_back(struct errand *errand, uint32_t first, uint32_t count)
{
    for (uint32_t i = first; i < first + count; i++) {
        give_back(errand->core, errand->blocks[i].data);
        errand->blocks[i].data = NULL;
    }
}

static void errand_free(struct errand *errand)
{
    errand_give_back(errand, 0, errand->count);
    free((void *)errand->prefix.tokens);
    free((void *)errand->prefix.extra_key);
    free(errand->outcomes);
    free(errand);
}

struct errand *errand_find_load(const struct core *core, const struct cache *cache,
                                const struct salt *salt, uint32_t place,
                                const struct stored_chain *chain)
{
    struct errand *errand;
    LIST_EACH(core->tiers.errands, errand) {
        const uint32_t index = place - errand->first; // wraps around below `first`
        if (errand->loads && errand->table->cache == cache && errand->session->salt == salt &&
            index < errand->num_wanted &&
            !memcmp(errand->blocks[index].chain.id, chain->id, sizeof chain->id))
            return errand;
    }
    return NULL;
}

// A load's id is that of its session.
static void wake_loaders(const struct errand *errand)
{
    struct core_wait *wait;
    LIST_EACH_BY(errand->core->tiers.loaders, wait, beside_next) {
        if (wait->load == errand->session->id)
            ledger_wake(&errand->core->ledger, wait);
    }
}

void errand_end(struct errand *errand)
{
    struct tiers *tiers = &errand->core->tiers;
    LIST_DELETE(tiers->errands, errand);
    tiers->num_errands--;
    tiers->store_bytes -= errand->store_bytes;
    tiers->full = false;
    wake_loaders(errand);
    core_session_close(errand->session, false);
    errand_free(errand);
}

// ---- jobs ----

// How long a store may take. Nobody waits for it, so it has nearly the time after which it would be
// abandoned; the backend needs the rest to end it.
static int64_t store_ns(const struct core_tiers *params)
{
    const int64_t abandon_ns = params->abandon_ns, deadline_ns = params->deadline_ns;
    return abandon_ns == FOREVER || deadline_ns >= abandon_ns ? abandon_ns
                                                              : abandon_ns - deadline_ns;
}

static int64_t after(int64_t now_ns, int64_t time_ns)
{
    return time_ns == FOREVER ? FOREVER : now_ns + time_ns;
}

// The job's own memory for the block. False: there is none.
static bool lay(const struct errand *errand, const struct tier_job *job, bool lends,
                struct errand_block *block, uint8_t **data)
{
    struct tier_backend *area = errand->core->params.tiers.area;
    *data = NULL;
    if (job->kind == TIER_STORE) {
        *data = block->data;
        host_ref(area, block->data);
    } else if (job->kind == TIER_LOAD && !lends) {
        *data = host_reserve(area, &errand->share, errand->space.block_bytes);
        if (!*data)
            block->reason = STORED_FULL;
        return *data != NULL;
    }
    return true;
}

static void launch(struct errand *errand, struct tier *tier, struct tier_job *job)
{
    const struct core_tiers *params = &errand->core->params.tiers;
    const int64_t now_ns = errand->core->ledger.now_ns;
    job->space = errand->space;
    job->share = errand->share;
    job->abandon_ns = after(now_ns, params->abandon_ns);
    job->deadline_ns =
        after(now_ns, job->kind == TIER_STORE ? store_ns(params) : params->deadline_ns);
    job->owner = errand;
    errand->num_jobs++;
    tier_start(tier, job);
}

void errand_start(struct errand *errand, enum tier_kind kind, uint32_t source,
                  bool (*wanted)(const struct errand_block *block, uint32_t source))
{
    struct tier *tier = errand_tier(errand->core, source);
    const bool lends = tier_ops(tier)->lends;
    struct tier_job *job = tier_job_create(kind, errand->count);
    if (!job)
        return;
    job->num_blocks = 0;
    for (uint32_t i = 0; i < errand->count; i++) {
        struct errand_block *block = &errand->blocks[i];
        uint8_t *data;
        if (!wanted(block, source) || !lay(errand, job, lends, block, &data))
            continue;
        block->reason = STORED_ABANDONED; // until the job is done
        job->blocks[job->num_blocks++] =
            (struct tier_block){.chain = block->chain, .data = data, .tag = i};
    }
    if (job->num_blocks)
        launch(errand, tier, job);
    else
        tier_job_destroy(job);
}

// Takes over what the job says of a block. A loaded block's memory becomes the errand's.
static void take_block(struct errand *errand, enum tier_kind kind, uint8_t source,
                       struct tier_block *from)
{
    struct errand_block *block = &errand->blocks[from->tag];
    block->reason = from->reason;
    if (kind == TIER_LOAD && from->reason == STORED_OK) {
        block->data = from->data;
        from->data = NULL;
    }
    if (kind == TIER_LOOKUP && from->answer == TIER_THERE && block->source == ERRAND_NO_SOURCE)
        block->source = source;
}

static uint8_t source_of(const struct core *core, const struct tier *tier)
{
    uint8_t source = 0;
    while (errand_tier(core, source) != tier)
        source++;
    return source;
}

struct errand *errand_event(struct core *core, const struct tier_event *event)
{
    struct tier_job *job = event->job;
    struct errand *errand = job->owner;
    if (errand)
        errand->num_jobs--;
    job->owner = NULL;
    if (event->kind == TIER_ABANDONED)
        return errand;
    for (uint32_t i = 0; i < job->num_blocks; i++) {
        if (errand)
            take_block(errand, job->kind, source_of(core, job->tier), &job->blocks[i]);
        give_back(core, job->blocks[i].data);
    }
    tier_job_destroy(job);
    return errand;
}

// ---- copies ----

static bool copy_piece(struct errand *errand, enum copy_way way, uint32_t first, uint32_t count)
{
    const struct core_tiers *params = &errand->core->params.tiers;
    struct error error;
    struct copy_place *places = calloc(count, sizeof *places);
    if (!places)
        return false;
    for (uint32_t i = 0; i < count; i++) {
        const struct errand_block *block = &errand->blocks[first + i];
        places[i] = (struct copy_place){block->block, (uint64_t)(block->data - params->base)};
    }
    const enum status status = copy_move(errand->table, params->arena, way, places, count,
                                         &errand->outcomes[errand->num_copies], &error);
    free(places);
    if (status != STATUS_OK)
        ledger_log(&errand->core->ledger, CORE_LOG_WARNING, "a copy for a tier was refused: %s",
                   error.text);
    errand->num_copies += status == STATUS_OK;
    return status == STATUS_OK;
}

uint32_t errand_copy(struct errand *errand, enum copy_way way, uint32_t first, uint32_t count)
{
    const uint64_t fit = COPY_BYTES / errand->space.block_bytes;
    const uint32_t piece = fit < 1 ? 1 : fit < count ? (uint32_t)fit : count;
    uint32_t done = 0;
    if (!errand->outcomes)
        errand->outcomes = calloc(errand->count, sizeof *errand->outcomes);
    while (errand->outcomes && done < count) {
        const uint32_t size = count - done < piece ? count - done : piece;
        if (!copy_piece(errand, way, first + done, size))
            break;
        done += size;
    }
    return done;
}

bool errand_copies(const struct errand *errand, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (errand->outcomes[i] == STATUS_BUSY)
            return true;
    }
    return false;
}

bool errand_copied(const struct errand *errand)
{
    for (uint32_t i = 0; i < errand->num_copies; i++) {
        if (errand->outcomes[i] != STATUS_OK && errand->outcomes[i] != STATUS_BUSY)
            return false;
    }
    return true;
}

// ---- all of them ----

static void advance(struct errand *errand)
{
    (void)(errand->loads ? load_advance(errand) : store_advance(errand));
}

static void take_events(struct core *core, struct tier *tier)
{
    struct tier_event event;
    while (tier_poll(tier, core->ledger.now_ns, &event)) {
        struct errand *errand = errand_event(core, &event);
        if (errand)
            advance(errand);
    }
}

void tiers_step(struct core *core)
{
    struct errand *errand, *next;
    if (!core->pool.has_tiers || core->tiers.finished)
        return;
    for (uint32_t i = 0; i <= core->params.tiers.num_more; i++)
        take_events(core, errand_tier(core, i));
    LIST_EACH_SAFE(core->tiers.errands, errand, next) {
        advance(errand);
    }
    store_begin_all(core);
}

int64_t tiers_wake_ns(const struct core *core)
{
    int64_t wake_ns = FOREVER;
    if (!core->pool.has_tiers)
        return FOREVER;
    for (uint32_t i = 0; i <= core->params.tiers.num_more; i++) {
        const int64_t tier_ns = tier_wake_ns(errand_tier(core, i));
        wake_ns = tier_ns < wake_ns ? tier_ns : wake_ns;
    }
    const struct errand *errand;
    LIST_EACH(core->tiers.errands, errand) {
        if (errand->stage == ERRAND_LEASING && errand->give_up_ns < wake_ns)
            wake_ns = errand->give_up_ns;
    }
    return wake_ns;
}

void core_stop_tiers(struct core *core)
{
    core->tiers.stopped = true;
}

void tiers_finish(struct core *core)
{
    struct errand *errand, *next;
    LIST_EACH_SAFE(core->tiers.errands, errand, next) {
        errand_free(errand);
    }
    core->tiers = (struct tiers){.finished = true};
}
