// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// waits.c - what waits.h says of all kinds: which one is named next, and how a wait ends. The kinds
// themselves are known to pool/queue.c (leases), pool/claim.c, pool/taker.c and errand.c.
// Thread: dispatcher.

#include "base/list.h"
#include "core/pool/claim.h"
#include "core/pool/queue.h"
#include "state.h"

bool core_has_news(const struct core *core)
{
    return core->ledger.news;
}

// ---- any news ----

void core_wait_for_news(struct core_session *session, struct core_wait *wait, uint64_t cache)
{
    session_begin_wait(session, wait, CORE_WAIT_NEWS, cache);
    LIST_APPEND_BY(session->core->hopeful, wait, beside_prev, beside_next);
}

static void hope_no_more(struct core_wait *wait)
{
    LIST_DELETE_BY(wait->session->core->hopeful, wait, beside_prev, beside_next);
}

// ---- loads from tiers ----

void core_wait_for_load(struct core_session *session, struct core_wait *wait, uint64_t cache,
                        uint64_t load)
{
    session_begin_wait(session, wait, CORE_WAIT_LOAD, cache);
    wait->load = load;
    LIST_APPEND_BY(session->core->tiers.loaders, wait, beside_prev, beside_next);
    if (!core_load_runs(session->core, load))
        ledger_wake(session->ledger, wait);
}

static void load_no_more(struct core_wait *wait)
{
    LIST_DELETE_BY(wait->session->core->tiers.loaders, wait, beside_prev, beside_next);
}

// ---- all kinds ----

void core_wait_end(struct core_wait *wait)
{
    static void (*const ends[])(struct core_wait *) = {
        [CORE_WAIT_BLOCKS] = queue_end_wait, [CORE_WAIT_CLAIM] = claim_end_wait,
        [CORE_WAIT_OFFER] = takers_end_wait, [CORE_WAIT_LOAD] = load_no_more,
        [CORE_WAIT_NEWS] = hope_no_more,
    };
    if (!wait->session)
        return;
    ends[wait->kind](wait);
    session_end_wait(wait);
}

static struct core_wait *take_woken(struct ledger *ledger)
{
    struct core_wait *first = ledger->woken;
    ledger_unwake(ledger, first);
    return first;
}

struct core_wait *core_next_ready(struct core *core)
{
    struct core_wait *wait;
    if (!core->asked) {
        LIST_EACH_BY(core->hopeful, wait, beside_next) {
            ledger_name(&core->ledger, wait);
        }
        queue_begin_round(&core->pool);
    }
    wait = take_woken(&core->ledger);
    if (!wait)
        wait = queue_next(&core->pool);
    core->asked = wait != NULL;
    return wait;
}
