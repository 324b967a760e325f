// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// settle.c - see settle.h.

#include "settle.h"

#include "client/src/error.h"

enum aule_status settle_offer(struct aule_cache *cache, uint64_t offer, bool accept,
                              struct answer *answer)
{
    struct wire_request request = {.command = WIRE_COMMAND_OFFER_SETTLE,
                                   .offer_settle = {.offer = offer, .accept = accept}};
    return life_ask(cache->life, &request, 0, WIRE_ANSWER_OFFER_SETTLE, answer);
}

void settle_give_back(struct aule_cache *cache, uint64_t offer)
{
    struct answer answer;
    error_mute(true);
    (void)settle_offer(cache, offer, false, &answer);
    error_mute(false);
    answer_finish(&answer);
}
