// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// park.c - see park.h. One list has the commands of all sessions, oldest first, for deadlines and
// for the daemon's end. Each session has lists by what wakes a command.

#include "park.h"

#include "base/container_of.h"
#include "base/list.h"
#include "log.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

// A session may have max_tickets and this many commands parked, of any kind.
enum { PARKED_BEYOND_TICKETS = 64 };

// ---- in and out ----

uint32_t park_max(const struct server_params *params)
{
    return params->core.max_tickets + PARKED_BEYOND_TICKETS;
}

// Limits on the number of parked commands and on the memory of their arrays.
static enum status check_limits(struct call *call, uint64_t bytes)
{
    const struct server_params *params = call->server->params;
    const struct session *session = call->session;
    const uint64_t most = params->core.max_batch_memory; // 0 = no limit
    if (session->num_parked >= park_max(params))
        return error_set(&call->error, STATUS_LIMIT,
                         "session %" PRIu64 " has %u commands waiting already (--max-tickets %u)",
                         session->id, session->num_parked, params->core.max_tickets);
    if (most && (bytes > most || session->parked_bytes > most - bytes))
        return error_set(&call->error, STATUS_LIMIT,
                         "a command with %" PRIu64
                         " bytes of arrays cannot wait for a ticket beside the %" PRIu64
                         " bytes of other waiting commands of session %" PRIu64
                         "; --max-batch-memory is %" PRIu64,
                         bytes, session->parked_bytes, session->id, most);
    return bytes
               ? core_memory_check(session->core, bytes, "a waiting command's arrays", &call->error)
               : STATUS_OK;
}

static struct parked *create(const struct call *call, const struct park_command *command,
                             const void *own)
{
    const struct park_kind *kind = command->kind;
    struct parked *parked = malloc(sizeof *parked + kind->size);
    if (!parked)
        return NULL;
    *parked = (struct parked){.kind = kind,
                              .session = call->session,
                              .asker = call->asker,
                              .deadline_ns = command->deadline_ns,
                              .ticket = command->ticket,
                              .bytes = command->bytes};
    if (kind->size)
        memcpy(parked->own, own, kind->size);
    if (!kind->keep || kind->keep(parked->own))
        return parked;
    free(parked);
    return NULL;
}

static void finish(struct parked *parked)
{
    if (parked->kind->finish)
        parked->kind->finish(parked->own);
    parked->bytes = 0;
}

static void count(struct parked *parked, bool in)
{
    struct server *server = parked->session->server;
    struct session *session = parked->session;
    uint32_t one = in ? 1 : UINT32_MAX; // adding UINT32_MAX subtracts 1
    server->num_parked += one;
    session->num_parked += one;
    session->num_parked_work += parked->kind->list == PARK_WORK ? one : 0;
    session->parked_bytes += in ? parked->bytes : -parked->bytes;
    core_memory_count(session->core, in ? (int64_t)parked->bytes : -(int64_t)parked->bytes);
}

// The last one that ends no later: clients mostly wait in the order of their tickets, so it is near
// the end.
static struct parked *before_ticket(struct parked *first, uint64_t ticket)
{
    struct parked *before = first ? first->beside_prev : NULL; // the last one
    while (before && before->ticket > ticket)
        before = before == first ? NULL : before->beside_prev;
    return before;
}

static void enlist(struct parked *parked)
{
    const enum park_list which = parked->kind->list;
    struct parked **list = &parked->session->parked[which],
                  *before = which == PARK_ENDS ? before_ticket(*list, parked->ticket) : NULL;
    if (which == PARK_ENDS)
        LIST_INSERT_BY(*list, before, parked, beside_prev, beside_next);
    else
        LIST_APPEND_BY(*list, parked, beside_prev, beside_next);
    count(parked, true);
    server_arm(parked->session->server, parked->deadline_ns);
}

static void delist(struct parked *parked)
{
    LIST_DELETE_BY(parked->session->parked[parked->kind->list], parked, beside_prev, beside_next);
    count(parked, false);
}

enum status park(struct call *call, const struct park_command *command, const void *own)
{
    enum status status = check_limits(call, command->bytes);
    if (status != STATUS_OK)
        return status;
    struct parked *parked = create(call, command, own);
    if (!parked)
        return error_set(&call->error, STATUS_NO_MEMORY,
                         "the daemon has no memory for a waiting command");
    if (command->kind->wait)
        status = command->kind->wait(call->session->core, &parked->wait, parked->own, &call->error);
    if (status != STATUS_OK) {
        finish(parked);
        free(parked);
        return status;
    }
    LIST_APPEND(call->server->parked, parked);
    enlist(parked);
    call->later = true;
    return STATUS_OK;
}

static void unpark(struct parked *parked)
{
    LIST_DELETE(parked->session->server->parked, parked);
    delist(parked);
    core_wait_end(&parked->wait);
    finish(parked);
    free(parked);
}

void park_refuse(struct parked *parked, const struct error *error)
{
    struct session *session = parked->session;
    log_debug("%s: parked command: %s: %s", session->label, status_name(error->status),
              error->text);
    dispatch_refuse(session->server, session, &parked->asker, error);
    unpark(parked);
}

void park_answer(struct parked *parked, const struct wire_reply *reply)
{
    dispatch_reply(parked->session->server, &parked->asker, reply);
    unpark(parked);
}

bool park_tried(struct parked *parked, enum status status, bool waits,
                const struct wire_reply *reply, const struct error *error)
{
    if (status == STATUS_OK)
        park_answer(parked, reply);
    else if (!waits)
        park_refuse(parked, error);
    return status != STATUS_OK && waits;
}

void park_become(struct parked *parked, const struct park_kind *kind, uint64_t ticket,
                 int64_t deadline_ns)
{
    delist(parked);
    finish(parked);
    parked->kind = kind;
    parked->ticket = parked->asker.ticket = ticket;
    parked->deadline_ns = deadline_ns;
    enlist(parked);
    kind->retry(parked, false);
}

// ---- trying again ----

// Tickets end in their order, so the commands that wait for an end do, too. Work that finds no free
// ticket is not overtaken by younger work. To check a command takes long, and retries are frequent,
// so nothing is checked while the session has no free ticket.
static void retry_session(struct session *session)
{
    struct parked *parked, *next;
    const uint64_t ended = core_tickets_ended(session->core);
    LIST_EACH_SAFE_BY(session->parked[PARK_ENDS], parked, next, beside_next) {
        if (parked->ticket > ended)
            break;
        parked->kind->retry(parked, false);
    }
    while ((parked = session->parked[PARK_WORK])) {
        if (core_session_waits(session->core) || parked->kind->retry(parked, false))
            break;
    }
}

void park_retry(struct server *server)
{
    struct core_wait *wait;
    while ((wait = core_next_ready(server->core))) {
        if (wait->kind == CORE_WAIT_RUNS) {
            retry_session(container_of(wait, struct session, wait));
        } else {
            struct parked *parked = container_of(wait, struct parked, wait);
            parked->kind->retry(parked, false);
        }
    }
}

// ---- giving up ----

void park_expire(struct server *server, int64_t now_ns)
{
    struct parked *parked, *next;
    LIST_EACH_SAFE(server->parked, parked, next) {
        if (parked->deadline_ns <= now_ns)
            parked->kind->retry(parked, true);
        else
            server_arm(server, parked->deadline_ns);
    }
}

void park_drop_session(struct session *session, const char *why)
{
    struct parked *parked, *next;
    struct error error;
    error_set(&error, STATUS_NO_SESSION, "session %" PRIu64 " has ended: %s", session->id, why);
    for (int list = 0; list < NUM_PARK_LISTS; list++)
        LIST_EACH_SAFE_BY(session->parked[list], parked, next, beside_next) {
            park_refuse(parked, &error);
        }
}

void park_refuse_all(struct server *server, const struct error *why, bool ends_too)
{
    struct parked *parked, *next;
    LIST_EACH_SAFE(server->parked, parked, next) {
        if (ends_too || parked->kind->list != PARK_ENDS)
            park_refuse(parked, why);
    }
}
