// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_server_memory.c - allocations of the server fail after it has taken a command from a ring:
// each one that the command needs, once. The client is told NO_MEMORY, nothing has changed, and the
// same command succeeds afterwards. If the answer to a message finds no memory, the session ends.
// The real server and core, over the fake engine, run in a thread of the test. The linker wraps
// malloc and its kin; only the dispatcher's calls fail, and only between the taking of an entry and
// its answer.

#include "fakes/failing_memory.h"
#include "fakes/fake_engine.h"
#include "rigs/check_main.h"
#include "rigs/daemon_step.h"
#include "rigs/daemon_suite.h"
#include "rigs/ring_end.h"
#include "rigs/small_server.h"
#include "server/dispatch.h"
#include "server/server.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

enum { MANY = 60 }; // the most allocations that one command has

// ---- in the dispatcher ----

static atomic_uint fail_at;         // the n-th allocation after the next entry fails; 0: none does
static atomic_uint fail_message_at; // the same of the next message, until it is served
static uint32_t armed_sequence;     // of that entry; the dispatcher's

enum ring_look __real_ring_take(struct ring_daemon *daemon, void *submission);
bool __real_ring_put(struct ring_daemon *daemon, const void *completion);
bool __real_listener_receive(struct listener *listener, struct message *out);
void __real_dispatch_message(struct server *for_server, const struct message *message);
bool __real_engine_poll(struct engine *engine, struct engine_event *event);
enum ring_look __wrap_ring_take(struct ring_daemon *daemon, void *submission);
bool __wrap_ring_put(struct ring_daemon *daemon, const void *completion);
bool __wrap_listener_receive(struct listener *listener, struct message *out);
void __wrap_dispatch_message(struct server *for_server, const struct message *message);
bool __wrap_engine_poll(struct engine *engine, struct engine_event *event);

enum ring_look __wrap_ring_take(struct ring_daemon *daemon, void *submission)
{
    const uint32_t sequence = daemon->taken;
    const enum ring_look look = __real_ring_take(daemon, submission);
    const unsigned armed = look == RING_TAKEN ? atomic_exchange(&fail_at, 0) : 0;
    if (armed) {
        failing_countdown = armed;
        armed_sequence = sequence;
    }
    return look;
}

bool __wrap_ring_put(struct ring_daemon *daemon, const void *completion)
{
    struct wire_completion answer;
    wire_get_completion(completion, &answer);
    if (answer.sequence == armed_sequence)
        failing_countdown = 0;
    return __real_ring_put(daemon, completion);
}

// Messages of others are served meanwhile.
bool __wrap_listener_receive(struct listener *listener, struct message *out)
{
    const uint64_t left = failing_countdown;
    failing_countdown = 0;
    const bool received = __real_listener_receive(listener, out);
    failing_countdown = left;
    return received;
}

void __wrap_dispatch_message(struct server *for_server, const struct message *message)
{
    const uint64_t left = failing_countdown;
    failing_countdown = atomic_exchange(&fail_message_at, 0);
    __real_dispatch_message(for_server, message);
    failing_countdown = left;
}

// Runs end by themselves.
bool __wrap_engine_poll(struct engine *engine, struct engine_event *event)
{
    fake_engine_automatic(engine, true);
    return __real_engine_poll(engine, event);
}

// ---- the server ----

static struct server *server;
static pthread_t dispatcher;
static struct server_params params;

static void *serve(void *context)
{
    (void)context;
    server_run(server);
    return NULL;
}

static void start_server(void)
{
    struct error error;
    sigset_t signals;
    fake_engine_alloc = __real_calloc;
    ck_assert(daemon_init(&daemon_));
    params = small_server(daemon_.socket);
    params.ring_entries = 8;
    sigemptyset(&signals);
    sigaddset(&signals, SIGTERM);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGHUP);
    ck_assert_int_eq(pthread_sigmask(SIG_BLOCK, &signals, NULL), 0);
    ck_assert_msg(server_create(&params, &server, &error) == STATUS_OK, "%s", error.text);
    ck_assert_int_eq(pthread_create(&dispatcher, NULL, serve, NULL), 0);
}

static void stop_server(void)
{
    kill(getpid(), SIGTERM);
    pthread_join(dispatcher, NULL);
    ck_assert(server_destroy(server));
    daemon_finish(&daemon_);
}

// ---- commands ----

// What a session has before the command.
static struct scene {
    struct ring_end end, other;
    struct raw_client *watcher;
    uint64_t cache, batch, ticket, other_cache;
    int32_t blocks[2], others[2]; // leased; the batch writes the first one
    bool gave_way;                // the others are released
    int64_t slots[BLOCK];
    int32_t tokens[BLOCK];
} scene;

static void open_scene(int32_t first_token)
{
    scene = (struct scene){.end = open_end(), .other = open_end()};
    scene.watcher = raw_open(daemon_.socket);
    scene.cache = open_cache(scene.end.raw, "c");
    lease(scene.end.raw, scene.cache, 2, scene.blocks);
    scene.other_cache = open_cache(scene.other.raw, "c");
    lease(scene.other.raw, scene.other_cache, 2, scene.others);
    slots_of(scene.blocks[0], scene.slots);
    const struct wire_request create = fill_request(scene.cache, scene.blocks, scene.slots);
    scene.batch = create_batch(scene.end.raw, &create);
    wait_done(scene.end.raw, submit(scene.end.raw, scene.batch));
    scene.ticket = submit(scene.end.raw, scene.batch);
    for (int i = 0; i < BLOCK; i++)
        scene.tokens[i] = first_token + i;
}

static struct wire_request lease_two(void)
{
    return lease_request(scene.cache, 2, SLEEP_MS);
}

// One more than are free: both sessions have two.
static struct wire_request lease_too_many(void)
{
    return lease_request(scene.cache, SMALL_BLOCKS - 2 - 2 + 1, SLEEP_MS);
}

static struct wire_request create_another(void)
{
    slots_of(scene.blocks[1], scene.slots);
    return fill_request(scene.cache, &scene.blocks[1], scene.slots);
}

// The same tokens once more, into the second block.
static struct wire_request advance(void)
{
    static const int32_t seq_lens[] = {BLOCK};
    static int32_t entry[3];
    entry[2] = scene.blocks[1];
    slots_of(scene.blocks[1], scene.slots);
    return (struct wire_request){.command = WIRE_COMMAND_BATCH_ADVANCE,
                                 .batch_advance = {.batch = scene.batch,
                                                   .seq_lens_kv = {seq_lens, 1},
                                                   .entries = {entry, 3},
                                                   .slot_mapping = {scene.slots, BLOCK}}};
}

static struct wire_request run(void)
{
    return run_request(scene.batch, SLEEP_MS);
}

static struct wire_request run_and_wait(void)
{
    struct wire_request request = run_request(scene.batch, SLEEP_MS);
    request.run.waits = true;
    request.run.wait_ms = SLEEP_MS;
    return request;
}

static struct wire_request wait_for_run(void)
{
    return (struct wire_request){.command = WIRE_COMMAND_WAIT, .wait = {scene.ticket, SLEEP_MS}};
}

static struct wire_request publish(void)
{
    return (struct wire_request){.command = WIRE_COMMAND_PREFIX_PUBLISH,
                                 .prefix_publish = {.cache = scene.cache,
                                                    .tokens = {scene.tokens, BLOCK},
                                                    .blocks = {scene.blocks, 1}}};
}

static struct wire_request copy(void)
{
    return (struct wire_request){.command = WIRE_COMMAND_BLOCKS_COPY,
                                 .blocks_copy = {.cache = scene.cache,
                                                 .from = {scene.blocks, 1},
                                                 .to = {scene.blocks + 1, 1},
                                                 .timeout_ms = SLEEP_MS}};
}

static struct wire_request merge(void)
{
    static const struct wire_tensor rows = {
        .dtype = DTYPE_F32, .token_stride = ROW, .head_stride = ROW};
    static const struct wire_tensor sums = {
        .dtype = DTYPE_F32, .offset = K_AT, .token_stride = 16, .head_stride = 4};
    struct wire_request request = {.command = WIRE_COMMAND_MERGE,
                                   .merge = {.num_tokens = 4,
                                             .num_heads = 1,
                                             .head_dim = DIM,
                                             .outs = {&rows, 1},
                                             .lses = {&sums, 1},
                                             .out = rows,
                                             .timeout_ms = SLEEP_MS}};
    request.merge.out.offset = OUT_AT;
    return request;
}

static struct wire_request release_one(void)
{
    return (struct wire_request){.command = WIRE_COMMAND_BLOCKS_RELEASE,
                                 .blocks_release = {scene.cache, {scene.blocks + 1, 1}}};
}

static struct wire_request destroy(void)
{
    return (struct wire_request){.command = WIRE_COMMAND_BATCH_DESTROY,
                                 .batch_destroy = {scene.batch}};
}

// ---- what a client does with their answers ----

static void release_leased(const struct wire_completion *completion)
{
    int32_t blocks[SMALL_BLOCKS];
    const struct wire_ints leased = reply_of(&scene.end, completion).blocks_lease.blocks;
    memcpy(blocks, leased.data, leased.count * sizeof *blocks);
    release(scene.end.raw, scene.cache, blocks, leased.count);
}

static void destroy_created(const struct wire_completion *completion)
{
    const struct wire_request request = {
        .command = WIRE_COMMAND_BATCH_DESTROY,
        .batch_destroy = {reply_of(&scene.end, completion).batch_create.batch}};
    raw_expect(scene.end.raw, &request, STATUS_OK);
}

static void wait_for_answer(const struct wire_completion *completion)
{
    wait_done(scene.end.raw, completion->ticket);
}

static const struct command {
    struct wire_request (*make)(void);
    void (*uses)(const struct wire_completion *completion);
    bool waits;      // until the other session has released its blocks
    bool needs_none; // no allocation
} commands[] = {
    {.make = lease_two, .uses = release_leased},
    {.make = lease_too_many, .uses = release_leased, .waits = true},
    {.make = create_another, .uses = destroy_created},
    {.make = advance},
    {.make = run, .uses = wait_for_answer},
    {.make = run_and_wait},
    {.make = wait_for_run, .needs_none = true},
    {.make = publish},
    {.make = copy, .uses = wait_for_answer},
    {.make = merge, .uses = wait_for_answer},
    {.make = release_one, .needs_none = true},
    {.make = destroy, .needs_none = true},
};

// ---- what a failure must leave ----

struct blocks {
    uint64_t leased, held, cached, quarantined;
};

static struct blocks count_blocks(void)
{
    const struct daemon_state state = raw_inspect(scene.watcher);
    ck_assert_uint_eq(state.free_blocks + state.leased_blocks + state.held_blocks +
                          state.cached_blocks + state.quarantined_blocks,
                      state.pool_blocks);
    return (struct blocks){state.leased_blocks, state.held_blocks, state.cached_blocks,
                           state.quarantined_blocks};
}

static void expect_blocks(struct blocks expected)
{
    const struct blocks now = count_blocks();
    ck_assert_uint_eq(now.leased, expected.leased);
    ck_assert_uint_eq(now.held, expected.held);
    ck_assert_uint_eq(now.cached, expected.cached);
    ck_assert_uint_eq(now.quarantined, expected.quarantined);
}

static void give_way(void)
{
    release(scene.other.raw, scene.other_cache, scene.others, 2);
    scene.gave_way = true;
}

static struct wire_submission entry_of(const struct wire_request *request)
{
    switch (request->command) {
    case WIRE_COMMAND_RUN:
        return (struct wire_submission){.command = WIRE_COMMAND_RUN, .run = request->run};
    case WIRE_COMMAND_WAIT:
        return (struct wire_submission){.command = WIRE_COMMAND_WAIT, .wait = request->wait};
    default: return placed(&scene.end, request);
    }
}

// The other session gives way to a command that waits, once the server has parked the command.
static struct wire_completion ask(const struct command *command)
{
    const struct wire_request request = command->make();
    const uint32_t sequence = put(&scene.end, entry_of(&request));
    if (!command->waits || scene.gave_way)
        return get(&scene.end);
    // No command has this number. When it is refused, the server has taken the lease, too.
    put(&scene.end, (struct wire_submission){.command = UINT32_MAX});
    const struct wire_completion first = get(&scene.end);
    if (first.sequence == sequence)
        get(&scene.end);
    else
        give_way();
    return first.sequence == sequence ? first : get(&scene.end);
}

// The session's batch still runs, unless its block was published. Without the batch and what the
// command made, no block is in use: so the server kept nothing that it did not tell of.
static void use_what_is_there(const struct command *command, const struct wire_completion *done)
{
    struct raw_client *raw = scene.end.raw;
    if (command->uses)
        command->uses(done);
    if (command->make != destroy && command->make != publish)
        wait_done(raw, submit(raw, scene.batch));
    const struct wire_request end = destroy();
    if (command->make != destroy)
        raw_expect(raw, &end, STATUS_OK);
    release(raw, scene.cache, scene.blocks, command->make == release_one ? 1 : 2);
    const struct blocks left = count_blocks();
    ck_assert_uint_eq(left.leased, scene.gave_way ? 0 : 2);
    ck_assert_uint_eq(left.held, 0);
}

static void close_scene(void)
{
    close_end(&scene.end);
    close_end(&scene.other);
    while (raw_inspect(scene.watcher).num_sessions > 0 || count_blocks().quarantined > 0)
        nap();
    const struct blocks left = count_blocks();
    ck_assert_uint_eq(left.leased + left.held, 0);
    raw_close(scene.watcher);
}

// A run that was queued but cannot wait in the server is told by its ticket, which is as good.
static bool is_queued(const struct command *command, const struct wire_completion *completion)
{
    return command->make == run_and_wait && completion->ticket != 0;
}

static struct wire_completion fail_and_repeat(const struct command *command, unsigned n)
{
    struct blocks before = count_blocks();
    atomic_store(&failing_count, 0);
    atomic_store(&fail_at, n);
    struct wire_completion completion = ask(command);
    if (completion.status == STATUS_OK)
        return completion;
    ck_assert_msg(completion.status == STATUS_NO_MEMORY && atomic_load(&failing_count) == 1,
                  "allocation %u: %d: %s", n, completion.status, completion.text);
    ck_assert_msg(strstr(completion.text, "no host memory") ||
                      strstr(completion.text, "has no memory"),
                  "%s", completion.text);
    if (is_queued(command, &completion))
        return call(&scene.end, wait_of(completion.ticket));
    before.leased -= scene.gave_way ? 2 : 0;
    expect_blocks(before);
    completion = ask(command);
    ck_assert_msg(completion.status == STATUS_OK, "allocation %u, once more: %s", n,
                  completion.text);
    return completion;
}

START_TEST(an_allocation_that_fails_after_a_ring_command_was_taken_loses_nothing)
{
    const struct command *command = &commands[_i];
    unsigned n = 0;
    do {
        ck_assert_uint_lt(n, MANY);
        open_scene(100 * (int32_t)++n);
        const struct wire_completion done = fail_and_repeat(command, n);
        use_what_is_there(command, &done);
        close_scene();
    } while (atomic_load(&failing_count) > 0);
    ck_assert(command->needs_none ? n == 1 : n > 1);
}
END_TEST

// ---- by message ----

START_TEST(an_allocation_that_fails_after_a_message_was_taken_is_told)
{
    static const struct command *const by_message[] = {&commands[2], &commands[7], &commands[8]};
    unsigned n = 0;
    do {
        struct wire_reply reply;
        ck_assert_uint_lt(n, MANY);
        open_scene(100 * (int32_t)++n);
        const struct blocks before = count_blocks();
        const struct wire_request request = by_message[_i]->make();
        atomic_store(&failing_count, 0);
        atomic_store(&fail_message_at, n);
        raw_call(scene.end.raw, &request, &reply);
        if (reply.status != STATUS_OK) {
            ck_assert_msg(reply.status == STATUS_NO_MEMORY, "%s", reply.message);
            expect_blocks(before);
        }
        close_scene();
    } while (atomic_load(&failing_count) > 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("server, memory");
    const TTest *const tests[] = {
        an_allocation_that_fails_after_a_ring_command_was_taken_loses_nothing, NULL};
    const TTest *const messages[] = {an_allocation_that_fails_after_a_message_was_taken_is_told,
                                     NULL};
    check_case(suite, "ring", start_server, stop_server, tests, sizeof commands / sizeof *commands);
    check_case(suite, "messages", start_server, stop_server, messages, 3);
    return check_main(suite);
}
