// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// compiler.h - the queue of pipelines to compile, the thread that compiles them, and which lines
// wait for which. Knows no run and no Vulkan: `compile` of struct compiler does the work.
//
// A line is the caller's name for runs that must keep their order (struct engine_run). A line that
// needs a pipeline asks for it and is put off: none of its runs is planned until the caller
// resumes it, which it may when all that the line asked for has ended. Other lines go on. A
// pipeline that nobody asks for any more leaves the queue, unless it was asked for beforehand.
//
// Payers take turns, and so do the lines of one payer: the next compile is that of the payer whose
// turn was the longest ago, for its line whose turn was. So a payer that asks for many pipelines
// delays another one by a single compile.

#ifndef AULE_ENGINE_COMPILER_H
#define AULE_ENGINE_COMPILER_H

#include "base/hash.h"
#include "engine/engine.h"
#include "geometry.h"

#include <pthread.h>
#include <stdatomic.h>

// The key of a pipeline.
struct pipeline_key {
    uint32_t kind; // enum pipeline_kind
    struct geometry geometry;
};

struct pipeline;
struct compile;

// A line, and who pays for it.
struct line_name {
    uint64_t number, payer; // payer 0: nobody
};

// Exists while a line, a compile or a pipeline refers to it. Guard: the compiler's lock.
struct payer {
    uint64_t number;
    uint64_t turn; // larger: later
    uint32_t refs;
    uint32_t num_pipelines; // for the owner of the pipelines: those that are kept
    UT_hash_handle hh;
};

struct line;

struct compiler {
    pthread_mutex_t lock;  // guards everything below, and the pipelines that exist
    pthread_cond_t work;   // wakes the thread: a compile, or the end
    pthread_cond_t ended;  // a compile has ended
    struct compile *queue; // in the order of asking; some may be under way
    struct line *lines;    // uthash, by number: lines that were put off and have not run since
    struct payer *payers;  // uthash, by number
    uint64_t num_turns;    // since the start
    uint32_t num_queued, most_early;
    // Keys that failed beforehand, the last most_early ones; owned. They are not tried again.
    struct pipeline_key *failed;
    uint64_t num_failed; // since the start
    bool made, quits, stops;
    atomic_uint num_lines; // of `lines`, so that planning rarely takes the lock

    // Compiles `key` and keeps the result for `payer`, who asked first. Called without the lock, by
    // several threads. On success *out is pinned once; NULL = it needs no pin.
    enum status (*compile)(void *pipelines, const struct pipeline_key *key, struct payer *payer,
                           struct pipeline **out, struct error *error);
    // Called first, without the lock, by compiler_run() alone, because it may take long. NULL =
    // nothing. `awaited`: a line or a thread waits for the key.
    void (*prepare)(void *pipelines, const struct pipeline_key *key, bool awaited);
    // With the lock held: whether the pipeline may be evicted changes by this much.
    void (*pin)(struct pipeline *pipeline, int by);
    // Without the lock: a compile has ended. `awaited`: a line waits for it.
    void (*news)(void *owner, bool awaited);
    void *pipelines, *owner;
};

// Takes a zeroed one whose functions are set. `most_early`: most compiles that may be queued
// beforehand.
enum status compiler_init(struct compiler *compiler, uint32_t most_early, struct error *error);
void compiler_finish(struct compiler *compiler); // takes a zeroed one; the thread has ended
// The thread. Returns when compiler_stop() was called and the queue is empty.
void compiler_run(struct compiler *compiler);
// From now on only what a thread waits for is compiled; all else leaves the queue. Any thread.
void compiler_quit(struct compiler *compiler);
void compiler_stop(struct compiler *compiler); // no thread will wait any more

// ---- asking; with the lock held ----

// The line asks for `key`, which does not exist, and is put off. BUSY: it is queued. Another
// status: what came of it when this line asked before.
enum status compiler_ask(struct compiler *compiler, struct line_name line,
                         const struct pipeline_key *key, struct error *error);
// Asks for `key` before any line needs it. It is queued once, and only if there is room and if it
// has not failed before.
void compiler_ask_early(struct compiler *compiler, uint64_t payer, const struct pipeline_key *key);
// Compiles `key` on the calling thread, or waits for the thread that has begun; releases the lock
// meanwhile. OK: the pipeline exists now.
enum status compiler_wait(struct compiler *compiler, const struct pipeline_key *key,
                          struct error *error);

// ---- payers; with the lock held ----

// Finds or makes the payer, and adds a reference. NULL: no memory.
struct payer *payer_get(struct compiler *compiler, uint64_t number);
struct payer *payer_ref(struct payer *payer);
void payer_unref(struct compiler *compiler, struct payer *payer); // takes NULL

// ---- lines; without the lock ----

bool line_is_put_off(struct compiler *compiler, uint64_t line);
// True: nothing that the line asked for is queued, and it is not put off any more.
bool line_resume(struct compiler *compiler, uint64_t line);
// The line has run, or is gone: drops what it asked for.
void line_end(struct compiler *compiler, uint64_t line);

#endif
