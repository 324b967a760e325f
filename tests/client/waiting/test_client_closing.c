// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_client_closing.c - threads of one process that close what other threads use. Each test is a
// process with a fake daemon in it. The sanitizers see what a call touches after its object's end.
// test_client_process.c has threads that do so at random.

#include "aule/sequence.h"
#include "rigs/client_world.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

// All objects that a process can have open.
struct objects {
    struct aule_session *session;
    struct aule_cache *cache;
    struct aule_batch *batch;
    struct aule_sequence *sequence;
    struct aule_step *step;
    struct aule_monitor *monitor;
};

static const int32_t eight_tokens[8];

static void open_sequence(struct objects *objects)
{
    const struct aule_sequence_params params = {.tokens = eight_tokens, .num_tokens = 7};
    ok(aule_sequence_create(objects->cache, &params, &objects->sequence));
    ok(aule_step_create(objects->cache, &objects->step));
}

static void open_all(struct objects *objects)
{
    objects->session = open_session(-1);
    objects->cache = open_cache(objects->session);
    objects->batch = create_batch(objects->cache);
    open_sequence(objects);
    ok(aule_monitor_open(path, -1, &objects->monitor));
}

// In the order that the header forbids to nobody: the caller's first object first.
static void close_all(struct objects *objects)
{
    aule_cache_close(objects->cache);
    aule_batch_destroy(objects->batch);
    aule_sequence_destroy(objects->sequence);
    aule_step_destroy(objects->step);
    aule_monitor_close(objects->monitor);
    aule_session_close(objects->session);
}

// ---- one call of each kind, and every close ----

static enum aule_status lease(struct objects *objects)
{
    int32_t block;
    return aule_blocks_lease(objects->cache, 1, -1, &block);
}

static enum aule_status state(struct objects *objects)
{
    struct aule_cache_state is;
    return aule_cache_state(objects->cache, &is);
}

static enum aule_status look_up(struct objects *objects)
{
    const struct aule_prefix prefix = {.tokens = eight_tokens, .num_tokens = 8};
    int32_t block;
    uint32_t count;
    return aule_prefix_lookup(objects->cache, &prefix, 0, &block, &count);
}

static enum aule_status run(struct objects *objects)
{
    const struct aule_run_params params = {.num_heads = 1};
    return aule_run(objects->batch, &params, -1, NULL);
}

static enum aule_status advance(struct objects *objects)
{
    const int64_t slot = 1;
    const struct aule_advance next = {.slot_mapping = &slot};
    return aule_batch_advance(objects->batch, &next);
}

static enum aule_status wait_ticket(struct objects *objects)
{
    return aule_ticket_wait(objects->session, (struct aule_ticket){.id = 1}, -1, NULL);
}

static enum aule_status attend(struct objects *objects)
{
    const struct aule_tensor rows = {
        .dtype = AULE_F32, .token_stride = 256, .head_stride = 256, .num_rows = 1};
    struct aule_attention_params params = {
        .num_seqs = 1, .q_len = 1, .kv_len = 1, .num_kv_heads = 1, .head_dim = 64};
    params.run =
        (struct aule_run_params){.num_heads = 1, .q = rows, .k = rows, .v = rows, .out = rows};
    return aule_attention(objects->session, &params, -1, NULL, NULL);
}

static enum aule_status make_step(struct objects *objects)
{
    struct aule_step_entry entry = {.sequence = objects->sequence};
    return aule_step_make(objects->step, &entry, 1, -1);
}

static enum aule_status take(struct objects *objects)
{
    struct aule_sequence *taken;
    return aule_sequence_take(objects->cache, "none", -1, &taken);
}

static enum aule_status ping(struct objects *objects)
{
    struct aule_ping_info info;
    return aule_monitor_ping(objects->monitor, &info);
}

// The call waits for the answer to `command`, which never comes.
static const struct pending {
    enum aule_status (*call)(struct objects *);
    enum wire_command command;
} pending[] = {
    {lease, WIRE_COMMAND_BLOCKS_LEASE},
    {state, WIRE_COMMAND_CACHE_STATE},
    {look_up, WIRE_COMMAND_PREFIX_LOOKUP},
    {run, WIRE_COMMAND_RUN},
    {advance, WIRE_COMMAND_BATCH_ADVANCE},
    {wait_ticket, WIRE_COMMAND_WAIT},
    {attend, WIRE_COMMAND_RUN},
    {make_step, WIRE_COMMAND_BLOCKS_LEASE},
    {take, WIRE_COMMAND_OFFER_TAKE},
    {ping, WIRE_COMMAND_PING},
};
enum { NUM_PENDING = sizeof pending / sizeof *pending };

struct caller {
    pthread_t thread;
    const struct pending *pending;
    struct objects objects;
    enum aule_status status;
};

static void *call_once(void *context)
{
    struct caller *caller = context;
    caller->status = caller->pending->call(&caller->objects);
    return NULL;
}

// The handler's context says which command is not answered.
static enum fake_action silent(struct fake_daemon *daemon, const struct wire_request *request,
                               struct wire_reply *reply)
{
    const struct pending *silenced = daemon->context;
    (void)reply;
    return request->command == silenced->command ? FAKE_SILENCE : FAKE_ANSWER;
}

static void join(pthread_t thread)
{
    struct timespec deadline;
    clock_gettime(CLOCK_REALTIME, &deadline);
    deadline.tv_sec += DEADLINE_S;
    ck_assert_int_eq(pthread_timedjoin_np(thread, NULL, &deadline), 0);
}

START_TEST(a_call_returns_when_another_thread_closes_all_that_it_uses)
{
    struct caller caller = {.pending = &pending[_i]};
    fake_start(&fake, path, silent, (void *)&pending[_i]);
    open_all(&caller.objects);
    ck_assert_int_eq(pthread_create(&caller.thread, NULL, call_once, &caller), 0);
    wait_until_seen(pending[_i].command, 1);
    close_all(&caller.objects);
    join(caller.thread);
    ck_assert_int_eq(caller.status, AULE_DAEMON_GONE);
}
END_TEST

// ---- a call that comes too late ----

START_TEST(a_call_on_an_object_that_was_closed_is_refused)
{
    struct objects objects;
    fake_start(&fake, path, NULL, NULL);
    open_all(&objects);
    close_all(&objects);
    for (int i = 0; i < NUM_PENDING; i++) {
        const enum aule_status status = pending[i].call(&objects);
        const bool of_session = pending[i].call == wait_ticket || pending[i].call == attend;
        expect(status, of_session ? AULE_NO_SESSION : AULE_INVALID, "is not open");
    }
    close_all(&objects); // nothing is closed twice
    ck_assert_ptr_null(aule_step_batch(objects.step));
    ck_assert_ptr_null(aule_sequence_tokens(objects.sequence));
    ck_assert_ptr_null(aule_arena_base(objects.session));
}
END_TEST

START_TEST(a_sequence_and_a_step_outlive_their_cache)
{
    struct objects objects;
    struct aule_sequence_info info;
    fake_start(&fake, path, NULL, NULL);
    open_all(&objects);
    aule_cache_close(objects.cache);
    aule_session_close(objects.session);
    ok(aule_sequence_append(objects.sequence, eight_tokens, 8));
    ok(aule_sequence_info(objects.sequence, &info));
    ck_assert_uint_eq(info.num_tokens, 15);
    ck_assert_int_ne(make_step(&objects), AULE_OK);
    aule_sequence_destroy(objects.sequence);
    aule_step_destroy(objects.step);
    aule_batch_destroy(objects.batch);
    aule_monitor_close(objects.monitor);
}
END_TEST

// ---- a reconnect ----

// Greets the first session only.
static enum fake_action greet_once(struct fake_daemon *daemon, const struct wire_request *request,
                                   struct wire_reply *reply)
{
    (void)reply;
    return request->command == WIRE_COMMAND_HELLO && atomic_load(&daemon->sessions) > 1
               ? FAKE_SILENCE
               : FAKE_ANSWER;
}

static void *reconnect(void *context)
{
    struct caller *caller = context;
    caller->status = aule_session_reconnect(caller->objects.session);
    return NULL;
}

START_TEST(a_session_can_be_closed_while_another_thread_reconnects_it)
{
    struct caller caller = {.status = AULE_OK};
    fake_start(&fake, path, greet_once, NULL);
    caller.objects.session = open_session(SHORT_MS);
    ck_assert_int_eq(pthread_create(&caller.thread, NULL, reconnect, &caller), 0);
    wait_until_seen(WIRE_COMMAND_HELLO, 2);
    aule_session_close(caller.objects.session);
    join(caller.thread);
    ck_assert_int_ne(caller.status, AULE_OK);
}
END_TEST

// ---- a child ----

static int count_sockets(void)
{
    DIR *fds = opendir("/proc/self/fd");
    int count = 0;
    for (const struct dirent *entry; (entry = readdir(fds));) {
        char name[300], target[64] = "";
        snprintf(name, sizeof name, "/proc/self/fd/%s", entry->d_name);
        if (readlink(name, target, sizeof target - 1) > 0)
            count += strncmp(target, "socket:", 7) == 0;
    }
    closedir(fds);
    return count;
}

START_TEST(a_child_lets_go_of_a_connection_that_its_parents_thread_uses)
{
    struct caller caller = {.pending = &pending[5]};
    int end = -1;
    fake_start(&fake, path, silent, (void *)caller.pending);
    open_all(&caller.objects);
    ck_assert_int_eq(pthread_create(&caller.thread, NULL, call_once, &caller), 0);
    wait_until_seen(caller.pending->command, 1);
    const pid_t child = fork();
    if (child == 0) {
        const int sockets = count_sockets();
        const bool forked = wait_ticket(&caller.objects) == AULE_FORKED;
        close_all(&caller.objects);
        _exit(forked ? sockets - count_sockets() : 99);
    }
    ck_assert_int_eq(waitpid(child, &end, 0), child);
    ck_assert(WIFEXITED(end));
    ck_assert_int_eq(WEXITSTATUS(end), 2); // the session's and the monitor's
    close_all(&caller.objects);
    join(caller.thread);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client_closing");
    add(suite, "closing",
        (const struct entry[]){
            {a_call_returns_when_another_thread_closes_all_that_it_uses, NUM_PENDING},
            {a_call_on_an_object_that_was_closed_is_refused, 0},
            {a_sequence_and_a_step_outlive_their_cache, 0},
            {a_session_can_be_closed_while_another_thread_reconnects_it, 0},
            {a_child_lets_go_of_a_connection_that_its_parents_thread_uses, 0},
            {NULL, 0}});
    return check_main(suite);
}
