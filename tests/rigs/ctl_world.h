// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// ctl_world.h - runs aule-ctl as a program: its exit code, its error on stderr, its JSON documents.
// Also a daemon for each test, with one worker in this process. Asserts (check).

#ifndef AULE_TESTS_CTL_WORLD_H
#define AULE_TESTS_CTL_WORLD_H

#include "aule/aule.h"
#include "check_main.h"
#include "daemon_harness.h"

#include <cjson/cJSON.h>

enum { OK, FAILED, USAGE, GONE }; // exit codes, as in the man page
enum { BLOCK_SIZE = 8, HEAD_DIM = 8 };
enum { NUM_ASKING = 9 };

extern const char *const asking[NUM_ASKING]; // the commands that ask and change nothing

struct outcome {
    int code;        // exit code; minus the signal's number
    char *out, *err; // what was written; owned
};

// `out` NULL = collect stdout; else the file for stdout.
struct outcome run_to(const char *out, const char *const *arguments);
void outcome_finish(struct outcome *outcome);

#define RUN(...) run_to(NULL, (const char *const[]){__VA_ARGS__, NULL})

// A failure prints one sentence with these words on stderr, and nothing on stdout. Frees the
// outcome.
void assert_fails(struct outcome outcome, int code, const char *words);
// Exit code 0, nothing on stderr, exactly one document with schema_version 1. Frees the outcome;
// the caller owns the document.
cJSON *document(struct outcome outcome);
// With --json a failure is one document on stderr, with this status (NULL = none), and nothing on
// stdout. Frees the outcome.
void assert_fails_as_json(struct outcome outcome, int code, const char *status, const char *words);

// Members that must exist.
double number(const cJSON *json, const char *key);
const char *string(const cJSON *json, const char *key);
const cJSON *list(const cJSON *json, const char *key, int size); // with this many entries

// ---- with a daemon: one for each test, and one worker in this process ----

extern struct daemon server;
extern struct aule_session *session;
extern struct aule_cache *cache;

#define ASK(...) RUN(__VA_ARGS__, "--socket", server.socket)
#define CHECK_OK(call)                                                                             \
    do {                                                                                           \
        enum aule_status check_status = (call);                                                    \
        ck_assert_msg(check_status == AULE_OK, "%s: %s", aule_status_name(check_status),           \
                      aule_error());                                                               \
    } while (0)

// The fixture.
void start(void);
void stop(void);

// The output of aule-ctl on a terminal with this many columns. `option` may be NULL.
void show_on_terminal(int columns, const char *view, const char *option, char *text, size_t size);

struct aule_session *open_session(const char *name, const char *tenant);
struct aule_cache *open_cache(const char *name); // in `session`
void open_worker(const char *name);              // `session` of tenant-a, and `cache` named "model"
// One run over a sequence of two blocks. The blocks are published and looked up: 16 tokens asked,
// 16 found.
void publish_two_blocks(int32_t blocks[2]);

#endif
