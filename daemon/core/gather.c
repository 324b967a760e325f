// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// gather.c - see gather.h.

#include "gather.h"

#include "base/clock.h"
#include "base/list.h"
#include "core/pool/tenant.h"
#include "state.h"

void gather_init(struct gather *gather)
{
    gather->spare_ns = (int64_t)GATHER_TENANTS * GATHER_SPARE_NS;
    gather->wake_ns = FOREVER;
}

// Until when the session's run may wait; 0: it may not.
static int64_t waits_until(const struct core_session *session, int64_t now_ns)
{
    const struct run *run = session->runs.queued;
    const int64_t half_ns = (int64_t)run->engine.options.max_queue_ms * NS_PER_MS / 2,
                  layers = run_num_layers(run),
                  rounds = GATHER_ROUNDS + (run->reading.num_layers + layers - 1) / layers;
    int64_t until_ns = (session->turn.held_ns ? session->turn.held_ns : now_ns) +
                       rounds * session->turn.habit.gpu_ns;
    if (half_ns && run->queued_ns + half_ns < until_ns)
        until_ns = run->queued_ns + half_ns;
    return run->reading.cache && !run->num_picked && until_ns > now_ns &&
                   session->salt->tenant->wasted_ns < GATHER_SPARE_NS
               ? until_ns
               : 0;
}

static bool add_ready(struct core *core)
{
    const struct turns *turns = &core->scheduler.turns;
    struct crews *crews = &core->scheduler.gather.crews;
    const struct core_session *session = NULL;
    crews->count = 0;
    while ((session = session_ready_behind(turns, session))) {
        if (waits_until(session, core->ledger.now_ns))
            crews_add_ready(crews, &session->runs.queued->reading, &session->turn.habit,
                            session->turn.held_ns != 0);
    }
    return crews->count > 0;
}

static void add_in_flight(struct core *core, const struct submission *submission)
{
    const uint64_t stamp = ++core->ledger.last_stamp;
    for (uint32_t i = 0; i < submission->num_links; i++) {
        struct core_session *session = submission->links[i].run->session;
        if (session->stamp == stamp || session->runs.queued || session->closed)
            continue;
        session->stamp = stamp;
        crews_add_expected(&core->scheduler.gather.crews, &session->turn.habit, FOREVER,
                           core->ledger.now_ns);
    }
}

static void add_expected(struct core *core)
{
    struct scheduler *s = &core->scheduler;
    struct turn *turn, *next;
    for (uint32_t i = 0; i < s->num_in_flight; i++)
        add_in_flight(core, &s->in_flight[(s->first_in_flight + i) % SCHEDULER_MAX_IN_FLIGHT]);
    LIST_EACH_SAFE_BY(s->turns.away, turn, next, away_next) {
        if (!session_of_turn(turn)->runs.num_in_flight &&
            !crews_add_expected(&s->gather.crews, &turn->habit, turn->habit.ended_ns,
                                core->ledger.now_ns))
            turns_overdue(turn);
    }
}

static void put_aside(struct core *core)
{
    struct gather *g = &core->scheduler.gather;
    const struct turns *turns = &core->scheduler.turns;
    struct core_session *session = NULL;
    const int64_t now_ns = core->ledger.now_ns;
    while (g->num_aside < GATHER_MOST && (session = session_ready_behind(turns, session))) {
        const int64_t most_ns = waits_until(session, now_ns);
        const struct crew *crew =
            most_ns ? crews_get(&g->crews, &session->runs.queued->reading) : NULL;
        if (!crew || !crew->until_ns)
            continue;
        const int64_t until_ns = crew->until_ns < most_ns ? crew->until_ns : most_ns;
        g->aside[g->num_aside++] = session;
        g->wake_ns = until_ns < g->wake_ns ? until_ns : g->wake_ns;
        session->turn.held_ns = session->turn.held_ns ? session->turn.held_ns : now_ns;
    }
    for (uint32_t i = 0; i < g->num_aside; i++)
        turns_leave(&g->aside[i]->turn);
}

// The GPU becomes or stays idle because all ready runs wait.
static bool is_idle(const struct core *core)
{
    const struct scheduler *s = &core->scheduler;
    return !s->num_in_flight && !s->turns.num_ready;
}

// The ready session behind `session`, whether it waits or not; behind NULL: the first one. *aside,
// from 0, counts those that wait. NULL: there is no further one.
static struct core_session *any_ready(const struct core *core, const struct core_session *session,
                                      uint32_t *aside)
{
    const struct gather *g = &core->scheduler.gather;
    if (*aside < g->num_aside)
        return g->aside[(*aside)++];
    const bool in_turns = session && session->turn.node.place;
    return session_ready_behind(&core->scheduler.turns, in_turns ? session : NULL);
}

// NULL: no wait is for the prefix of this session's run.
static struct gather_wait *wait_of(struct gather *g, const struct core_session *session)
{
    for (uint32_t i = 0; i < g->num_waits; i++)
        if (crews_same_prefix(&g->waits[i].reading, &session->runs.queued->reading))
            return &g->waits[i];
    return NULL;
}

static void begin_idle(struct core *core)
{
    struct gather *g = &core->scheduler.gather;
    g->idle_ns = core->ledger.now_ns;
    g->num_waits = 0;
    for (uint32_t i = 0; i < g->num_aside; i++) {
        struct gather_wait *wait = wait_of(g, g->aside[i]);
        if (!wait && g->num_waits == CREWS_MOST)
            continue;
        if (!wait) {
            wait = &g->waits[g->num_waits++];
            *wait = (struct gather_wait){.reading = g->aside[i]->runs.queued->reading};
        }
        wait->count++;
    }
}

static void find_vain_waits(struct core *core)
{
    struct gather *g = &core->scheduler.gather;
    uint32_t counts[CREWS_MOST] = {0}, aside = 0;
    const struct core_session *session = NULL;
    while ((session = any_ready(core, session, &aside))) {
        const struct gather_wait *wait = wait_of(g, session);
        if (wait)
            counts[wait - g->waits]++;
    }
    for (uint32_t i = 0; i < g->num_waits; i++)
        g->waits[i].in_vain = counts[i] <= g->waits[i].count;
}

// A wait is over. It was in vain for a prefix of which no further session has become ready. The
// tenants of such sessions pay for the time, and all tenants together if it was in vain for all.
static void settle_idle(struct core *core)
{
    struct gather *g = &core->scheduler.gather;
    const int64_t took_ns = core->ledger.now_ns - g->idle_ns;
    const uint64_t stamp = ++core->ledger.last_stamp;
    const struct core_session *session = NULL;
    uint32_t aside = 0;
    bool all_in_vain = true;
    if (!g->idle_ns)
        return;
    g->idle_ns = 0;
    find_vain_waits(core);
    for (uint32_t i = 0; i < g->num_waits; i++)
        all_in_vain &= g->waits[i].in_vain;
    g->spare_ns -= all_in_vain ? took_ns : 0;
    while ((session = any_ready(core, session, &aside))) {
        struct tenant *tenant = session->salt->tenant;
        const struct gather_wait *wait = wait_of(g, session);
        if (!wait || !wait->in_vain || tenant->stamp == stamp)
            continue;
        tenant->stamp = stamp;
        tenant->wasted_ns += took_ns;
    }
}

void gather_begin_step(struct gather *gather, bool some)
{
    gather->wake_ns = FOREVER;
    if (!some)
        gather->idle_ns = 0; // the sessions that waited are closed
}

bool gather_part(struct core *core)
{
    struct gather *g = &core->scheduler.gather;
    g->num_aside = 0;
    g->wake_ns = FOREVER;
    if (core->params.look_ns && !core->pool.num_zeroes && g->spare_ns > 0 && add_ready(core)) {
        add_expected(core);
        crews_decide(&g->crews, core->delay.prepares_ns, core->ledger.now_ns);
        put_aside(core);
    }
    if (!is_idle(core)) {
        settle_idle(core);
    } else if (!g->idle_ns) {
        begin_idle(core);
    }
    return core->scheduler.turns.num_ready > 0;
}

void gather_rejoin(struct core *core)
{
    struct gather *g = &core->scheduler.gather;
    for (uint32_t i = 0; i < g->num_aside; i++)
        if (g->aside[i]->runs.queued) // the device may have been lost meanwhile
            turns_rejoin(&g->aside[i]->turn);
    g->num_aside = 0;
}

// ---- what a submission tells ----

// A slice shares no cascade.
static bool may_share(const struct layer_run *link)
{
    return link->run->reading.cache && !link_is_sliced(link);
}

static uint32_t layer_of(const struct layer_run *link)
{
    const struct run *run = link->run;
    return (uint32_t)((run->reading.layer + (uint64_t)link->number * run->layers.layer_step) %
                      run->reading.num_layers);
}

static struct reading reading_of(const struct layer_run *link)
{
    struct reading reading = link->run->reading;
    if (!may_share(link))
        return (struct reading){0};
    reading.layer = layer_of(link);
    return reading;
}

// Called for each pick, so it copies nothing.
bool gather_shares(const struct layer_run *a, const struct layer_run *b)
{
    return may_share(a) && may_share(b) && layer_of(a) == layer_of(b) &&
           crews_same_prefix(&a->run->reading, &b->run->reading);
}

// Tokens that the submission read: those that several links share are counted once.
static uint64_t tokens_read(struct crews *crews, const struct submission *submission)
{
    uint64_t tokens = 0;
    crews->count = 0;
    for (uint32_t i = 0; i < submission->num_links; i++) {
        const struct reading reading = reading_of(&submission->links[i]);
        struct crew *crew = crews_get(crews, &reading);
        const uint64_t again =
            crew && crew->num_ready++ ? reading_shared(&crew->reading, &reading) : 0;
        tokens += reading.tokens > again ? reading.tokens - again : 0;
    }
    return tokens;
}

// The GPU worked for these tenants.
static void win_back(struct core *core, const struct submission *submission, int64_t won_ns)
{
    const uint64_t stamp = ++core->ledger.last_stamp;
    for (uint32_t i = 0; i < submission->num_links; i++) {
        struct tenant *tenant = submission->links[i].run->session->salt->tenant;
        if (tenant->stamp == stamp)
            continue;
        tenant->stamp = stamp;
        tenant->wasted_ns = tenant->wasted_ns > won_ns ? tenant->wasted_ns - won_ns : 0;
    }
}

void gather_learn(struct core *core, const struct submission *submission, uint64_t gpu_ns)
{
    struct gather *g = &core->scheduler.gather;
    const uint64_t tokens = tokens_read(&g->crews, submission);
    const int64_t most_ns = (int64_t)GATHER_TENANTS * GATHER_SPARE_NS,
                  won_ns = (int64_t)(gpu_ns / GATHER_PART);
    g->spare_ns = g->spare_ns + won_ns < most_ns ? g->spare_ns + won_ns : most_ns;
    win_back(core, submission, won_ns);
    if (!tokens)
        return;
    const uint64_t stamp = ++core->ledger.last_stamp;
    for (uint32_t i = 0; i < submission->num_links; i++) {
        const struct run *run = submission->links[i].run;
        if (!run->reading.cache || run->session->stamp == stamp)
            continue;
        run->session->stamp = stamp;
        habit_served(&run->session->turn.habit, (int64_t)gpu_ns, tokens);
    }
}
