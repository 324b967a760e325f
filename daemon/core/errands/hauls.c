// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// hauls.c - see hauls.h. A haul out of the cache reads sealed blocks that are written, so it waits
// for no submission. A haul into the cache writes leased blocks, which may have to be zeroed first.
// Other work on these blocks has ended, or begins when the haul has ended.

#include "hauls.h"

#include "base/list.h"
#include "core/session_life.h"
#include "core/state.h"

#include <inttypes.h>

static bool goes_in(const struct run *run)
{
    return run->copy->way == COPY_IN;
}

bool hauls_go_in(const struct core *core)
{
    const struct turn *turn;
    LIST_EACH_BY(core->scheduler.turns.hauling, turn, haul_next) {
        if (goes_in(session_of_turn(turn)->runs.queued))
            return true;
    }
    return false;
}

// Takes the session's first queued run out of the queue.
static struct run *take(struct core_session *session)
{
    struct run *run = session->runs.queued;
    run->num_picked++;
    session->runs.queued = run_next_live(run);
    if (!session->runs.queued)
        turns_forget(&session->turn);
    session->runs.num_in_flight++;
    return run;
}

// The run has been taken, and its haul is over.
static void end(struct run *run, const struct error *outcome)
{
    struct core_session *session = run->session;
    if (outcome->status == STATUS_OK)
        run->result.num_runs = run->result.num_sessions = 1;
    else
        run_fail(run, outcome->status, outcome->text);
    run_link_over(run);
    run_deliver(session);
    session->runs.num_in_flight--;
    session_passed(session);
}

static uint32_t num_flying(const struct hauls *hauls, bool in)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < hauls->num_flying; i++)
        count += goes_in(hauls->flying[i].run) == in;
    return count;
}

static void submit(struct core *core, struct run *run)
{
    struct hauls *hauls = &core->scheduler.hauls;
    const struct engine_haul order = {
        .cache = run->engine.cache,
        .arena = run->engine.arena,
        .copies = run->engine.copies,
        .num_copies = run->engine.num_copies,
        .after = goes_in(run) ? core->scheduler.last_zeroes : 0,
    };
    struct error error = {.status = STATUS_OK};
    uint64_t number;
    error.status = engine_haul(core->ledger.engine, &order, &number, &error);
    if (error.status != STATUS_OK) {
        ledger_log(&core->ledger, CORE_LOG_ERROR, "a haul of %" PRIu32 " blocks failed: %s",
                   order.num_copies, error.text);
        end(run, &error);
        return;
    }
    hauls->flying[hauls->num_flying].number = number;
    hauls->flying[hauls->num_flying++].run = run;
}

static void submit_some(struct core *core, struct core_session *session)
{
    while (session->runs.queued) {
        const bool in = goes_in(session->runs.queued);
        if (num_flying(&core->scheduler.hauls, in) == HAULS_IN_FLIGHT ||
            (in && core->pool.num_zeroes))
            return;
        submit(core, take(session));
    }
}

void hauls_submit(struct core *core)
{
    struct turn *turn, *next;
    LIST_EACH_SAFE_BY(core->scheduler.turns.hauling, turn, next, haul_next)
        submit_some(core, session_of_turn(turn));
}

void hauls_refuse(struct core *core)
{
    static const struct error why = {.status = STATUS_NO_MEMORY,
                                     .text = "no memory to zero the blocks before they are loaded"};
    struct turn *turn, *next;
    LIST_EACH_SAFE_BY(core->scheduler.turns.hauling, turn, next, haul_next) {
        struct core_session *session = session_of_turn(turn);
        while (session->runs.queued && goes_in(session->runs.queued))
            end(take(session), &why);
    }
}

void hauls_done(struct core *core, const struct engine_event *event)
{
    struct hauls *hauls = &core->scheduler.hauls;
    for (uint32_t i = 0; i < hauls->num_flying; i++) {
        struct run *run = hauls->flying[i].run;
        if (hauls->flying[i].number != event->haul)
            continue;
        hauls->flying[i] = hauls->flying[--hauls->num_flying];
        end(run, &event->error);
        return;
    }
}

void hauls_lost(struct core *core)
{
    struct hauls *hauls = &core->scheduler.hauls;
    struct error why = core->ledger.lost_why;
    why.status = STATUS_DEVICE_LOST;
    while (hauls->num_flying)
        end(hauls->flying[--hauls->num_flying].run, &why);
}
