// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// wait.h - how the dispatcher waits for events. It polls for --ring-spin after the last entry or
// answer of a ring (lane.h), and around the predicted end of GPU work (core_wake_ns()). Otherwise
// it sleeps until an event or the nearest deadline. Knows where events come from, not what they ask
// for. Thread: dispatcher.

#ifndef AULE_SERVER_WAIT_H
#define AULE_SERVER_WAIT_H

#include "state.h"

// Call this once in each turn. Returns after an event, a deadline, or for no reason. It handles
// signals, ended client processes and the doorbell itself. The caller must look for all other
// events in every turn.
void wait_for_events(struct server *server);
// Reads the eventfd, so that it is no longer readable.
void wait_drain(const struct server *server);

#endif
