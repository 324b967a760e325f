// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// state.h - struct core, the object behind core.h. Only the files of this folder know it; the files
// of pool/, steps/ and runs/ get the part that they need. Dispatcher thread only.

#ifndef AULE_CORE_STATE_H
#define AULE_CORE_STATE_H

#include "core.h"
#include "core/errands/tiers.h"
#include "core/pool/cache.h"
#include "core/pool/ledger.h"
#include "core/pool/offer.h"
#include "core/pool/pool.h"
#include "core/pool/salt.h"
#include "core/pool/session.h"
#include "core/turns/delay.h"
#include "scheduler.h"

struct core {
    struct core_params params; // a copy; its pointers are the caller's
    struct ledger ledger;
    struct pool pool;
    struct offers offers;
    struct scheduler scheduler;
    struct delay delay;
    int64_t wake_ns; // what core_wake_ns() returns
    bool woken;      // an event of the engine ended the caller's last sleep

    struct core_wait *hopeful; // waits for any news
    bool asked;                // core_next_ready() has not returned NULL yet

    struct core_session *sessions; // open ones; owned
    struct core_session *leaving;  // closed ones with work in flight, or haunted; owned
    uint32_t num_sessions;         // in `sessions`, without errands
    uint32_t num_errands;          // in `sessions`: core's own ones
    uint32_t num_proven;           // in `leaving`: dead ones whose fence is not submitted
    struct tiers tiers;
    struct salt *salts; // all that sessions or roots use; see salt.h
};

#endif
