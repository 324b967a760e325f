// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_ring_model.c - every schedule of the ring protocol, for small rings. The code under test is schema/ring.c itself, over a port whose
// every access is a step: threads are coroutines, a scheduler picks whose step is next and comes back for each other choice. (check's asserts stay out of it: each is a system call.) Stores wait in
// a buffer of their thread and reach memory in order but at any later time, as processors do it; so a fence that lacks is found, too.
//
// What a thread does next depends only on what its steps have seen, so that two schedules after which memory, buffers and each thread's
// history are the same go on alike, and the second is not followed (told by a hash of 64 bits). A schedule after which nobody can go on is a
// lost wake-up. One thread of the test itself runs all.

#include "check_main.h"

#include <setjmp.h>
#include <stdbool.h>
#include <stdint.h>
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
#include "ring.c"

enum { MAX_THREADS = 4, MAX_ENTRIES = 2, MAX_REQUESTS = 4, MAX_BUFFERED = 8, MAX_STEPS = 1000 };
enum { STACK_SIZE = 64 << 10, FIRST_STACK = 4096 };
enum { VISITED_SIZE = 1 << 18, ANSWER = 100 };

enum wait { RUNS, ON_FUTEX, ON_BELL, ON_LOCK, ON_CHANGE, ENDED };

struct thread {
    enum wait wait;
    uint32_t *futex;
    bool behind;      // something has changed since it looked
    uint64_t history; // of all that its steps have seen
    uint32_t num_buffered;
    struct buffered {
        uint32_t *word, value;
    } buffer[MAX_BUFFERED];
};

// All that threads share; the same before each schedule, and hashed after each step.
static struct world {
    struct thread threads[MAX_THREADS];
    uint32_t submissions[(RING_HEAD + MAX_ENTRIES * 4) / 4], completions[(RING_HEAD + MAX_ENTRIES * 4) / 4];
    struct ring_client client;
    struct ring_daemon daemon;
    uint32_t bell; // 0 or 1: a datagram that finds no room is lost
    bool locked;   // the client library's lock, which guards the rest
    bool over;     // it has heard that the daemon takes no more
    uint32_t answers[MAX_REQUESTS];
    uint32_t num_submitted;
} world, first_world;

// What the scenario is.
static struct scenario {
    uint32_t num_entries, num_requests; // of each client thread
    uint32_t num_clients;
    bool has_daemon, interrupts, keeps_one; // the daemon answers the one before only when the next has come
    bool without_fence;                     // a port that forgets the fence behind a store
    bool finishes;                          // the daemon ends the ring when it has taken `last`
    uint32_t last;
} scenario;

static const char *failure; // what went wrong, NULL = nothing
static ucontext_t scheduler_context,
    contexts[MAX_THREADS]; // a thread's beginning; then jumps, which cost no system call
static jmp_buf scheduler_place, places[MAX_THREADS];
static uint8_t stacks[MAX_THREADS][STACK_SIZE];
static uint32_t num_threads, current;
static bool begun; // first_* are known

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

static void observe(uint64_t value)
{
    const uint64_t seen[] = {self()->history, value};
    self()->history = XXH3_64bits(seen, sizeof seen);
}

// At a place that a thread comes by again: what it knows there is just `knows`, whatever it had seen before.
static void forget_but(uint32_t place, uint32_t knows, uint32_t too)
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

static void fail_with(const char *what)
{
    failure = failure ? failure : what;
}

// ---- memory: a store reaches it when the scheduler says so, or at a fence ----

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

// Not buffered: it lies in the library's own memory, and its atomics are sequentially consistent.
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
        return false; // nobody sets it
    step();
    observe(*flag);
    return *flag;
}

static void port_copy_in(void *entry, const void *from, size_t size)
{
    uint32_t value; // of `size` bytes, as the place says
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
    (void)rest; // nobody is in a hurry here
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

// Goes on when anything has changed since the thread looked; without that it would do the same again.
static void port_yield(void)
{
    step();
    fence();
    forget_but(5, 0, 0);
    if (!self()->behind)
        sleep_on(ON_CHANGE);
}

// ---- what lies around the rings: a doorbell, the library's lock ----

static void bell_ring(void)
{
    step();
    fence();
    observe(0);
    world.bell = 1;
    wake_all(ON_BELL, NULL);
}

static void bell_await(void)
{
    step();
    fence();
    observe(0);
    while (!world.bell)
        sleep_on(ON_BELL);
    world.bell = 0;
}

static void lock(void)
{
    if (scenario.num_clients == 1)
        return; // nobody else wants it
    step();
    fence();
    observe(0);
    while (world.locked)
        sleep_on(ON_LOCK);
    world.locked = true;
}

static void unlock(void)
{
    if (scenario.num_clients == 1)
        return;
    step();
    fence();
    observe(0);
    world.locked = false;
    wake_all(ON_LOCK, NULL);
}

// ---- the client library's ends, as client/src/lane.c uses the ring ----

// Under the lock: takes what is posted, also what others wait for.
static void drain(void)
{
    uint32_t completion;
    enum ring_look look;
    while ((look = ring_consume(&world.client, &completion)) == RING_TAKEN) {
        uint32_t request = completion - ANSWER;
        if (request >= MAX_REQUESTS || world.answers[request])
            fail_with("an answer that nobody waits for, or for the second time");
        else
            world.answers[request] = completion;
    }
    if (look == RING_BROKEN)
        fail_with("the client takes the ring for broken");
}

// Under the lock, which is let go in the meantime. False: interrupted.
static bool wait_for_news(void)
{
    uint32_t consumed = world.client.consumed;
    observe(consumed);
    unlock();
    ring_sleep(&world.client, consumed, NULL);
    bool goes_on = !ring_interrupted(&world.client);
    lock();
    return goes_on;
}

static bool is_full(void)
{
    bool full = world.num_submitted - world.client.consumed >= scenario.num_entries;
    observe(full);
    return full;
}

static bool is_over(void)
{
    observe(world.over);
    return world.over;
}

// Under the lock. False: there will be no answer. *bell: the daemon wants to hear it.
static bool submit(uint32_t round, uint32_t *number, bool *bell)
{
    *bell = false;
    for (forget_but(1, round, 0); is_full(); forget_but(1, round, 0)) {
        drain();
        if (is_full() && !wait_for_news())
            return false;
    }
    if (is_over())
        return false;
    *number = world.num_submitted++;
    observe(*number);
    if (!ring_submit(&world.client, number))
        fail_with("a ring that had room had none");
    enum ring_ear ear = ring_ear(&world.client);
    world.over = ear == RING_OVER;
    *bell = ear == RING_ASLEEP;
    return !world.over;
}

static bool await_answer(uint32_t round, uint32_t number)
{
    bool goes_on = true;
    lock();
    for (;;) {
        forget_but(2, round, number << 1 | goes_on);
        drain();
        observe(world.answers[number]);
        if (world.answers[number] || !goes_on)
            break;
        goes_on = wait_for_news();
    }
    bool answered = world.answers[number] == number + ANSWER;
    unlock();
    return answered;
}

static void run_client(void)
{
    for (uint32_t i = 0; i < scenario.num_requests && !failure; i++) {
        uint32_t number;
        lock();
        bool bell, submitted = submit(i, &number, &bell);
        unlock();
        if (bell)
            bell_ring();
        if (submitted && !await_answer(i, number) && !scenario.interrupts)
            fail_with("an answer is lost or spoilt");
    }
}

// One thread that submits as much as fits before it waits for any.
static void run_eager_client(void)
{
    uint32_t numbers[MAX_REQUESTS], count = 0;
    for (bool bell; count < scenario.num_requests && submit(count, &numbers[count], &bell); count++) {
        if (bell)
            bell_ring();
    }
    for (uint32_t i = 0; i < count; i++) {
        if (!await_answer(i, numbers[i]) && !scenario.interrupts)
            fail_with("an answer is lost or spoilt");
    }
}

static void run_interrupter(void)
{
    ring_interrupt(&world.client);
}

// ---- the daemon's end, as daemon/server/lane.c uses it ----

static void take_all(uint32_t *next, uint32_t all, int64_t *kept)
{
    uint32_t request, completion;
    enum ring_look look;
    for (;;) {
        forget_but(3, *next, (uint32_t)*kept);
        look = ring_take(&world.daemon, &request);
        if (look == RING_NOTHING || failure)
            return;
        if (look == RING_BROKEN || request != *next)
            fail_with("a request is lost, doubled or spoilt");
        ++*next;
        if (scenario.keeps_one && *next % 2 && *next < all) {
            *kept = request;
            continue;
        }
        completion = request + ANSWER;
        ring_post(&world.daemon, &completion);
        if (*kept < 0)
            continue;
        completion = (uint32_t)*kept + ANSWER; // answers out of order
        *kept = -1;
        ring_post(&world.daemon, &completion);
    }
}

// As lane_close() does it.
static void finish(uint32_t next)
{
    uint32_t request, completion;
    ring_finish(&world.daemon);
    for (uint32_t i = 0; i < scenario.num_entries && ring_take(&world.daemon, &request) == RING_TAKEN; i++) {
        if (request != next++)
            fail_with("a request is lost, doubled or spoilt at the end");
        completion = request + ANSWER;
        ring_post(&world.daemon, &completion);
    }
}

static void run_daemon(void)
{
    const uint32_t all = scenario.finishes ? scenario.last : scenario.num_clients * scenario.num_requests;
    uint32_t next = 0;
    int64_t kept = -1;
    while (next < all && !failure) {
        forget_but(4, next, (uint32_t)kept);
        bell_await();
        if (!ring_has_news(&world.daemon))
            continue; // as if another session's bell had rung
        ring_wake_up(&world.daemon);
        do
            take_all(&next, all, &kept);
        while (next < all && !failure && !ring_fall_asleep(&world.daemon));
    }
    if (scenario.finishes)
        finish(next);
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

// Each thread to its first step; from the second schedule on by what memory and registers were there in the first.
static void reach_first_steps(void)
{
    static jmp_buf first_places[MAX_THREADS];
    static uint8_t first_stacks[MAX_THREADS][FIRST_STACK];
    for (current = 0; current < num_threads; current++) {
        uint8_t *top = stacks[current] + STACK_SIZE - FIRST_STACK;
        if (!begun && _setjmp(scheduler_place) == 0)
            swapcontext(&scheduler_context, &contexts[current]);
        memcpy(begun ? top : first_stacks[current], begun ? first_stacks[current] : top, FIRST_STACK);
        memcpy(begun ? places[current] : first_places[current], begun ? first_places[current] : places[current],
               sizeof(jmp_buf));
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
    *asleep_of(&place) = 1; // what ring_daemon_init() leaves
    ring_client_init(&world.client, &place);
    for (uint32_t i = 0; i < scenario.num_clients; i++)
        add_thread(scenario.num_clients == 1 ? 3 : 0);
    if (scenario.has_daemon)
        add_thread(1);
    if (scenario.interrupts)
        add_thread(2);
    reach_first_steps();
}

// What can go on: a thread, or a store out of a thread's buffer.
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

// True: this state was there before.
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

// One schedule: the choices of path[0 .. depth), then the first ones. Returns how long it became.
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

// Over all schedules; what went wrong in the first bad one, or NULL.
static const char *explore(const struct scenario *which)
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
    printf("%u entries, %u clients of %u requests: %u states, %u schedules: %s\n", which->num_entries,
           which->num_clients, which->num_requests, num_visited, schedules, failure ? failure : "good");
    return failure;
}

static void expect_good(const struct scenario *which)
{
    const char *what = explore(which);
    ck_assert_msg(!what, "%s", what);
}

// ---- the tests ----

START_TEST(a_ring_of_one_entry_loses_and_doubles_nothing)
{
    expect_good(&(struct scenario){.num_entries = 1, .num_requests = 3, .num_clients = 1, .has_daemon = true});
}
END_TEST

START_TEST(a_ring_of_two_entries_loses_and_doubles_nothing)
{
    expect_good(&(struct scenario){.num_entries = 2, .num_requests = 3, .num_clients = 1, .has_daemon = true});
}
END_TEST

START_TEST(answers_may_come_in_another_order)
{
    expect_good(&(struct scenario){
        .num_entries = 2, .num_requests = 3, .num_clients = 1, .has_daemon = true, .keeps_one = true});
}
END_TEST

START_TEST(two_threads_share_a_full_ring)
{
    expect_good(&(struct scenario){.num_entries = 1, .num_requests = 1, .num_clients = 2, .has_daemon = true});
}
END_TEST

START_TEST(two_threads_share_a_ring_with_room)
{
    expect_good(&(struct scenario){.num_entries = 2, .num_requests = 1, .num_clients = 2, .has_daemon = true});
}
END_TEST

START_TEST(an_interrupt_wakes_whoever_waits_for_a_daemon_that_is_gone)
{
    expect_good(&(struct scenario){.num_entries = 1, .num_requests = 1, .num_clients = 2, .interrupts = true});
}
END_TEST

START_TEST(an_interrupt_may_come_between_any_two_steps)
{
    expect_good(&(struct scenario){
        .num_entries = 2, .num_requests = 1, .num_clients = 1, .has_daemon = true, .interrupts = true});
}
END_TEST

// Whoever has not heard that it is over gets an answer.
START_TEST(a_daemon_that_ends_the_ring_leaves_nobody_waiting)
{
    for (uint32_t last = 0; last < 3; last++) {
        expect_good(&(struct scenario){
            .num_entries = 2, .num_requests = 3, .num_clients = 1, .has_daemon = true, .finishes = true, .last = last});
        expect_good(&(struct scenario){
            .num_entries = 2, .num_requests = 1, .num_clients = 2, .has_daemon = true, .finishes = true, .last = last});
    }
}
END_TEST

// That the explorer sees what it is there to see.
START_TEST(without_its_fences_the_protocol_loses_a_wake_up)
{
    const char *what = explore(&(struct scenario){
        .num_entries = 1, .num_requests = 2, .num_clients = 1, .has_daemon = true, .without_fence = true});
    ck_assert_ptr_nonnull(what);
    ck_assert_str_eq(what, "nobody can go on: a wake-up is lost");
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        a_ring_of_one_entry_loses_and_doubles_nothing,
        a_ring_of_two_entries_loses_and_doubles_nothing,
        answers_may_come_in_another_order,
        two_threads_share_a_full_ring,
        two_threads_share_a_ring_with_room,
        an_interrupt_wakes_whoever_waits_for_a_daemon_that_is_gone,
        an_interrupt_may_come_between_any_two_steps,
        a_daemon_that_ends_the_ring_leaves_nobody_waiting,
        without_its_fences_the_protocol_loses_a_wake_up,
    };
    Suite *suite = suite_create("ring model");
    TCase *group = tcase_create("every schedule");
    for (size_t i = 0; i < sizeof tests / sizeof *tests; i++)
        tcase_add_test(group, tests[i]);
    suite_add_tcase(suite, group);
    return check_main(suite);
}
