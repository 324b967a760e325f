// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// take.h - takes an offer and fills the answer, for a command that has just come and for a parked
// one. Knows core's offers and the answer's size, but not how a command waits. Dispatcher thread.

#ifndef AULE_SERVER_TAKE_H
#define AULE_SERVER_TAKE_H

#include "core/core.h"
#include "schema/wire.h"

// Blocks that an offer may have, so that the answer to its taker fits a message.
#define TAKE_MAX_BLOCKS                                                                            \
    ((WIRE_MAX_MESSAGE - 4096u - WIRE_MAX_EXTRA_KEY) / (sizeof(int32_t) + sizeof(uint8_t)))

// `taker`: of a parked take; NULL: of a new one. Fills *reply, which points into the offer and into
// *access; the caller frees *access, NULL after a failure. *waits: the failure may pass, because an
// offer may come or be given back.
enum status take_offer(struct core_session *session, const struct core_taker *taker, uint64_t cache,
                       const char *name, struct wire_reply *reply, uint8_t **access, bool *waits,
                       struct error *error);
// The answer cannot be made: gives back the offer, which the session has just taken. NO_MEMORY.
enum status take_undo(struct core_session *session, uint64_t cache, uint64_t offer,
                      struct error *error);

#endif
