// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// take.c - see take.h. The answer has as many token ids as fit; OfferTokens brings the others.

#include "take.h"

#include <stdlib.h>

// Token ids that fit beside the blocks.
static uint32_t tokens_beside(const struct core_offer *offer)
{
    const size_t room = TAKE_MAX_BLOCKS - offer->num_blocks,
                 most = room * (sizeof(int32_t) + sizeof(uint8_t)) / sizeof(int32_t);
    return offer->num_known < most ? offer->num_known : (uint32_t)most;
}

static void fill(struct wire_reply *reply, const struct core_offer *offer, const uint8_t *access)
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

enum status take_undo(struct core_session *session, uint64_t cache, uint64_t id,
                      struct error *error)
{
    const struct core_offer *offer;
    if (core_offer_find(session, id, &offer, NULL) == STATUS_OK) {
        core_blocks_release(session, cache, offer->blocks, offer->num_blocks, NULL);
        core_offer_settle(session, id, false, NULL, NULL);
    }
    return error_set(error, STATUS_NO_MEMORY, "the daemon has no memory to answer for an offer");
}

enum status take_offer(struct core_session *session, const struct core_taker *taker, uint64_t cache,
                       const char *name, struct wire_reply *reply, uint8_t **access, bool *waits,
                       struct error *error)
{
    const struct core_offer *offer;
    const bool open = core_cache_block_size(session, cache) > 0;
    *access = NULL;
    enum status status = core_take_turn(session, taker, cache, name, error);
    if (status == STATUS_OK)
        status = core_offer_take(session, cache, name, &offer, error);
    *waits = open && (status == STATUS_NOT_FOUND || status == STATUS_BUSY);
    if (status != STATUS_OK)
        return status;
    *access = malloc(offer->num_blocks + 1);
    if (!*access)
        return take_undo(session, cache, offer->id, error);
    for (uint32_t i = 0; i < offer->num_blocks; i++)
        (*access)[i] = (uint8_t)core_offer_access(session, offer, i);
    fill(reply, offer, *access);
    return STATUS_OK;
}
