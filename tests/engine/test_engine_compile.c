// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_engine_compile.c - pipelines that are compiled while others' runs go on. A hook in front of
// the driver holds compiles back or fails them, so no test depends on how long a compile takes.

#include "base/uuid.h"
#include "engine/plan/choice.h"
#include "engine/plan/submission.h"
#include "engine/state/state.h"
#include "rigs/engine_world.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { DELAYED = 7, NEIGHBOUR = 8, LAST = 9 }; // lines

static atomic_bool fails;
static atomic_uint num_compiles;         // that have begun
static atomic_uint held_first, held_end; // compiles of these numbers do not end
atomic_uint compile_naps;

// Whether the engine is being destroyed.
static bool ends(void)
{
    struct compiler *compiler = &engine->pipelines.compiler;
    pthread_mutex_lock(&compiler->lock);
    bool quits = compiler->quits;
    pthread_mutex_unlock(&compiler->lock);
    return quits;
}

VkResult before_compile(void)
{
    const unsigned number = atomic_fetch_add(&num_compiles, 1), most = atomic_load(&compile_naps);
    for (unsigned naps = most ? number * 2654435761u % (most + 1) : 0; naps > 0; naps--)
        nap();
    while (number >= atomic_load(&held_first) && number < atomic_load(&held_end) && !ends())
        nap();
    return atomic_load(&fails) ? VK_ERROR_UNKNOWN : VK_SUCCESS;
}

// Holds back compiles [first, end); the first is compile 0.
static void hold(unsigned first, unsigned end)
{
    atomic_store(&held_first, first);
    atomic_store(&held_end, end);
}

// A run that writes one key and reads it, over a cache whose block size makes its shape.
struct shaped {
    struct engine_cache *cache;
    struct engine_batch *batch;
    struct engine_run run;
    uint64_t out;
    float value;
};

static struct shaped open_shape(uint32_t block_size, uint64_t line)
{
    struct shaped shaped = {.out = 8192 + 64 * line, .value = (float)line};
    struct engine_cache_params params = shape(1, 1, 8, DTYPE_F32);
    params.kv.block_size = block_size;
    shaped.cache = open_cache(params);
    grow_chunk(shaped.cache, 0);
    shaped.batch = one_key(shaped.cache, 0, true);
    shaped.run = plain_run(shaped.batch, 0, 0, 64, 4096 + 64 * line, shaped.out);
    shaped.run.line = line;
    fill(4096 + 64 * line, shaped.value);
    return shaped;
}

static void close_shape(struct shaped *shaped)
{
    engine_batch_destroy(shaped->batch);
    engine_cache_destroy(shaped->cache);
}

// The status of the submission's run `index`, once it is done.
static enum status status_of(uint64_t sequence, uint32_t index)
{
    ck_assert_int_eq(engine_wait(engine, sequence, DEADLINE_S * 1000), STATUS_OK);
    struct engine_event event;
    do
        event = next_event();
    while (event.kind == ENGINE_EVENT_COMPILED);
    ck_assert_int_eq(event.kind, ENGINE_EVENT_DONE);
    ck_assert_uint_eq(event.sequence, sequence);
    return event.results[index].status;
}

static enum status status_alone(const struct shaped *shaped)
{
    return status_of(submit_runs(&shaped->run, 1), 0);
}

static void resume(uint64_t line)
{
    while (!engine_line_resume(engine, line))
        expect_event(ENGINE_EVENT_COMPILED);
}

static void expect_runs(const struct shaped *shaped)
{
    ck_assert_int_eq(status_alone(shaped), STATUS_OK);
    expect_floats(shaped->out, shaped->value);
}

START_TEST(a_run_of_a_new_shape_does_not_delay_a_neighbour)
{
    struct shaped known = open_shape(8, 0), fresh = open_shape(16, DELAYED);
    expect_runs(&known);
    hold(0, UINT32_MAX);
    known.run.line = NEIGHBOUR;
    const struct engine_run both[] = {fresh.run, known.run};
    const uint64_t sequence = submit_runs(both, 2);
    ck_assert_int_eq(engine_wait(engine, sequence, DEADLINE_S * 1000), STATUS_OK);
    const struct engine_event event = expect_event(ENGINE_EVENT_DONE);
    ck_assert_int_eq(event.results[0].status, STATUS_BUSY);
    ck_assert_int_eq(event.results[1].status, STATUS_OK);
    ck_assert(!engine_line_resume(engine, DELAYED));
    // Nor does a later run of a shape that is there overtake the one that waits.
    struct shaped later = open_shape(8, LAST);
    later.run.line = DELAYED;
    ck_assert_int_eq(status_alone(&later), STATUS_BUSY);
    expect_runs(&known);
    hold(0, 0);
    resume(DELAYED);
    expect_runs(&fresh);
    expect_runs(&later);
    close_shape(&known);
    close_shape(&fresh);
    close_shape(&later);
}
END_TEST

START_TEST(lines_that_need_one_pipeline_compile_it_once)
{
    struct shaped one = open_shape(16, DELAYED), other = open_shape(16, NEIGHBOUR);
    hold(0, UINT32_MAX);
    ck_assert_int_eq(status_alone(&one), STATUS_BUSY);
    ck_assert_int_eq(status_alone(&other), STATUS_BUSY);
    hold(0, 0);
    resume(DELAYED);
    resume(NEIGHBOUR);
    expect_runs(&one);
    expect_runs(&other);
    ck_assert_uint_eq(atomic_load(&num_compiles), 2); // the write and the attention
    close_shape(&one);
    close_shape(&other);
}
END_TEST

START_TEST(compiles_of_a_line_that_ends_are_dropped)
{
    struct shaped first = open_shape(8, DELAYED), dead = open_shape(16, NEIGHBOUR),
                  last = open_shape(32, LAST);
    hold(0, UINT32_MAX);
    ck_assert_int_eq(status_alone(&first), STATUS_BUSY);
    ck_assert_int_eq(status_alone(&dead), STATUS_BUSY);
    ck_assert_int_eq(status_alone(&last), STATUS_BUSY);
    engine_line_end(engine, NEIGHBOUR);
    hold(0, 0);
    resume(LAST); // compiles go in the order of asking
    resume(DELAYED);
    expect_runs(&first);
    expect_runs(&last);
    ck_assert_uint_eq(atomic_load(&num_compiles), 4);
    close_shape(&first);
    close_shape(&dead);
    close_shape(&last);
}
END_TEST

START_TEST(a_compile_that_fails_fails_only_the_run_that_needs_it_and_is_tried_again)
{
    struct shaped known = open_shape(8, 0), bad = open_shape(16, DELAYED);
    expect_runs(&known);
    known.run.line = NEIGHBOUR;
    atomic_store(&fails, true);
    ck_assert_int_eq(status_alone(&bad), STATUS_BUSY);
    resume(DELAYED);
    const struct engine_run both[] = {bad.run, known.run};
    const uint64_t sequence = submit_runs(both, 2);
    ck_assert_int_eq(engine_wait(engine, sequence, DEADLINE_S * 1000), STATUS_OK);
    const struct engine_event event = expect_event(ENGINE_EVENT_DONE);
    ck_assert_int_ne(event.results[0].status, STATUS_OK);
    ck_assert_int_ne(event.results[0].status, STATUS_BUSY);
    ck_assert_ptr_nonnull(event.results[0].message);
    ck_assert_ptr_nonnull(strstr(event.results[0].message, "vkCreateComputePipelines"));
    ck_assert_int_eq(event.results[1].status, STATUS_OK);
    atomic_store(&fails, false);
    ck_assert_int_eq(status_alone(&bad), STATUS_BUSY);
    resume(DELAYED);
    expect_runs(&bad);
    close_shape(&known);
    close_shape(&bad);
}
END_TEST

START_TEST(pipelines_that_lines_wait_to_use_are_kept_beyond_the_limit)
{
    engine->pipelines.most = 1;
    struct shaped one = open_shape(8, DELAYED), other = open_shape(16, NEIGHBOUR);
    ck_assert_int_eq(status_alone(&one), STATUS_BUSY);
    ck_assert_int_eq(status_alone(&other), STATUS_BUSY);
    resume(DELAYED);
    resume(NEIGHBOUR);
    expect_runs(&one);
    expect_runs(&other);
    ck_assert_uint_eq(atomic_load(&num_compiles), 4);
    close_shape(&one);
    close_shape(&other);
}
END_TEST

// A shape of a payer, which has run once: it has two pipelines.
static struct shaped run_shape(uint32_t block_size, uint64_t line, uint64_t payer)
{
    struct shaped shaped = open_shape(block_size, line);
    shaped.run.payer = payer;
    ck_assert_int_eq(status_alone(&shaped), STATUS_BUSY);
    resume(line);
    expect_runs(&shaped);
    return shaped;
}

START_TEST(a_payer_with_many_new_shapes_evicts_its_own_pipelines)
{
    engine->pipelines.most = 4;
    struct shaped own = run_shape(8, LAST, 2), others[3];
    for (uint32_t i = 0; i < 3; i++)
        others[i] = run_shape(16u << i, DELAYED, 1);
    ck_assert_uint_eq(atomic_load(&num_compiles), 8);
    expect_runs(&own);
    expect_runs(&others[2]);
    ck_assert_uint_eq(atomic_load(&num_compiles), 8);
    ck_assert_int_eq(status_alone(&others[1]), STATUS_BUSY); // it was evicted
    close_shape(&own);
    for (uint32_t i = 0; i < 3; i++)
        close_shape(&others[i]);
}
END_TEST

START_TEST(a_pipeline_that_two_payers_use_stays_for_the_one_with_fewer)
{
    engine->pipelines.most = 4;
    struct shaped shared = run_shape(8, DELAYED, 1), one = run_shape(16, DELAYED, 1);
    shared.run.payer = 2;
    expect_runs(&shared);
    struct shaped other = run_shape(32, DELAYED, 1), last = run_shape(64, DELAYED, 1);
    ck_assert_uint_eq(atomic_load(&num_compiles), 8);
    expect_runs(&shared);
    ck_assert_uint_eq(atomic_load(&num_compiles), 8);
    close_shape(&shared);
    close_shape(&one);
    close_shape(&other);
    close_shape(&last);
}
END_TEST

START_TEST(destroy_drops_the_compiles_that_are_queued)
{
    struct shaped shapes[3];
    hold(0, UINT32_MAX);
    for (uint32_t i = 0; i < 3; i++) {
        shapes[i] = open_shape(8u << i, DELAYED + i);
        ck_assert_int_eq(status_alone(&shapes[i]), STATUS_BUSY);
    }
    AWAIT(DEADLINE_S, atomic_load(&num_compiles) == 1);
    close_engine(engine); // ends the one that is under way
    ck_assert_uint_eq(atomic_load(&num_compiles), 1);
    hold(0, 0);
    engine = open_engine((struct engine_params){0});
    arena = NULL;
}
END_TEST

START_TEST(a_run_without_tokens_does_not_overtake_one_that_waits)
{
    struct shaped fresh = open_shape(16, DELAYED);
    struct engine_batch *none = open_batch(
        (struct engine_batch_params){.cache = fresh.cache, .cu_seqlens_q = (int32_t[]){0}});
    struct engine_run runs[] = {fresh.run, plain_run(none, 0, 0, 0, 0, 0)};
    runs[1].line = DELAYED;
    hold(0, UINT32_MAX);
    ck_assert_int_eq(status_of(submit_runs(runs, 2), 1), STATUS_BUSY);
    ck_assert_int_eq(status_of(submit_runs(runs + 1, 1), 0), STATUS_BUSY);
    hold(0, 0);
    resume(DELAYED);
    expect_runs(&fresh);
    ck_assert_int_eq(status_of(submit_runs(runs + 1, 1), 0), STATUS_OK);
    engine_batch_destroy(none);
    close_shape(&fresh);
}
END_TEST

START_TEST(a_run_without_a_line_does_not_wait_for_others_compiles)
{
    struct shaped fresh = open_shape(16, DELAYED), own = open_shape(8, LAST);
    hold(0, 1);
    ck_assert_int_eq(status_alone(&fresh), STATUS_BUSY);
    AWAIT(DEADLINE_S, atomic_load(&num_compiles) == 1);
    own.run.line = 0;
    expect_runs(&own);
    ck_assert_uint_eq(atomic_load(&num_compiles), 3);
    ck_assert(!engine_line_resume(engine, DELAYED));
    hold(0, 0);
    resume(DELAYED);
    expect_runs(&fresh);
    close_shape(&fresh);
    close_shape(&own);
}
END_TEST

// Each shape takes two compiles. The third is what is only wanted.
START_TEST(what_a_line_waits_for_is_compiled_before_what_is_only_wanted)
{
    struct shaped first = open_shape(8, DELAYED), last = open_shape(16, LAST),
                  wanted = open_shape(32, NEIGHBOUR);
    struct choice choice;
    struct submission planned = {.engine = engine};
    choice_make(&choice, &planned, &wanted.run, UINT64_MAX, true);
    hold(0, UINT32_MAX);
    ck_assert_int_eq(status_alone(&first), STATUS_BUSY);
    const struct geometry *geometry =
        &choice.geometries[engine->pipelines.variant->num_kernels - 1]; // serves everything
    ck_assert(!pipeline_is_there(&engine->pipelines, geometry, true, 0));
    ck_assert_int_eq(status_alone(&last), STATUS_BUSY);
    hold(4, UINT32_MAX);
    resume(DELAYED);
    resume(LAST);
    expect_runs(&first);
    expect_runs(&last);
    ck_assert(!pipeline_is_there(&engine->pipelines, geometry, false, 0));
    hold(0, 0);
    AWAIT(DEADLINE_S, pipeline_is_there(&engine->pipelines, geometry, false, 0));
    close_shape(&first);
    close_shape(&last);
    close_shape(&wanted);
}
END_TEST

// ---- compiling in a process of its own, on a software device ----

static char folder[64];

static const char *in_folder(const char *name)
{
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

// A program that does as the script says. With another helper than the daemon's, which it may
// become, a test decides when a helper goes on.
static void open_with_helper(const char *script)
{
    static char program[128];
    snprintf(folder, sizeof folder, "/tmp/aule-test-helper.XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(folder));
    snprintf(program, sizeof program, "%s", in_folder("program"));
    FILE *file = fopen(program, "w");
    ck_assert_ptr_nonnull(file);
    fprintf(file, "#!/bin/sh\ncd %s\necho $$ >pid.part\nmv pid.part pid\n%s\n", folder, script);
    ck_assert_int_eq(fclose(file), 0);
    ck_assert_int_eq(chmod(program, 0700), 0);
    teardown();
    engine = open_engine((struct engine_params){.compile_program = program});
    open_arena();
}

static void remove_folder(void)
{
    static const char *const names[] = {"program", "pid", "gate"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        unlink(in_folder(names[i]));
    ck_assert_int_eq(rmdir(folder), 0);
}

static bool is_there(const char *name)
{
    return access(in_folder(name), F_OK) == 0;
}

static pid_t helper_pid(void)
{
    int pid = 0;
    AWAIT(DEADLINE_S, is_there("pid"));
    FILE *file = fopen(in_folder("pid"), "r");
    ck_assert_ptr_nonnull(file);
    ck_assert_int_eq(fscanf(file, "%d", &pid), 1);
    fclose(file);
    return pid;
}

static bool is_gone(pid_t pid)
{
    return kill(pid, 0) != 0 && errno == ESRCH;
}

static uint64_t num_apart(void)
{
    uint64_t metrics[NUM_ENGINE_METRICS];
    engine_metrics(engine, metrics);
    return metrics[ENGINE_METRIC_PIPELINES_APART];
}

static bool compiles_apart(void)
{
    return engine_device(engine)->software;
}

static const char becomes_the_daemons_helper[] = "exec " AULE_DAEMON " \"$@\"",
                  waits_at_a_gate[] = "while [ ! -e gate ]; do sleep 0.01; done\n"
                                      "exec " AULE_DAEMON " \"$@\"",
                  never_answers[] = "exec sleep 1000", fails_at_once[] = "exit 1";

// Nothing of the fresh shape reaches the driver before its helper has ended.
START_TEST(runs_of_others_go_on_while_a_helper_compiles)
{
    open_with_helper(waits_at_a_gate);
    struct shaped known = open_shape(8, 0), fresh = open_shape(16, DELAYED);
    expect_runs(&known);
    const unsigned before = atomic_load(&num_compiles);
    if (compiles_apart()) {
        known.run.line = NEIGHBOUR;
        ck_assert_int_eq(status_alone(&fresh), STATUS_BUSY);
        helper_pid();
        for (int i = 0; i < 3; i++)
            expect_runs(&known);
        ck_assert(!engine_line_resume(engine, DELAYED));
        ck_assert_uint_eq(atomic_load(&num_compiles), before);
        fclose(fopen(in_folder("gate"), "w"));
        resume(DELAYED);
        ck_assert_uint_eq(num_apart(), 2); // its write and its attention
        expect_runs(&fresh);
    }
    close_shape(&fresh);
    close_shape(&known);
    remove_folder();
}
END_TEST

START_TEST(a_helper_compiles_each_pipeline_that_a_line_waits_for)
{
    open_with_helper(becomes_the_daemons_helper);
    struct shaped fresh = open_shape(16, DELAYED);
    if (compiles_apart()) {
        ck_assert_int_eq(status_alone(&fresh), STATUS_BUSY);
        resume(DELAYED);
        ck_assert_uint_eq(num_apart(), 2);
        ck_assert(!logged("compile helper failed"));
        expect_runs(&fresh);
    }
    close_shape(&fresh);
    remove_folder();
}
END_TEST

// A library has opened a descriptor, and somebody ignores a signal.
START_TEST(a_helper_inherits_no_descriptor_and_no_ignored_signal)
{
    ck_assert_int_eq(dup2(STDOUT_FILENO, 77), 77);
    signal(SIGHUP, SIG_IGN);
    open_with_helper("[ ! -e /proc/$$/fd/77 ] || exit 1\n"
                     "grep -q '^SigIgn:.*[02468ace]$' /proc/$$/status || exit 1\n" // SIGHUP is 1
                     "exec " AULE_DAEMON " \"$@\"");
    struct shaped fresh = open_shape(16, DELAYED);
    if (compiles_apart()) {
        ck_assert_int_eq(status_alone(&fresh), STATUS_BUSY);
        resume(DELAYED);
        ck_assert_uint_eq(num_apart(), 2);
    }
    close_shape(&fresh);
    remove_folder();
    signal(SIGHUP, SIG_DFL);
    close(77);
}
END_TEST

// True: the helper has compiled and answered a request of this daemon.
static bool answers(pid_t daemon)
{
    struct compile_request request = {.daemon = daemon, .key.kind = PIPELINE_COPY};
    int ends[2];
    char byte;
    uuid_text(engine->device.adapter.info.uuid, request.device);
    snprintf(request.variant, sizeof request.variant, "%s", engine->pipelines.variant->name);
    request.matrices = engine->device.adapter.matrices;
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    const pid_t child = fork();
    if (child == 0) {
        dup2(ends[1], STDIN_FILENO);
        execl(AULE_DAEMON, AULE_DAEMON, ENGINE_COMPILE_COMMAND, (char *)NULL);
        _exit(2);
    }
    close(ends[1]);
    ck_assert_int_eq(send(ends[0], &request, sizeof request, 0), sizeof request);
    const bool answered = recv(ends[0], &byte, 1, 0) == 1;
    ck_assert_int_eq(waitpid(child, NULL, 0), child);
    close(ends[0]);
    return answered;
}

START_TEST(a_helper_whose_daemon_ended_before_it_began_compiles_nothing)
{
    if (compiles_apart()) {
        ck_assert(answers(getpid()));
        ck_assert(!answers(getppid())); // as the orphan sees it
    }
}
END_TEST

// The engine compiles itself, as on a GPU.
static void expect_failure(const char *why)
{
    struct shaped fresh = open_shape(16, DELAYED);
    if (compiles_apart()) {
        ck_assert_int_eq(status_alone(&fresh), STATUS_BUSY);
        resume(DELAYED);
        ck_assert_uint_eq(num_apart(), 0);
        ck_assert(logged(why));
        expect_runs(&fresh);
        ck_assert(is_gone(helper_pid()));
    }
    close_shape(&fresh);
    remove_folder();
}

START_TEST(a_helper_that_fails_fails_no_run)
{
    open_with_helper(fails_at_once);
    expect_failure("while runs wait: it ended without an answer");
}
END_TEST

START_TEST(a_helper_that_takes_too_long_is_ended)
{
    open_with_helper(never_answers);
    engine->pipelines.helper.deadline_ms = 100;
    expect_failure("while runs wait: it took over 100 ms");
}
END_TEST

START_TEST(destroy_ends_the_helper_that_compiles)
{
    open_with_helper(never_answers);
    struct shaped fresh = open_shape(16, DELAYED);
    const bool apart = compiles_apart();
    pid_t pid = 0;
    if (apart) {
        ck_assert_int_eq(status_alone(&fresh), STATUS_BUSY);
        pid = helper_pid();
    }
    close_shape(&fresh);
    engine_arena_destroy(arena);
    ck_assert(engine_destroy_within(engine, DEADLINE_S * 1000));
    ck_assert(!apart || is_gone(pid));
    engine = open_engine((struct engine_params){0});
    arena = NULL;
    remove_folder();
}
END_TEST

// On a device with tensor cores, opening it compiles something, too.
static void setup_compiles(void)
{
    setup_import();
    atomic_store(&num_compiles, 0);
}

void add_compile_tests(Suite *suite)
{
    check_case(suite, "compiles", setup_compiles, teardown,
               (const TTest *const[]){
                   a_run_of_a_new_shape_does_not_delay_a_neighbour,
                   lines_that_need_one_pipeline_compile_it_once,
                   compiles_of_a_line_that_ends_are_dropped,
                   a_compile_that_fails_fails_only_the_run_that_needs_it_and_is_tried_again,
                   pipelines_that_lines_wait_to_use_are_kept_beyond_the_limit,
                   a_payer_with_many_new_shapes_evicts_its_own_pipelines,
                   a_pipeline_that_two_payers_use_stays_for_the_one_with_fewer,
                   a_run_without_tokens_does_not_overtake_one_that_waits,
                   a_run_without_a_line_does_not_wait_for_others_compiles,
                   what_a_line_waits_for_is_compiled_before_what_is_only_wanted,
                   destroy_drops_the_compiles_that_are_queued,
                   runs_of_others_go_on_while_a_helper_compiles,
                   a_helper_compiles_each_pipeline_that_a_line_waits_for,
                   a_helper_inherits_no_descriptor_and_no_ignored_signal,
                   a_helper_whose_daemon_ended_before_it_began_compiles_nothing,
                   a_helper_that_fails_fails_no_run, a_helper_that_takes_too_long_is_ended,
                   destroy_ends_the_helper_that_compiles, NULL},
               1);
}
