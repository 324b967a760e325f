// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// state.h - struct core: the parts of core.h's object. Only the top of core/ knows it; a room below
// gets its own part. Dispatcher thread only.

#ifndef AULE_CORE_STATE_H
#define AULE_CORE_STATE_H

#include "core.h"
#include "core/pool/cache.h"
#include "core/pool/ledger.h"
#include "core/pool/pool.h"
#include "core/pool/salt.h"
#include "core/pool/session.h"
#include "core/runs/delay.h"
#include "scheduler.h"

struct core {
    struct core_params params;
    struct ledger ledger;
    struct pool pool;
    struct scheduler scheduler;
    struct delay delay;
    int64_t wake_ns; // core_wake_ns()
    bool woken;      // by the engine's news, since the last core_step()

    struct core_session *sessions, *leaving; // open; closed with work in flight
    uint32_t num_sessions;                   // open
    struct salt *salts;
};

#endif
