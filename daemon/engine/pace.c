// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// pace.c - see pace.h.

#include "pace.h"

#include <stddef.h>

enum {
    POLL_US = 100,   // covers the late begin of a dispatch and what one shape's times differ by
    LEAST_CORES = 4, // one for who looks, one for who submits, one for the caller, one for everybody else
    LONG_POLLS = 16, // what takes more than so many times poll_ns differs by more than looking could gain
};

uint64_t pace_poll_us(uint32_t asked, long num_cores, bool software)
{
    if (asked)
        return asked;
    return num_cores >= LEAST_CORES && !software ? POLL_US : 0;
}

static struct pace_shape *place_of(struct pace *pace, uint64_t shape)
{
    return &pace->shapes[shape % PACE_SHAPES];
}

// What work of the shape takes; 0 = nobody knows.
static uint64_t expect(struct pace *pace, uint64_t shape)
{
    const struct pace_shape *known = place_of(pace, shape);
    return known->shape == shape ? known->took_ns : 0;
}

// Too short a guess costs a look, too long a one costs time: so what was longer counts for an eighth.
static void remember(struct pace *pace, uint64_t shape, uint64_t took_ns)
{
    uint64_t known = expect(pace, shape);
    if (known && took_ns > known)
        took_ns = known + (took_ns - known) / 8;
    *place_of(pace, shape) = (struct pace_shape){shape, took_ns};
}

// Looks, until `end_ns` at the longest. *first: the first look was enough.
static bool look(const struct pace_ops *ops, void *context, uint64_t end_ns, bool *first)
{
    bool passed = *first = ops->passed(context);
    while (!passed && ops->now_ns(context) < end_ns)
        passed = ops->passed(context);
    return passed;
}

// Less by what sleeps are too long by. false: it is past already. What keeps it from sleeping is forgotten, too: one late sleep is no rule.
static bool sleep_before(struct pace *pace, uint64_t until_ns, const struct pace_ops *ops, void *context)
{
    if (ops->now_ns(context) + pace->late_ns >= until_ns) {
        pace->late_ns -= pace->late_ns / 8;
        return false;
    }
    ops->sleep_until(context, until_ns - pace->late_ns);
    uint64_t now = ops->now_ns(context), asked = until_ns - pace->late_ns, late = now > asked ? now - asked : 0;
    pace->late_ns = late > pace->late_ns ? late : pace->late_ns - (pace->late_ns - late) / 8;
    return true;
}

bool pace_wait(struct pace *pace, uint64_t shape, uint64_t sent_ns, const struct pace_ops *ops, void *context)
{
    uint64_t begin = sent_ns > pace->done_ns ? sent_ns : pace->done_ns, expected = expect(pace, shape);
    uint64_t poll = pace->poll_ns, lead = poll / 2;
    bool looks = poll && expected <= LONG_POLLS * poll, first = false, passed = false;
    bool slept = looks && expected > lead && sleep_before(pace, begin + expected - lead, ops, context);
    if (looks)
        passed = look(ops, context, ops->now_ns(context) + poll, &first);
    if (!passed && !ops->wait(context))
        return false;
    pace->done_ns = poll ? ops->now_ns(context) : 0;
    uint64_t took = pace->done_ns > begin ? pace->done_ns - begin : 1;
    if (slept && first) // it had passed before, nobody knows when: next time it is waited for
        *place_of(pace, shape) = (struct pace_shape){shape, UINT64_MAX};
    else if (poll)
        remember(pace, shape, passed || took <= lead ? took : took - lead / 2); // a wait hears late
    return true;
}
