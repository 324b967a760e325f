// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// event.c - the engine's lock, its events in order, the loss of the device, and waiting for a
// submission. Any thread of the engine posts events; the caller's thread polls them.

#include "event.h"

#include "base/list.h"
#include "base/relax.h"
#include "state.h"

#include <errno.h>
#include <stdio.h>

enum { LOOKS_FOR_EXPECTED = 4 };

// Threads that poll an atomic counter take the lock at the moment when the thread that changed the
// counter holds it. A sleeping waiter would wake about 30 us late, so the mutex is adaptive: a
// waiter spins for a moment before it sleeps.
static bool make_lock(struct engine *engine)
{
    pthread_mutexattr_t attributes;
    if (pthread_mutexattr_init(&attributes) != 0)
        return false;
    pthread_mutexattr_settype(&attributes, PTHREAD_MUTEX_ADAPTIVE_NP);
    bool made = pthread_mutex_init(&engine->lock, &attributes) == 0;
    pthread_mutexattr_destroy(&attributes);
    return made;
}

enum status engine_locks_init(struct engine *engine, struct error *error)
{
    engine->lock_made = make_lock(engine);
    engine->changed_made = engine->lock_made && clock_init_cond(&engine->changed) == 0;
    engine->more_made = engine->changed_made && clock_init_cond(&engine->more) == 0;
    engine->chores_made = engine->more_made && clock_init_cond(&engine->chores) == 0;
    if (engine->chores_made)
        return STATUS_OK;
    return error_set(error, STATUS_NO_MEMORY, "no memory for the engine's lock");
}

void engine_locks_finish(struct engine *engine)
{
    if (engine->changed_made)
        pthread_cond_destroy(&engine->changed);
    if (engine->more_made)
        pthread_cond_destroy(&engine->more);
    if (engine->chores_made)
        pthread_cond_destroy(&engine->chores);
    if (engine->lock_made)
        pthread_mutex_destroy(&engine->lock);
}

void event_post(struct engine *engine, struct event_node *node)
{
    LIST_APPEND(engine->events, node);
    pthread_cond_broadcast(&engine->changed);
}

void engine_wake(struct engine *engine)
{
    // Set without the lock: a thread that sees the flag takes the lock immediately.
    atomic_store(&engine->has_news, true);
    if (engine->wake)
        engine->wake(engine->context);
}

bool engine_lost(struct engine *engine)
{
    pthread_mutex_lock(&engine->lock);
    bool lost = engine->lost;
    pthread_mutex_unlock(&engine->lock);
    return lost;
}

// Events from before the loss come before the LOST event. After it there is none, because the work
// under way has no outcome.
static struct event_node *next_event(struct engine *engine)
{
    struct event_node *node = engine->lost_told ? NULL : engine->events;
    const bool compiled = !node && !engine->lost_told && engine->compiled;
    atomic_store(&engine->has_news, node || compiled);
    if (node) {
        LIST_DELETE(engine->events, node);
    } else if (compiled) {
        engine->compiled = false;
        node = &engine->compiled_event;
    } else if (engine->lost && !engine->lost_told) {
        engine->lost_told = true;
        node = &engine->lost_event;
    }
    return node;
}

bool engine_has_news(const struct engine *engine)
{
    return atomic_load(&engine->has_news);
}

bool engine_poll(struct engine *engine, struct engine_event *event)
{
    if (engine->polled && engine->polled->end)
        engine->polled->end(engine, engine->polled);
    pthread_mutex_lock(&engine->lock);
    engine->polled = next_event(engine);
    pthread_mutex_unlock(&engine->lock);
    if (!engine->polled)
        return false;
    *event = engine->polled->event;
    return true;
}

void events_finish(struct engine *engine)
{
    struct event_node *node = engine->polled;
    engine->polled = NULL;
    while (node || engine->events) {
        if (!node) {
            node = engine->events;
            LIST_DELETE(engine->events, node);
        }
        if (node->end)
            node->end(engine, node);
        node = NULL;
    }
}

// The signal is lost if the submitter has just looked and is not asleep yet. Then the next
// submission wakes it later.
void engine_expect(struct engine *engine)
{
    if (engine->watch.look_ns == 0)
        return;
    atomic_fetch_add(&engine->num_expected, 1);
    pthread_cond_signal(&engine->more); // makes no system call if the submitter is awake
}

int64_t engine_patience_ns(const struct engine *engine)
{
    return LOOKS_FOR_EXPECTED * engine->watch.look_ns;
}

int64_t engine_look_out(struct engine *engine, const atomic_uint *count, int64_t most_ns)
{
    const unsigned before = atomic_load(count);
    unsigned expected = atomic_load(&engine->num_expected);
    pthread_mutex_unlock(&engine->lock);
    const int64_t look_ns = engine->watch.look_ns;
    int64_t now = clock_now_ns(), from = now, end = now + clock_earlier(look_ns, most_ns);
    for (; atomic_load(count) == before && now < end; now = clock_now_ns()) {
        const unsigned newly = atomic_load(&engine->num_expected);
        if (atomic_load(&engine->looking)) {
            from = now;
            end = now + look_ns;
        } else if (newly != expected && end < from + most_ns) {
            end = clock_earlier(now + look_ns, from + most_ns);
        }
        expected = newly;
        cpu_relax();
    }
    pthread_mutex_lock(&engine->lock);
    return now - from;
}

enum status engine_wait(struct engine *engine, uint64_t sequence, int timeout_ms)
{
    const int64_t deadline_ns = clock_deadline_ns(timeout_ms);
    int rc = 0;
    pthread_mutex_lock(&engine->lock);
    while (engine->completed < sequence && !engine->lost && rc != ETIMEDOUT &&
           sequence <= engine->last_sequence)
        rc = clock_wait(&engine->changed, &engine->lock, deadline_ns);
    enum status status = engine->completed >= sequence      ? STATUS_OK
                         : engine->lost                     ? STATUS_DEVICE_LOST
                         : sequence > engine->last_sequence ? STATUS_NOT_FOUND
                                                            : STATUS_TIMEOUT;
    pthread_mutex_unlock(&engine->lock);
    return status;
}
