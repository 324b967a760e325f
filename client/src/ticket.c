// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// ticket.c - see ticket.h. Tickets of a session end in order. Any thread.

#include "ticket.h"

#include "error.h"
#include "session.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static const uint64_t ticket_mask = (UINT64_C(1) << TICKET_BITS) - 1;

struct aule_ticket ticket_make(const struct life *life, uint64_t id, enum aule_path path)
{
    struct notice *notice = life_notice(life);
    if (notice && id)
        notice_add(notice, id);
    return (struct aule_ticket){.id = (uint64_t)life->generation << TICKET_BITS | id, .path = path};
}

enum aule_status ticket_check(uint64_t id)
{
    if (id <= ticket_mask)
        return AULE_OK;
    return fail(AULE_INTERNAL, "ticket %" PRIu64 " has more than %d bits", id, TICKET_BITS);
}

// The program will not wait for this ticket again.
static void forget(const struct life *life, uint64_t id)
{
    struct notice *notice = life_notice(life);
    if (notice)
        notice_remove(notice, id);
}

// ---- wait ----

enum aule_status ticket_read(const struct wire_wait_reply *reply, uint64_t id,
                             const struct caller_result *result)
{
    enum aule_status status = AULE_OK;
    if (reply->run_status != STATUS_OK)
        status = fail((enum aule_status)reply->run_status,
                      "the run of ticket %" PRIu64 " failed: %s", id,
                      reply->run_message ? reply->run_message
                                         : aule_status_text((enum aule_status)reply->run_status));
    const struct aule_run_result whole = {
        .gpu_ns = reply->gpu_ns, .num_runs = reply->num_runs, .num_sessions = reply->num_sessions};
    if (result && result->to)
        GIVE(result->to, result->size, whole);
    return status;
}

// False: the wait failed, and the ticket is as it was.
static bool reap(struct life *life, uint64_t id, int timeout_ms, const struct caller_result *result,
                 enum aule_status *status)
{
    struct wire_request request = {.command = WIRE_COMMAND_WAIT,
                                   .wait = {.ticket = id, .timeout_ms = timeout_ms}};
    struct answer answer;
    *status = life_call(life, &request, timeout_ms, WIRE_ANSWER_WAIT, &answer);
    if (*status == AULE_OK || *status == AULE_NOT_FOUND)
        forget(life, id);
    if (*status != AULE_OK)
        return false;
    *status = ticket_read(&answer.reply.wait, id, result);
    answer_finish(&answer);
    return true;
}

enum aule_status ticket_reap(struct life *life, uint64_t id, int timeout_ms,
                             const struct caller_result *result)
{
    enum aule_status status;
    reap(life, id, timeout_ms, result, &status);
    return status;
}

bool ticket_reap_own(struct life *life, uint64_t id, int timeout_ms,
                     const struct caller_result *result, enum aule_status *status)
{
    if (reap(life, id, timeout_ms, result, status) || *status == AULE_NOT_FOUND)
        return true;
    ticket_abandon(life, id);
    return false;
}

// A request with no end would have no grace: a daemon that hangs would keep the call for ever. A
// missing answer ends the connection, so the second request fails at once.
enum aule_status ticket_reap_to_end(struct life *life, uint64_t id)
{
    enum { SLICE_MS = 500 };
    enum aule_status status;
    do {
        if (reap(life, id, SLICE_MS, NULL, &status))
            return status;
    } while (status == AULE_TIMEOUT);
    if (status != AULE_NOT_FOUND)
        ticket_abandon(life, id);
    return status;
}

static void abandon_both(struct life *life, const struct aule_ticket *ticket)
{
    if (ticket->before)
        ticket_abandon(life, ticket->before);
    ticket_abandon(life, ticket->id & ticket_mask);
}

// The copying of K and V ended before the run began. If it failed, the run has read other values,
// so its failure counts.
enum aule_status ticket_settle(struct life *life, const struct aule_ticket *ticket, int timeout_ms,
                               bool own, const struct caller_result *result)
{
    enum aule_status status, before = AULE_OK;
    if (!reap(life, ticket->id & ticket_mask, timeout_ms, result, &status) &&
        status != AULE_NOT_FOUND) {
        if (own)
            abandon_both(life, ticket);
        return status;
    }
    const bool failed = status != AULE_OK;
    if (failed)
        error_mute(true);
    if (ticket->before)
        ticket_reap_own(life, ticket->before, timeout_ms, NULL, &before);
    if (failed)
        error_mute(false);
    return status != AULE_OK ? status : before;
}

enum aule_status aule_ticket_wait_sized(struct aule_session *session, struct aule_ticket ticket,
                                        int timeout_ms, struct aule_run_result *result,
                                        size_t result_size)
{
    REQUIRE(session);
    enum aule_status status = timeout_check(timeout_ms);
    if (status != AULE_OK)
        return status;
    struct life *life;
    status = session_get(session, &life);
    if (status != AULE_OK)
        return status;
    if (ticket.id >> TICKET_BITS == life->generation)
        status =
            ticket_settle(life, &ticket, timeout_ms, false, CALLER_RESULT(result, result_size));
    else
        status = fail(AULE_EPOCH, "ticket %" PRIu64 " was given before the reconnect",
                      ticket.id & ticket_mask);
    session_put(life);
    return status;
}

// Tickets of a session end in order, so the smallest one ends first.
enum aule_status aule_wait_any_sized(struct aule_session *session,
                                     const struct aule_ticket *tickets, uint32_t num_tickets,
                                     int timeout_ms, uint32_t *index,
                                     struct aule_run_result *result, size_t result_size)
{
    uint32_t first = 0;
    REQUIRE(session);
    REQUIRE(index);
    if (num_tickets == 0)
        return fail(AULE_INVALID, "num_tickets is 0: there is no ticket to wait for");
    REQUIRE(tickets);
    for (uint32_t i = 1; i < num_tickets; i++)
        if (tickets[i].id < tickets[first].id)
            first = i;
    *index = first;
    return aule_ticket_wait_sized(session, tickets[first], timeout_ms, result, result_size);
}

// ---- abandoned tickets ----
// aule_run() keeps its ticket to itself. If its wait times out, the run goes on, and the ticket
// counts against max_tickets until it is reaped. The next submission does that; if the daemon has
// no free ticket, it waits for the oldest abandoned one. Ids rise, so the smallest id is the
// oldest, even after an id was taken and put back.

static void insert(struct life *life, uint64_t id)
{
    uint32_t place = life->num_abandoned++;
    for (; place > 0 && life->abandoned[place - 1] > id; place--)
        life->abandoned[place] = life->abandoned[place - 1];
    life->abandoned[place] = id;
}

void ticket_abandon(struct life *life, uint64_t id)
{
    forget(life, id);
    pthread_mutex_lock(&life->mutex);
    if (life->num_abandoned == life->max_abandoned) {
        uint32_t room = life->max_abandoned ? life->max_abandoned * 2 : 8;
        uint64_t *more = realloc(life->abandoned, room * sizeof *more);
        if (more) {
            life->abandoned = more;
            life->max_abandoned = room;
        }
    }
    // Without memory the ticket stays unreaped until the session ends; max_tickets bounds their
    // number.
    if (life->num_abandoned < life->max_abandoned)
        insert(life, id);
    pthread_mutex_unlock(&life->mutex);
}

bool ticket_any_abandoned(struct life *life)
{
    pthread_mutex_lock(&life->mutex);
    bool any = life->num_abandoned > 0;
    pthread_mutex_unlock(&life->mutex);
    return any;
}

bool ticket_take_abandoned(struct life *life, uint64_t *id)
{
    pthread_mutex_lock(&life->mutex);
    bool any = life->num_abandoned > 0;
    if (any) {
        *id = life->abandoned[0];
        life->num_abandoned--;
        memmove(life->abandoned, life->abandoned + 1,
                life->num_abandoned * sizeof *life->abandoned);
    }
    pthread_mutex_unlock(&life->mutex);
    return any;
}

void ticket_reap_abandoned(struct life *life)
{
    uint64_t id;
    enum aule_status status;
    while (ticket_take_abandoned(life, &id) && ticket_reap_own(life, id, 0, NULL, &status))
        ;
}
