// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_client_process.c - libaule-client against the real daemon: forks, deaths on both sides, what
// they leave behind, and what a monitor sees. Each test is a process of its own with a daemon of
// its own.

#include "rigs/client_step.h"
#include "rigs/monitor_state.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

// ---- fixtures ----

static void setup(void)
{
    launch(NULL);
}

// ---- two daemons, fork, deaths ----

START_TEST(one_process_works_with_two_daemons)
{
    static struct history histories[MAX_SEQS];
    struct daemon other, first = daemon_;
    struct step a, b;
    ck_assert(daemon_launch(&other, NULL));
    open_step(&a, NULL);
    daemon_ = other;
    open_step(&b, NULL);
    daemon_ = first;
    struct aule_session_info info_a, info_b;
    ok(aule_session_info(a.session, &info_a));
    ok(aule_session_info(b.session, &info_b));
    ck_assert_uint_ne(info_a.epoch, info_b.epoch);
    remember_all(&a, histories);
    run_once(&a);
    run_once(&b);
    expect_attention(&a, histories);
    expect_attention(&b, histories);
    daemon_kill(&other);
    struct aule_cache_state state;
    expect(aule_cache_state(b.cache, &state), AULE_DAEMON_GONE, other.socket);
    run_once(&a);
    close_step(&a);
    close_step(&b);
    daemon_finish(&other);
}
END_TEST

static int child_of(struct step *step, struct aule_batch *batch)
{
    struct aule_session_info info;
    struct aule_session *own = NULL;
    const struct aule_session_params params = {.socket = daemon_.socket};
    (void)params;
    int wrong = 0;
    wrong += aule_session_info(step->session, &info) != AULE_FORKED;
    wrong += aule_run(batch, &step->run, 0, NULL) != AULE_FORKED;
    wrong += strstr(aule_error(), "spawn") == NULL;
#ifndef __SANITIZE_THREAD__ // ends a forked child that starts a thread
    wrong += aule_session_open(&params, &own) != AULE_OK;
    wrong += aule_session_info(own, &info) != AULE_OK;
#endif
    aule_session_close(own);
    aule_batch_destroy(batch);
    close_step(step);
    return wrong;
}

START_TEST(a_forked_child_harms_nothing)
{
    struct step step;
    int status;
    open_step(&step, NULL);
    struct aule_batch *batch = create_batch(&step);
    pid_t child = fork();
    ck_assert_int_ge(child, 0);
    if (child == 0)
        _exit(child_of(&step, batch));
    ck_assert_int_eq(waitpid(child, &status, 0), child);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child's status is 0x%x",
                  (unsigned)status);
    run_every_layer(&step, batch);
    ck_assert_uint_eq(state_of(step.cache).leased_blocks, 4);
    aule_batch_destroy(batch);
    close_step(&step);
}
END_TEST

// In a process of its own.
static void hold_blocks(void)
{
    struct step step;
    open_step(&step, NULL);
    struct aule_batch *batch = create_batch(&step);
    ok(aule_run_submit(batch, &step.run, 0, NULL));
}

START_TEST(a_killed_worker_gives_its_blocks_back)
{
    struct step step;
    pid_t worker = fork_worker(hold_blocks);
    open_step(&step, NULL);
    ck_assert_uint_eq(state_of(step.cache).leased_blocks, 8);
    kill_worker(worker);
    await_leased(step.cache, 4);
    still_works(&step);
    close_step(&step);
}
END_TEST

START_TEST(a_daemon_that_wakes_too_late_takes_back_what_it_gave)
{
    enum { GRACE_MS = 5000 }; // also for each answer of a daemon that is awake
    struct step watcher;
    struct aule_session *session = NULL;
    int32_t blocks[3];
    const struct aule_session_params params = {.socket = daemon_.socket, .timeout_ms = GRACE_MS};
    open_step(&watcher, NULL);
    struct aule_monitor *monitor = NULL;
    ok(aule_monitor_open(daemon_.socket, WAIT_MS, &monitor));
    enum aule_status status = AULE_TIMEOUT;
    for (int i = 0; i < DEADLINE_S && status == AULE_TIMEOUT; i++)
        status = aule_session_open(&params, &session);
    ok(status);
    struct aule_cache *cache = open_cache(session);
    ck_assert_int_eq(kill(daemon_.pid, SIGSTOP), 0);
    status = aule_blocks_lease(cache, 3, 0, blocks);
    ck_assert_int_eq(kill(daemon_.pid, SIGCONT), 0);
    expect(status, AULE_TIMEOUT, "the session is ended");
    expect(aule_blocks_lease(cache, 3, 0, blocks), AULE_DAEMON_GONE, "BLOCKS_LEASE");
    do {
        pause_briefly();
    } while (monitor_state(monitor).num_sessions != 1);
    await_leased(watcher.cache, 4);
    ok(aule_session_reconnect(session));
    aule_cache_close(cache);
    cache = open_cache(session);
    ok(aule_blocks_lease(cache, 3, 0, blocks));
    aule_cache_close(cache);
    aule_session_close(session);
    aule_monitor_close(monitor);
    close_step(&watcher);
}
END_TEST

START_TEST(workers_that_leave_at_once_do_not_harm_the_daemon)
{
    int status;
    for (int i = 0; i < 20; i++) {
        pid_t worker = fork();
        ck_assert_int_ge(worker, 0);
        if (worker == 0) {
            open_session(NULL);
            _exit(0); // without a close
        }
        ck_assert_int_eq(waitpid(worker, &status, 0), worker);
        ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "worker %d's status is 0x%x",
                      i, (unsigned)status);
    }
    struct step step;
    open_step(&step, NULL);
    still_works(&step);
    close_step(&step);
}
END_TEST

// A connection that nobody has accepted yet; false: the queue of those is full.
static bool queue_up(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    snprintf(address.sun_path, sizeof address.sun_path, "%s", daemon_.socket);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    ck_assert_int_ge(fd, 0);
    bool queued = connect(fd, (struct sockaddr *)&address, sizeof address) == 0;
    ck_assert(queued || errno == EAGAIN);
    close(fd);
    return queued;
}

static void *wake_daemon(void *nothing)
{
    for (int i = 0; i < 50; i++)
        pause_briefly();
    kill(daemon_.pid, SIGCONT);
    return nothing;
}

START_TEST(a_full_queue_of_connections_is_waited_for_as_long_as_the_timeout)
{
    enum { FAR_BEYOND = 100000, IMPATIENT_MS = 100 };
    struct aule_session *session = NULL;
    const struct aule_session_params impatient = {.socket = daemon_.socket,
                                                  .timeout_ms = IMPATIENT_MS};
    pthread_t waker;
    ck_assert_int_eq(kill(daemon_.pid, SIGSTOP), 0);
    // Until it has stopped, it may still accept a connection.
    ck_assert_int_eq(waitpid(daemon_.pid, NULL, WUNTRACED), daemon_.pid);
    int queued = 0;
    while (queued < FAR_BEYOND && queue_up())
        queued++;
    ck_assert_int_lt(queued, FAR_BEYOND);
    expect(aule_session_open(&impatient, &session), AULE_TIMEOUT,
           "did not accept the connection within 100 ms");
    ck_assert_ptr_null(session);
    ck_assert_int_eq(pthread_create(&waker, NULL, wake_daemon, NULL), 0);
    struct step step;
    open_step(&step, NULL);
    pthread_join(waker, NULL);
    still_works(&step);
    close_step(&step);
}
END_TEST

// Of /proc/PID/`what`: fd or task.
static int count_entries(pid_t pid, const char *what)
{
    char folder[64];
    int count = 0;
    snprintf(folder, sizeof folder, "/proc/%d/%s", (int)pid, what);
    DIR *entries = opendir(folder);
    ck_assert_ptr_nonnull(entries);
    while (readdir(entries))
        count++;
    closedir(entries);
    return count;
}

static int count_descriptors(pid_t pid)
{
    return count_entries(pid, "fd");
}

START_TEST(a_session_has_one_thread_and_leaves_nothing)
{
    struct step step;
    int threads = count_entries(getpid(), "task"), descriptors = count_descriptors(getpid());
#ifdef __SANITIZE_THREAD__ // has a thread of its own from the first one on
    open_step(&step, NULL);
    close_step(&step);
    threads = count_entries(getpid(), "task");
#endif
    open_step(&step, NULL);
    ck_assert_int_eq(count_entries(getpid(), "task"), threads + 1);
    close_step(&step);
    ck_assert_int_eq(count_entries(getpid(), "task"), threads);
    ck_assert_int_eq(count_descriptors(getpid()), descriptors);
}
END_TEST

START_TEST(sessions_leave_no_descriptor_and_no_segment_behind)
{
    struct step step;
    open_step(&step, NULL);
    close_step(&step);
    int ours = count_descriptors(getpid()), theirs = count_descriptors(daemon_.pid);
    for (int i = 0; i < 40; i++) {
        open_step(&step, NULL);
        close_step(&step);
    }
    // The daemon's nng closes pipes on threads of its own; what leaks would be 40, and stay.
    for (int i = 0; i < DEADLINE_S * 200 &&
                    (count_descriptors(getpid()) > ours || count_descriptors(daemon_.pid) > theirs);
         i++)
        pause_briefly();
    ck_assert_int_le(count_descriptors(getpid()), ours);
    ck_assert_int_le(count_descriptors(daemon_.pid), theirs);
    ck_assert_int_eq(daemon_count_segments(&daemon_), 0);
}
END_TEST

// ---- the monitor ----

static struct aule_session_state *find_session(struct aule_session_state *array, uint32_t count,
                                               uint64_t session)
{
    for (uint32_t i = 0; i < count; i++)
        if (array[i].session == session)
            return &array[i];
    return NULL;
}

START_TEST(the_monitor_sees_what_sessions_do)
{
    struct step step;
    struct aule_session_info info;
    struct aule_monitor *monitor = NULL;
    open_step(&step, "them");
    run_once(&step);
    ok(aule_prefix_publish(step.cache, &prompt, step.blocks, NULL));
    ok(aule_session_info(step.session, &info));
    ok(aule_monitor_open(daemon_.socket, 0, &monitor));

    struct aule_ping_info ping;
    ok(aule_monitor_ping(monitor, &ping));
    ck_assert_uint_eq(ping.epoch, info.epoch);
    ck_assert_str_eq(ping.version, aule_version());

    ck_assert_uint_eq(ping.pid, (uint64_t)daemon_.pid);
    ck_assert_str_eq(ping.socket, daemon_.socket);

    ck_assert_uint_eq(monitor_state(monitor).num_sessions, 1);
    ck_assert_uint_eq(monitor_state(monitor).runs_done, LAYERS);

    struct aule_device_state device;
    ok(aule_monitor_device(monitor, &device));
    ck_assert_str_eq(device.name, info.device_name);
    ck_assert_mem_eq(device.uuid, info.device_uuid, sizeof device.uuid);
    ck_assert_uint_ge(device.pipelines, 1);

    struct aule_session_state *sessions = NULL;
    uint32_t count = 0;
    ok(aule_monitor_sessions(monitor, &sessions, &count));
    const struct aule_session_state *own = find_session(sessions, count, info.session);
    ck_assert_ptr_nonnull(own);
    ck_assert_str_eq(own->name, "test_client");
    ck_assert_str_eq(own->tenant, "them");
    ck_assert_uint_eq(own->pid, (uint64_t)getpid());
    ck_assert_uint_eq(own->blocks_held, 4);
    free(sessions);

    struct aule_cache_view *caches = NULL;
    ok(aule_monitor_caches(monitor, &caches, &count));
    ck_assert_uint_eq(count, 1);
    ck_assert_str_eq(caches[0].name, "tests");
    ck_assert_uint_eq(caches[0].num_layers, LAYERS);
    ck_assert_int_eq(caches[0].k_dtype, AULE_F32);
    ck_assert_uint_eq(caches[0].published_blocks + caches[0].pending_blocks, 2);
    ck_assert_uint_eq(caches[0].leased_blocks, 2);
    ck_assert_uint_eq(caches[0].held_blocks, 2);

    struct aule_block_state *blocks = NULL;
    uint32_t kinds[AULE_BLOCK_ABSENT + 1] = {0};
    ok(aule_monitor_blocks(monitor, caches[0].cache, &blocks, &count));
    ck_assert_uint_ge(count, 4);
    for (uint32_t i = 0; i < count; i++)
        kinds[blocks[i].state]++;
    ck_assert_uint_eq(kinds[AULE_BLOCK_LEASED], 2);
    ck_assert_uint_eq(kinds[AULE_BLOCK_HELD], 2);
    ck_assert_int_eq(blocks[step.blocks[1]].depth, 1);
    ck_assert_uint_eq(blocks[step.blocks[2]].writer, info.session);
    free(blocks);
    expect(aule_monitor_blocks(monitor, 4242, &blocks, &count), AULE_NOT_FOUND, "4242");
    free(caches);
    aule_monitor_close(monitor);
    close_step(&step);
}
END_TEST

START_TEST(an_operator_can_end_a_session)
{
    struct step step;
    struct aule_session_info info;
    struct aule_cache_state state;
    struct aule_monitor *monitor = NULL;
    open_step(&step, NULL);
    ok(aule_session_info(step.session, &info));
    ok(aule_monitor_open(daemon_.socket, 0, &monitor));
    expect(aule_monitor_close_session(monitor, 424242), AULE_NOT_FOUND, "424242");
    ok(aule_monitor_close_session(monitor, info.session));
    enum aule_status status = aule_cache_state(step.cache, &state);
    ck_assert_msg(status == AULE_NO_SESSION || status == AULE_DAEMON_GONE, "%s",
                  aule_status_name(status));
    aule_cache_close(step.cache);
    ok(aule_session_reconnect(step.session));
    step.cache = open_cache(step.session);
    ck_assert_uint_eq(state_of(step.cache).leased_blocks, 0);
    create_tensors(&step);
    still_works(&step);
    close_step(&step);
    aule_monitor_close(monitor);
}
END_TEST

// ---- threads that call and close at random ----

enum { NUM_THREADS = 4, NUM_ROUNDS = 8, CALLS_A_ROUND = 60 };

struct crowd {
    pthread_barrier_t begin, end;
    struct step step;
    struct aule_batch *batch;
    struct aule_monitor *monitor;
};

struct member {
    pthread_t thread;
    struct crowd *crowd;
    uint32_t seed;
};

static void call_one(const struct crowd *crowd, uint32_t which)
{
    struct aule_cache_state state;
    struct aule_ping_info info;
    int32_t block;
    switch (which) {
    case 0: (void)aule_blocks_lease(crowd->step.cache, 1, WAIT_MS, &block); break;
    case 1: (void)aule_cache_state(crowd->step.cache, &state); break;
    case 2: (void)aule_run(crowd->batch, &crowd->step.run, WAIT_MS, NULL); break;
    case 3: (void)aule_arena_base(crowd->step.session); break;
    default: (void)aule_monitor_ping(crowd->monitor, &info); break;
    }
}

static void close_one(const struct crowd *crowd, uint32_t which)
{
    switch (which) {
    case 0: aule_cache_close(crowd->step.cache); break;
    case 1: aule_batch_destroy(crowd->batch); break;
    case 2: aule_monitor_close(crowd->monitor); break;
    case 3: aule_session_close(crowd->step.session); break;
    default: (void)aule_session_reconnect(crowd->step.session); break;
    }
}

static void *mingle(void *context)
{
    struct member *member = context;
    for (int round = 0; round < NUM_ROUNDS; round++) {
        pthread_barrier_wait(&member->crowd->begin);
        for (int i = 0; i < CALLS_A_ROUND; i++) {
            member->seed = member->seed * 1664525u + 1013904223u;
            const uint32_t draw = member->seed >> 8;
            if (draw % 32 == 0)
                close_one(member->crowd, draw / 32 % 5);
            else
                call_one(member->crowd, draw / 32 % 5);
        }
        pthread_barrier_wait(&member->crowd->end);
    }
    return NULL;
}

static void open_crowd(struct crowd *crowd)
{
    open_step(&crowd->step, NULL);
    crowd->batch = create_batch(&crowd->step);
    ok(aule_monitor_open(daemon_.socket, WAIT_MS, &crowd->monitor));
}

START_TEST(threads_that_call_and_close_at_random_harm_nothing)
{
    static struct crowd crowd;
    struct member members[NUM_THREADS];
    pthread_barrier_init(&crowd.begin, NULL, NUM_THREADS + 1);
    pthread_barrier_init(&crowd.end, NULL, NUM_THREADS + 1);
    for (uint32_t i = 0; i < NUM_THREADS; i++) {
        members[i] = (struct member){.crowd = &crowd, .seed = i};
        ck_assert_int_eq(pthread_create(&members[i].thread, NULL, mingle, &members[i]), 0);
    }
    for (int round = 0; round < NUM_ROUNDS; round++) {
        open_crowd(&crowd);
        pthread_barrier_wait(&crowd.begin);
        pthread_barrier_wait(&crowd.end);
        for (uint32_t i = 0; i < 4; i++)
            close_one(&crowd, i);
    }
    for (int i = 0; i < NUM_THREADS; i++)
        pthread_join(members[i].thread, NULL);
    pthread_barrier_destroy(&crowd.begin);
    pthread_barrier_destroy(&crowd.end);
}
END_TEST

// ---- the suite ----

int main(void)
{
    Suite *suite = suite_create("client_process");
    add(suite, "processes", setup,
        (const struct entry[]){
            {one_process_works_with_two_daemons, 0},
            {a_forked_child_harms_nothing, 0},
            {a_killed_worker_gives_its_blocks_back, 0},
            {a_daemon_that_wakes_too_late_takes_back_what_it_gave, 0},
            {workers_that_leave_at_once_do_not_harm_the_daemon, 0},
            {a_full_queue_of_connections_is_waited_for_as_long_as_the_timeout, 0},
            {a_session_has_one_thread_and_leaves_nothing, 0},
            {sessions_leave_no_descriptor_and_no_segment_behind, 0},
            {NULL, 0}});
    add(suite, "threads", setup,
        (const struct entry[]){{threads_that_call_and_close_at_random_harm_nothing, 0}, {0}});
    add(suite, "monitor", setup,
        (const struct entry[]){
            {the_monitor_sees_what_sessions_do, 0}, {an_operator_can_end_a_session, 0}, {NULL, 0}});
    return check_main(suite);
}
