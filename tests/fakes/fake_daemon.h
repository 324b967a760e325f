// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// fake_daemon.h - a daemon without a GPU that gives the answers that a test defines, also answers
// that no daemon would give. It is for tests of the client library. Its own thread answers and runs
// the handler.

#ifndef AULE_TESTS_FAKE_DAEMON_H
#define AULE_TESTS_FAKE_DAEMON_H

#include "schema/wire.h"

#include <nng/nng.h>
#include <pthread.h>
#include <stdatomic.h>

struct fake_daemon;

enum fake_action {
    FAKE_ANSWER,  // send the reply
    FAKE_SILENCE, // never answer
    FAKE_GARBAGE, // answer with bytes that are no message
    FAKE_TWICE,   // send the reply twice
    FAKE_HANG_UP, // close the connection
};

// The handler gets each request with the reply that a correct daemon would give, and may change it.
// What the reply points to must live as long as the fake.
typedef enum fake_action (*fake_handler)(struct fake_daemon *fake,
                                         const struct wire_request *request,
                                         struct wire_reply *reply);

enum { FAKE_ARENA = 4 << 20 }; // bytes

struct fake_daemon {
    char path[108];
    fake_handler handler; // NULL = the correct reply
    void *context;        // the handler's
    uint64_t epoch;
    nng_socket socket;
    pthread_t thread;
    atomic_bool stopping;
    char segment_name[64];
    uint8_t *segment; // of the last session; stays mapped until the stop
    uint64_t segment_size;
    uint64_t head;        // bytes before the arena; a page, if the test sets nothing else
    uint64_t places_size; // bytes behind it; 0, if the test sets nothing else
    atomic_uint seen[WIRE_COMMAND_COUNT]; // requests so far, by command
    atomic_uint sessions;
    atomic_uint connections_lost;
    uint64_t tickets, batches; // handed out so far
    int32_t *blocks;           // of the last lease, or NULL
};

// Listens at `path`. Asserts with check.
void fake_start(struct fake_daemon *fake, const char *path, fake_handler handler, void *context);
// Stops listening: every connection ends. Accepts a fake that is stopped.
void fake_stop(struct fake_daemon *fake);
// The bytes of the last session's arena.
uint8_t *fake_arena(const struct fake_daemon *fake);

#endif
