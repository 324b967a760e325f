// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_client_fd.c - a session's descriptor in poll and epoll with the real daemon, on either lane.

#include "rigs/client_step.h"

#include <poll.h>
#include <sys/epoll.h>
#include <unistd.h>

enum { RUNS = 12 };

static void setup(void)
{
    launch(NULL);
}

// Waits for the descriptor, then reaps what has ended. Returns the number of reaped tickets.
static int reap_ended(struct step *step, const struct aule_ticket *tickets, int count)
{
    int reaped = 0;
    while (reaped < count) {
        enum aule_status status = aule_ticket_wait(step->session, tickets[reaped], 0, NULL);
        if (status == AULE_TIMEOUT)
            break;
        ok(status);
        reaped++;
    }
    return reaped;
}

static void wait_by_poll(int fd, int queue)
{
    struct pollfd entry = {.fd = fd, .events = POLLIN};
    (void)queue;
    ck_assert_int_eq(poll(&entry, 1, WAIT_MS), 1);
}

static void wait_by_epoll(int fd, int queue)
{
    struct epoll_event event;
    (void)fd;
    ck_assert_int_eq(epoll_wait(queue, &event, 1, WAIT_MS), 1);
}

START_TEST(a_loop_that_only_waits_for_the_descriptor_reaps_every_ticket)
{
    static void (*const waits[])(int fd, int queue) = {wait_by_poll, wait_by_epoll, wait_by_epoll};
    static const uint32_t events[] = {0, EPOLLIN, EPOLLIN | EPOLLET};
    struct step step;
    struct aule_ticket tickets[RUNS];
    struct pollfd entry = {.events = POLLIN};
    open_step(&step, NULL);
    ok(aule_session_fd(step.session, &entry.fd));
    struct epoll_event event = {.events = events[_i]};
    int queue = epoll_create1(EPOLL_CLOEXEC);
    ck_assert_int_eq(epoll_ctl(queue, EPOLL_CTL_ADD, entry.fd, &event), 0);
    struct aule_batch *batch = create_batch(&step);
    for (int round = 0; round < 3; round++) {
        for (int i = 0; i < RUNS; i++)
            ok(aule_run_submit(batch, &step.run, WAIT_MS, &tickets[i]));
        for (int reaped = 0; reaped < RUNS;) {
            waits[_i](entry.fd, queue);
            reaped += reap_ended(&step, tickets + reaped, RUNS - reaped);
        }
        ck_assert_int_eq(poll(&entry, 1, 20), 0);
    }
    run_once(&step); // its ticket is the library's own
    ck_assert_int_eq(poll(&entry, 1, 20), 0);
    close(queue);
    aule_batch_destroy(batch);
    close_step(&step);
}
END_TEST

START_TEST(the_first_of_several_tickets_is_waited_for)
{
    struct step step;
    struct aule_ticket tickets[RUNS];
    uint32_t index;
    open_step(&step, NULL);
    struct aule_batch *batch = create_batch(&step);
    for (int i = 0; i < RUNS; i++)
        ok(aule_run_submit(batch, &step.run, WAIT_MS, &tickets[i]));
    for (uint32_t i = 0; i < RUNS; i++) {
        struct aule_run_result result = {0};
        ok(aule_wait_any(step.session, tickets + i, RUNS - i, WAIT_MS, &index, &result));
        ck_assert_uint_eq(index, 0);
        ck_assert_uint_ge(result.num_runs, 1);
    }
    aule_batch_destroy(batch);
    close_step(&step);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("a session's descriptor, with the daemon");
    add(suite, "fd", setup,
        (const struct entry[]){
            {a_loop_that_only_waits_for_the_descriptor_reaps_every_ticket, 3},
            {the_first_of_several_tickets_is_waited_for, 0},
            {NULL, 0},
        });
    return check_main(suite);
}
