// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// compiler.c - see compiler.h. The thread compiles one pipeline at a time: first those that lines
// wait for, by the turns of payers and lines, then the others in the order of asking.

#include "compiler.h"

#include "base/list.h"

#include <stdlib.h>
#include <string.h>

enum state { QUEUED, UNDER_WAY, ENDED };

// A pipeline that was asked for. It is freed when it has ended and nobody refers to it.
struct compile {
    struct pipeline_key key;
    struct payer *payer; // who asked first
    enum state state;
    uint32_t num_lines;        // lines that asked for it and have not run since
    uint32_t num_threads;      // that wait for it
    bool early;                // it stays queued even if nothing waits for it
    struct pipeline *pipeline; // pinned, once ENDED; NULL = it failed, or needs no pin
    struct error error;        // ENDED
    struct compile *prev, *next;
};

struct line {
    uint64_t number;
    struct payer *payer;
    uint64_t turn; // larger: later; among the lines of its payer
    bool put_off;
    struct compile **asked; // [num_asked]; owned
    uint32_t num_asked;
    UT_hash_handle hh;
};

enum status compiler_init(struct compiler *compiler, uint32_t most_early, struct error *error)
{
    compiler->most_early = most_early;
    compiler->failed = calloc(most_early ? most_early : 1, sizeof *compiler->failed);
    if (!compiler->failed)
        return error_set(error, STATUS_NO_MEMORY, "no memory for keys of pipelines");
    if (pthread_mutex_init(&compiler->lock, NULL) != 0) {
        free(compiler->failed);
        compiler->failed = NULL;
        return error_set(error, STATUS_NO_MEMORY, "no memory for a lock");
    }
    if (pthread_cond_init(&compiler->work, NULL) == 0) {
        if (pthread_cond_init(&compiler->ended, NULL) == 0) {
            compiler->made = true;
            return STATUS_OK;
        }
        pthread_cond_destroy(&compiler->work);
    }
    pthread_mutex_destroy(&compiler->lock);
    free(compiler->failed);
    compiler->failed = NULL;
    return error_set(error, STATUS_NO_MEMORY, "no memory for a lock");
}

// ---- payers; with the lock held ----

// A new payer or line has its turn before the one whose turn was last, but after all others: it
// neither overtakes those that wait nor has to let the last one go first again.
static uint64_t newcomers_turn(const struct compiler *compiler)
{
    return compiler->num_turns ? 2 * compiler->num_turns - 1 : 0;
}

static uint64_t latest_turn(const struct compiler *compiler)
{
    return 2 * compiler->num_turns;
}

struct payer *payer_ref(struct payer *payer)
{
    payer->refs++;
    return payer;
}

struct payer *payer_get(struct compiler *compiler, uint64_t number)
{
    struct payer *payer;
    HASH_FIND(hh, compiler->payers, &number, sizeof number, payer);
    if (payer)
        return payer_ref(payer);
    if (!(payer = calloc(1, sizeof *payer)))
        return NULL;
    payer->number = number;
    payer->turn = newcomers_turn(compiler);
    HASH_ADD(hh, compiler->payers, number, sizeof number, payer);
    if (payer->hh.tbl)
        return payer_ref(payer);
    free(payer);
    return NULL;
}

void payer_unref(struct compiler *compiler, struct payer *payer)
{
    if (!payer || --payer->refs)
        return;
    HASH_DEL(compiler->payers, payer);
    free(payer);
}

// ---- compiles; with the lock held ----

static void leave_queue(struct compiler *compiler, struct compile *compile)
{
    LIST_DELETE(compiler->queue, compile);
    compiler->num_queued--;
}

// Frees a compile that nobody refers to.
static void settle(struct compiler *compiler, struct compile *compile)
{
    if (compile->num_lines || compile->num_threads || compile->state == UNDER_WAY ||
        (compile->state == QUEUED && compile->early && !compiler->quits))
        return;
    if (compile->state == QUEUED)
        leave_queue(compiler, compile);
    if (compile->pipeline)
        compiler->pin(compile->pipeline, -1);
    payer_unref(compiler, compile->payer);
    free(compile);
}

static bool same_key(const struct pipeline_key *a, const struct pipeline_key *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

static struct compile *find_queued(struct compiler *compiler, const struct pipeline_key *key)
{
    struct compile *compile;
    LIST_EACH(compiler->queue, compile)
        if (same_key(&compile->key, key))
            break;
    return compile;
}

// The queued compile of `key`. NULL: no memory.
static struct compile *get_queued(struct compiler *compiler, uint64_t payer,
                                  const struct pipeline_key *key)
{
    struct compile *compile = find_queued(compiler, key);
    if (compile || !(compile = calloc(1, sizeof *compile)))
        return compile;
    if (!(compile->payer = payer_get(compiler, payer))) {
        free(compile);
        return NULL;
    }
    compile->key = *key;
    LIST_APPEND(compiler->queue, compile);
    compiler->num_queued++;
    pthread_cond_signal(&compiler->work);
    return compile;
}

static enum status no_memory(struct error *error)
{
    return error_set(error, STATUS_NO_MEMORY, "no memory for a pipeline");
}

// ---- lines; with the lock held ----

static struct line *find_line(struct compiler *compiler, uint64_t number)
{
    struct line *line;
    HASH_FIND(hh, compiler->lines, &number, sizeof number, line);
    return line;
}

static struct line *get_line(struct compiler *compiler, struct line_name name)
{
    struct line *line = find_line(compiler, name.number);
    if (line || !(line = calloc(1, sizeof *line)))
        return line;
    line->number = name.number;
    line->turn = newcomers_turn(compiler);
    line->payer = payer_get(compiler, name.payer);
    if (line->payer)
        HASH_ADD(hh, compiler->lines, number, sizeof line->number, line);
    if (!line->hh.tbl) {
        payer_unref(compiler, line->payer);
        free(line);
        return NULL;
    }
    atomic_store(&compiler->num_lines, HASH_COUNT(compiler->lines));
    return line;
}

static void free_line(struct compiler *compiler, struct line *line)
{
    HASH_DEL(compiler->lines, line);
    atomic_store(&compiler->num_lines, HASH_COUNT(compiler->lines));
    for (uint32_t i = 0; i < line->num_asked; i++) {
        line->asked[i]->num_lines--;
        settle(compiler, line->asked[i]);
    }
    payer_unref(compiler, line->payer);
    free(line->asked);
    free(line);
}

// The line's compile of `key`, unless it has succeeded. NULL: it did not ask.
static struct compile *asked_for(const struct line *line, const struct pipeline_key *key)
{
    for (uint32_t i = 0; i < line->num_asked; i++) {
        struct compile *compile = line->asked[i];
        if (same_key(&compile->key, key) &&
            (compile->state != ENDED || compile->error.status != STATUS_OK))
            return compile;
    }
    return NULL;
}

static bool add_asked(struct compiler *compiler, struct line *line, const struct pipeline_key *key)
{
    struct compile **asked =
        realloc(line->asked, (line->num_asked + (size_t)1) * sizeof(struct compile *));
    if (!asked)
        return false;
    line->asked = asked;
    struct compile *compile = get_queued(compiler, line->payer->number, key);
    if (!compile)
        return false;
    line->asked[line->num_asked++] = compile;
    compile->num_lines++;
    return true;
}

enum status compiler_ask(struct compiler *compiler, struct line_name name,
                         const struct pipeline_key *key, struct error *error)
{
    if (compiler->quits)
        return error_set(error, STATUS_STOPPING, "the engine ends");
    struct line *line = get_line(compiler, name);
    if (!line)
        return no_memory(error);
    const struct compile *compile = asked_for(line, key);
    if (compile && compile->state == ENDED) {
        *error = compile->error;
        return error->status;
    }
    if (!compile && !add_asked(compiler, line, key)) {
        if (!line->num_asked)
            free_line(compiler, line);
        return no_memory(error);
    }
    line->put_off = true;
    return error_set(error, STATUS_BUSY, "its pipeline is being compiled");
}

static bool has_failed(const struct compiler *compiler, const struct pipeline_key *key)
{
    for (uint64_t i = 0; i < compiler->num_failed && i < compiler->most_early; i++)
        if (same_key(&compiler->failed[i], key))
            return true;
    return false;
}

// Lack of memory says nothing of the pipeline.
static void note_failure(struct compiler *compiler, const struct compile *compile)
{
    const enum status status = compile->error.status;
    if (!compile->early || !compiler->most_early || status == STATUS_OK ||
        status == STATUS_NO_MEMORY || has_failed(compiler, &compile->key))
        return;
    compiler->failed[compiler->num_failed++ % compiler->most_early] = compile->key;
}

void compiler_ask_early(struct compiler *compiler, uint64_t payer, const struct pipeline_key *key)
{
    if (compiler->quits || compiler->num_queued >= compiler->most_early ||
        has_failed(compiler, key))
        return;
    struct compile *compile = get_queued(compiler, payer, key);
    if (compile)
        compile->early = true;
}

// Compiles what is queued. With the lock held, which is released meanwhile.
static void compile_now(struct compiler *compiler, struct compile *compile, bool prepares)
{
    struct error error = {.status = STATUS_OK};
    struct pipeline *pipeline = NULL;
    const bool is_wanted = compile->num_lines || compile->num_threads;
    compile->state = UNDER_WAY;
    pthread_mutex_unlock(&compiler->lock);
    if (prepares && compiler->prepare)
        compiler->prepare(compiler->pipelines, &compile->key, is_wanted);
    error.status =
        compiler->compile(compiler->pipelines, &compile->key, compile->payer, &pipeline, &error);
    pthread_mutex_lock(&compiler->lock);
    leave_queue(compiler, compile);
    compile->state = ENDED;
    compile->error = error;
    compile->pipeline = pipeline;
    note_failure(compiler, compile);
    const bool awaited = compile->num_lines > 0;
    settle(compiler, compile);
    pthread_cond_broadcast(&compiler->ended);
    pthread_mutex_unlock(&compiler->lock);
    compiler->news(compiler->owner, awaited);
    pthread_mutex_lock(&compiler->lock);
}

enum status compiler_wait(struct compiler *compiler, const struct pipeline_key *key,
                          struct error *error)
{
    struct compile *compile = get_queued(compiler, 0, key);
    if (!compile)
        return no_memory(error);
    compile->num_threads++;
    if (compile->state == QUEUED)
        compile_now(compiler, compile, false);
    while (compile->state != ENDED)
        pthread_cond_wait(&compiler->ended, &compiler->lock);
    compile->num_threads--;
    enum status status = compile->error.status;
    if (status != STATUS_OK)
        *error = compile->error;
    settle(compiler, compile);
    return status;
}

// ---- lines; without the lock ----

bool line_is_put_off(struct compiler *compiler, uint64_t number)
{
    if (!number || !atomic_load(&compiler->num_lines))
        return false;
    pthread_mutex_lock(&compiler->lock);
    const struct line *line = find_line(compiler, number);
    bool put_off = line && line->put_off;
    pthread_mutex_unlock(&compiler->lock);
    return put_off;
}

static bool waits(const struct line *line)
{
    for (uint32_t i = 0; i < line->num_asked; i++)
        if (line->asked[i]->state != ENDED)
            return true;
    return false;
}

bool line_resume(struct compiler *compiler, uint64_t number)
{
    pthread_mutex_lock(&compiler->lock);
    struct line *line = find_line(compiler, number);
    bool resumes = !line || !waits(line);
    if (line && resumes)
        line->put_off = false;
    pthread_mutex_unlock(&compiler->lock);
    return resumes;
}

void line_end(struct compiler *compiler, uint64_t number)
{
    if (!number || !atomic_load(&compiler->num_lines))
        return;
    pthread_mutex_lock(&compiler->lock);
    struct line *line = find_line(compiler, number);
    if (line)
        free_line(compiler, line);
    pthread_mutex_unlock(&compiler->lock);
}

// ---- the thread ----

// What the line asked for first, and what nobody compiles yet. NULL: it waits for no such thing.
static struct compile *first_queued(const struct line *line)
{
    for (uint32_t i = 0; i < line->num_asked; i++)
        if (line->asked[i]->state == QUEUED)
            return line->asked[i];
    return NULL;
}

static bool precedes(const struct line *one, const struct line *other)
{
    return one->payer->turn != other->payer->turn ? one->payer->turn < other->payer->turn
                                                  : one->turn < other->turn;
}

// The waiting line whose turn it is, and it has its turn now. NULL: no line waits.
static struct compile *take_turn(struct compiler *compiler)
{
    struct line *line, *after, *next = NULL;
    HASH_ITER(hh, compiler->lines, line, after) {
        if (first_queued(line) && (!next || precedes(line, next)))
            next = line;
    }
    if (!next)
        return NULL;
    compiler->num_turns++;
    next->turn = next->payer->turn = latest_turn(compiler);
    return first_queued(next);
}

static struct compile *next_queued(struct compiler *compiler)
{
    struct compile *compile = take_turn(compiler);
    if (compile)
        return compile;
    LIST_EACH(compiler->queue, compile)
        if (compile->state == QUEUED)
            break;
    return compile;
}

// The next compile. NULL: there will be none.
static struct compile *take(struct compiler *compiler)
{
    struct compile *compile;
    while (!(compile = next_queued(compiler)) && !compiler->stops)
        pthread_cond_wait(&compiler->work, &compiler->lock);
    return compile;
}

void compiler_run(struct compiler *compiler)
{
    struct compile *compile;
    pthread_mutex_lock(&compiler->lock);
    while ((compile = take(compiler)))
        compile_now(compiler, compile, true);
    pthread_mutex_unlock(&compiler->lock);
}

void compiler_quit(struct compiler *compiler)
{
    struct line *line, *next;
    struct compile *compile, *after;
    pthread_mutex_lock(&compiler->lock);
    compiler->quits = true;
    HASH_ITER(hh, compiler->lines, line, next)
        free_line(compiler, line);
    LIST_EACH_SAFE(compiler->queue, compile, after)
        settle(compiler, compile);
    pthread_mutex_unlock(&compiler->lock);
}

void compiler_stop(struct compiler *compiler)
{
    pthread_mutex_lock(&compiler->lock);
    compiler->stops = true;
    pthread_cond_signal(&compiler->work);
    pthread_mutex_unlock(&compiler->lock);
}

void compiler_finish(struct compiler *compiler)
{
    if (!compiler->made)
        return;
    compiler_quit(compiler);
    free(compiler->failed);
    compiler->failed = NULL;
    pthread_cond_destroy(&compiler->work);
    pthread_cond_destroy(&compiler->ended);
    pthread_mutex_destroy(&compiler->lock);
    compiler->made = false;
}
