// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// park.c - see park.h. One list has the commands of all sessions, oldest first, for deadlines and
// for the daemon's end. Each session has lists by what wakes a command.

#include "park.h"

#include "base/container_of.h"
#include "base/list.h"
#include "log.h"
#include "session.h"
#include "take.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

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
    return command->bytes ? core_memory_check(session->core, command->bytes,
                                              "a waiting command's arrays", &call->error)
                          : STATUS_OK;
}

static void prefix_free(struct core_prefix *prefix)
{
    free((void *)prefix->tokens);
    free((void *)prefix->extra_key);
}

// Replaces the arrays by copies. False: no memory, and nothing is to be freed.
static bool prefix_keep(struct core_prefix *prefix)
{
    const size_t size = prefix->num_tokens * sizeof *prefix->tokens;
    int32_t *tokens = malloc(size + 1);
    uint8_t *extra_key = malloc(prefix->extra_key_size + (size_t)1);
    if (tokens && size)
        memcpy(tokens, prefix->tokens, size);
    if (extra_key && prefix->extra_key_size)
        memcpy(extra_key, prefix->extra_key, prefix->extra_key_size);
    prefix->tokens = tokens;
    prefix->extra_key = extra_key;
    if (tokens && extra_key)
        return true;
    prefix_free(prefix);
    return false;
}

static bool keep_arrays(struct parked *parked)
{
    switch (parked->kind) {
    case PARKED_WORK: return work_keep(&parked->work);
    case PARKED_LOOKUP: return prefix_keep(&parked->lookup.prefix);
    default: return true;
    }
}

// A copy of *command with copies of its arrays. NULL: no memory.
static struct parked *copy_of(const struct parked *command)
{
    struct parked *parked = malloc(sizeof *parked);
    if (!parked)
        return NULL;
    *parked = *command;
    if (keep_arrays(parked))
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
    server->num_parked_attaches += parked->kind == PARKED_ATTACH ? one : 0;
    session->parked_bytes += in ? parked->bytes : -parked->bytes;
    core_memory_count(session->core, in ? (int64_t)parked->bytes : -(int64_t)parked->bytes);
    if (parked->kind == PARKED_CLAIM || parked->kind == PARKED_TAKE)
        core_count_wait(session->core, in);
}

// ---- lists of a session ----

static struct parked **list_of(const struct parked *parked)
{
    static const enum park_list lists[] = {
        [PARKED_LEASE] = PARK_OTHERS,  [PARKED_WAIT] = PARK_ENDS,     [PARKED_WORK] = PARK_WORK,
        [PARKED_CLAIM] = PARK_OTHERS,  [PARKED_TAKE] = PARK_OTHERS,   [PARKED_ENDED] = PARK_ENDS,
        [PARKED_LOOKUP] = PARK_OTHERS, [PARKED_ATTACH] = PARK_OTHERS,
    };
    return &parked->session->parked[lists[parked->kind]];
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
    struct parked **list = list_of(parked), *before = NULL;
    if (list != &parked->session->parked[PARK_ENDS]) {
        LIST_APPEND_BY(*list, parked, beside_prev, beside_next);
    } else if ((before = before_ticket(*list, parked->ticket))) {
        LIST_INSERT_BY(*list, before, parked, beside_prev, beside_next);
    } else {
        LIST_PREPEND_BY(*list, parked, beside_prev, beside_next);
    }
}

static void delist(struct parked *parked)
{
    LIST_DELETE_BY(*list_of(parked), parked, beside_prev, beside_next);
}

// Core will say when the command may succeed.
static enum status await(struct parked *parked, struct error *error)
{
    struct core_session *core = parked->session->core;
    switch (parked->kind) {
    case PARKED_LEASE:
        return core_wait(core, &parked->lease.waiter, parked->lease.cache, parked->lease.count,
                         parked->only_growth, error);
    case PARKED_CLAIM:
        parked->claim.claimer.waker.kind = WAKER_CLAIM;
        return core_claim_wait(core, parked->claim.cache, parked->claim.claim,
                               &parked->claim.claimer, error);
    case PARKED_TAKE:
        parked->take.taker.waker.kind = WAKER_TAKE;
        return core_take_wait(core, &parked->take.taker, parked->take.cache, parked->take.name,
                              error);
    case PARKED_LOOKUP:
        parked->lookup.loader.waker.kind = WAKER_LOOKUP;
        core_load_wait(parked->session->server->core, parked->lookup.load, &parked->lookup.loader);
        break;
    case PARKED_WAIT:
    case PARKED_WORK:
    case PARKED_ENDED:  // it wakes the session
    case PARKED_ATTACH: // park_retry() looks at each
        break;
    }
    return STATUS_OK;
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
    status = await(parked, &call->error);
    if (status != STATUS_OK) {
        free(parked);
        return status;
    }
    LIST_APPEND(server->parked, parked);
    enlist(parked);
    count(parked, true);
    call->later = true;
    server_arm(server, parked->deadline_ns);
    return STATUS_OK;
}

static void unpark(struct server *server, struct parked *parked)
{
    LIST_DELETE(server->parked, parked);
    delist(parked);
    count(parked, false);
    if (parked->kind == PARKED_LEASE)
        core_wait_end(&parked->lease.waiter);
    if (parked->kind == PARKED_CLAIM)
        core_claim_wait_end(&parked->claim.claimer);
    if (parked->kind == PARKED_TAKE)
        core_take_wait_end(&parked->take.taker);
    if (parked->kind == PARKED_WORK)
        work_finish(&parked->work);
    if (parked->kind == PARKED_LOOKUP) {
        core_load_wait_end(server->core, &parked->lookup.loader);
        prefix_free(&parked->lookup.prefix);
    }
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

// ---- blocks from tiers ----

// `blocks` has room for all full blocks of the prefix.
static enum status take_found(struct core_session *session, uint64_t cache,
                              const struct core_prefix *prefix, uint32_t max_tokens,
                              int32_t *blocks, struct wire_reply *reply, struct error *error)
{
    uint32_t count;
    enum status status =
        core_prefix_lookup(session, cache, prefix, max_tokens, blocks, &count, error);
    reply->answer = WIRE_ANSWER_PREFIX_LOOKUP;
    if (status == STATUS_OK)
        reply->prefix_lookup = (struct wire_prefix_lookup_reply){
            .blocks = {blocks, count}, .num_tokens = count * core_cache_block_size(session, cache)};
    return status;
}

enum status park_lookup(struct call *call, const struct park_lookup *lookup, int64_t deadline_ns)
{
    const struct core_prefix *prefix = &lookup->prefix;
    const struct parked parked = {
        .kind = PARKED_LOOKUP,
        .deadline_ns = deadline_ns,
        .lookup = {.cache = lookup->cache,
                   .load = lookup->load,
                   .prefix = *prefix,
                   .max_tokens = lookup->max_tokens},
        .bytes = prefix->num_tokens * sizeof *prefix->tokens + prefix->extra_key_size,
    };
    if (lookup->load && park(call, &parked) == STATUS_OK)
        return STATUS_OK;
    call->error.status = STATUS_OK; // it is answered without what tiers have
    int32_t *blocks = call_alloc(call, lookup->num_blocks + (size_t)1, sizeof *blocks);
    return blocks ? take_found(call->session->core, lookup->cache, prefix, lookup->max_tokens,
                               blocks, &call->reply, &call->error)
                  : call->error.status;
}

// `last`: its deadline has passed.
static void retry_lookup(struct server *server, struct parked *parked, bool last)
{
    struct core_session *session = parked->session->core;
    const struct core_prefix *prefix = &parked->lookup.prefix;
    const uint64_t cache = parked->lookup.cache;
    struct wire_reply reply = {.message = ""};
    struct error error = {.status = STATUS_OK};
    if (!last && core_load_runs(server->core, parked->lookup.load))
        return;
    const uint32_t block_size = core_cache_block_size(session, cache); // 0: it was closed
    const size_t room = block_size ? prefix->num_tokens / block_size + (size_t)1 : 1;
    int32_t *blocks = malloc(room * sizeof *blocks);
    enum status status = blocks ? take_found(session, cache, prefix, parked->lookup.max_tokens,
                                             blocks, &reply, &error)
                                : error_set(&error, STATUS_NO_MEMORY,
                                            "the daemon has no memory for %zu block ids", room);
    if (status == STATUS_OK)
        answer(server, parked, &reply);
    else
        refuse(server, parked, &error);
    free(blocks);
}

// ---- the memory of a cache ----

enum status park_attach(struct call *call, uint64_t cache, uint32_t part, int64_t deadline_ns)
{
    call->reply.answer = WIRE_ANSWER_CACHE_ATTACH;
    core_cache_want_memory(call->session->core, cache);
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

// Most often the call has queued the run itself. Then no error text is made, which nobody would
// see.
enum status park_wait(struct call *call, uint64_t ticket, int64_t deadline_ns)
{
    struct core_session *core = call->session->core;
    struct core_ticket_result result;
    const struct parked parked = {
        .kind = PARKED_WAIT, .deadline_ns = deadline_ns, .ticket = ticket};
    const bool is_own = call->asker.ticket == ticket, in_time = clock_now_ns() < deadline_ns;
    if (is_own && in_time && core_tickets_ended(core) < ticket)
        return park(call, &parked);
    enum status status = core_ticket_reap(core, ticket, &result, &call->error);
    if (status == STATUS_TIMEOUT && in_time)
        return park(call, &parked);
    if (status == STATUS_OK)
        fill_wait(&call->reply, &result, &call->error);
    return status;
}

static void retry_wait(struct server *server, struct parked *parked)
{
    struct core_ticket_result result;
    struct error error = {.status = STATUS_OK};
    enum status status = core_ticket_reap(parked->session->core, parked->ticket, &result, &error);
    if (status == STATUS_TIMEOUT)
        return;
    if (status != STATUS_OK) {
        refuse(server, parked, &error);
        return;
    }
    struct wire_reply reply = {.message = ""};
    fill_wait(&reply, &result, &error);
    answer(server, parked, &reply);
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
// PARKED_WAIT.
static void become_wait(struct server *server, struct parked *parked, uint64_t ticket)
{
    delist(parked);
    count(parked, false);
    work_finish(&parked->work);
    parked->kind = PARKED_WAIT;
    parked->ticket = parked->asker.ticket = ticket;
    parked->bytes = 0;
    parked->deadline_ns = parked->asker.deadline_ns;
    enlist(parked);
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

// Tickets end in their order, so the commands that wait for an end do, too. Work that finds no free
// ticket is not overtaken by younger work.
static void retry_session(struct server *server, struct session *session)
{
    struct parked *parked, *next;
    const uint64_t ended = core_tickets_ended(session->core);
    LIST_EACH_SAFE_BY(session->parked[PARK_ENDS], parked, next, beside_next) {
        if (parked->ticket > ended)
            break;
        if (parked->kind == PARKED_WAIT)
            retry_wait(server, parked);
        else
            retry_ended(server, parked);
    }
    while (session->parked[PARK_WORK] && retry_work(server, session->parked[PARK_WORK]))
        ;
}

// A cache's memory is made once, so there are rarely any.
static void retry_attaches(struct server *server)
{
    struct parked *parked, *next;
    if (server->num_parked_attaches == 0)
        return;
    LIST_EACH_SAFE(server->parked, parked, next) {
        if (parked->kind == PARKED_ATTACH)
            retry_attach(server, parked, false);
    }
}

void park_retry(struct server *server)
{
    struct core_waker *waker;
    while ((waker = core_next_woken(server->core))) {
        switch ((enum waker_kind)waker->kind) {
        case WAKER_SESSION:
            retry_session(server, container_of(waker, struct session, waker));
            break;
        case WAKER_CLAIM:
            retry_claim(server, container_of(waker, struct parked, claim.claimer.waker), false);
            break;
        case WAKER_TAKE:
            retry_take(server, container_of(waker, struct parked, take.taker.waker), false);
            break;
        case WAKER_LOOKUP:
            retry_lookup(server, container_of(waker, struct parked, lookup.loader.waker), false);
            break;
        }
    }
    retry_attaches(server);
    park_retry_leases(server);
}

void park_cache_closed(struct session *session, uint64_t cache)
{
    struct parked *parked, *next;
    LIST_EACH_SAFE_BY(session->parked[PARK_OTHERS], parked, next, beside_next) {
        if (parked->kind == PARKED_TAKE && parked->take.cache == cache)
            retry_take(session->server, parked, false);
        else if (parked->kind == PARKED_LOOKUP && parked->lookup.cache == cache)
            retry_lookup(session->server, parked, true);
    }
}

// ---- giving up ----

static void expire(struct server *server, struct parked *parked)
{
    struct error error;
    switch (parked->kind) {
    case PARKED_LEASE: retry_lease(server, parked, true); return;
    case PARKED_CLAIM: retry_claim(server, parked, true); return;
    case PARKED_TAKE: retry_take(server, parked, true); return;
    case PARKED_LOOKUP: retry_lookup(server, parked, true); return;
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
    LIST_EACH_SAFE(server->parked, parked, next) {
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
    for (int list = 0; list < NUM_PARK_LISTS; list++)
        LIST_EACH_SAFE_BY(session->parked[list], parked, next, beside_next) {
            refuse(server, parked, &error);
        }
}

void park_refuse_all(struct server *server, const struct error *why, bool waits_too)
{
    struct parked *parked, *next;
    LIST_EACH_SAFE(server->parked, parked, next) {
        bool waits = parked->kind == PARKED_WAIT || parked->kind == PARKED_ENDED;
        if (waits_too || !waits)
            refuse(server, parked, why);
    }
}
