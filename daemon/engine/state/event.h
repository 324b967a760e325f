// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// event.h - the engine's lock and its events: posting them in order, and waiting for them. Knows
// nothing of what they report. Each function names its threads.

#ifndef AULE_ENGINE_EVENT_H
#define AULE_ENGINE_EVENT_H

#include "engine/engine.h"

#include <stdatomic.h>

// An event in the queue of engine_poll(). The owner embeds it. `end` frees the owner; engine_poll()
// calls it when the caller asks for the next event.
struct event_node {
    struct engine_event event;
    void (*end)(struct engine *engine, struct event_node *node);
    struct event_node *prev, *next;
};

enum status engine_locks_init(struct engine *engine, struct error *error);
void engine_locks_finish(struct engine *engine); // takes a zeroed engine
// Call this with the lock held. Then release the lock and call engine_wake().
void event_post(struct engine *engine, struct event_node *node);
void engine_wake(struct engine *engine); // tells the caller that there is an event; any thread,
                                         // without the lock
bool engine_lost(struct engine *engine); // any thread, without the lock
// Polls until *count changes. Gives up look_ns after the later of (the completer's last poll,
// engine_expect()), and after most_ns in all; the second limit keeps a client that never submits
// from holding a core busy. Polling saves the wake-up time of a thread, about 20 us. Call it with
// the lock held; it releases the lock while it polls. Returns for how many ns it polled, without
// the time until the completer stopped.
int64_t engine_look_out(struct engine *engine, const atomic_uint *count, int64_t most_ns);
// The time for which engine_expect() may keep a thread polling, in ns.
int64_t engine_patience_ns(const struct engine *engine);
// Frees every event that was not polled. The threads have ended.
void events_finish(struct engine *engine);

#endif
