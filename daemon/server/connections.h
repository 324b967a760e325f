// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// connections.h - connections that come and go: logs them, and ends the session of one that is
// gone. listener.c accepts and refuses them. Thread: dispatcher.

#ifndef AULE_SERVER_CONNECTIONS_H
#define AULE_SERVER_CONNECTIONS_H

#include <stdint.h>

struct server;

// Takes what the listener has noticed since the last call.
void connections_take(struct server *server);

#endif
