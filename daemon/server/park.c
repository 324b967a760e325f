// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// park.c - see park.h. One list for all sessions, oldest first. A pass makes at most one call of
// core for each command that may succeed.

#include "park.h"

#include "base/container_of.h"
#include "log.h"
#include "session.h"
#include "take.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <utlist.h>

// A session may have max_tickets and this many commands parked, of any kind.
enum { PARKED_BEYOND_TICKETS = 64 };

// ---- in and out ----

uint32_t park_max(const struct server_params *params)
{
    return params->max_tickets + PARKED_BEYOND_TICKETS;
}

// Limits on the number of parked commands and on the memory of their arrays.
static enum status check_limits(struct call *call, const struct parked *command)
{
    const struct server_params *params = call->server->params;
    const struct session *session = call->session;
    if (session->num_parked >= park_max(params))
        return error_set(&call->error, STATUS_LIMIT,
                         "session %" PRIu64 " has %u commands waiting already (--max-tickets %u)",
                         session->id, session->num_parked, params->max_tickets);
    if (command->bytes > params->max_parked_bytes ||
        session->parked_bytes > params->max_parked_bytes - command->bytes)
        return error_set(&call->error, STATUS_LIMIT,
                         "a command with %" PRIu64
                         " bytes of arrays cannot wait for a ticket beside the %" PRIu64
                         " bytes of other waiting commands of session %" PRIu64
                         "; --max-parked-memory is %" PRIu64,
                         command->bytes, session->parked_bytes, session->id,
                         params->max_parked_bytes);
    return STATUS_OK;
}

// A copy of *command with copies of its arrays. NULL: no memory.
static struct parked *copy_of(const struct parked *command)
{
    struct parked *parked = malloc(sizeof *parked);
    if (!parked)
        return NULL;
    *parked = *command;
    if (parked->kind != PARKED_WORK || work_keep(&parked->work))
        return parked;
    free(parked);
    return NULL;
}

static void count(struct parked *parked, bool in)
{
    struct server *server = parked->session->server;
    struct session *session = parked->session;
    uint32_t one = in ? 1 : UINT32_MAX; // adding UINT32_MAX subtracts 1
    server->num_parked += one;
    session->num_parked += one;
    session->num_parked_work += parked->kind == PARKED_WORK ? one : 0;
    server->num_parked_leases += parked->kind == PARKED_LEASE ? one : 0;
    session->parked_bytes += in ? parked->bytes : -parked->bytes;
    if (parked->kind == PARKED_CLAIM || parked->kind == PARKED_TAKE)
        core_count_wait(session->core, in);
}

enum status park(struct call *call, const struct parked *command)
{
    struct server *server = call->server;
    enum status status = check_limits(call, command);
    if (status != STATUS_OK)
        return status;
    struct parked *parked = copy_of(command);
    if (!parked)
        return error_set(&call->error, STATUS_NO_MEMORY,
                         "the daemon has no memory for a waiting command");
    parked->session = call->session;
    parked->asker = call->asker;
    if (parked->kind == PARKED_LEASE)
        status = core_wait(parked->session->core, &parked->lease.waiter, parked->lease.cache,
                           parked->lease.count, parked->only_growth, &call->error);
    if (parked->kind == PARKED_TAKE)
        status = core_take_wait(parked->session->core, &parked->take.taker, parked->take.cache,
                                parked->take.name, &call->error);
    if (status != STATUS_OK) {
        free(parked);
        return status;
    }
    DL_APPEND(server->parked, parked);
    count(parked, true);
    call->later = true;
    server_arm(server, parked->deadline_ns);
    return STATUS_OK;
}

static void unpark(struct server *server, struct parked *parked)
{
    DL_DELETE(server->parked, parked);
    count(parked, false);
    if (parked->kind == PARKED_LEASE)
        core_wait_end(&parked->lease.waiter);
    if (parked->kind == PARKED_TAKE)
        core_take_wait_end(&parked->take.taker);
    if (parked->kind == PARKED_WORK)
        work_finish(&parked->work);
    free(parked);
}

static void refuse(struct server *server, struct parked *parked, const struct error *error)
{
    log_debug("%s: parked command: %s: %s", parked->session->label, status_name(error->status),
              error->text);
    dispatch_refuse(server, parked->session, &parked->asker, error);
    unpark(server, parked);
}

static void answer(struct server *server, struct parked *parked, const struct wire_reply *reply)
{
    dispatch_reply(server, &parked->asker, reply);
    unpark(server, parked);
}

// ---- blocks that others compute ----

// Takes what has come, with room for all of it in `blocks`.
static enum status take_claimed(struct core_session *session, uint64_t cache, uint64_t claim,
                                int32_t *blocks, struct wire_reply *reply, struct error *error)
{
    struct core_claim now;
    uint32_t count;
    enum status status = core_claim_take(session, cache, claim, blocks, &count, &now, error);
    reply->answer = WIRE_ANSWER_PREFIX_LOOKUP;
    if (status == STATUS_OK)
        reply->prefix_lookup = (struct wire_prefix_lookup_reply){
            .blocks = {blocks, count},
            .num_tokens = count * core_cache_block_size(session, cache),
            .claim = now.claim,
            .num_promised = now.num_promised,
        };
    return status;
}

enum status park_claim(struct call *call, uint64_t cache, uint64_t claim, int64_t deadline_ns)
{
    struct core_session *session = call->session->core;
    size_t room = core_claim_missing(session, cache, claim) + (size_t)1;
    int32_t *blocks = call_alloc(call, room, sizeof *blocks);
    if (!blocks)
        return call->error.status;
    enum status status = take_claimed(session, cache, claim, blocks, &call->reply, &call->error);
    if (status != STATUS_TIMEOUT || clock_now_ns() >= deadline_ns)
        return status;
    const struct parked parked = {
        .kind = PARKED_CLAIM, .deadline_ns = deadline_ns, .claim = {cache, claim}};
    return park(call, &parked);
}

// `last`: its deadline has passed, so TIMEOUT is a failure, too.
static void retry_claim(struct server *server, struct parked *parked, bool last)
{
    struct core_session *session = parked->session->core;
    const uint64_t cache = parked->claim.cache, claim = parked->claim.claim;
    struct wire_reply reply = {.message = ""};
    struct error error = {.status = STATUS_OK};
    if (!last && core_claim_waits(session, cache, claim))
        return;
    size_t room = core_claim_missing(session, cache, claim) + (size_t)1;
    int32_t *blocks = malloc(room * sizeof *blocks);
    enum status status = blocks ? take_claimed(session, cache, claim, blocks, &reply, &error)
                                : error_set(&error, STATUS_NO_MEMORY,
                                            "the daemon has no memory for %zu block ids", room);
    if (status == STATUS_OK)
        answer(server, parked, &reply);
    else if (last || status != STATUS_TIMEOUT)
        refuse(server, parked, &error);
    free(blocks);
}

// ---- the memory of a cache ----

enum status park_attach(struct call *call, uint64_t cache, uint32_t part, int64_t deadline_ns)
{
    call->reply.answer = WIRE_ANSWER_CACHE_ATTACH;
    enum status status =
        session_attach(call->session, cache, part, &call->reply.cache_attach, &call->error);
    if (status != STATUS_BUSY || clock_now_ns() >= deadline_ns)
        return status;
    const struct parked parked = {
        .kind = PARKED_ATTACH, .deadline_ns = deadline_ns, .attach = {cache, part}};
    return park(call, &parked);
}

static void retry_attach(struct server *server, struct parked *parked, bool last)
{
    struct wire_reply reply = {.message = "", .answer = WIRE_ANSWER_CACHE_ATTACH};
    struct error error = {.status = STATUS_OK};
    enum status status = session_attach(parked->session, parked->attach.cache, parked->attach.part,
                                        &reply.cache_attach, &error);
    if (status == STATUS_OK)
        answer(server, parked, &reply);
    else if (last || status != STATUS_BUSY)
        refuse(server, parked, &error);
}

// ---- the end of a run ----

// The answer to a Wait whose ticket was reaped. *reply points into *error, which core_ticket_reap()
// filled.
static void fill_wait(struct wire_reply *reply, const struct core_ticket_result *result,
                      const struct error *error)
{
    reply->answer = WIRE_ANSWER_WAIT;
    reply->wait = (struct wire_wait_reply){
        .run_status = result->status,
        .gpu_ns = result->gpu_ns,
        .num_runs = result->num_runs,
        .num_sessions = result->num_sessions,
        .run_message = result->status == STATUS_OK ? "" : error->text,
    };
}

enum status park_wait(struct call *call, uint64_t ticket, int64_t deadline_ns)
{
    struct core_ticket_result result;
    enum status status = core_ticket_reap(call->session->core, ticket, &result, &call->error);
    if (status == STATUS_TIMEOUT && clock_now_ns() < deadline_ns) {
        const struct parked parked = {
            .kind = PARKED_WAIT, .deadline_ns = deadline_ns, .ticket = ticket};
        return park(call, &parked);
    }
    if (status == STATUS_OK) {
        fill_wait(&call->reply, &result, &call->error);
        call->server->retry = true; // a ticket came free
    }
    return status;
}

static void retry_wait(struct server *server, struct parked *parked)
{
    struct core_ticket_result result;
    struct error error = {.status = STATUS_OK};
    enum status status = core_ticket_reap(parked->session->core, parked->ticket, &result, &error);
    if (status == STATUS_TIMEOUT)
        return;
    if (status == STATUS_OK) {
        struct wire_reply reply = {.message = ""};
        fill_wait(&reply, &result, &error);
        answer(server, parked, &reply);
        server->retry = true; // a ticket came free
    } else {
        refuse(server, parked, &error);
    }
}

// False: not all tickets up to `ticket` have ended.
static bool fill_ended(const struct core_session *session, uint64_t ticket,
                       struct wire_reply *reply)
{
    uint64_t ended = core_tickets_ended(session);
    reply->answer = WIRE_ANSWER_TICKETS_ENDED;
    reply->tickets_ended.ticket = ended;
    return ended >= ticket;
}

static enum status not_ended(uint64_t ticket, struct error *error)
{
    return error_set(error, STATUS_TIMEOUT, "ticket %" PRIu64 " has not ended in time", ticket);
}

enum status park_ended(struct call *call, uint64_t ticket, int64_t deadline_ns)
{
    if (fill_ended(call->session->core, ticket, &call->reply))
        return STATUS_OK;
    if (clock_now_ns() >= deadline_ns)
        return not_ended(ticket, &call->error);
    const struct parked parked = {
        .kind = PARKED_ENDED, .deadline_ns = deadline_ns, .ticket = ticket};
    return park(call, &parked);
}

static void retry_ended(struct server *server, struct parked *parked)
{
    struct wire_reply reply = {.message = ""};
    if (fill_ended(parked->session->core, parked->ticket, &reply))
        answer(server, parked, &reply);
}

// Parked work has got its ticket, and its client waits for the end of the run. The record becomes a
// PARKED_WAIT and keeps its place in the list.
static void become_wait(struct server *server, struct parked *parked, uint64_t ticket)
{
    count(parked, false);
    work_finish(&parked->work);
    parked->kind = PARKED_WAIT;
    parked->ticket = parked->asker.ticket = ticket;
    parked->bytes = 0;
    parked->deadline_ns = parked->asker.deadline_ns;
    count(parked, true);
    server_arm(server, parked->deadline_ns);
    retry_wait(server, parked);
}

// ---- trying again ----

// Answers the lease if there are enough blocks and it is its turn, or if it failed for good.
// `last`: its deadline has passed, so too few blocks are a failure, too. The error of core says how
// many blocks there are. True: it was granted.
static bool retry_lease(struct server *server, struct parked *parked, bool last)
{
    struct error error = {.status = STATUS_OK};
    bool growing = false;
    struct core_session *core = parked->session->core;
    const uint32_t count = parked->lease.count;
    int32_t *blocks = malloc(count * sizeof *blocks);
    if (!blocks) {
        error_set(&error, STATUS_NO_MEMORY, "the daemon has no memory for %u block ids", count);
        refuse(server, parked, &error);
        return false;
    }
    enum status status =
        core_lease_turn(core, &parked->lease.waiter, parked->lease.cache, count, &error);
    if (status == STATUS_OK)
        status = core_blocks_lease(core, parked->lease.cache, count, blocks, &growing, &error);
    else
        growing = core_cache_grows(core, parked->lease.cache);
    bool waits = !last && status == STATUS_NO_BLOCKS && (growing || !parked->only_growth);
    if (status == STATUS_OK) {
        const struct wire_reply reply = {.message = "",
                                         .answer = WIRE_ANSWER_BLOCKS_LEASE,
                                         .blocks_lease = {.blocks = {blocks, count}}};
        answer(server, parked, &reply);
    } else if (!waits) {
        refuse(server, parked, &error);
    }
    free(blocks);
    return status == STATUS_OK;
}

static void retry_take(struct server *server, struct parked *parked, bool last)
{
    struct error error = {.status = STATUS_OK};
    struct wire_reply reply = {.message = ""};
    uint8_t *access;
    bool waits;
    enum status status = take_offer(parked->session->core, &parked->take.taker, parked->take.cache,
                                    parked->take.name, &reply, &access, &waits, &error);
    if (status == STATUS_OK)
        answer(server, parked, &reply);
    else if (last || !waits)
        refuse(server, parked, &error);
    free(access);
}

// False: the work still waits. To check a command takes long, and retries are frequent. So nothing
// is checked while the session has no free ticket.
static bool retry_work(struct server *server, struct parked *parked)
{
    struct error error = {.status = STATUS_OK};
    uint64_t ticket;
    if (core_session_waits(parked->session->core))
        return false;
    enum status status = work_submit(parked->session->core, &parked->work, &ticket, &error);
    if (status == STATUS_BUSY)
        return false;
    if (status != STATUS_OK) {
        refuse(server, parked, &error);
    } else if (parked->asker.waits) {
        become_wait(server, parked, ticket);
    } else {
        const struct wire_reply reply = {.message = "", .answer = WIRE_ANSWER_RUN, .run = {ticket}};
        answer(server, parked, &reply);
    }
    return true;
}

// After work of a session has found no free ticket, younger work of the session is not tried in the
// same pass. So it cannot overtake.
static void retry_work_in_turn(struct server *server, struct parked *parked)
{
    struct session *session = parked->session;
    if (session->waiting_pass == server->park_pass)
        return;
    session->waiting_pass = server->park_pass; // before retry_work(), which may free `parked`
    if (retry_work(server, parked))
        session->waiting_pass = 0;
}

void park_retry_leases(struct server *server)
{
    bool granted = server->num_parked_leases > 0;
    while (granted) { // a granted lease may give another one its turn
        struct core_waiter *waiter;
        granted = false;
        core_retry_begin(server->core);
        while ((waiter = core_retry_next(server->core)))
            granted |=
                retry_lease(server, container_of(waiter, struct parked, lease.waiter), false);
    }
}

void park_retry(struct server *server)
{
    struct parked *parked, *next;
    server->park_pass++;
    DL_FOREACH_SAFE(server->parked, parked, next)
    {
        switch (parked->kind) {
        case PARKED_LEASE: break; // below
        case PARKED_WAIT: retry_wait(server, parked); break;
        case PARKED_WORK: retry_work_in_turn(server, parked); break;
        case PARKED_CLAIM: retry_claim(server, parked, false); break;
        case PARKED_ENDED: retry_ended(server, parked); break;
        case PARKED_TAKE: retry_take(server, parked, false); break;
        case PARKED_ATTACH: retry_attach(server, parked, false); break;
        }
    }
    park_retry_leases(server);
}

// ---- giving up ----

static void expire(struct server *server, struct parked *parked)
{
    struct error error;
    switch (parked->kind) {
    case PARKED_LEASE: retry_lease(server, parked, true); return;
    case PARKED_CLAIM: retry_claim(server, parked, true); return;
    case PARKED_TAKE: retry_take(server, parked, true); return;
    case PARKED_ATTACH: retry_attach(server, parked, true); return;
    case PARKED_WAIT:
        error_set(&error, STATUS_TIMEOUT,
                  "ticket %" PRIu64 " was not done in time; its run goes on", parked->ticket);
        break;
    case PARKED_ENDED: not_ended(parked->ticket, &error); break;
    case PARKED_WORK:
        error_set(&error, STATUS_BUSY,
                  "no ticket of the session came free in time (--max-tickets %u)",
                  server->params->max_tickets);
        break;
    }
    refuse(server, parked, &error);
}

void park_expire(struct server *server, int64_t now_ns)
{
    struct parked *parked, *next;
    DL_FOREACH_SAFE(server->parked, parked, next)
    {
        if (parked->deadline_ns <= now_ns)
            expire(server, parked);
        else
            server_arm(server, parked->deadline_ns);
    }
}

void park_drop_session(struct session *session, const char *why)
{
    struct server *server = session->server;
    struct parked *parked, *next;
    struct error error;
    error_set(&error, STATUS_NO_SESSION, "session %" PRIu64 " has ended: %s", session->id, why);
    DL_FOREACH_SAFE(server->parked, parked, next)
    {
        if (parked->session == session)
            refuse(server, parked, &error);
    }
}

void park_refuse_all(struct server *server, const struct error *why, bool waits_too)
{
    struct parked *parked, *next;
    DL_FOREACH_SAFE(server->parked, parked, next)
    {
        bool waits = parked->kind == PARKED_WAIT || parked->kind == PARKED_ENDED;
        if (waits_too || !waits)
            refuse(server, parked, why);
    }
}
