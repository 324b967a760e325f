// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// wait.h - how the dispatcher waits for something to do. For as long as --ring-spin it stays awake
// after what came or went by a ring (lane.h), and about the time when what the GPU was given should
// be done (core_wake_ns()); else it sleeps until the nearest deadline. Dispatcher thread.

#ifndef AULE_SERVER_WAIT_H
#define AULE_SERVER_WAIT_H

#include "state.h"

// Comes back when there is something, or for no reason; what the descriptors say of signals, ended
// owners and the doorbell is done.
void wait_for_events(struct server *server);
// The eventfd is read: what it stands for is looked at in every turn.
void wait_drain(const struct server *server);

#endif
