// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// turns.h - the sessions that have queued runs, in the order of their turns, and those that are
// expected back soon. Knows what a session was served, not what for.

#ifndef AULE_CORE_TURNS_H
#define AULE_CORE_TURNS_H

#include "core/pool/session.h"

enum {
    // Tokens attended by which one session may be ahead of another before it has to wait: a decode
    // step of one long sequence or of
    // many short ones. It is less than what clients have in flight, else who has more there would
    // be served more.
    TURNS_QUANTUM = 1 << 12,
};

struct turns {
    struct heap ready;   // sessions with queued runs, by served / TURNS_QUANTUM
    uint64_t now;        // virtual time: `served` of the session that was served last
    uint64_t last_ended; // the submission, by the engine's number; 0 = none
    uint32_t
        num_expected; // of the sessions that it served: those that have asked for nothing since
};

void turns_ready(struct core_session *session); // it has queued runs now
void turns_wait(struct core_session *session);  // it has more of them
void turns_forget(
    struct core_session *session); // it has none any more, or will never have one again
bool turns_expects(const struct core_session *session); // back, soon

#endif
