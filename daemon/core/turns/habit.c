// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// habit.c - see habit.h.

#include "habit.h"

#include <stddef.h>

enum {
    // A gap is in time up to the mean and so many times the spread; TCP's timer uses the same rule
    // and the same weights.
    SPREADS = 4,
    MEAN_PART = 8,
    SPREAD_PART = 4,
    // A gap of less than half of the mean is a sign of other work, as when a prompt is computed and
    // the decode begins. Then only a quarter of the old mean stays. The spread stays large for a
    // while.
    OTHER_WORK = 2,
    STAYS_PART = 4,
    LEAST_SPREAD_NS = 5000, // a thread that is woken is never steadier
    LEAST_SPREAD_PART = 4,  // of the mean
    // A gap up to so many times the longest one in time is a hiccup and halves the trust. A longer
    // one ends it.
    LATE = 4,
    MOST_TRUST = 4 * HABIT_TRUST,
    // The time of a shared token is estimated as the largest recent value: it rises by 1 /
    // TOKEN_RISE
    // of the excess, and falls by 1 / TOKEN_FALL. Submissions with few sequences show it best. A
    // low estimate only means that they come again.
    TOKEN_RISE = 4,
    TOKEN_FALL = 1024,
};

uint64_t reading_shared(const struct reading *a, const struct reading *b)
{
    if (!a->cache || a->cache != b->cache || a->tenant != b->tenant)
        return 0;
    for (int i = READING_MARKS - 1; i >= 0; i--)
        if (a->marks[i] >= 0 && a->marks[i] == b->marks[i])
            return (uint64_t)a->block_size << i;
    return 0;
}

int64_t habit_gap_most_ns(const struct habit_gap *gap)
{
    const int64_t least_ns = LEAST_SPREAD_NS + gap->mean_ns / LEAST_SPREAD_PART;
    return gap->mean_ns + SPREADS * (gap->spread_ns > least_ns ? gap->spread_ns : least_ns);
}

// A very long gap, once, counts as twice the longest one in time.
static void learn_gap(struct habit_gap *gap, int64_t took_ns)
{
    const int64_t most_ns = 2 * habit_gap_most_ns(gap);
    if (!gap->mean_ns) {
        *gap = (struct habit_gap){.mean_ns = took_ns ? took_ns : 1, .spread_ns = took_ns / 2};
        return;
    }
    took_ns = took_ns < most_ns ? took_ns : most_ns;
    const int64_t off_ns = took_ns - gap->mean_ns;
    gap->mean_ns = took_ns < gap->mean_ns / OTHER_WORK ? took_ns - off_ns / STAYS_PART
                                                       : gap->mean_ns + off_ns / MEAN_PART;
    gap->spread_ns += ((off_ns < 0 ? -off_ns : off_ns) - gap->spread_ns) / SPREAD_PART;
}

static uint32_t next_layer(const struct habit *habit)
{
    return (uint32_t)(((uint64_t)habit->last.layer + habit->stride) % habit->last.num_layers);
}

static uint32_t next_gap(const struct habit *habit)
{
    return next_layer(habit) <= habit->last.layer;
}

static void come_back(struct habit *habit, const struct reading *reading, int64_t now_ns)
{
    struct habit_gap *gap = &habit->gaps[next_gap(habit)];
    const int64_t took_ns = now_ns - habit->ended_ns;
    const int64_t most_ns = gap->mean_ns ? habit_gap_most_ns(gap) : took_ns;
    const bool expected =
        reading->layer == next_layer(habit) && reading_shared(reading, &habit->last);
    if (!expected || took_ns > LATE * most_ns)
        gap->on_time = 0;
    else if (took_ns > most_ns)
        gap->on_time /= 2;
    else if (gap->on_time < MOST_TRUST)
        gap->on_time++;
    learn_gap(gap, took_ns);
}

// A run that shares nothing, like a copy, does not count as the expected return.
void habit_queued(struct habit *habit, const struct reading *reading, int64_t now_ns)
{
    if (!reading->cache)
        return;
    if (habit->ended_ns && habit->last.cache)
        come_back(habit, reading, now_ns);
    habit->ended_ns = 0;
    habit->stride =
        reading->cache == habit->last.cache
            ? (reading->layer + reading->num_layers - habit->last.layer) % reading->num_layers
            : 0;
    habit->last = *reading;
}

void habit_ended(struct habit *habit, int64_t now_ns)
{
    habit->ended_ns = now_ns;
}

void habit_served(struct habit *habit, int64_t gpu_ns, uint64_t tokens)
{
    const int64_t ps = tokens ? (int64_t)((double)gpu_ns * 1000 / (double)tokens) : 0,
                  known_ps = habit->token_ps;
    habit->gpu_ns = gpu_ns;
    habit->token_ps = !known_ps       ? ps
                      : ps > known_ps ? known_ps + (ps - known_ps) / TOKEN_RISE
                                      : known_ps - (known_ps - ps) / TOKEN_FALL;
}

const struct habit_gap *habit_next(const struct habit *habit, struct reading *next)
{
    if (!habit->last.cache || !habit->gpu_ns)
        return NULL;
    const struct habit_gap *gap = &habit->gaps[next_gap(habit)];
    if (gap->on_time < HABIT_TRUST)
        return NULL;
    *next = habit->last;
    next->layer = next_layer(habit);
    return gap;
}
