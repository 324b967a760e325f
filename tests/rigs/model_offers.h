// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// model_offers.h - the hand-overs of core_model.h: an array and linear searches, and random calls
// of core over them. Asserts with check; one test a process.

#ifndef AULE_TESTS_MODEL_OFFERS_H
#define AULE_TESTS_MODEL_OFFERS_H

#include "core_model.h"

extern uint64_t num_offers, num_offers_accepted, num_offers_expired, num_offers_returned;

// ---- what the rest of the model tells ----

void model_offers_leave(int w, int cache); // the worker closes it; -1: all caches
void model_offers_expire(void);            // core_step() has returned
void model_offers_compare(void);

// ---- random calls ----

void do_offer(int w);
void do_offer_take(int w);
void do_offer_settle(int w);

// ---- where a worker may die ----

bool offer_is_given(int w);   // nobody has taken its offer
bool offer_is_pending(int w); // likewise, and writes of the blocks have not ended
bool offer_gave(int w);       // another one has taken its offer
bool offer_took(int w);       // it has taken an offer of another one

#endif
