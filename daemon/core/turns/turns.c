// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// turns.c - see turns.h. A heap orders the payers, and a heap in each payer its turns, by rounds:
// served / TURNS_QUANTUM.

#include "turns.h"

#include "base/container_of.h"
#include "base/list.h"

bool turns_reserve(struct turns *turns, struct turn_payer *payer, size_t sessions, size_t of_payer)
{
    return heap_reserve(&turns->ready, sessions) && heap_reserve(&payer->ready, of_payer);
}

void turns_finish(struct turns *turns)
{
    heap_finish(&turns->ready);
}

// ---- the heaps ----

static struct turn *turn_at(const struct turn_payer *payer, size_t i)
{
    return i < payer->ready.size ? container_of(payer->ready.entries[i].node, struct turn, node)
                                 : NULL;
}

static struct turn_payer *payer_at(const struct turns *turns, size_t i)
{
    return i < turns->ready.size
               ? container_of(turns->ready.entries[i].node, struct turn_payer, node)
               : NULL;
}

struct turn *turns_first(const struct turns *turns)
{
    return turns_next(turns, NULL);
}

struct turn *turns_first_beside(const struct turn *turn)
{
    return turn_at(turn->payer, 0);
}

struct turn *turns_next(const struct turns *turns, const struct turn *turn)
{
    const struct turn_payer *payer = turn ? turn->payer : NULL;
    struct turn *beside = turn ? turn_at(payer, turn->node.place) : NULL;
    if (beside)
        return beside;
    payer = payer_at(turns, payer ? payer->node.place : 0);
    return payer ? turn_at(payer, 0) : NULL;
}

bool turns_is_ready(const struct turn *turn)
{
    const struct turn_payer *payer = turn->payer;
    const struct turn *there = turn->node.place ? turn_at(payer, turn->node.place - 1) : NULL;
    return there == turn && payer_at(turn->turns, payer->node.place - 1) == payer;
}

bool turns_sound(const struct turns *turns)
{
    size_t num_ready = 0;
    for (size_t i = 0; i < turns->ready.size; i++) {
        const struct turn_payer *payer = payer_at(turns, i);
        if (!payer->ready.size || !heap_sound(&payer->ready))
            return false;
        num_ready += payer->ready.size;
    }
    return heap_sound(&turns->ready) && num_ready == turns->num_ready;
}

// Adds the payer to the heap, or removes it. `old`: with its former order.
static void settle(struct turns *turns, struct turn_payer *payer, bool old)
{
    struct heap_node *turn = &payer->node;
    const uint64_t key = payer->served / TURNS_QUANTUM;
    if (!payer->ready.size)
        heap_remove(&turns->ready, turn);
    else if (!turn->place && old)
        heap_add_as(&turns->ready, turn, key, turn->order);
    else if (!turn->place)
        heap_add(&turns->ready, turn, key);
}

static void wait_for_turn(struct turn *turn)
{
    struct turn_payer *payer = turn->payer;
    turn->turns->num_ready++;
    heap_add(&payer->ready, &turn->node, turn->served / TURNS_QUANTUM);
    settle(turn->turns, payer, false);
}

void turns_leave(struct turn *turn)
{
    turn->turns->num_ready -= turn->node.place > 0;
    heap_remove(&turn->payer->ready, &turn->node);
    settle(turn->turns, turn->payer, false);
}

void turns_rejoin(struct turn *turn)
{
    struct turn_payer *payer = turn->payer;
    turn->turns->num_ready++;
    heap_add_as(&payer->ready, &turn->node, turn->node.key, turn->node.order);
    settle(turn->turns, payer, true);
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

void turns_serve(struct turn *turn, uint64_t weight, bool more)
{
    struct turns *turns = turn->turns;
    struct turn_payer *payer = turn->payer;
    turns_leave(turn);
    heap_remove(&turns->ready, &payer->node);
    serve(&turn->served, &payer->now, weight);
    serve(&payer->served, &turns->now, weight);
    if (more)
        wait_for_turn(turn);
    settle(turns, payer, false);
}

static void unserve(uint64_t *served, uint64_t weight)
{
    *served -= weight < *served ? weight : *served;
}

void turns_unserve(struct turn *turn, uint64_t weight)
{
    unserve(&turn->served, weight);
    unserve(&turn->payer->served, weight);
}

// Idle tenants and sessions earn no credit.
static void catch_up(uint64_t *served, uint64_t now)
{
    if (*served < now)
        *served = now;
}

// ---- sessions that come and go ----

bool turns_expects(const struct turn *turn)
{
    return turn->expected && turn->expected == turn->turns->last_ended;
}

static void expect_no_more(struct turn *turn)
{
    turn->turns->num_expected -= turns_expects(turn);
    turn->expected = 0;
}

void turns_away(struct turn *turn, int64_t now_ns)
{
    habit_ended(&turn->habit, now_ns);
    if (!turn->is_away)
        LIST_APPEND_BY(turn->turns->away, turn, away_prev, away_next);
    turn->is_away = true;
}

void turns_overdue(struct turn *turn)
{
    if (turn->is_away)
        LIST_DELETE_BY(turn->turns->away, turn, away_prev, away_next);
    turn->is_away = false;
}

void turns_ready(struct turn *turn)
{
    struct turns *turns = turn->turns;
    if (turn->hauls) {
        LIST_APPEND_BY(turns->hauling, turn, haul_prev, haul_next);
        turn->is_hauling = true;
        return;
    }
    expect_no_more(turn);
    turns_overdue(turn);
    turn->held_ns = 0;
    if (!turn->payer->ready.size)
        catch_up(&turn->payer->served, turns->now);
    catch_up(&turn->served, turn->payer->now);
    wait_for_turn(turn);
}

void turns_forget(struct turn *turn)
{
    expect_no_more(turn);
    turns_overdue(turn);
    if (turn->is_hauling)
        LIST_DELETE_BY(turn->turns->hauling, turn, haul_prev, haul_next);
    turn->is_hauling = false;
    turns_leave(turn);
}
