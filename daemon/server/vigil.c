// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// vigil.c - see vigil.h.

#include "vigil.h"

// Beside the preparing: the GPU begins some 10 us later (an H200), and what was foreseen may be wrong by as much and more.
static const int64_t ahead_ns = 35000;
enum {
    MOST_LOOKS = 2
}; // from where something was kept back no longer to the end; where it is more, there is time to sleep

static struct vigil_kind *place_of(struct vigil *vigil, uint64_t kind)
{
    return &vigil->kinds[kind % VIGIL_KINDS];
}

static int64_t expect(struct vigil *vigil, uint64_t kind)
{
    const struct vigil_kind *known = place_of(vigil, kind);
    return known->kind == kind ? known->took_ns : 0;
}

// What took less is believed at once, what took longer by a quarter: it may have stood behind others' work. Who was asleep heard of it late,
// and does not know how late: half a look is taken off, so that one who looks too late comes to look earlier each time until he sees the end.
static void remember(struct vigil *vigil, int64_t took_ns, bool asleep)
{
    int64_t known = expect(vigil, vigil->kind);
    took_ns -= asleep ? vigil->spin_ns / 2 : 0;
    if (known && took_ns > known)
        took_ns = known + (took_ns - known) / 4;
    *place_of(vigil, vigil->kind) = (struct vigil_kind){vigil->kind, took_ns > 0 ? took_ns : 1};
}

void vigil_next(struct vigil *vigil, uint64_t work, uint64_t kind, int64_t now_ns, bool asleep)
{
    if (vigil->work) {
        vigil->found_awake += !asleep;
        vigil->found_asleep += asleep;
        remember(vigil, now_ns - vigil->begun_ns, asleep);
    }
    vigil->work = work;
    vigil->kind = kind;
    vigil->begun_ns = now_ns;
    vigil->looks_until_ns = 0;
    vigil->could_sleep = false;
    vigil->keep_until_ns = 0;
    vigil->keeps = false;
    int64_t takes_ns = work ? expect(vigil, kind) : 0;
    vigil->end_ns = takes_ns ? now_ns + takes_ns : 0;
}

// What sleeps are too long by is forgotten where it left no room for a sleep: without one nobody would see that they are late no more.
static void begin_to_look(struct vigil *vigil, int64_t now_ns)
{
    if (!vigil->could_sleep && now_ns < vigil->end_ns - vigil->spin_ns / 2)
        vigil->late_ns -= vigil->late_ns / 8;
    vigil->looks_until_ns = now_ns + vigil->spin_ns;
}

bool vigil_looks(struct vigil *vigil, int64_t now_ns, int64_t *until_ns)
{
    const int64_t near_ns = vigil->end_ns - vigil->spin_ns / 2 - vigil->late_ns;
    const int64_t from_ns = vigil->keeps ? vigil->keep_until_ns : near_ns;
    *until_ns = INT64_MAX;
    if (!vigil->spin_ns || !vigil->end_ns)
        return false;
    if (!vigil->looks_until_ns && now_ns < from_ns) {
        *until_ns = from_ns;
        vigil->could_sleep = true;
        return false;
    }
    if (vigil->keeps)
        return true; // for vigil_keep_back() to say no
    if (!vigil->looks_until_ns)
        begin_to_look(vigil, now_ns);
    return now_ns < vigil->looks_until_ns;
}

bool vigil_keep_back(struct vigil *vigil, int64_t now_ns)
{
    const int64_t until_ns = vigil->end_ns - ahead_ns - vigil->prepares_ns - vigil->late_ns;
    const int64_t left_ns = vigil->end_ns > now_ns ? vigil->end_ns - now_ns : 0;
    if (!vigil->spin_ns || !vigil->end_ns || vigil->looks_until_ns)
        return false;
    if (!vigil->keep_until_ns && now_ns < until_ns)
        vigil->keep_until_ns = until_ns;
    vigil->keeps = now_ns < vigil->keep_until_ns;
    if (!vigil->keeps && vigil->keep_until_ns && left_ns <= MOST_LOOKS * vigil->spin_ns) {
        begin_to_look(vigil, now_ns); // to sleep once more would be to be late
        vigil->looks_until_ns += left_ns;
    }
    return vigil->keeps;
}

void vigil_let_go(struct vigil *vigil)
{
    vigil->keeps = false;
}

void vigil_prepared(struct vigil *vigil, int64_t took_ns)
{
    int64_t known = vigil->prepares_ns;
    vigil->prepares_ns = took_ns > known ? took_ns : known - (known - took_ns) / 8;
}

// One late sleep is no rule: what is not confirmed is forgotten by eighths.
void vigil_slept(struct vigil *vigil, int64_t until_ns, int64_t now_ns)
{
    const int64_t late_ns = now_ns - until_ns;
    if (until_ns == INT64_MAX || late_ns < 0)
        return; // woken before
    vigil->late_ns = late_ns > vigil->late_ns ? late_ns : vigil->late_ns - (vigil->late_ns - late_ns) / 8;
}
