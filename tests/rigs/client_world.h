// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// client_world.h - what tests of the client library against a fake daemon have in common: a folder,
// a fake in it, a session, a cache and a batch. Asserts with check; one test a process.

#ifndef AULE_TESTS_CLIENT_WORLD_H
#define AULE_TESTS_CLIENT_WORLD_H

#include "aule/aule.h"
#include "check_main.h"
#include "client_expect.h"
#include "fakes/fake_daemon.h"

// SHORT_MS: of a session whose daemon once does not answer. All its other answers come within it,
// so it is long for a machine with much to do; SHORT_TEXT is how a sentence says it.
enum { SHORT_MS = 3000, DEADLINE_S = 60 };
#define SHORT_TEXT "within 3000 ms"

extern char folder[64], path[108]; // of the test's own; the socket's
extern struct fake_daemon fake;    // the test's to start

// The fixture: the second also stops the fake.
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
// Until the fake has seen just `count` of them.
void wait_until_seen(enum wire_command command, unsigned count);

struct entry {
    const TTest *test;
    int count; // of a loop test; 0 = once
};
// A group of tests in the fixture; the last entry is zeroed.
void add(Suite *suite, const char *name, const struct entry *entries);

#endif
