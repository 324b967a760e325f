// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// turns.c - see turns.h. A heap orders the tenants, and a heap in each tenant its sessions, by
// rounds: served / TURNS_QUANTUM.

#include "turns.h"

#include "base/container_of.h"
#include "base/list.h"
#include "core/pool/salt.h"
#include "core/pool/tenant.h"

static struct tenant *payer(const struct core_session *session)
{
    return session->salt->tenant;
}

bool turns_reserve(struct turns *turns, struct tenant *tenant, size_t sessions, size_t of_tenant)
{
    return heap_reserve(&turns->ready, sessions) && heap_reserve(&tenant->ready, of_tenant);
}

void turns_finish(struct turns *turns)
{
    heap_finish(&turns->ready);
}

// ---- the heaps ----

static struct core_session *session_at(const struct tenant *tenant, size_t i)
{
    return i < tenant->ready.size
               ? container_of(tenant->ready.entries[i].node, struct core_session, ready)
               : NULL;
}

static struct tenant *tenant_at(const struct turns *turns, size_t i)
{
    return i < turns->ready.size
               ? container_of(turns->ready.entries[i].node, struct tenant, ready_turn)
               : NULL;
}

struct core_session *turns_first(const struct turns *turns)
{
    return turns_next(turns, NULL);
}

struct core_session *turns_first_beside(const struct core_session *session)
{
    return session_at(payer(session), 0);
}

struct core_session *turns_next(const struct turns *turns, const struct core_session *session)
{
    const struct tenant *tenant = session ? payer(session) : NULL;
    struct core_session *beside = session ? session_at(tenant, session->ready.place) : NULL;
    if (beside)
        return beside;
    tenant = tenant_at(turns, tenant ? tenant->ready_turn.place : 0);
    return tenant ? session_at(tenant, 0) : NULL;
}

bool turns_is_ready(const struct core_session *session)
{
    const struct tenant *tenant = payer(session);
    const struct core_session *there =
        session->ready.place ? session_at(tenant, session->ready.place - 1) : NULL;
    return there == session && tenant_at(session->turns, tenant->ready_turn.place - 1) == tenant;
}

bool turns_sound(const struct turns *turns)
{
    size_t sessions = 0;
    for (size_t i = 0; i < turns->ready.size; i++) {
        const struct tenant *tenant = tenant_at(turns, i);
        if (!tenant->ready.size || !heap_sound(&tenant->ready))
            return false;
        sessions += tenant->ready.size;
    }
    return heap_sound(&turns->ready) && sessions == turns->num_ready;
}

// Brings the tenant into or out of the heap. A tenant that comes back to its old place has the
// order that it had.
static void settle(struct turns *turns, struct tenant *tenant, bool old)
{
    struct heap_node *turn = &tenant->ready_turn;
    const uint64_t key = tenant->served / TURNS_QUANTUM;
    if (!tenant->ready.size)
        heap_remove(&turns->ready, turn);
    else if (!turn->place && old)
        heap_add_as(&turns->ready, turn, key, turn->order);
    else if (!turn->place)
        heap_add(&turns->ready, turn, key);
}

static void wait_for_turn(struct core_session *session)
{
    struct tenant *tenant = payer(session);
    session->turns->num_ready++;
    heap_add(&tenant->ready, &session->ready, session->served / TURNS_QUANTUM);
    settle(session->turns, tenant, false);
}

void turns_leave(struct core_session *session)
{
    session->turns->num_ready -= session->ready.place > 0;
    heap_remove(&payer(session)->ready, &session->ready);
    settle(session->turns, payer(session), false);
}

void turns_rejoin(struct core_session *session)
{
    struct tenant *tenant = payer(session);
    session->turns->num_ready++;
    heap_add_as(&tenant->ready, &session->ready, session->ready.key, session->ready.order);
    settle(session->turns, tenant, true);
}

// ---- virtual time ----

// Moves the virtual time to *served, and charges `weight`.
static void serve(uint64_t *served, uint64_t *now, uint64_t weight)
{
    if (*served > *now)
        *now = *served;
    if (__builtin_add_overflow(*served, weight, served))
        *served = UINT64_MAX;
}

void turns_serve(struct core_session *session, uint64_t weight)
{
    struct turns *turns = session->turns;
    struct tenant *tenant = payer(session);
    turns_leave(session);
    heap_remove(&turns->ready, &tenant->ready_turn);
    serve(&session->served, &tenant->now, weight);
    serve(&tenant->served, &turns->now, weight);
    if (session->queued)
        wait_for_turn(session);
    settle(turns, tenant, false);
}

static void unserve(uint64_t *served, uint64_t weight)
{
    *served -= weight < *served ? weight : *served;
}

void turns_unserve(struct core_session *session, uint64_t weight)
{
    unserve(&session->served, weight);
    unserve(&payer(session)->served, weight);
}

// Idle tenants and sessions earn no credit.
static void catch_up(uint64_t *served, uint64_t now)
{
    if (*served < now)
        *served = now;
}

// ---- sessions that come and go ----

bool turns_expects(const struct core_session *session)
{
    return session->expected && session->expected == session->turns->last_ended;
}

static void expect_no_more(struct core_session *session)
{
    session->turns->num_expected -= turns_expects(session);
    session->expected = 0;
}

void turns_away(struct core_session *session, int64_t now_ns)
{
    habit_ended(&session->habit, now_ns);
    if (!session->is_away)
        LIST_APPEND_BY(session->turns->away, session, away_prev, away_next);
    session->is_away = true;
}

void turns_overdue(struct core_session *session)
{
    if (session->is_away)
        LIST_DELETE_BY(session->turns->away, session, away_prev, away_next);
    session->is_away = false;
}

void turns_ready(struct core_session *session)
{
    struct turns *turns = session->turns;
    if (session->hauls) {
        LIST_APPEND_BY(turns->hauling, session, haul_prev, haul_next);
        session->is_hauling = true;
        return;
    }
    expect_no_more(session);
    turns_overdue(session);
    session->held_ns = 0;
    if (!payer(session)->ready.size)
        catch_up(&payer(session)->served, turns->now);
    catch_up(&session->served, payer(session)->now);
    wait_for_turn(session);
}

void turns_forget(struct core_session *session)
{
    expect_no_more(session);
    turns_overdue(session);
    if (session->is_hauling)
        LIST_DELETE_BY(session->turns->hauling, session, haul_prev, haul_next);
    session->is_hauling = false;
    turns_leave(session);
}
