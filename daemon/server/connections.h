// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// connections.h - connections that come and go: counts them, refuses some with a reason, and ends
// the session of one that is gone. listener.c accepts them. Dispatcher thread.

#ifndef AULE_SERVER_CONNECTIONS_H
#define AULE_SERVER_CONNECTIONS_H

#include <stdint.h>

struct server;

// Takes what the listener has noticed since the last call.
void connections_take(struct server *server);
// Closes refused connections whose time is over.
void connections_expire(struct server *server, int64_t now_ns);
// Frees the records of refused connections when the daemon ends.
void connections_forget(struct server *server);

#endif
