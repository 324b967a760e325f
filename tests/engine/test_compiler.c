// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_compiler.c - the queue of compiles without a device: lines that ask, wait, die and ask
// again, threads that wait, and pipelines that are evicted meanwhile, all at random.

#include "engine/kernels/compiler.h"
#include "rigs/check_main.h"
#include "rigs/dice.h"

#include <pthread.h>
#include <string.h>
#include <unistd.h>

enum { KEYS = 6, LINES = 4, THREADS = LINES + 2, ROUNDS = 400 };

// What compiler.c knows by its address alone.
struct pipeline {
    bool exists;
    int pins;
};

static struct compiler compiler;
static struct pipeline pipelines[KEYS]; // guard: compiler.lock
static uint32_t num_attempts;           // every fifth fails
static uint32_t order[KEYS];            // of compiles, by their keys' numbers; the latest KEYS
static void (*meanwhile)(uint32_t key); // called in each compile; NULL: nothing
static atomic_uint num_news;
static uint64_t seed;

static struct pipeline_key key_of(uint32_t number)
{
    struct pipeline_key key;
    memset(&key, 0, sizeof key);
    key.geometry.spec[0] = number;
    return key;
}

static enum status compile(void *owner, const struct pipeline_key *key, struct payer *payer,
                           struct pipeline **out, struct error *error)
{
    (void)payer;
    struct pipeline *pipeline = &((struct pipeline *)owner)[key->geometry.spec[0]];
    usleep(20);
    pthread_mutex_lock(&compiler.lock);
    order[num_attempts % KEYS] = key->geometry.spec[0];
    const bool fails = ++num_attempts % 5 == 0;
    if (meanwhile)
        meanwhile(key->geometry.spec[0]);
    if (!fails) {
        ck_assert(!pipeline->exists); // nothing is compiled twice
        pipeline->exists = true;
        pipeline->pins = 1;
        *out = pipeline;
    }
    pthread_mutex_unlock(&compiler.lock);
    return fails ? error_set(error, STATUS_INTERNAL, "compile %u fails", key->geometry.spec[0])
                 : STATUS_OK;
}

static void pin(struct pipeline *pipeline, int by)
{
    pipeline->pins += by;
    ck_assert_int_ge(pipeline->pins, 0);
}

static void news(void *owner, bool awaited)
{
    (void)owner;
    (void)awaited;
    atomic_fetch_add(&num_news, 1);
}

static void *thread(void *argument)
{
    (void)argument;
    compiler_run(&compiler);
    return NULL;
}

// With the lock held.
static void evict(struct dice *dice)
{
    struct pipeline *pipeline = &pipelines[dice_below(dice, KEYS)];
    if (!pipeline->pins)
        pipeline->exists = false;
}

// OK, BUSY, or why the compile failed.
static enum status want(struct dice *dice, uint64_t line, uint32_t number)
{
    const struct pipeline_key key = key_of(number);
    struct error error = {.status = STATUS_OK};
    enum status status = STATUS_OK;
    pthread_mutex_lock(&compiler.lock);
    evict(dice);
    if (!pipelines[number].exists)
        status = compiler_ask(&compiler, (struct line_name){line, line % 2}, &key, &error);
    if (!pipelines[number].exists && dice_below(dice, 4) == 0)
        compiler_ask_early(&compiler, 1, &key);
    pthread_mutex_unlock(&compiler.lock);
    if (status == STATUS_INTERNAL)
        ck_assert_ptr_nonnull(strstr(error.text, "fails"));
    return status;
}

// A line's life: it wants two pipelines at once, waits for both, and finds both or an error.
static void *live(void *argument)
{
    const uint64_t line = (uint64_t)(uintptr_t)argument;
    struct dice dice = {.state = seed + line};
    for (int i = 0; i < ROUNDS; i++) {
        const uint32_t numbers[2] = {dice_below(&dice, KEYS), dice_below(&dice, KEYS)};
        enum status first = want(&dice, line, numbers[0]), second = want(&dice, line, numbers[1]);
        if (first == STATUS_BUSY || second == STATUS_BUSY)
            ck_assert(line_is_put_off(&compiler, line));
        if (dice_below(&dice, 8) == 0) {
            line_end(&compiler, line); // it dies
            ck_assert(!line_is_put_off(&compiler, line));
            continue;
        }
        while (!line_resume(&compiler, line))
            usleep(10);
        // A pipeline that the line asked for stays until the line ends; others may be evicted.
        if (first == STATUS_BUSY)
            ck_assert_int_ne(want(&dice, line, numbers[0]), STATUS_BUSY);
        if (second == STATUS_BUSY)
            ck_assert_int_ne(want(&dice, line, numbers[1]), STATUS_BUSY);
        line_end(&compiler, line);
    }
    return NULL;
}

// A thread that waits.
static void *wait_for_some(void *argument)
{
    struct dice dice = {.state = seed + 99 + (uintptr_t)argument};
    for (int i = 0; i < ROUNDS; i++) {
        const uint32_t number = dice_below(&dice, KEYS);
        const struct pipeline_key key = key_of(number);
        struct error error = {.status = STATUS_OK};
        pthread_mutex_lock(&compiler.lock);
        evict(&dice);
        if (!pipelines[number].exists && compiler_wait(&compiler, &key, &error) == STATUS_OK)
            ck_assert(pipelines[number].exists);
        pthread_mutex_unlock(&compiler.lock);
    }
    return NULL;
}

static void start(void)
{
    struct error error;
    compiler.compile = compile;
    compiler.pin = pin;
    compiler.news = news;
    compiler.pipelines = pipelines;
    ck_assert_int_eq(compiler_init(&compiler, KEYS / 2, &error), STATUS_OK);
}

START_TEST(lines_threads_and_evictions_at_random_end_with_nothing_pinned_or_queued)
{
    pthread_t runner, threads[THREADS];
    start();
    ck_assert_int_eq(pthread_create(&runner, NULL, thread, NULL), 0);
    for (uintptr_t i = 0; i < THREADS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, i < LINES ? live : wait_for_some,
                                        i < LINES ? (void *)(i + 1) : (void *)(i - LINES)),
                         0);
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    compiler_quit(&compiler);
    compiler_stop(&compiler);
    pthread_join(runner, NULL);
    ck_assert_uint_eq(compiler.num_queued, 0);
    ck_assert_ptr_null(compiler.queue);
    ck_assert_uint_eq(atomic_load(&compiler.num_lines), 0);
    ck_assert_ptr_null(compiler.payers);
    for (int i = 0; i < KEYS; i++)
        ck_assert_int_eq(pipelines[i].pins, 0);
    ck_assert_uint_eq(atomic_load(&num_news), num_attempts);
    compiler_finish(&compiler);
}
END_TEST

// Compiles what is queued, by this thread.
static void compile_all(void)
{
    compiler.stops = true;
    compiler_run(&compiler);
    compiler.stops = false;
}

static uint32_t queued_after_asking_early(uint32_t number)
{
    const struct pipeline_key key = key_of(number);
    pthread_mutex_lock(&compiler.lock);
    compiler_ask_early(&compiler, 1, &key);
    const uint32_t count = compiler.num_queued;
    pthread_mutex_unlock(&compiler.lock);
    return count;
}

START_TEST(what_failed_beforehand_is_not_tried_again_until_a_run_needs_it)
{
    const struct pipeline_key key = key_of(0);
    struct error error;
    start();
    num_attempts = 4; // the next one fails
    ck_assert_uint_eq(queued_after_asking_early(0), 1);
    compile_all();
    ck_assert_uint_eq(num_attempts, 5);
    ck_assert_uint_eq(queued_after_asking_early(0), 0);
    ck_assert_uint_eq(queued_after_asking_early(1), 1);
    pthread_mutex_lock(&compiler.lock);
    ck_assert_int_eq(compiler_ask(&compiler, (struct line_name){7, 1}, &key, &error), STATUS_BUSY);
    pthread_mutex_unlock(&compiler.lock);
    compile_all();
    ck_assert_uint_eq(num_attempts, 7);
    ck_assert(pipelines[0].exists && pipelines[1].exists);
    line_end(&compiler, 7);
    compiler_finish(&compiler);
}
END_TEST

static int num_prepared[2]; // by whether a line or thread waited

static void note_prepared(void *owner, const struct pipeline_key *key, bool awaited)
{
    (void)owner;
    (void)key;
    num_prepared[awaited]++;
}

START_TEST(a_compile_is_prepared_as_what_a_line_waits_for_or_beforehand)
{
    const struct pipeline_key key = key_of(1);
    struct error error;
    start();
    compiler.prepare = note_prepared;
    ck_assert_uint_eq(queued_after_asking_early(0), 1);
    compile_all();
    ck_assert(num_prepared[false] == 1 && num_prepared[true] == 0);
    pthread_mutex_lock(&compiler.lock);
    ck_assert_int_eq(compiler_ask(&compiler, (struct line_name){7, 1}, &key, &error), STATUS_BUSY);
    pthread_mutex_unlock(&compiler.lock);
    compile_all();
    ck_assert(num_prepared[false] == 1 && num_prepared[true] == 1);
    line_end(&compiler, 7);
    compiler_finish(&compiler);
}
END_TEST

// With the lock held.
static void ask_in_turn(uint64_t line, uint64_t payer, uint32_t number)
{
    const struct pipeline_key key = key_of(number);
    struct error error;
    ck_assert_int_eq(compiler_ask(&compiler, (struct line_name){line, payer}, &key, &error),
                     STATUS_BUSY);
}

static void come_beside_key_2(uint32_t number)
{
    if (number == 2)
        ask_in_turn(30, 3, 5);
}

// Payer 1 has two lines with two keys each. Payer 2 asks last, and payer 3 during a compile.
START_TEST(beside_many_lines_of_one_payer_another_ones_new_key_is_compiled_next)
{
    static const uint32_t expected[KEYS] = {0, 4, 2, 5, 1, 3};
    start();
    pthread_mutex_lock(&compiler.lock);
    for (uint32_t number = 0; number < 4; number++)
        ask_in_turn(10 + number / 2, 1, number);
    ask_in_turn(20, 2, 4);
    pthread_mutex_unlock(&compiler.lock);
    meanwhile = come_beside_key_2;
    compile_all();
    meanwhile = NULL;
    for (int i = 0; i < KEYS; i++)
        ck_assert_uint_eq(order[i], expected[i]);
    compiler_finish(&compiler);
    ck_assert_ptr_null(compiler.payers);
}
END_TEST

START_TEST(a_line_that_asks_after_the_end_hears_that_the_engine_ends)
{
    const struct pipeline_key key = key_of(0);
    struct error error;
    ck_assert_int_eq(compiler_init(&compiler, 1, &error), STATUS_OK);
    compiler_quit(&compiler);
    pthread_mutex_lock(&compiler.lock);
    ck_assert_int_eq(compiler_ask(&compiler, (struct line_name){1, 1}, &key, &error),
                     STATUS_STOPPING);
    pthread_mutex_unlock(&compiler.lock);
    ck_assert_str_eq(error.text, "the engine ends");
    compiler_finish(&compiler);
}
END_TEST

int main(void)
{
    seed = check_draw("compiler");
    Suite *suite = suite_create("compiler");
    TCase *tcase = tcase_create("queue");
    tcase_set_timeout(tcase, 120);
    tcase_add_test(tcase, lines_threads_and_evictions_at_random_end_with_nothing_pinned_or_queued);
    tcase_add_test(tcase, what_failed_beforehand_is_not_tried_again_until_a_run_needs_it);
    tcase_add_test(tcase, a_compile_is_prepared_as_what_a_line_waits_for_or_beforehand);
    tcase_add_test(tcase, beside_many_lines_of_one_payer_another_ones_new_key_is_compiled_next);
    tcase_add_test(tcase, a_line_that_asks_after_the_end_hears_that_the_engine_ends);
    suite_add_tcase(suite, tcase);
    return check_main(suite);
}
