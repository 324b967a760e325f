// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// threads.c - see threads.h.

#include "threads.h"

#include "base/clock.h"

#include <stdlib.h>

struct thread {
    pthread_t id;
    struct threads *threads;
    void (*run)(void *argument);
    void *argument;
};

bool threads_init(struct threads *threads, uint32_t room)
{
    *threads = (struct threads){.room = room, .all = calloc(room, sizeof *threads->all)};
    if (!threads->all)
        return false;
    pthread_mutex_init(&threads->lock, NULL);
    clock_init_cond(&threads->news);
    return true;
}

static void count(struct threads *threads, int32_t step)
{
    pthread_mutex_lock(&threads->lock);
    threads->running += (uint32_t)step;
    pthread_cond_signal(&threads->news);
    pthread_mutex_unlock(&threads->lock);
}

static void *run(void *argument)
{
    const struct thread *thread = argument;
    thread->run(thread->argument);
    count(thread->threads, -1);
    return NULL;
}

bool threads_start(struct threads *threads, void (*function)(void *argument), void *argument)
{
    struct thread *thread = &threads->all[threads->count];
    *thread = (struct thread){.threads = threads, .run = function, .argument = argument};
    count(threads, 1);
    if (pthread_create(&thread->id, NULL, run, thread) != 0) {
        count(threads, -1);
        return false;
    }
    threads->count++;
    return true;
}

bool threads_end(struct threads *threads, int64_t deadline_ns)
{
    if (!threads->all)
        return true;
    pthread_mutex_lock(&threads->lock);
    while (threads->running && clock_now_ns() < deadline_ns)
        clock_wait(&threads->news, &threads->lock, deadline_ns);
    const bool ended = !threads->running;
    pthread_mutex_unlock(&threads->lock);
    if (!ended)
        return false;
    for (uint32_t i = 0; i < threads->count; i++)
        pthread_join(threads->all[i].id, NULL);
    pthread_cond_destroy(&threads->news);
    pthread_mutex_destroy(&threads->lock);
    free(threads->all);
    *threads = (struct threads){0};
    return true;
}
