// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// delay.h - how long ready runs wait while the GPU is busy, so that more sessions share the next
// submission. The wait ends when the time until the GPU's predicted end is only enough to prepare
// the next submission. It also says when the dispatcher must wake: for the end of a wait, or for
// the end of the GPU's work. Knows numbers only: no clock, no run. Dispatcher thread only.

#ifndef AULE_CORE_DELAY_H
#define AULE_CORE_DELAY_H

#include "base/forecast.h"

struct delay {
    // Watches the submission that ends next. look_ns 0: runs never wait. After runs have waited, a
    // look lasts up to 3 times as long, because another sleep would miss the end.
    struct forecast_watch watch;
    uint64_t sequence;   // number of that submission; 0 = the GPU has none
    int64_t prepares_ns; // recent time from engine_submit() until the GPU has the submission
    int64_t until_ns;    // runs wait until then at most; 0 = none waited during this submission
    bool keeps;          // runs wait now
    // Submissions whose end the awake dispatcher saw; submissions whose end woke it.
    uint64_t ends_awake, ends_asleep;
};

void delay_init(struct delay *delay, int64_t look_ns); // look_ns as in core_params
// Another submission ends next: number `sequence`, of kind `kind`. 0: the GPU has none. `woken`:
// the end of the last one woke the dispatcher.
void delay_next(struct delay *delay, uint64_t sequence, uint64_t kind, int64_t now_ns, bool woken);
// The submission that ended last took `took_ns` from engine_submit() until the GPU had it.
void delay_prepared(struct delay *delay, int64_t took_ns);

// Call this once in each core_step(), before delay_keep_back().
void delay_begin_step(struct delay *delay);
// True: ready runs wait. The caller has checked that the GPU is busy and that sessions are
// expected.
bool delay_keep_back(struct delay *delay, int64_t now_ns);
// At most `now_ns`: do not sleep, step again. Later: sleep until then or until an event. FOREVER:
// sleep until an event.
int64_t delay_wake_ns(struct delay *delay, int64_t now_ns);

#endif
