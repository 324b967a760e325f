// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// turns.c - see turns.h. The heap orders sessions by rounds: served / TURNS_QUANTUM.

#include "turns.h"

#include "base/hash.h"

void turns_wait(struct core_session *session)
{
    heap_add(&session->turns->ready, &session->ready, session->served / TURNS_QUANTUM);
}

void turns_rejoin(struct core_session *session)
{
    heap_add_as(&session->turns->ready, &session->ready, session->ready.key, session->ready.order);
}

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
        DL_APPEND2(session->turns->away, session, away_prev, away_next);
    session->is_away = true;
}

void turns_overdue(struct core_session *session)
{
    if (session->is_away)
        DL_DELETE2(session->turns->away, session, away_prev, away_next);
    session->is_away = false;
}

void turns_ready(struct core_session *session)
{
    struct turns *turns = session->turns;
    if (session->hauls) {
        DL_APPEND2(turns->hauling, session, haul_prev, haul_next);
        session->is_hauling = true;
        return;
    }
    expect_no_more(session);
    turns_overdue(session);
    session->held_ns = 0;
    if (session->served < turns->now) // an idle session earns no credit
        session->served = turns->now;
    turns_wait(session);
}

void turns_forget(struct core_session *session)
{
    expect_no_more(session);
    turns_overdue(session);
    if (session->is_hauling)
        DL_DELETE2(session->turns->hauling, session, haul_prev, haul_next);
    session->is_hauling = false;
    heap_remove(&session->turns->ready, &session->ready);
}
