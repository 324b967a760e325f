// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// delay.h - how long ready runs are kept back while the GPU is busy, so that more sessions share
// the next submission: until the GPU's end is so near that preparing the next submission may take
// all the time that is left. It also says when the dispatcher should be awake: for the end of what
// the GPU works on, or for the end of a delay. Knows numbers only: no clock, no run.

#ifndef AULE_CORE_DELAY_H
#define AULE_CORE_DELAY_H

#include "base/forecast.h"

struct delay {
    // Over the submission that ends next. look_ns 0: nothing is kept back. A look behind a delay
    // lasts up to 3 times as long, because another sleep would miss the end.
    struct forecast_watch watch;
    uint64_t sequence;   // that submission's; 0 = the GPU has none
    int64_t prepares_ns; // from a submission until the GPU has it, of late
    int64_t
        until_ns; // runs are kept back until then at most; 0 = none were, behind this submission
    bool keeps;   // runs are kept back now
    uint64_t ends_awake, ends_asleep;
};

void delay_init(struct delay *delay, int64_t look_ns);
// Another submission ends next: `sequence`, of `kind`; 0: there is none. `woken`: the dispatcher
// was asleep until the last one ended.
void delay_next(struct delay *delay, uint64_t sequence, uint64_t kind, int64_t now_ns, bool woken);
// The submission that ended had needed so long until the GPU had it.
void delay_prepared(struct delay *delay, int64_t took_ns);

void delay_begin_step(
    struct delay *delay); // nothing is kept back, until delay_keep_back() says so again
bool delay_keep_back(struct delay *delay, int64_t now_ns);
// At most `now_ns`: stay awake, and step again. Later: sleep until then, unless something happens
// before. FOREVER: sleep until something happens.
int64_t delay_wake_ns(struct delay *delay, int64_t now_ns);

#endif
