// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// ring_explorer.c - see ring_explorer.h.

#include "ring_explorer.h"

#include <setjmp.h>
#include <stdio.h>
#include <string.h>
#include <ucontext.h>
#include <xxhash.h>

struct timespec;

static uint32_t port_load(const uint32_t *word);
static void port_store(uint32_t *word, uint32_t value);
static void port_publish(uint32_t *word, uint32_t value);
static uint32_t port_look(const uint32_t *word);
static void port_add(uint32_t *word, uint32_t value);
static void port_set(bool *flag);
static bool port_is_set(const bool *flag);
static void port_copy_in(void *entry, const void *from, size_t size);
static void port_copy_out(void *to, const void *entry, size_t size);
static void port_futex_wait(uint32_t *word, uint32_t value, const struct timespec *rest);
static void port_futex_wake(uint32_t *word);
static void port_yield(void);

#define RING_PORT
#include "schema/ring.c"

enum { MAX_STEPS = 1000, STACK_SIZE = 64 << 10, FIRST_STACK = 4096, VISITED_SIZE = 1 << 18 };

struct world world;
static struct world first_world;
struct scenario scenario;
const char *failure;

static ucontext_t scheduler_context,
    contexts[MAX_THREADS]; // where a thread starts; later switches are jumps, without a system call
static jmp_buf scheduler_place, places[MAX_THREADS];
static uint8_t stacks[MAX_THREADS][STACK_SIZE];
static uint32_t num_threads, current;
static bool begun; // first_* are set

// ---- steps ----

static struct thread *self(void)
{
    return &world.threads[current];
}

static void leave_to_scheduler(void)
{
    if (_setjmp(places[current]) == 0)
        _longjmp(scheduler_place, 1);
}

static void go_on(void)
{
    if (_setjmp(scheduler_place) == 0)
        _longjmp(places[current], 1);
}

static void step(void)
{
    self()->wait = RUNS;
    leave_to_scheduler();
}

void observe(uint64_t value)
{
    const uint64_t seen[] = {self()->history, value};
    self()->history = XXH3_64bits(seen, sizeof seen);
}

// A thread that returns to this place knows only `knows`, whatever it has seen before.
void forget_but(uint32_t place, uint32_t knows, uint32_t too)
{
    const uint32_t all[] = {place, knows, too};
    self()->history = XXH3_64bits(all, sizeof all);
}

static void wake_all(enum wait wait, const uint32_t *futex)
{
    for (uint32_t i = 0; i < num_threads; i++) {
        struct thread *thread = &world.threads[i];
        if (thread->wait == wait && (wait != ON_FUTEX || thread->futex == futex))
            thread->wait = RUNS;
    }
}

static void tell_change(void)
{
    for (uint32_t i = 0; i < num_threads && scenario.interrupts; i++)
        world.threads[i].behind = true;
    wake_all(ON_CHANGE, NULL);
}

static void sleep_on(enum wait wait)
{
    self()->wait = wait;
    leave_to_scheduler();
}

void fail_with(const char *what)
{
    failure = failure ? failure : what;
}

// ---- memory: a store reaches it when the scheduler decides, or at a fence ----

static void flush_one(struct thread *thread)
{
    struct buffered *first = thread->buffer;
    *first->word = first->value;
    thread->num_buffered--;
    memmove(first, first + 1, thread->num_buffered * sizeof *first);
    memset(&thread->buffer[thread->num_buffered], 0, sizeof *first);
    tell_change();
}

static void fence(void)
{
    while (self()->num_buffered)
        flush_one(self());
}

static void put(uint32_t *word, uint32_t value)
{
    struct thread *thread = self();
    if (thread->num_buffered == MAX_BUFFERED)
        flush_one(thread);
    thread->buffer[thread->num_buffered++] = (struct buffered){word, value};
    observe(0);
}

static uint32_t get(const uint32_t *word)
{
    const struct thread *thread = self();
    uint32_t value = *word;
    for (uint32_t i = 0; i < thread->num_buffered; i++)
        value = thread->buffer[i].word == word ? thread->buffer[i].value : value;
    observe(value);
    return value;
}

static uint32_t port_load(const uint32_t *word)
{
    step();
    return get(word);
}

static uint32_t port_look(const uint32_t *word)
{
    step();
    self()->behind = false;
    return get(word);
}

static void port_store(uint32_t *word, uint32_t value)
{
    step();
    put(word, value);
}

static void port_publish(uint32_t *word, uint32_t value)
{
    step();
    put(word, value);
    if (!scenario.without_fence)
        fence();
}

static void port_add(uint32_t *word, uint32_t value)
{
    step();
    fence();
    put(word, get(word) + value);
    fence();
}

// This word is not buffered: it is in the library's own memory, and its atomics are sequentially
// consistent.
static void port_set(bool *flag)
{
    step();
    fence();
    *flag = true;
    observe(0);
    tell_change();
}

static bool port_is_set(const bool *flag)
{
    if (!scenario.interrupts)
        return false; // no thread sets it
    step();
    observe(*flag);
    return *flag;
}

static void port_copy_in(void *entry, const void *from, size_t size)
{
    uint32_t value; // of `size` bytes
    memcpy(&value, from, size);
    step();
    put(entry, value);
}

static void port_copy_out(void *to, const void *entry, size_t size)
{
    step();
    uint32_t value = get(entry);
    memcpy(to, &value, size);
}

static void port_futex_wait(uint32_t *word, uint32_t value, const struct timespec *rest)
{
    (void)rest; // time does not pass here
    step();
    fence();
    self()->futex = word;
    if (get(word) != value)
        return;
    tell_change();
    sleep_on(ON_FUTEX);
}

static void port_futex_wake(uint32_t *word)
{
    step();
    fence();
    observe(0);
    wake_all(ON_FUTEX, word);
}

// Continues when anything has changed since the thread looked. Without a change it would do the
// same again.
static void port_yield(void)
{
    step();
    fence();
    forget_but(5, 0, 0);
    if (!self()->behind)
        sleep_on(ON_CHANGE);
}

// ---- the other shared objects: a doorbell, the library's lock ----

void bell_ring(void)
{
    step();
    fence();
    observe(0);
    world.bell = 1;
    wake_all(ON_BELL, NULL);
}

void bell_await(void)
{
    step();
    fence();
    observe(0);
    while (!world.bell)
        sleep_on(ON_BELL);
    world.bell = 0;
}

void lock(void)
{
    if (scenario.num_clients == 1)
        return; // no other thread needs it
    step();
    fence();
    observe(0);
    while (world.locked)
        sleep_on(ON_LOCK);
    world.locked = true;
}

void unlock(void)
{
    if (scenario.num_clients == 1)
        return;
    step();
    fence();
    observe(0);
    world.locked = false;
    wake_all(ON_LOCK, NULL);
}

// ---- the scheduler ----

static uint64_t visited[VISITED_SIZE];
static uint32_t num_visited;
static struct {
    uint8_t choice, count;
} path[MAX_STEPS];

static void thread_main(int number)
{
    static void (*const ends[])(void) = {run_client, run_daemon, run_interrupter, run_eager_client};
    ends[number]();
    fence();
    self()->wait = ENDED;
    leave_to_scheduler();
}

static void add_thread(int number)
{
    ucontext_t *context = &contexts[num_threads];
    if (!begun) {
        getcontext(context);
        context->uc_stack.ss_sp = stacks[num_threads];
        context->uc_stack.ss_size = STACK_SIZE;
        makecontext(context, (void (*)(void))thread_main, 1, number);
    }
    num_threads++;
}

// Runs each thread to its first step. From the second schedule on, restores the memory and
// registers of that point.
static void reach_first_steps(void)
{
    static jmp_buf first_places[MAX_THREADS];
    static uint8_t first_stacks[MAX_THREADS][FIRST_STACK];
    for (current = 0; current < num_threads; current++) {
        uint8_t *top = stacks[current] + STACK_SIZE - FIRST_STACK;
        if (!begun && _setjmp(scheduler_place) == 0)
            swapcontext(&scheduler_context, &contexts[current]);
        memcpy(begun ? top : first_stacks[current], begun ? first_stacks[current] : top,
               FIRST_STACK);
        memcpy(begun ? places[current] : first_places[current],
               begun ? first_places[current] : places[current], sizeof(jmp_buf));
    }
    if (!begun)
        first_world = world;
    world = first_world;
    begun = true;
}

static void begin(void)
{
    memset(&world, 0, sizeof world);
    num_threads = 0;
    const struct ring_place place = {
        .submissions = world.submissions,
        .completions = world.completions,
        .num_entries = scenario.num_entries,
        .submission_size = 4,
        .completion_size = 4,
    };
    world.daemon.place = place;
    *asleep_of(&place) = 1; // the value after ring_daemon_init()
    ring_client_init(&world.client, &place);
    for (uint32_t i = 0; i < scenario.num_clients; i++)
        add_thread(scenario.num_clients == 1 ? 3 : 0);
    if (scenario.has_daemon)
        add_thread(1);
    if (scenario.interrupts)
        add_thread(2);
    reach_first_steps();
}

// The choices of the next step: a thread, or a store in a thread's buffer.
struct choice {
    uint8_t thread;
    bool flushes;
};

static uint32_t list_choices(struct choice choices[2 * MAX_THREADS])
{
    uint32_t count = 0;
    for (uint8_t i = 0; i < num_threads; i++) {
        if (world.threads[i].wait == RUNS)
            choices[count++] = (struct choice){i, false};
        if (world.threads[i].num_buffered)
            choices[count++] = (struct choice){i, true};
    }
    return count;
}

static void take(struct choice choice)
{
    current = choice.thread;
    if (choice.flushes)
        flush_one(self());
    else
        go_on();
}

// True: this state was reached before.
static bool visit(void)
{
    uint64_t key = XXH3_64bits(&world, sizeof world);
    key += key == 0;
    uint32_t at = (uint32_t)(key % VISITED_SIZE);
    while (visited[at] && visited[at] != key)
        at = (at + 1) % VISITED_SIZE;
    if (visited[at])
        return true;
    visited[at] = key;
    if (++num_visited >= VISITED_SIZE / 4 * 3)
        fail_with("too many states for the table");
    return false;
}

static bool all_ended(void)
{
    bool ended = true;
    for (uint32_t i = 0; i < num_threads; i++)
        ended &= world.threads[i].wait == ENDED;
    return ended;
}

// Runs one schedule: the choices of path[0 .. depth), then the first choice each time. Returns its
// length.
static uint32_t run_schedule(uint32_t depth)
{
    struct choice choices[2 * MAX_THREADS];
    begin();
    for (uint32_t at = 0;; at++) {
        uint32_t count = list_choices(choices);
        if (failure || count == 0) {
            if (!failure && !all_ended())
                failure = "nobody can go on: a wake-up is lost";
            return at;
        }
        if (at == MAX_STEPS) {
            fail_with("a schedule that does not end");
            return at;
        }
        if (at >= depth) {
            if (visit())
                return at;
            path[at].choice = 0;
            path[at].count = (uint8_t)count;
        }
        take(choices[path[at].choice]);
    }
}

// Runs all schedules. Returns the error of the first bad one, or NULL.
const char *explore(const struct scenario *which)
{
    uint32_t depth = 0, schedules = 0;
    scenario = *which;
    failure = NULL;
    num_visited = 0;
    begun = false;
    memset(visited, 0, sizeof visited);
    do {
        depth = run_schedule(depth);
        schedules++;
        while (depth && path[depth - 1].choice + 1 >= path[depth - 1].count)
            depth--;
        if (depth)
            path[depth - 1].choice++;
    } while (depth && !failure);
    printf("%u entries, %u clients of %u requests: %u states, %u schedules: %s\n",
           which->num_entries, which->num_clients, which->num_requests, num_visited, schedules,
           failure ? failure : "good");
    return failure;
}
