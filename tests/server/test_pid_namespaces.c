// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_pid_namespaces.c - a daemon and a worker in pid namespaces that do not see each other, as in
// two containers. Needs root, which makes the namespaces, and a kernel with SO_PEERPIDFD.

#include "rigs/client_step.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PEER_PIDFD = 77, NUM_LEASED = 5 };

// Children from now on begin a namespace, until leave_namespace().
static void enter_namespace(void)
{
    ck_assert_int_eq(unshare(CLONE_NEWPID), 0);
}

static bool leave_namespace(void)
{
    const int own = open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC);
    const bool done = setns(own, CLONE_NEWPID) == 0;
    close(own);
    return done;
}

// What the test and the worker's family tell each other.
struct pipes {
    int told[2];   // a byte: the worker has its blocks
    int order[2];  // its end: the worker kills itself
    int family[2]; // its end: the last of the family is gone
};

static void work(struct pipes *pipes, bool attaches)
{
    struct aule_session *session = open_session(NULL);
    struct aule_cache *cache = open_cache(session);
    int32_t blocks[NUM_LEASED];
    struct aule_pool_info info;
    struct aule_pool_part part = {.fd = -1};
    char byte = 'b';
    ok(aule_blocks_lease(cache, NUM_LEASED, 0, blocks));
    if (attaches) {
        ok(aule_cache_attach(cache, &info));
        ok(aule_cache_export(cache, 0, &part));
    }
    if (fork() == 0) // has the connection, too
        for (;;)
            pause();
    close(pipes->family[1]);
    ck_assert_int_eq(write(pipes->told[1], &byte, 1), 1);
    ck_assert_int_eq(read(pipes->order[0], &byte, 1), 0);
    kill(getpid(), SIGKILL);
}

// The first process of a namespace, whose death would end all others in it. Returns its pid.
static pid_t start_family(struct pipes *pipes, bool attaches)
{
    enter_namespace();
    const pid_t first = fork();
    ck_assert_int_ge(first, 0);
    if (first == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(pipes->order[1]);
        if (fork() == 0)
            work(pipes, attaches);
        for (;;)
            pause();
    }
    ck_assert(leave_namespace());
    close(pipes->told[1]);
    close(pipes->order[0]);
    close(pipes->family[1]);
    return first;
}

static void kill_a_worker_whose_child_lives(bool attaches)
{
    struct pipes pipes;
    char byte;
    ck_assert_int_eq(pipe(pipes.told) | pipe(pipes.order) | pipe(pipes.family), 0);
    const pid_t first = start_family(&pipes, attaches);
    ck_assert_int_eq(read(pipes.told[0], &byte, 1), 1);
    struct aule_session *session = open_session(NULL);
    struct aule_cache *cache = open_cache(session);
    ck_assert_uint_eq(state_of(cache).leased_blocks, NUM_LEASED);
    close(pipes.order[1]);
    await_leased(cache, 0);
    struct pollfd family = {.fd = pipes.family[0], .events = POLLIN};
    ck_assert_int_eq(poll(&family, 1, 0), 0); // the child lives
    kill(first, SIGKILL);
    ck_assert_int_eq(waitpid(first, NULL, 0), first);
    aule_cache_close(cache);
    aule_session_close(session);
    close(pipes.told[0]);
    close(pipes.family[0]);
}

static void launch_apart(const char *const *options)
{
    enter_namespace();
    launch(options);
    ck_assert(leave_namespace());
}

static void setup(void)
{
    launch_apart(NULL);
}

static void setup_exporting(void)
{
    launch_apart((const char *const[]){"--export-pool", "64", NULL});
}

START_TEST(the_child_of_a_dead_worker_of_another_namespace_holds_nothing)
{
    kill_a_worker_whose_child_lives(false);
}
END_TEST

START_TEST(a_worker_of_another_namespace_attaches_and_its_death_frees_its_blocks)
{
    kill_a_worker_whose_child_lives(true);
}
END_TEST

static const char *missing(void)
{
    int pair[2], pidfd = -1;
    socklen_t size = sizeof pidfd;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair) != 0 ||
        getsockopt(pair[0], SOL_SOCKET, PEER_PIDFD, &pidfd, &size) != 0)
        return "this kernel has no SO_PEERPIDFD";
    close(pair[0]);
    close(pair[1]);
    close(pidfd);
    return unshare(CLONE_NEWPID) == 0 && leave_namespace()
               ? NULL
               : "this process may not make a pid namespace";
}

int main(void)
{
    const char *why = missing();
    if (why) {
        printf("skipped: %s\n", why);
        return 77;
    }
    Suite *suite = suite_create("pid_namespaces");
    add(suite, "death", setup,
        (const struct entry[]){{the_child_of_a_dead_worker_of_another_namespace_holds_nothing, 0},
                               {NULL, 0}});
    add(suite, "attached", setup_exporting,
        (const struct entry[]){
            {a_worker_of_another_namespace_attaches_and_its_death_frees_its_blocks, 0}, {NULL, 0}});
    return check_main(suite);
}
