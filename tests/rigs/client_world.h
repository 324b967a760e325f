// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// client_world.h - helpers for tests of the client library with a fake daemon: a folder, a fake in
// it, a session, a cache and a batch. Asserts with check; one test a process.

#ifndef AULE_TESTS_CLIENT_WORLD_H
#define AULE_TESTS_CLIENT_WORLD_H

#include "aule/aule.h"
#include "check_main.h"
#include "client_expect.h"
#include "fakes/fake_daemon.h"

// SHORT_MS: timeout of a session whose daemon does not answer once. All other answers come within
// it, so it is long enough for a busy machine. SHORT_TEXT is how an error says it.
enum { SHORT_MS = 3000, DEADLINE_S = 60 };
#define SHORT_TEXT "within 3000 ms"

extern char folder[64], path[108]; // the test's own folder; the path of its socket
extern struct fake_daemon fake;    // the test starts it

// The fixture. The second function also stops the fake.
void make_folder(void);
void remove_folder(void);

struct aule_session_params params_of(int timeout_ms);
struct aule_session *open_session(int timeout_ms);
struct aule_cache *open_cache(
    struct aule_session *session);                         // one layer, one head of 64, blocks of 8
struct aule_batch *create_batch(struct aule_cache *cache); // one sequence of one token
struct aule_ticket submit_one(struct aule_batch *batch);

// No allocation is left in the arena.
void expect_empty_arena(struct aule_session *session);
// Waits until the fake has seen exactly `count` of them.
void wait_until_seen(enum wire_command command, unsigned count);

struct entry {
    const TTest *test;
    int count; // of a loop test; 0 = once
};
// A group of tests in the fixture; the last entry is zero.
void add(Suite *suite, const char *name, const struct entry *entries);

#endif
