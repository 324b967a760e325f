// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_daemon_memory.c - each allocation of a real daemon fails once: while it starts, and while it
// serves a session. At the start it refuses with a sentence, or serves. Later the session may fail,
// but the daemon serves the next one and one that was there before, with right results. Only some
// of the allocations are drawn, unless AULE_TEST_LONG is 1.

#include "aule/sequence.h"
#include "fakes/failing_daemon.h"
#include "rigs/check_main.h"
#include "rigs/daemon_harness.h"
#include "rigs/dice.h"

#include <fcntl.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum { TOKENS = 40, HEADS = 2, DIM = 64, VICTIM_S = 60, WAIT_MS = 20000 };

static struct daemon daemon_;
static struct failing_daemon *control;
static struct dice dice;

// ---- a session; any call may fail ----

struct scene {
    struct aule_session *session;
    struct aule_cache *cache;
};

static enum aule_status open_scene(struct scene *scene)
{
    const struct aule_session_params params = {.arena_size = 1 << 20, .timeout_ms = WAIT_MS};
    const struct aule_cache_params cache = {
        .name = "memory", .num_layers = 1, .num_kv_heads = HEADS, .head_dim = DIM};
    *scene = (struct scene){0};
    const enum aule_status status = aule_session_open(&params, &scene->session);
    return status == AULE_OK ? aule_cache_open(scene->session, &cache, &scene->cache) : status;
}

static void close_scene(struct scene *scene)
{
    aule_cache_close(scene->cache);
    aule_session_close(scene->session);
}

static enum aule_status fill(struct aule_session *session, float value, struct aule_tensor *out)
{
    const enum aule_status status = aule_tensor_create(session, AULE_F32, TOKENS, HEADS, DIM, out);
    float *data = status == AULE_OK ? aule_tensor_data(session, out) : NULL;
    for (int i = 0; data && i < TOKENS * HEADS * DIM; i++)
        data[i] = value;
    return status;
}

// Attention over values that are all equal gives this value.
static enum aule_status attend(const struct scene *scene, const struct aule_step *step, float value,
                               uint32_t num_tokens)
{
    struct aule_run_params run = {.num_heads = HEADS, .causal = true};
    struct aule_tensor *const tensors[] = {&run.q, &run.k, &run.v, &run.out};
    enum aule_status status = AULE_OK;
    for (int i = 0; i < 4 && status == AULE_OK; i++)
        status = fill(scene->session, i == 2 ? value : 0.25f, tensors[i]);
    if (status == AULE_OK)
        status = aule_run(aule_step_batch(step), &run, WAIT_MS, NULL);
    const float *out = status == AULE_OK ? aule_tensor_data(scene->session, &run.out) : NULL;
    for (uint32_t i = 0; out && i < num_tokens * HEADS * DIM; i++) {
        if (fabsf(out[i] - value) > 0.01f * value)
            _exit(99); // a wrong result
    }
    for (int i = 0; i < 4; i++)
        aule_tensor_destroy(scene->session, tensors[i]);
    return status;
}

// Computes and publishes a prompt; `text` makes prompts differ.
static enum aule_status compute(const struct scene *scene, int32_t text, uint32_t *num_found)
{
    int32_t tokens[TOKENS];
    struct aule_sequence *sequence = NULL;
    struct aule_sequence_info info = {0};
    struct aule_step *step = NULL;
    for (int i = 0; i < TOKENS; i++)
        tokens[i] = text * 1000 + i;
    const struct aule_sequence_params prompt = {
        .tokens = tokens, .num_tokens = TOKENS, .publish = true, .claim = true};
    enum aule_status status = aule_sequence_create(scene->cache, &prompt, &sequence);
    struct aule_step_entry entry = {.sequence = sequence};
    if (status == AULE_OK)
        status = aule_sequence_info(sequence, &info);
    if (status == AULE_OK)
        status = aule_step_create(scene->cache, &step);
    if (status == AULE_OK)
        status = aule_step_make(step, &entry, 1, WAIT_MS);
    if (status == AULE_OK)
        status = attend(scene, step, (float)(text + 1), entry.num_tokens);
    aule_step_destroy(step);
    aule_sequence_destroy(sequence);
    *num_found = info.num_found;
    return status;
}

static enum aule_status live(int32_t text)
{
    struct scene scene;
    uint32_t num_found = 0;
    enum aule_status status = open_scene(&scene);
    if (status == AULE_OK)
        status = compute(&scene, text, &num_found);
    if (status == AULE_OK)
        status = compute(&scene, text, &num_found); // finds the blocks
    if (status != AULE_OK)
        fprintf(stderr, "worker: %s: %s\n", aule_status_name(status), aule_error());
    close_scene(&scene);
    return status;
}

// A worker. Returns its exit code: 0 if it was served. One that hangs ends by SIGALRM.
static int run_worker(int32_t text)
{
    int status;
    fflush(NULL);
    const pid_t pid = fork();
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        alarm(VICTIM_S);
        _exit(live(text) == AULE_OK ? 0 : 1);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

// ---- the daemon ----

static void share_control(void)
{
    char path[128];
    ck_assert(daemon_init(&daemon_));
    snprintf(path, sizeof path, "%s/failing", daemon_.folder);
    const int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    ck_assert_int_eq(ftruncate(fd, sizeof *control), 0);
    control = mmap(NULL, sizeof *control, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ck_assert_ptr_ne(control, MAP_FAILED);
    close(fd);
    setenv(FAILING_DAEMON_VARIABLE, path, 1);
    setenv("AULE_SOCKET", daemon_.socket, 1);
}

static bool start(void)
{
    char files[128];
    snprintf(files, sizeof files, "files://%s/tier", daemon_.folder);
    const char *const options[] = {"--max-blocks", "64", "--tier", files, NULL};
    setenv("LD_PRELOAD", FAILING_DAEMON_PATH, 1);
    const bool started = daemon_start(&daemon_, options);
    unsetenv("LD_PRELOAD");
    return started;
}

// `fails` allocations from this one on fail; number 0: none does.
static void arm(uint32_t number, uint32_t fails)
{
    atomic_store(&control->fail_at, 0);
    atomic_store(&control->seen, 0);
    atomic_store(&control->failed_at, 0);
    atomic_store(&control->fails, fails);
    atomic_store(&control->fail_at, number);
}

// Whether a point of `count` is drawn, so that about `wanted` are.
static bool draws(uint32_t count, uint32_t wanted)
{
    return check_is_long() || count <= wanted || dice_below(&dice, count) < wanted;
}

static void tell(const char *when, uint32_t number, uint32_t count)
{
    if (check_is_long())
        printf("%s: allocation %u of %u, at %#llx\n", when, number, count,
               (unsigned long long)atomic_load(&control->failed_at));
}

static void begin(void)
{
    dice = (struct dice){check_draw("memory")};
    share_control();
}

static void end(void)
{
    daemon_finish(&daemon_);
}

START_TEST(an_allocation_that_fails_at_the_start_is_a_sentence_or_nothing)
{
    uint32_t refused = 0, served = 0;
    arm(0, 0);
    ck_assert(start());
    const uint32_t count = atomic_load(&control->seen);
    ck_assert_int_eq(daemon_stop(&daemon_), 0);
    for (uint32_t number = 1; number <= count; number++) {
        if (!draws(count, 15))
            continue;
        arm(number, 1);
        const bool started = start();
        tell("start", number, count);
        atomic_store(&control->fail_at, 0);
        if (started) {
            ck_assert_int_eq(run_worker((int32_t)number), 0);
            ck_assert_int_eq(daemon_stop(&daemon_), 0);
            served++;
        } else {
            char *log = daemon_log_text(&daemon_);
            const char *said = log + daemon_.log_old;
            ck_assert_msg(daemon_.exit_code == 1 || daemon_.exit_code == 2,
                          "allocation %u of %u: exit code %d", number, count, daemon_.exit_code);
            ck_assert_msg(strstr(said, "memory") != NULL, "allocation %u of %u: %.2000s", number,
                          count, said);
            free(log);
            refused++;
        }
        ck_assert_int_eq(daemon_count_segments(&daemon_), 0);
    }
    printf("start: of %u allocations, %u refused, %u served\n", count, refused, served);
}
END_TEST

static void expect_witness(const struct scene *witness, uint32_t number)
{
    uint32_t num_found = 0;
    ck_assert_msg(compute(witness, 0, &num_found) == AULE_OK, "allocation %u: %s", number,
                  aule_error());
}

// One more than the allocations of a worker that is served.
static uint32_t count_points(int32_t text)
{
    arm(0, 0);
    ck_assert_int_eq(run_worker(text), 0);
    return atomic_load(&control->seen);
}

START_TEST(an_allocation_that_fails_in_service_costs_at_most_the_session_that_it_serves)
{
    struct scene witness;
    uint32_t failed = 0, served = 0;
    arm(0, 0);
    ck_assert(start());
    ck_assert_int_eq(open_scene(&witness), AULE_OK);
    expect_witness(&witness, 0);
    run_worker(1); // makes what is made once
    const uint32_t count = count_points(2);
    for (uint32_t number = 1; number <= count; number++) {
        if (!draws(count, 40))
            continue;
        arm(number, 1);
        const int code = run_worker((int32_t)(2 * number + 1));
        tell("service", number, count);
        ck_assert_msg(code == 0 || code == 1, "allocation %u of %u: %d", number, count, code);
        code ? failed++ : served++;
        atomic_store(&control->fail_at, 0);
        ck_assert_msg(!daemon_wait(&daemon_, 0), "allocation %u of %u: the daemon ended with %d",
                      number, count, daemon_.exit_code);
        ck_assert_int_eq(run_worker((int32_t)(2 * number + 2)), 0);
        expect_witness(&witness, number);
    }
    close_scene(&witness);
    ck_assert_int_eq(daemon_stop(&daemon_), 0);
    printf("service: of %u allocations, %u failed, %u served\n", count, failed, served);
}
END_TEST

START_TEST(a_daemon_without_any_memory_serves_again_when_there_is_some)
{
    arm(0, 0);
    ck_assert(start());
    ck_assert_int_eq(run_worker(1), 0);
    for (int32_t text = 2; text < 5; text++) {
        arm((uint32_t)text * 20, UINT32_MAX);
        ck_assert_int_eq(run_worker(text), 1);
        arm(0, 0);
        ck_assert_int_eq(run_worker(text + 10), 0);
    }
    ck_assert_int_eq(daemon_stop(&daemon_), 0);
}
END_TEST

int main(void)
{
    const TTest *const tests[] = {
        an_allocation_that_fails_at_the_start_is_a_sentence_or_nothing,
        an_allocation_that_fails_in_service_costs_at_most_the_session_that_it_serves,
        a_daemon_without_any_memory_serves_again_when_there_is_some,
        NULL,
    };
    Suite *suite = suite_create("daemon memory");
    check_case(suite, "memory", begin, end, tests, 1);
    return check_main(suite);
}
