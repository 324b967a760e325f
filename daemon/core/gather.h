// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// gather.h - holds runs back past the end of the GPU's work, until sessions that are about to read
// the same prefix have queued theirs. The rule is in turns/crews.h; here are its sessions, and two
// bounds on what waiting may cost. Dispatcher thread only.
//
// - A run waits for at most about a model step: the cache's layers and GATHER_ROUNDS, times its
//   session's last GPU time. It waits for at most half of its max_queue_ms.
// - Waits for sessions that do not come may idle the GPU for this long:
//       of one tenant    GATHER_SPARE_NS + the tenant's busy time / GATHER_PART
//       of all tenants   GATHER_TENANTS * GATHER_SPARE_NS + all busy time / GATHER_PART
//   So a tenant whose sessions do not come does not use up what others have. Beyond its bound a
//   tenant is refused nothing: its runs do not wait, so they share fewer dispatches.

#ifndef AULE_CORE_GATHER_H
#define AULE_CORE_GATHER_H

#include "core/turns/crews.h"

#include <stddef.h>

enum {
    GATHER_MOST = 1024,
    GATHER_ROUNDS = 4,
    GATHER_PART = 64,
    GATHER_SPARE_NS = 1000 * 1000,
    GATHER_TENANTS = 4,
};

struct core;
struct core_session;
struct layer_run;
struct submission;

// Sessions that waited for others of their prefix when the GPU became idle.
struct gather_wait {
    struct reading reading;
    uint32_t count;
    bool in_vain; // by settle_idle(): none has come
};

struct gather {
    struct crews crews;                      // scratch
    struct core_session *aside[GATHER_MOST]; // ready sessions that wait, out of the heap
    uint32_t num_aside;
    int64_t wake_ns;  // the first wait ends then; FOREVER: none ends by itself
    int64_t spare_ns; // idle time for waits in vain that is left, of all tenants
    int64_t idle_ns;  // since then the GPU has been idle for a wait; 0 = it has not
    struct gather_wait waits[CREWS_MOST]; // that began then: [num_waits]
    uint32_t num_waits;
};

void gather_init(struct gather *gather); // takes a zeroed one
// Call this once in each core_step(). `some`: sessions are ready.
void gather_begin_step(struct gather *gather, bool some);
// Takes the sessions that wait out of the heap of ready ones. False: all of them wait.
bool gather_part(struct core *core);
// True: both read one prefix in one layer.
bool gather_shares(const struct layer_run *a, const struct layer_run *b);
void gather_rejoin(struct core *core); // puts them back; always follows gather_part()
// The submission has ended. Call this while its runs exist.
void gather_learn(struct core *core, const struct submission *submission, uint64_t gpu_ns);

#endif
