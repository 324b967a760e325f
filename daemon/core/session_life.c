// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// session_life.c - the life of a session: it opens, opens and closes caches, and closes or dies.
// Knows no connection and no process; the server tells it of a death. Dispatcher thread only.
//
// Closing. core_session_close() takes away, in this order, what could still act for the session:
// its wait, its queued runs, its line of compiles, batches, offers, holds, tickets. A hold that a
// run in flight needs stays as that run's; if the session died, such a block is quarantined.
//
// Leaving. A closed session stands in core->leaving until nothing refers to it: no run in flight,
// no table that haunts it, no draft on the job thread. The code that removes the last of these
// calls session_passed(), which frees the session and tells the server (session_gone()).
//
// Haunting. A session that died attached keeps its blocks, because its process's own kernels may
// still read them. When the server has proof of the process's death, the next submission becomes a
// fence: once it has ended, the GPU has passed what the process had submitted, and the blocks are
// free.
//
// Errands are sessions of core's own (errands/tiers.h): they have turns, but count for no limit of
// sessions, and nobody is told of their end.

#include "session_life.h"

#include "base/list.h"
#include "core/pool/attached.h"
#include "core/pool/claim.h"
#include "core/pool/evict.h"
#include "core/pool/queue.h"
#include "core/pool/tenant.h"
#include "core/runs/run.h"
#include "core/steps/making.h"
#include "state.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LABEL_ROOM = 320, SALT_ROOM = LABEL_ROOM + 2 + UINT8_MAX };

// Other machines with the same key give the same tenant and name the same salt.
static void name_in_tiers(const struct core *core, struct salt *salt, const char *name)
{
    char text[SALT_ROOM];
    const int size = snprintf(text, sizeof text, "%s%c%s", salt->tenant->label, 0, name);
    stored_salt(core->params.tiers.key, core->params.tiers.key_size, text,
                size < (int)sizeof text ? (size_t)size : sizeof text, salt->name_in_tiers);
}

static struct salt *salt_of(struct core *core, const struct core_session_params *params)
{
    char label[LABEL_ROOM];
    const char *name = params->tenant ? params->tenant : "";
    if (params->group)
        snprintf(label, sizeof label, "%s", params->group);
    else
        snprintf(label, sizeof label, "uid:%" PRIu32, params->uid); // no group is named so
    struct tenant *tenant = tenant_get(&core->pool, label);
    if (!tenant)
        return NULL;
    // A client that names its group, or none, means the group as a whole.
    if (params->group && !strcmp(name, params->group))
        name = "";
    struct salt *salt = salt_get(&core->salts, &core->ledger.last_id, tenant, name);
    if (salt && core->pool.has_tiers)
        name_in_tiers(core, salt, name);
    tenant_unref(tenant);
    return salt;
}

static void session_free(struct core_session *session)
{
    if (session->tenant_prev) // it was opened
        LIST_DELETE_BY(session->salt->tenant->sessions, session, tenant_prev, tenant_next);
    salt_unref(session->salt);
    free(session->name);
    free(session);
}

// With errands, which have turns as well.
static size_t count_sessions(const struct tenant *tenant)
{
    const struct core_session *session;
    size_t count = 0;
    LIST_EACH_BY(tenant->sessions, session, tenant_next)
        count++;
    return count;
}

// `salt` becomes the session's. `params` NULL: an errand.
static struct core_session *session_create(struct core *core, struct salt *salt,
                                           const struct core_session_params *params)
{
    static const struct core_session_params none = {.name = "errand"};
    const struct core_session_params *p = params ? params : &none;
    struct core_session *session = calloc(1, sizeof *session);
    if (!session) {
        salt_unref(salt);
        return NULL;
    }
    *session = (struct core_session){
        .core = core,
        .ledger = &core->ledger,
        .pool = &core->pool,
        .all_offers = &core->offers,
        .id = params ? params->id : SESSION_ERRAND | ++core->ledger.last_id,
        .name = strdup(p->name ? p->name : ""),
        .salt = salt,
        .guest = p->guest,
        .errand = !params,
        .quota_blocks = params ? core->params.quota_blocks : 0,
        .arena = p->arena,
        .arena_size = p->arena ? p->arena_size : 0,
        .device_arena = p->device_arena,
        .device_arena_size = p->device_arena ? p->device_arena_size : 0,
        .owner = p->owner,
        .wait = p->wait,
        .turn = {.turns = &core->scheduler.turns,
                 .payer = salt ? &salt->tenant->turns : NULL,
                 .hauls = !params && engine_hauls(core->ledger.engine)},
    };
    if (!session->name || !session->salt ||
        !turns_reserve(session->turn.turns, session->turn.payer,
                       (size_t)core->num_sessions + core->num_errands + 1,
                       count_sessions(session->salt->tenant) + 1)) {
        session_free(session);
        return NULL;
    }
    if (session->wait)
        *session->wait = (struct core_wait){.kind = CORE_WAIT_RUNS, .session = session};
    LIST_APPEND(core->sessions, session);
    if (params)
        tenant_enter(session->salt->tenant);
    LIST_APPEND_BY(session->salt->tenant->sessions, session, tenant_prev, tenant_next);
    return session;
}

enum status core_session_open(struct core *core, const struct core_session_params *params,
                              struct core_session **out, struct error *error)
{
    *out = NULL;
    if (core->ledger.lost)
        return error_set(error, STATUS_DEVICE_LOST, "the device is lost: %s",
                         core->ledger.lost_why.text);
    if (core->num_sessions >= core->params.max_sessions)
        return error_set(error, STATUS_LIMIT, "all %" PRIu32 " sessions are taken (--max-sessions)",
                         core->params.max_sessions);
    struct core_session *session = session_create(core, salt_of(core, params), params);
    if (!session)
        return error_set(error, STATUS_NO_MEMORY, "no host memory for a session");
    core->num_sessions++;
    // The device may have memory again: let the next lease ask.
    pool_ask_again(&core->pool);
    *out = session;
    return STATUS_OK;
}

struct core_session *session_open_errand(struct core *core, struct salt *salt)
{
    struct core_session *session = session_create(core, salt_ref(salt), NULL);
    core->num_errands += session != NULL;
    return session;
}

// Closes all caches of the session. Blocks that runs in flight use stay until these have ended, in
// quarantine if the session died.
static void close_tables(struct core_session *session, bool died)
{
    struct hold_table *table, *next;
    HASH_ITER(hh, session->tables, table, next) {
        if (table->opens)
            hold_table_close(table);
        claim_end_all(table);
        if (died)
            hold_table_bury(table);
        else
            attached_end(table); // a session that closes says that its kernels have passed
        hold_table_release_all(table);
        if (attached_num(table))
            session->haunting.num_tables++;
        else
            attached_end(table);
        hold_table_settle(table);
    }
}

static void forget_tickets(struct core_session *session)
{
    struct run *run, *next;
    HASH_ITER(hh, session->runs.tickets, run, next) {
        HASH_DEL(session->runs.tickets, run);
        if (run->delivered)
            run_free(run);
    }
}

bool core_session_close(struct core_session *session, bool died)
{
    struct core *core = session->core;
    struct batch *batch, *next;
    session->closed = true;
    ledger_unwake(session->ledger, session->wait);
    session->wait = NULL;
    run_drop_queued(session, STATUS_NO_SESSION);
    engine_line_end(core->ledger.engine, session->id);
    HASH_ITER(hh, session->batches, batch, next) {
        batch_destroy(batch);
    }
    offers_leave(session, NULL);
    close_tables(session, died);
    forget_tickets(session);
    run_deliver(session);
    core->ledger.metrics[METRIC_SESSION_DEATHS] += died;
    *(session->errand ? &core->num_errands : &core->num_sessions) -= 1;
    if (!session->errand)
        tenant_leave(session->salt->tenant);
    core->ledger.news = true;
    LIST_DELETE(core->sessions, session);
    LIST_APPEND(core->leaving, session);
    ledger_log(&core->ledger, CORE_LOG_DEBUG,
               "session %" PRIu64 " \"%.64s\" %s with %" PRIu32 " runs in flight", session->id,
               session->name, died ? "died" : "closed", session->runs.num_in_flight);
    const bool haunted = session->haunting.num_tables > 0;
    session_passed(session);
    evict_trim(&core->pool);
    return haunted;
}

void core_session_proven_dead(struct core_session *session)
{
    session->haunting.proven = true;
    session->core->num_proven++;
    if (session->ledger->lost)
        session_let_go(session);
}

void session_fenced(struct core *core, uint64_t sequence)
{
    struct core_session *session, *next;
    LIST_EACH_SAFE(core->leaving, session, next) {
        if (session->haunting.proven &&
            (sequence == UINT64_MAX ||
             (session->haunting.fence && session->haunting.fence <= sequence)))
            session_let_go(session);
    }
}

void session_fence(struct core *core, uint64_t sequence)
{
    struct core_session *session;
    LIST_EACH(core->leaving, session) {
        if (session->haunting.proven && !session->haunting.fence)
            session->haunting.fence = sequence;
    }
    core->num_proven = 0;
}

void session_let_go(struct core_session *session)
{
    struct core *core = session->core;
    struct hold_table *table, *next;
    HASH_ITER(hh, session->tables, table, next) {
        attached_end(table);
        hold_table_settle(table);
    }
    core->num_proven -= session->haunting.proven && !session->haunting.fence;
    session->haunting.num_tables = 0;
    core->ledger.news = true;
    session_passed(session);
    evict_trim(&core->pool);
}

void session_passed(struct core_session *session)
{
    struct core *core = session->core;
    if (!session->closed || session->runs.num_in_flight || session->haunting.num_tables ||
        session->drafts)
        return;
    LIST_DELETE(core->leaving, session);
    engine_line_end(core->ledger.engine, session->id); // its last runs may have asked for more
    if (core->params.session_gone && !session->errand)
        core->params.session_gone(core->params.context, session->owner);
    session_free(session);
}

void core_draft_discard(struct core_draft *draft)
{
    struct core_session *session = draft->session;
    making_discard(draft);
    session_passed(session);
}

// ---- the caches of a session ----

enum status core_cache_open(struct core_session *session,
                            const struct core_cache_identity *identity, struct core_cache_info *out,
                            struct error *error)
{
    struct cache *cache;
    enum status status = session_usable(session, error);
    if (status == STATUS_OK)
        status = cache_get(session->pool, session->salt->tenant, identity, &cache, error);
    if (status != STATUS_OK)
        return status;
    struct hold_table *table = hold_table_get(session, cache);
    if (!table) {
        cache_settle(cache);
        return error_set(error, STATUS_NO_MEMORY, "no host memory to open cache \"%.64s\"",
                         identity->name);
    }
    if (table->opens == UINT32_MAX)
        return error_set(error, STATUS_LIMIT,
                         "cache \"%.64s\" is open %" PRIu32 " times in one session", identity->name,
                         table->opens);
    hold_table_open(table);
    if (session->pool->num_caches > session->core->params.max_caches)
        cache_end_unused(session->pool); // last, because a failed open must not end a cache
    pool_ask_again(session->pool);
    pool_keep_spare(cache);
    *out = (struct core_cache_info){cache->id, cache->chunk_blocks, cache->block_bytes};
    return STATUS_OK;
}

enum status core_cache_close(struct core_session *session, uint64_t cache, struct error *error)
{
    struct hold_table *table;
    struct batch *batch, *next;
    enum status status = hold_table_find(session, cache, &table, error);
    if (status != STATUS_OK || --table->opens)
        return status;
    hold_table_close(table);
    table->num_users++; // so that batch_destroy() does not free the table
    HASH_ITER(hh, session->batches, batch, next) {
        if (batch->table == table)
            batch_destroy(batch);
    }
    offers_leave(session, table->cache);
    session_wake(session, cache);
    table->num_users--;
    claim_end_all(table);
    attached_end(table); // the process has unmapped it
    hold_table_release_all(table);
    hold_table_settle(table);
    evict_trim(session->pool);
    return STATUS_OK;
}
