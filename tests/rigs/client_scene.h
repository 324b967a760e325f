// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// client_scene.h - a scene for attention from libaule-client through the real daemon: four
// sequences whose keys and values are in the cache, queries to them, and attention as loops in
// double. Asserts with check.

#ifndef AULE_TESTS_CLIENT_SCENE_H
#define AULE_TESTS_CLIENT_SCENE_H

#include "aule/aule.h"
#include "check_main.h"
#include "client_expect.h"
#include "daemon_harness.h"

enum {
    HEADS = 4,
    KV_HEADS = 2,
    DIM = 16,
    BLOCK = 8,
    NUM_SEQS = 4,
    MAX_BLOCKS = 5,
    WAIT_MS = 60000
};
enum { MAX_LEN = 37, NUM_KEYS = 71, NUM_QUERIES = 13, MASK_SIZE = 24 + 3 + 0 + 5, MAX_TICKETS = 4 };

// Four sequences: a chunk of five queries, a decode, one without queries, and one with more queries
// than keys.
extern const int32_t lens[NUM_SEQS], cu_queries[NUM_SEQS + 1];
extern const float slopes[HEADS], sinks[HEADS]; // for tests that need some

extern struct daemon daemon_;

// The fixtures: with options of the daemon, and its end.
void setup(void);
void setup_staging(void);
void setup_few_tickets(void); // MAX_TICKETS
void teardown(void);
void teardown_shared(void); // of a daemon that the tests of a case share

struct scene {
    struct aule_session *session;
    struct aule_cache *cache;
    struct aule_tensor q, k, v, out, lse;
    int32_t table[NUM_SEQS * MAX_BLOCKS];
    struct aule_batch_params batch; // of the queries; it writes nothing
    struct aule_run_params run;
};

void create_tensor(struct scene *scene, uint32_t tokens, uint32_t heads, uint32_t seed,
                   struct aule_tensor *tensor);
void open_scene(struct scene *scene);
void close_scene(struct scene *scene);
void run_scene(struct scene *scene);

// `name` is used in messages.
void expect_lse(float got, double wanted, const char *name, int token, int head);
void expect_scene(const struct scene *scene,
                  const char *name); // compares the last run with loops in double

#endif
