// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// session_life.h - the end of a closed session, for the scheduler; see session_life.c. Knows when a
// session may be freed, not what its runs did. Dispatcher thread only.

#ifndef AULE_CORE_SESSION_LIFE_H
#define AULE_CORE_SESSION_LIFE_H

#include "core.h"

// A session of core's own, which does one errand for sessions of this salt. It counts neither for
// --max-sessions nor for --session-blocks; its blocks count for the tenant. core_session_close()
// ends it. NULL: no memory.
struct salt;
struct core_session *session_open_errand(struct core *core, struct salt *salt);
// Ids of such sessions have this bit.
#define SESSION_ERRAND (UINT64_C(1) << 63)

// Call this when a session is closed, or has one run less in flight. If it is closed and has none
// left, it is freed, and core_params.session_gone() tells the server.
void session_passed(struct core_session *session);

// Sessions that died attached, whose processes are proven dead. The next fence is that of
// submission `sequence`.
void session_fence(struct core *core, uint64_t sequence);
// The submission has ended: blocks of sessions whose fence it was, or that came before, become
// free. UINT64_MAX: the device is lost, and nothing uses any block.
void session_fenced(struct core *core, uint64_t sequence);
void session_let_go(struct core_session *session); // its blocks become free without a fence

#endif
