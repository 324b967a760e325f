// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_server_wait.c - how the dispatcher waits if epoll_pwait2() is refused; the linker redirects
// it here. Only an eventfd and a deadline; no device, no rings.

#include "rigs/check_main.h"
#include "server/wait.h"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

static struct server server;
static int refusal, refused;
// what core asks for, and what it was told
static int64_t wake_ns = FOREVER, slept_until_ns, slept_ns;

int __wrap_epoll_pwait2(int fd, struct epoll_event *events, int room, const struct timespec *rest,
                        const sigset_t *set);
bool __wrap_engine_has_news(const struct engine *engine);
int64_t __wrap_core_wake_ns(const struct core *core);
void __wrap_core_slept(struct core *core, int64_t until_ns, int64_t now_ns, bool woken);

int __wrap_epoll_pwait2(int fd, struct epoll_event *events, int room, const struct timespec *rest,
                        const sigset_t *set)
{
    (void)fd, (void)events, (void)room, (void)rest, (void)set;
    refused++;
    errno = refusal;
    return -1;
}

bool __wrap_engine_has_news(const struct engine *engine)
{
    (void)engine;
    return false;
}

int64_t __wrap_core_wake_ns(const struct core *core)
{
    (void)core;
    return wake_ns;
}

void __wrap_core_slept(struct core *core, int64_t until_ns, int64_t now_ns, bool woken)
{
    (void)core;
    slept_until_ns = until_ns;
    slept_ns = now_ns;
    ck_assert(!woken);
}

static void open_server(void)
{
    server = (struct server){
        .epoll_fd = epoll_create1(EPOLL_CLOEXEC),
        .wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK),
        .wake_watch = {.kind = WATCH_WAKE},
        .next_deadline_ns = FOREVER,
    };
    server.waker.fd = server.wake_fd;
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = &server.wake_watch};
    ck_assert_int_eq(epoll_ctl(server.epoll_fd, EPOLL_CTL_ADD, server.wake_fd, &event), 0);
}

static void close_server(void)
{
    close(server.epoll_fd);
    close(server.wake_fd);
}

static void ring(void)
{
    const uint64_t one = 1;
    ck_assert_int_eq(write(server.wake_fd, &one, sizeof one), sizeof one);
}

static bool is_rung(void)
{
    uint64_t count;
    return read(server.wake_fd, &count, sizeof count) == sizeof count;
}

START_TEST(epoll_pwait2_is_tried_once_and_events_arrive_whatever_its_error)
{
    static const int errors[] = {ENOSYS, EPERM, EACCES, EINVAL};
    for (size_t i = 0; i < sizeof errors / sizeof *errors; i++) {
        server.no_epoll_pwait2 = false;
        refusal = errors[i];
        refused = 0;
        for (int n = 0; n < 3; n++) {
            ring();
            wait_for_events(&server);
            ck_assert(!is_rung());
        }
        ck_assert_int_eq(refused, 1);
    }
}
END_TEST

START_TEST(without_epoll_pwait2_a_deadline_ends_the_sleep)
{
    refusal = EPERM;
    for (int n = 0; n < 3; n++) {
        server.next_deadline_ns = clock_now_ns() + NS_PER_MS / 2;
        wait_for_events(&server);
        ck_assert_int_ge(clock_now_ns(), server.next_deadline_ns);
    }
}
END_TEST

START_TEST(core_wakes_the_dispatcher_before_the_deadline_and_is_told_how_late_that_was)
{
    refusal = EPERM;
    server.next_deadline_ns = clock_deadline_ns(60000);
    wake_ns = clock_now_ns() + NS_PER_MS / 2;
    wait_for_events(&server);
    ck_assert_int_eq(slept_until_ns, wake_ns);
    ck_assert_int_ge(slept_ns, wake_ns);
}
END_TEST

START_TEST(a_sleep_that_ends_otherwise_says_nothing_of_lateness)
{
    refusal = EPERM;
    wake_ns = clock_deadline_ns(60000);
    ring();
    wait_for_events(&server);
    ck_assert(slept_until_ns == FOREVER);
    server.next_deadline_ns = clock_now_ns() + NS_PER_MS / 2;
    wait_for_events(&server);
    ck_assert(slept_until_ns == FOREVER);
}
END_TEST

START_TEST(when_core_wants_to_look_the_dispatcher_stays_awake)
{
    wake_ns = clock_now_ns();
    slept_ns = 0;
    wait_for_events(&server); // returns although nothing happens
    ck_assert_int_eq(slept_ns, 0);
}
END_TEST

START_TEST(a_sleep_that_a_signal_ends_is_no_refusal)
{
    refusal = EINTR;
    wait_for_events(&server);
    wait_for_events(&server);
    ck_assert_int_eq(refused, 2);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        epoll_pwait2_is_tried_once_and_events_arrive_whatever_its_error,
        without_epoll_pwait2_a_deadline_ends_the_sleep,
        core_wakes_the_dispatcher_before_the_deadline_and_is_told_how_late_that_was,
        a_sleep_that_ends_otherwise_says_nothing_of_lateness,
        when_core_wants_to_look_the_dispatcher_stays_awake,
        a_sleep_that_a_signal_ends_is_no_refusal,
        NULL,
    };
    Suite *suite = suite_create("server, wait");
    check_case(suite, "refused", open_server, close_server, tests, 1);
    return check_main(suite);
}
