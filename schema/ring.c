// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// ring.c - see ring.h. All access to shared memory and all sleeping goes through the port below.
// tests/rigs/ring_explorer.c puts another port in its place and steps both ends through every
// schedule.

#include "ring.h"

#ifndef RING_PORT

#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

// ---- the port ----

static inline uint32_t port_load(const uint32_t *word) // acquire
{
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

static inline void port_store(uint32_t *word, uint32_t value) // release
{
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

// An exchange in place of a store and a fence, because ThreadSanitizer knows no fences. On x86 both
// become the same instruction.
static inline void port_publish(uint32_t *word, uint32_t value) // store, then a full fence
{
    __atomic_exchange_n(word, value, __ATOMIC_SEQ_CST);
}

static inline uint32_t port_look(const uint32_t *word) // a full fence, then a load
{
    return __atomic_load_n(word, __ATOMIC_SEQ_CST);
}

static inline void port_add(uint32_t *word, uint32_t value) // with a full fence
{
    __atomic_fetch_add(word, value, __ATOMIC_SEQ_CST);
}

static inline void port_set(bool *flag) // in this process's memory, with a full fence
{
    __atomic_store_n(flag, true, __ATOMIC_SEQ_CST);
}

static inline bool port_is_set(const bool *flag)
{
    return __atomic_load_n(flag, __ATOMIC_SEQ_CST);
}

static inline void port_copy_in(void *entry, const void *from, size_t size)
{
    memcpy(entry, from, size);
}

static inline void port_copy_out(void *to, const void *entry, size_t size)
{
    memcpy(to, entry, size);
}

static inline void port_futex_wait(uint32_t *word, uint32_t value, const struct timespec *rest)
{
    syscall(SYS_futex, word, FUTEX_WAIT, value, rest, NULL, 0);
}

static inline void port_futex_wake(uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

static inline void port_yield(void)
{
    sched_yield();
}

#endif

// ---- layout ----

uint64_t ring_size(uint32_t num_entries, uint32_t entry_size)
{
    return RING_HEAD + (uint64_t)num_entries * entry_size;
}

bool ring_good_number(uint32_t num_entries)
{
    return num_entries > 0 && num_entries <= RING_MAX_ENTRIES &&
           (num_entries & (num_entries - 1)) == 0;
}

static uint32_t *word_of(void *ring, uint32_t line)
{
    return (uint32_t *)(void *)((uint8_t *)ring + (size_t)line * RING_LINE);
}

static uint32_t *submitted_of(const struct ring_place *place)
{
    return word_of(place->submissions, 0);
}

static uint32_t *asleep_of(const struct ring_place *place)
{
    return word_of(place->submissions, 1);
}

static uint32_t *posted_of(const struct ring_place *place)
{
    return word_of(place->completions, 0);
}

static uint32_t *sleepers_of(const struct ring_place *place)
{
    return word_of(place->completions, 1);
}

static void *submission_at(const struct ring_place *place, uint32_t count)
{
    return (uint8_t *)place->submissions + RING_HEAD +
           (size_t)(count & (place->num_entries - 1)) * place->submission_size;
}

static void *completion_at(const struct ring_place *place, uint32_t count)
{
    return (uint8_t *)place->completions + RING_HEAD +
           (size_t)(count & (place->num_entries - 1)) * place->completion_size;
}

// ---- the client's end ----

void ring_client_init(struct ring_client *client, const struct ring_place *place)
{
    *client = (struct ring_client){.place = *place};
}

bool ring_submit(struct ring_client *client, const void *submission)
{
    const struct ring_place *place = &client->place;
    if (client->submitted - client->consumed >= place->num_entries)
        return false;
    port_copy_in(submission_at(place, client->submitted), submission, place->submission_size);
    port_publish(submitted_of(place), ++client->submitted);
    return true;
}

enum ring_ear ring_ear(const struct ring_client *client)
{
    uint32_t word = port_look(asleep_of(&client->place));
    return word == RING_AWAKE || word == RING_OVER ? (enum ring_ear)word : RING_ASLEEP;
}

enum ring_look ring_consume(struct ring_client *client, void *completion)
{
    const struct ring_place *place = &client->place;
    uint32_t posted = port_load(posted_of(place));
    if (posted == client->consumed)
        return RING_NOTHING;
    if (posted - client->consumed > client->submitted - client->consumed)
        return RING_BROKEN;
    port_copy_out(completion, completion_at(place, client->consumed), place->completion_size);
    client->consumed++;
    return RING_TAKEN;
}

bool ring_posted(const struct ring_client *client, uint32_t consumed)
{
    return port_load(posted_of(&client->place)) != consumed || ring_interrupted(client);
}

void ring_sleep(struct ring_client *client, uint32_t consumed, const struct timespec *rest)
{
    const struct ring_place *place = &client->place;
    port_add(sleepers_of(place), 1);
    if (!port_is_set(&client->interrupted))
        port_futex_wait(posted_of(place), consumed, rest);
    port_add(sleepers_of(place), UINT32_MAX);
}

// A thread that read the flag before it was set counts as a sleeper, but may not sleep yet. A
// wake-up that comes too early does nothing. So wake-ups are repeated until no sleeper is left.
void ring_interrupt(struct ring_client *client)
{
    const struct ring_place *place = &client->place;
    port_set(&client->interrupted);
    while (port_look(sleepers_of(place)) != 0) {
        port_futex_wake(posted_of(place));
        port_yield();
    }
}

bool ring_interrupted(const struct ring_client *client)
{
    return port_is_set(&client->interrupted);
}

// ---- the daemon's end ----

void ring_daemon_init(struct ring_daemon *daemon, const struct ring_place *place)
{
    *daemon = (struct ring_daemon){.place = *place};
    port_store(submitted_of(place), 0);
    port_store(posted_of(place), 0);
    port_store(sleepers_of(place), 0);
    port_publish(asleep_of(place), RING_ASLEEP);
}

bool ring_has_news(const struct ring_daemon *daemon)
{
    return port_load(submitted_of(&daemon->place)) != daemon->taken;
}

enum ring_look ring_take(struct ring_daemon *daemon, void *submission)
{
    const struct ring_place *place = &daemon->place;
    uint32_t submitted = port_load(submitted_of(place));
    if (submitted == daemon->taken)
        return RING_NOTHING;
    // Requests from `posted` to `taken` wait for their answers; those from `taken` to `submitted`
    // are new.
    if (submitted - daemon->posted > place->num_entries ||
        submitted - daemon->posted < daemon->taken - daemon->posted)
        return RING_BROKEN;
    port_copy_out(submission, submission_at(place, daemon->taken), place->submission_size);
    daemon->taken++;
    return RING_TAKEN;
}

bool ring_put(struct ring_daemon *daemon, const void *completion)
{
    const struct ring_place *place = &daemon->place;
    port_copy_in(completion_at(place, daemon->posted), completion, place->completion_size);
    port_publish(posted_of(place), ++daemon->posted);
    return port_look(sleepers_of(place)) != 0;
}

void ring_wake_sleepers(const struct ring_daemon *daemon)
{
    const struct ring_place *place = &daemon->place;
    if (port_look(sleepers_of(place)) != 0)
        port_futex_wake(posted_of(place));
}

void ring_post(struct ring_daemon *daemon, const void *completion)
{
    if (ring_put(daemon, completion))
        ring_wake_sleepers(daemon);
}

bool ring_fall_asleep(struct ring_daemon *daemon)
{
    const struct ring_place *place = &daemon->place;
    port_publish(asleep_of(place), RING_ASLEEP);
    if (port_look(submitted_of(place)) == daemon->taken)
        return true;
    ring_wake_up(daemon);
    return false;
}

void ring_wake_up(struct ring_daemon *daemon)
{
    port_store(asleep_of(&daemon->place), RING_AWAKE);
}

void ring_finish(struct ring_daemon *daemon)
{
    port_publish(asleep_of(&daemon->place), RING_OVER);
}
