// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// client_step.h - helpers for tests of libaule-client with the real daemon: a daemon for each test,
// one session with a cache and a valid batch, and its attention as two loops in double. Asserts
// with check.

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
    char words[128]; // words that the error of a bad step must contain
};

// The keys and values of a sequence.
struct history {
    float k[MAX_TOKENS][KV_HEADS][DIM], v[MAX_TOKENS][KV_HEADS][DIM];
};

struct entry {
    const TTest *test;
    int count; // of a loop test; 0 = once
};

// For the fixture of a test; add() completes it. The daemon must end with 0.
void launch(const char *const *options);

extern uint64_t step_device_arena; // bytes of device arena that open_session() asks for
struct aule_session *open_session(const char *tenant);
struct aule_cache_params cache_params(void);
struct aule_cache *open_cache(struct aule_session *session);
// The block counts of the cache; checks their sum. await_leased() asks until this many are leased.
struct aule_cache_state state_of(struct aule_cache *cache);
void pause_briefly(void);
void await_leased(struct aule_cache *cache, uint64_t blocks);
void create_tensors(struct step *step);

// A session with a cache, its tensors, and a valid batch over them. run_once() submits and checks
// nothing.
void reset(struct step *step);
void fill(struct step *step, const struct aule_tensor *tensor, uint32_t heads, uint32_t seed);
void open_step(struct step *step, const char *tenant);
void close_step(struct step *step);
struct aule_batch *create_batch(struct step *step);
void run_every_layer(struct step *step, struct aule_batch *batch);
void run_once(struct step *step);

// Compares `out` of the last run with loops in double over K and V that remember_all() kept.
void expect_attention(struct step *step, const struct history *histories);
void remember_all(struct step *step, struct history *histories);

// A process that runs `body` and then waits to be killed. Fork it before this process has a
// session. Returns when `body` is done.
pid_t fork_worker(void (*body)(void));
void kill_worker(pid_t worker);

// A session in which a call was refused still computes.
void still_works(struct step *step);
// A case whose tests have a daemon each; and one whose tests share a daemon, so their cache names
// differ.
void add(Suite *suite, const char *name, void (*prepare)(void), const struct entry *entries);
void add_shared(Suite *suite, const char *name, void (*prepare)(void), const struct entry *entries);

#endif
