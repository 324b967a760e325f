// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// handle_offer.c - the handlers of hand-overs: Offer, OfferTake, OfferTokens and OfferSettle.
// They limit sizes so that a reply can hold the result; core checks the rest. Dispatcher thread.

#include "metadata.h"
#include "server/park.h"

#include <stdlib.h>
#include <string.h>

_Static_assert((int)CORE_ACCESS_READ == (int)WIRE_OFFER_READ &&
                   (int)CORE_ACCESS_SEALED == (int)WIRE_OFFER_SEALED &&
                   (int)CORE_ACCESS_WRITE == (int)WIRE_OFFER_WRITE,
               "one numbering");

// Blocks that an offer may have, so that the answer to its taker fits a message.
#define TAKE_MAX_BLOCKS                                                                            \
    ((WIRE_MAX_MESSAGE - 4096u - WIRE_MAX_EXTRA_KEY) / (sizeof(int32_t) + sizeof(uint8_t)))

static enum status check_offer(struct call *call, const struct wire_offer *offer)
{
    enum status status = call_check_time(call, "timeout_ms", offer->timeout_ms);
    if (status != STATUS_OK)
        return status;
    if (offer->keep.count && offer->keep.count != offer->blocks.count)
        return error_set(&call->error, STATUS_INVALID, "keep has %u entries beside %u blocks",
                         offer->keep.count, offer->blocks.count);
    if (offer->blocks.count > TAKE_MAX_BLOCKS)
        return error_set(&call->error, STATUS_LIMIT,
                         "an offer of %u blocks; its taker's answer holds at most %zu",
                         offer->blocks.count, (size_t)TAKE_MAX_BLOCKS);
    return STATUS_OK;
}

enum status handle_offer(struct call *call)
{
    const struct wire_offer *offer = &call->request->offer;
    const struct metadata field = {"tokens", offer->tokens.data, offer->tokens.count,
                                   offer->token_span, sizeof(int32_t)};
    const void *tokens;
    uint32_t num_known;
    enum status status = check_offer(call, offer);
    if (status == STATUS_OK)
        status = metadata_fetch(call, &field, &tokens, &num_known);
    if (status != STATUS_OK)
        return status;
    const struct core_offer_params params = {
        .cache = offer->cache,
        .name = offer->name,
        .blocks = offer->blocks.data,
        .num_blocks = offer->blocks.count,
        .keep = offer->keep.count ? offer->keep.data : NULL,
        .num_stored = offer->num_stored,
        .num_computed = offer->num_computed,
        .num_tokens = offer->num_tokens,
        .tokens = tokens,
        .num_known = num_known,
        .extra_key = offer->extra_key.data,
        .extra_key_size = offer->extra_key.count,
        .publish = offer->publish,
        .expires_ns = clock_deadline_ns(offer->timeout_ms),
    };
    return core_offer_make(call->session->core, &params, &call->error);
}

// ---- taking ----

struct take {
    uint64_t cache;
    char name[WIRE_MAX_NAME + 1];
};

static enum status wait_for_offer(struct core_session *session, struct core_wait *wait, void *own,
                                  struct error *error)
{
    const struct take *take = own;
    return core_wait_for_offer(session, wait, take->cache, take->name, error);
}

// Token ids that fit beside the blocks. OfferTokens brings the others.
static uint32_t tokens_beside(const struct core_offer *offer)
{
    const size_t room = TAKE_MAX_BLOCKS - offer->num_blocks,
                 most = room * (sizeof(int32_t) + sizeof(uint8_t)) / sizeof(int32_t);
    return offer->num_known < most ? offer->num_known : (uint32_t)most;
}

static void fill_take(struct wire_reply *reply, const struct core_offer *offer,
                      const uint8_t *access)
{
    reply->answer = WIRE_ANSWER_OFFER_TAKE;
    reply->offer_take = (struct wire_offer_take_reply){
        .offer = offer->id,
        .blocks = {offer->blocks, offer->num_blocks},
        .access = {access, offer->num_blocks},
        .tokens = {offer->tokens, tokens_beside(offer)},
        .num_known = offer->num_known,
        .num_stored = offer->num_stored,
        .num_computed = offer->num_computed,
        .num_tokens = offer->num_tokens,
        .extra_key = {offer->extra_key, offer->extra_key_size},
        .publish = offer->publish,
    };
}

// The answer cannot be made: gives back the offer, which the session has just taken. NO_MEMORY.
static enum status take_undo(struct core_session *session, uint64_t cache, uint64_t id,
                             struct error *error)
{
    const struct core_offer *offer;
    if (core_offer_find(session, id, &offer, NULL) == STATUS_OK) {
        core_blocks_release(session, cache, offer->blocks, offer->num_blocks, NULL);
        core_offer_settle(session, id, false, NULL, NULL);
    }
    return error_set(error, STATUS_NO_MEMORY, "the daemon has no memory to answer for an offer");
}

// `wait` NULL: of a new take. Fills *reply, which points into the offer and into *access; the
// caller frees *access, NULL after a failure. *waits: the failure may pass, because an offer may
// come or be given back.
static enum status take_offer(struct core_session *session, const struct core_wait *wait,
                              uint64_t cache, const char *name, struct wire_reply *reply,
                              uint8_t **access, bool *waits, struct error *error)
{
    const struct core_offer *offer;
    const bool open = core_cache_block_size(session, cache) > 0;
    *access = NULL;
    enum status status = core_offer_take(session, wait, cache, name, &offer, error);
    *waits = open && (status == STATUS_NOT_FOUND || status == STATUS_BUSY);
    if (status != STATUS_OK)
        return status;
    *access = malloc(offer->num_blocks + (size_t)1);
    if (!*access)
        return take_undo(session, cache, offer->id, error);
    for (uint32_t i = 0; i < offer->num_blocks; i++)
        (*access)[i] = (uint8_t)core_offer_access(session, offer, i);
    fill_take(reply, offer, *access);
    return STATUS_OK;
}

static bool retry_take(struct parked *parked, bool last)
{
    const struct take *take = (const void *)parked->own;
    struct error error = {.status = STATUS_OK};
    struct wire_reply reply = {.message = ""};
    uint8_t *access;
    bool waits;
    enum status status = take_offer(parked->session->core, &parked->wait, take->cache, take->name,
                                    &reply, &access, &waits, &error);
    waits = park_tried(parked, status, waits && !last, &reply, &error);
    free(access);
    return waits;
}

static enum status park_take(struct call *call)
{
    static const struct park_kind kind = {
        .size = sizeof(struct take), .wait = wait_for_offer, .retry = retry_take};
    const struct wire_offer_take *given = &call->request->offer_take;
    const struct park_command command = {.kind = &kind,
                                         .deadline_ns = clock_deadline_ns(given->timeout_ms)};
    struct take take = {.cache = given->cache};
    strcpy(take.name, given->name); // core has checked its length
    return park(call, &command, &take);
}

enum status handle_offer_take(struct call *call)
{
    const struct wire_offer_take *take = &call->request->offer_take;
    bool waits = false;
    uint8_t *access;
    enum status status = call_check_time(call, "timeout_ms", take->timeout_ms);
    if (status != STATUS_OK)
        return status;
    status = take_offer(call->session->core, NULL, take->cache, take->name, &call->reply, &access,
                        &waits, &call->error);
    if (waits && take->timeout_ms != 0)
        return park_take(call);
    if (status != STATUS_OK)
        return status;
    struct wire_offer_take_reply *reply = &call->reply.offer_take;
    uint8_t *kept = call_alloc(call, (size_t)reply->access.count + 1, sizeof *kept);
    if (kept)
        memcpy(kept, access, reply->access.count);
    reply->access.data = kept;
    free(access);
    return kept ? STATUS_OK
                : take_undo(call->session->core, take->cache, reply->offer, &call->error);
}

enum status handle_offer_tokens(struct call *call)
{
    const struct wire_offer_tokens *wanted = &call->request->offer_tokens;
    const struct core_offer *offer;
    enum status status = core_offer_find(call->session->core, wanted->offer, &offer, &call->error);
    if (status != STATUS_OK)
        return status;
    if (wanted->first > offer->num_known)
        return error_set(&call->error, STATUS_OUT_OF_RANGE,
                         "token %u of an offer with %u token ids", wanted->first, offer->num_known);
    uint32_t rest = offer->num_known - wanted->first;
    call->reply.answer = WIRE_ANSWER_OFFER_TOKENS;
    call->reply.offer_tokens.tokens = (struct wire_ints){
        offer->tokens + wanted->first, rest < DISPATCH_MAX_IDS ? rest : (uint32_t)DISPATCH_MAX_IDS};
    return STATUS_OK;
}

enum status handle_offer_settle(struct call *call)
{
    const struct wire_offer_settle *settle = &call->request->offer_settle;
    struct core_session *session = call->session->core;
    const struct core_offer *offer;
    enum status status = core_offer_find(session, settle->offer, &offer, &call->error);
    if (status != STATUS_OK)
        return status;
    uint32_t count = settle->accept ? offer->num_blocks : 0;
    int32_t *blocks = call_alloc(call, (size_t)count + 1, sizeof *blocks);
    uint8_t *access = call_alloc(call, (size_t)count + 1, sizeof *access);
    if (!blocks || !access)
        return call->error.status;
    memcpy(blocks, offer->blocks, count * sizeof *blocks); // the offer ends
    status = core_offer_settle(session, settle->offer, settle->accept, access, &call->error);
    call->reply.answer = WIRE_ANSWER_OFFER_SETTLE;
    call->reply.offer_settle =
        (struct wire_offer_settle_reply){.blocks = {blocks, count}, .access = {access, count}};
    return status;
}
