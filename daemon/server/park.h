// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// park.h - commands that wait: a lease for free blocks, a Wait for the end of a run, GPU work for a
// free ticket, a ClaimWait for blocks that others compute, an OfferTake for an offer, a look-up for
// blocks that come from tiers. Each is a record with a deadline, never a blocked thread. Core names
// those that may succeed now (core_next_woken(), core_retry_next()), so an event costs what it
// wakes, not all that waits. Work never overtakes older work of its session. Core decides which
// lease and which take goes first (core_lease_turn(), core_take_turn()). Dispatcher thread.

#ifndef AULE_SERVER_PARK_H
#define AULE_SERVER_PARK_H

#include "dispatch.h"

// Parks a copy of *command with copies of its arrays. The caller sets kind, deadline, the union and
// `bytes`; session and asker are the call's. LIMIT: the session has park_max() commands parked, or
// their arrays would exceed --max-parked-memory.
enum status park(struct call *call, const struct parked *command);
uint32_t park_max(const struct server_params *params); // commands that a session may have parked
// Answers the call with the result of a run: at once if the run is over, else when it ends, until
// `deadline_ns`. TIMEOUT: the run is not over and the deadline has passed.
enum status park_wait(struct call *call, uint64_t ticket, int64_t deadline_ns);
// Answers the call with the last ticket that has ended: when all up to `ticket` have, until
// `deadline_ns`. TIMEOUT.
enum status park_ended(struct call *call, uint64_t ticket, int64_t deadline_ns);
// Answers the call with the blocks of the claim that have come: at once if there are some or if the
// next one is the claim's to compute, else when that is so, until `deadline_ns`.
enum status park_claim(struct call *call, uint64_t cache, uint64_t claim, int64_t deadline_ns);

// Answers a look-up without a claim: at once if nothing more comes for it from tiers, else when the
// load has ended, or at `deadline_ns` with what is there then. A look-up that cannot wait is
// answered at once.
struct park_lookup {
    uint64_t cache, load; // load 0: nothing comes
    struct core_prefix prefix;
    uint32_t max_tokens, num_blocks; // num_blocks: full ones of the prefix
};
enum status park_lookup(struct call *call, const struct park_lookup *lookup, int64_t deadline_ns);
// Attaches the session, when the memory is made, until `deadline_ns`. BUSY: it is not made yet.
enum status park_attach(struct call *call, uint64_t cache, uint32_t part, int64_t deadline_ns);

void park_retry(struct server *server); // call this when something came free
// The session has closed the cache: its takes and look-ups there, which can only fail now, are
// answered.
void park_cache_closed(struct session *session, uint64_t cache);
// Call this before a new lease, so that older ones get free blocks first.
void park_retry_leases(struct server *server);
// Answers the commands whose deadline has passed, and arms the other deadlines.
void park_expire(struct server *server, int64_t now_ns);
// The session ends: its commands are answered NO_SESSION, with `why` in the text.
void park_drop_session(struct session *session, const char *why);
// Answers all parked leases and work with the error `why`; if `waits_too`, also all waits for runs.
void park_refuse_all(struct server *server, const struct error *why, bool waits_too);

#endif
