// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_expect.c - how long the engine's threads poll for a submission that was announced. No
// device: the test is the thread that polls.

#include "engine/state/event.h"
#include "engine/state/state.h"
#include "rigs/check_main.h"

#include <pthread.h>

static struct engine engine;
static atomic_bool over;

static void open_engine(int64_t look_ns)
{
    struct error error;
    engine.watch.look_ns = look_ns;
    ck_assert_int_eq(engine_locks_init(&engine, &error), STATUS_OK);
}

static int64_t look_out(int64_t most_ns)
{
    pthread_mutex_lock(&engine.lock);
    const int64_t took_ns = engine_look_out(&engine, &engine.num_queued, most_ns);
    pthread_mutex_unlock(&engine.lock);
    return took_ns;
}

static void *announce(void *unused)
{
    (void)unused;
    while (!atomic_load(&over))
        engine_expect(&engine);
    return NULL;
}

// As a client does that advances its batches and runs nothing.
START_TEST(announcements_without_end_end_the_polling)
{
    pthread_t thread;
    open_engine(20 * NS_PER_MS);
    ck_assert_int_eq(pthread_create(&thread, NULL, announce, NULL), 0);
    while (atomic_load(&engine.num_expected) == 0)
        ;
    ck_assert_int_gt(look_out(engine_patience_ns(&engine)), 0);
    atomic_store(&over, true);
    pthread_join(thread, NULL);
    engine_locks_finish(&engine);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("expect");
    TCase *polling = tcase_create("polling");
    tcase_add_test(polling, announcements_without_end_end_the_polling);
    suite_add_tcase(suite, polling);
    return check_main(suite);
}
