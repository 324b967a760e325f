// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// event.h - the engine's lock and its news: events in order, and waiting for them.

#ifndef AULE_ENGINE_EVENT_H
#define AULE_ENGINE_EVENT_H

#include "engine/engine.h"

#include <stdatomic.h>

// What engine_poll() hands out next. The owner embeds it; `end` frees the owner once the caller is
// past it.
struct event_node {
    struct engine_event event;
    void (*end)(struct engine *engine, struct event_node *node);
    struct event_node *prev, *next;
};

enum status engine_locks_init(struct engine *engine, struct error *error);
void engine_locks_finish(struct engine *engine); // takes a zeroed one
// With the lock held; then, without it, engine_wake() is to be called.
void event_post(struct engine *engine, struct event_node *node);
void engine_wake(struct engine *engine); // there is something to poll
bool engine_lost(struct engine *engine);
// With the lock held, which it lets go meanwhile: until *count changes, but no longer than
// watch.look_ns after the completer has ceased to look. A thread that sleeps is told some twenty
// microseconds late, and who has just got what he waited for is likely to want more.
void engine_look_out(struct engine *engine, const atomic_uint *count);
// Frees every event that nobody polled.
void events_finish(struct engine *engine);

#endif
