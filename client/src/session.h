// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// session.h - from a public session to its present life.

#ifndef AULE_CLIENT_SESSION_H
#define AULE_CLIENT_SESSION_H

#include "life.h"

// Enters the session's life until session_put(); the session may be closed meanwhile.
// AULE_FORKED. AULE_NO_SESSION. AULE_DAEMON_GONE: the last reconnect failed.
enum aule_status session_get(struct aule_session *session, struct life **life);
void session_put(struct life *life);

#endif
