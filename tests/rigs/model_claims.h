// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// model_claims.h - the claims of core_model.h: an array and linear searches, and random calls of
// core over them. Asserts with check; one test a process.

#ifndef AULE_TESTS_MODEL_CLAIMS_H
#define AULE_TESTS_MODEL_CLAIMS_H

#include "core_model.h"

extern uint64_t num_claims, num_promises;

// ---- what the rest of the model tells ----

void claims_part(int cache, uint32_t key);           // the node leaves the index
void claims_publish(int w, int cache, uint32_t key); // the worker published a block under it
void claims_visible(int cache, uint32_t key);        // its block became visible
void claims_leave(int w, int cache);                 // the worker closes it; -1: all caches

// ---- random calls ----

void do_claim(int w);
void do_claim_take(int w);
void do_claim_release(int w);

// ---- where a worker may die ----

bool claim_computes(int w);   // others wait for a block that it computes
bool claim_waits_for(int w);  // it waits for a block of another one
bool claim_is_pending(int w); // it has published a block that is not visible yet

#endif
