// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// handle_offer.c - the handlers of hand-overs: Offer, OfferTake, OfferTokens and OfferSettle.
// They limit sizes so that a reply can hold the result; core checks the rest. Dispatcher thread.

#include "metadata.h"
#include "server/dispatch.h"
#include "server/park.h"
#include "server/take.h"

#include <stdlib.h>
#include <string.h>

_Static_assert((int)CORE_ACCESS_READ == (int)WIRE_OFFER_READ &&
                   (int)CORE_ACCESS_SEALED == (int)WIRE_OFFER_SEALED &&
                   (int)CORE_ACCESS_WRITE == (int)WIRE_OFFER_WRITE,
               "one numbering");

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

static enum status wait_for_offer(struct call *call)
{
    const struct wire_offer_take *take = &call->request->offer_take;
    struct parked parked = {
        .kind = PARKED_TAKE,
        .deadline_ns = clock_deadline_ns(take->timeout_ms),
        .take = {.cache = take->cache},
    };
    strcpy(parked.take.name, take->name); // core has checked its length
    return park(call, &parked);
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
        return wait_for_offer(call);
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
