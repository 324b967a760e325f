// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_ring.c - the two rings in operation: both ends as threads over one mapping, with futexes and
// a datagram doorbell; and a daemon's end whose peer writes anything anywhere at any time.
// test_ring_model.c tests all schedules.

#include "rigs/check_main.h"
#include "rigs/dice.h"
#include "schema/ring.h"

#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

enum { ENTRY = 64, WORDS = ENTRY / 8, MAX_ENTRIES = 64, PAGE = 4096 };

// A mapping with an inaccessible page before, between and behind the rings.
struct rings {
    uint8_t *base;
    size_t size;
    struct ring_place place;
    int bell[2];
};

static size_t pages(uint32_t num_entries)
{
    return (ring_size(num_entries, ENTRY) + PAGE - 1) / PAGE * PAGE;
}

// The rings end at the end of a page, so that an access beyond them faults.
static uint8_t *open_ring(uint8_t *base, uint32_t num_entries)
{
    ck_assert_int_eq(mprotect(base, pages(num_entries), PROT_READ | PROT_WRITE), 0);
    return base + pages(num_entries) - ring_size(num_entries, ENTRY);
}

static void open_rings(struct rings *rings, uint32_t num_entries)
{
    size_t part = pages(num_entries) + PAGE;
    rings->size = 2 * part + PAGE;
    rings->base = mmap(NULL, rings->size, PROT_NONE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(rings->base, MAP_FAILED);
    rings->place = (struct ring_place){
        .submissions = open_ring(rings->base + PAGE, num_entries),
        .completions = open_ring(rings->base + PAGE + part, num_entries),
        .num_entries = num_entries,
        .submission_size = ENTRY,
        .completion_size = ENTRY,
    };
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_DGRAM | SOCK_NONBLOCK, 0, rings->bell), 0);
}

static void close_rings(struct rings *rings)
{
    close(rings->bell[0]);
    close(rings->bell[1]);
    munmap(rings->base, rings->size);
}

static void fill(uint64_t entry[WORDS], uint64_t value)
{
    for (int i = 0; i < WORDS; i++)
        entry[i] = value * 31 + (uint64_t)i;
}

static bool is_filled(const uint64_t entry[WORDS], uint64_t value)
{
    uint64_t right[WORDS];
    fill(right, value);
    return memcmp(entry, right, sizeof right) == 0;
}

// ---- two threads over one mapping ----

static struct traffic {
    struct rings rings;
    uint32_t num_requests;
    atomic_bool bad;
} traffic;

static void await_bell(struct ring_daemon *daemon)
{
    struct pollfd bell = {.fd = traffic.rings.bell[0], .events = POLLIN};
    uint8_t note;
    poll(&bell, 1, -1);
    while (recv(bell.fd, &note, sizeof note, 0) > 0)
        ;
    if (ring_has_news(daemon))
        ring_wake_up(daemon);
}

static void *serve(void *context)
{
    struct ring_daemon *daemon = context;
    uint64_t entry[WORDS];
    for (uint32_t taken = 0; taken < traffic.num_requests;) {
        enum ring_look look = ring_take(daemon, entry);
        if (look == RING_TAKEN) {
            if (!is_filled(entry, taken++))
                atomic_store(&traffic.bad, true);
            fill(entry, taken - 1 + 1000);
            ring_post(daemon, entry);
        } else if (look == RING_BROKEN) {
            atomic_store(&traffic.bad, true);
            return NULL;
        } else if (ring_fall_asleep(daemon)) {
            await_bell(daemon);
        }
    }
    return NULL;
}

// Keeps as many requests in flight as the ring holds. Sleeps when the ring is full, and at the end.
static void ask(struct ring_client *client, uint32_t num_requests)
{
    uint64_t entry[WORDS];
    uint32_t asked = 0, answered = 0;
    while (answered < num_requests) {
        fill(entry, asked);
        if (asked < num_requests && ring_submit(client, entry)) {
            asked++;
            if (ring_ear(client) == RING_ASLEEP)
                send(traffic.rings.bell[1], "", 1, 0);
            continue;
        }
        enum ring_look look = ring_consume(client, entry);
        if (look == RING_TAKEN)
            ck_assert(is_filled(entry, answered++ + 1000));
        else
            ring_sleep(client, client->consumed, NULL);
        ck_assert_int_ne(look, RING_BROKEN);
    }
}

START_TEST(both_ends_as_threads_lose_and_spoil_nothing)
{
    static const uint32_t sizes[] = {1, 2, 64};
    struct ring_daemon daemon;
    struct ring_client client;
    pthread_t thread;
    traffic.num_requests = 3000;
    open_rings(&traffic.rings, sizes[_i]);
    ring_daemon_init(&daemon, &traffic.rings.place);
    ring_client_init(&client, &traffic.rings.place);
    ck_assert_int_eq(pthread_create(&thread, NULL, serve, &daemon), 0);
    ask(&client, traffic.num_requests);
    pthread_join(thread, NULL);
    ck_assert(!atomic_load(&traffic.bad));
    close_rings(&traffic.rings);
}
END_TEST

static void *interrupt(void *context)
{
    ring_interrupt(context);
    return NULL;
}

START_TEST(an_interrupt_ends_a_sleep_for_good)
{
    struct ring_daemon daemon;
    struct ring_client client;
    struct rings rings;
    pthread_t thread;
    open_rings(&rings, 1);
    ring_daemon_init(&daemon, &rings.place);
    ring_client_init(&client, &rings.place);
    ck_assert_int_eq(pthread_create(&thread, NULL, interrupt, &client), 0);
    while (!ring_interrupted(&client))
        ring_sleep(&client, 0, NULL);
    pthread_join(thread, NULL);
    ring_sleep(&client, 0, NULL);
    ck_assert(ring_posted(&client, 0));
    close_rings(&rings);
}
END_TEST

START_TEST(a_sleep_ends_when_its_time_is_over)
{
    const struct timespec rest = {.tv_nsec = 1000000};
    struct ring_daemon daemon;
    struct ring_client client;
    struct rings rings;
    open_rings(&rings, 1);
    ring_daemon_init(&daemon, &rings.place);
    ring_client_init(&client, &rings.place);
    ring_sleep(&client, 0, &rest);
    ck_assert(!ring_posted(&client, 0));
    close_rings(&rings);
}
END_TEST

// ---- counts ----

START_TEST(counts_may_wrap)
{
    struct ring_daemon daemon;
    struct ring_client client;
    struct rings rings;
    uint64_t entry[WORDS];
    open_rings(&rings, 2);
    ring_daemon_init(&daemon, &rings.place);
    ring_client_init(&client, &rings.place);
    const uint32_t start = UINT32_MAX - 4;
    client.submitted = client.consumed = daemon.taken = daemon.posted = start;
    memcpy(rings.place.submissions, &start, sizeof start);
    memcpy(rings.place.completions, &start, sizeof start);
    for (uint32_t i = 0; i < 20; i++) {
        fill(entry, i);
        ck_assert(ring_submit(&client, entry));
        ck_assert_int_eq(ring_take(&daemon, entry), RING_TAKEN);
        ck_assert(is_filled(entry, i));
        ck_assert_int_eq(ring_take(&daemon, entry), RING_NOTHING);
        ring_post(&daemon, entry);
        ck_assert_int_eq(ring_consume(&client, entry), RING_TAKEN);
        ck_assert(is_filled(entry, i));
        ck_assert_int_eq(ring_consume(&client, entry), RING_NOTHING);
    }
    close_rings(&rings);
}
END_TEST

START_TEST(a_ring_is_full_until_its_answers_are_consumed)
{
    struct ring_daemon daemon;
    struct ring_client client;
    struct rings rings;
    uint64_t entry[WORDS] = {0};
    open_rings(&rings, 2);
    ring_daemon_init(&daemon, &rings.place);
    ring_client_init(&client, &rings.place);
    ck_assert_int_eq(ring_ear(&client), RING_ASLEEP);
    ck_assert(ring_submit(&client, entry));
    ck_assert(ring_submit(&client, entry));
    ck_assert(!ring_submit(&client, entry));
    ck_assert(!ring_fall_asleep(&daemon)); // there is a request
    ck_assert_int_eq(ring_ear(&client), RING_AWAKE);
    ck_assert_int_eq(ring_take(&daemon, entry), RING_TAKEN);
    ck_assert(!ring_submit(&client, entry));
    ring_post(&daemon, entry);
    ck_assert(!ring_submit(&client, entry));
    ck_assert_int_eq(ring_consume(&client, entry), RING_TAKEN);
    ck_assert(ring_submit(&client, entry));
    close_rings(&rings);
}
END_TEST

START_TEST(only_powers_of_two_are_numbers_of_entries)
{
    ck_assert(ring_good_number(1));
    ck_assert(ring_good_number(RING_MAX_ENTRIES));
    ck_assert(!ring_good_number(0));
    ck_assert(!ring_good_number(3));
    ck_assert(!ring_good_number(2 * RING_MAX_ENTRIES));
}
END_TEST

// ---- a hostile client ----

// Valid values of `submitted`: at most as many as the ring holds, at least as many as were taken.
START_TEST(a_count_that_no_client_could_write_breaks_the_ring)
{
    struct ring_daemon daemon;
    struct rings rings;
    uint64_t entry[WORDS];
    open_rings(&rings, 4);
    for (uint32_t taken = 0; taken <= 4; taken++) {
        for (uint32_t count = 0; count < 20; count++) {
            const uint32_t submitted = count - 8;
            ring_daemon_init(&daemon, &rings.place);
            daemon.taken = taken;
            memcpy(rings.place.submissions, &submitted, sizeof submitted);
            enum ring_look expected = submitted > 4 || submitted < taken ? RING_BROKEN : RING_TAKEN;
            ck_assert_int_eq(ring_take(&daemon, entry),
                             submitted == taken ? RING_NOTHING : expected);
        }
    }
    close_rings(&rings);
}
END_TEST

static struct attack {
    struct rings rings;
    atomic_bool over;
} attack;

// These accesses are neither atomic nor by the protocol, like those of a hostile process. So
// ThreadSanitizer does not run this.
static void *scribble(void *context)
{
    struct dice dice = {7};
    const struct ring_place *place = &attack.rings.place;
    (void)context;
    while (!atomic_load(&attack.over)) {
        uint8_t *ring = dice_below(&dice, 2) ? place->submissions : place->completions;
        uint32_t size = (uint32_t)ring_size(place->num_entries, ENTRY) / 4;
        uint32_t at =
            dice_below(&dice, 4) ? dice_below(&dice, 2) * RING_LINE / 4 : dice_below(&dice, size);
        ((volatile uint32_t *)(void *)ring)[at] =
            dice_below(&dice, 2) ? dice_below(&dice, 100) : dice_below(&dice, UINT32_MAX);
    }
    return NULL;
}

START_TEST(a_hostile_client_never_takes_the_daemon_out_of_bounds_nor_holds_it)
{
    struct ring_daemon daemon;
    uint64_t entry[WORDS];
    pthread_t thread;
    open_rings(&attack.rings, 8);
    ring_daemon_init(&daemon, &attack.rings.place);
    ck_assert_int_eq(pthread_create(&thread, NULL, scribble, NULL), 0);
    for (int i = 0; i < 200000; i++) {
        enum ring_look look = ring_take(&daemon, entry);
        if (daemon.taken - daemon.posted > 8)
            ck_abort_msg("%u requests taken and not answered", daemon.taken - daemon.posted);
        if (look == RING_TAKEN && i % 3)
            ring_post(&daemon, entry);
        else if (look == RING_NOTHING)
            ring_fall_asleep(&daemon);
        else if (look == RING_BROKEN && i % 64 == 0)
            ring_daemon_init(&daemon, &attack.rings.place);
    }
    atomic_store(&attack.over, true);
    pthread_join(thread, NULL);
    close_rings(&attack.rings);
}
END_TEST

#ifdef __SANITIZE_THREAD__
enum { HOSTILE_RUNS = 0 };
#else
enum { HOSTILE_RUNS = 1 };
#endif

int main(void)
{
    Suite *suite = suite_create("ring");
    TCase *group = tcase_create("ring");
    tcase_add_loop_test(group, both_ends_as_threads_lose_and_spoil_nothing, 0, 3);
    tcase_add_test(group, an_interrupt_ends_a_sleep_for_good);
    tcase_add_test(group, a_sleep_ends_when_its_time_is_over);
    tcase_add_test(group, counts_may_wrap);
    tcase_add_test(group, a_ring_is_full_until_its_answers_are_consumed);
    tcase_add_test(group, only_powers_of_two_are_numbers_of_entries);
    tcase_add_test(group, a_count_that_no_client_could_write_breaks_the_ring);
    tcase_add_loop_test(group, a_hostile_client_never_takes_the_daemon_out_of_bounds_nor_holds_it,
                        0, HOSTILE_RUNS);
    suite_add_tcase(suite, group);
    return check_main(suite);
}
