// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// client_step.h - what tests of libaule-client against the real daemon have in common: a daemon a
// test, one session with a cache and a batch that is right, and what its attention has to be, as
// two loops in double. Asserts with check.

#ifndef AULE_TESTS_CLIENT_STEP_H
#define AULE_TESTS_CLIENT_STEP_H

#include "aule/aule.h"
#include "check_main.h"
#include "client_expect.h"
#include "daemon_harness.h"

#include <sys/types.h>

enum {
    LAYERS = 2,
    HEADS = 4,
    KV_HEADS = 2,
    DIM = 16,
    BLOCK = 8,
    MAX_TOKENS = 64,
    MAX_SEQS = 4,
    MAX_BLOCKS = 8
};
enum { WAIT_MS = 60000, DEADLINE_S = 60 };

extern struct daemon daemon_;
extern const struct aule_prefix prompt; // of 20 tokens

struct step {
    struct aule_session *session;
    struct aule_cache *cache;
    int32_t blocks[MAX_BLOCKS]; // leased
    struct aule_tensor q, k, v, out;
    int32_t cu[MAX_SEQS + 1], lens[MAX_SEQS], table[MAX_SEQS * MAX_BLOCKS];
    int64_t slots[MAX_TOKENS];
    struct aule_batch_params batch;
    struct aule_run_params run;
    char words[128]; // what the sentence of a bad one must contain
};

// What a sequence's keys and values were.
struct history {
    float k[MAX_TOKENS][KV_HEADS][DIM], v[MAX_TOKENS][KV_HEADS][DIM];
};

struct entry {
    const TTest *test;
    int count; // of a loop test; 0 = once
};

// For the fixture of a test, which add() completes: the daemon has to end well.
void launch(const char *const *options);

struct aule_session *open_session(const char *tenant);
struct aule_cache_params cache_params(void);
struct aule_cache *open_cache(struct aule_session *session);
// Its counts, whose sum is checked; await_leased() asks until so many are leased.
struct aule_cache_state state_of(struct aule_cache *cache);
void pause_briefly(void);
void await_leased(struct aule_cache *cache, uint64_t blocks);
void create_tensors(struct step *step);

// A session with a cache, its tensors, and a batch over them that is right; run_once() submits and
// checks nothing.
void reset(struct step *step);
void fill(struct step *step, const struct aule_tensor *tensor, uint32_t heads, uint32_t seed);
void open_step(struct step *step, const char *tenant);
void close_step(struct step *step);
struct aule_batch *create_batch(struct step *step);
void run_every_layer(struct step *step, struct aule_batch *batch);
void run_once(struct step *step);

// Out of the last run against loops in double over what remember_all() kept of K and V.
void expect_attention(struct step *step, const struct history *histories);
void remember_all(struct step *step, struct history *histories);

// A process that does `body` and then waits to be killed; to be forked before this process has a
// session. Returns when it is through.
pid_t fork_worker(void (*body)(void));
void kill_worker(pid_t worker);

// A session that was refused something still computes.
void still_works(struct step *step);
// A case whose tests have a daemon each; and one whose tests share one, by the names of their
// caches too.
void add(Suite *suite, const char *name, void (*prepare)(void), const struct entry *entries);
void add_shared(Suite *suite, const char *name, void (*prepare)(void), const struct entry *entries);

#endif
