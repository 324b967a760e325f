// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// session_life.h - the end of a closed session, for the scheduler; see session_life.c. Knows when a
// session may be freed, not what its runs did. Dispatcher thread only.

#ifndef AULE_CORE_SESSION_LIFE_H
#define AULE_CORE_SESSION_LIFE_H

#include "core.h"

// Call this when a session is closed, or has one run less in flight. If it is closed and has none
// left, it is freed, and core_params.session_gone() tells the server.
void session_passed(struct core_session *session);

#endif
