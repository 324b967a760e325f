// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// team.c - see team.h. Threads are created for each loop, because a loop takes milliseconds at
// least.

#include "team.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>

enum { MOST = 256 };

struct loop {
    atomic_uint next;
    uint32_t count;
    void (*work)(void *context, uint32_t i, uint32_t member);
    void *context;
};

struct member {
    struct loop *loop;
    uint32_t number;
    pthread_t thread;
};

uint32_t team_size(void)
{
    cpu_set_t cores;
    if (sched_getaffinity(0, sizeof cores, &cores) != 0)
        return 1;
    int count = CPU_COUNT(&cores);
    return count < 1 ? 1 : count > MOST ? MOST : (uint32_t)count;
}

static void *take(void *argument)
{
    struct member *member = argument;
    struct loop *loop = member->loop;
    for (;;) {
        uint32_t i = atomic_fetch_add(&loop->next, 1);
        if (i >= loop->count)
            return NULL;
        loop->work(loop->context, i, member->number);
    }
}

void team_run(uint32_t count, void (*work)(void *context, uint32_t i, uint32_t member),
              void *context)
{
    struct loop loop = {.count = count, .work = work, .context = context};
    struct member members[MOST];
    uint32_t size = team_size(), started = 1;
    size = size < count ? size : count;
    for (; started < size; started++) {
        members[started] = (struct member){.loop = &loop, .number = started};
        if (pthread_create(&members[started].thread, NULL, take, &members[started]) != 0)
            break;
    }
    members[0] = (struct member){.loop = &loop};
    take(&members[0]);
    for (uint32_t i = 1; i < started; i++)
        pthread_join(members[i].thread, NULL);
}
