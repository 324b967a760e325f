// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_client_claim.c - workers that begin with one prompt at the same time, through the real
// daemon: one computes it, the others wait. Every computed row is held against float64, so blocks
// that were waited for have the right K and V.

#include "rigs/text_world.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    WORKERS = 4,
    PROMPT = 6 * TEXT_BLOCK, // tokens that all workers share
    OWN = 3,                 // further tokens of each worker
    CHUNK = 2 * TEXT_BLOCK   // tokens that a step computes
};

// In memory that parent and children share.
static struct shared {
    pthread_barrier_t start;
    atomic_int computed[WORKERS]; // tokens
    atomic_int waits[WORKERS];    // successful ones
    atomic_bool halfway;          // the worker that stops has computed its first part
} * shared;

static void share(void)
{
    pthread_barrierattr_t attributes;
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_ptr_ne(shared, MAP_FAILED);
    pthread_barrierattr_init(&attributes);
    pthread_barrierattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_barrier_init(&shared->start, &attributes, WORKERS);
    pthread_barrierattr_destroy(&attributes);
}

static void open_shared(void)
{
    rig_setup();
    share();
}

static void open_impatient(void)
{
    rig_launch((const char *const[]){"--claim-timeout", "500", NULL});
    share();
}

static void make_text(int worker, int32_t tokens[PROMPT + OWN])
{
    for (int i = 0; i < PROMPT + OWN; i++)
        tokens[i] = i < PROMPT ? i * 7 % 97 : 1000 * (worker + 1) + i;
}

static struct aule_sequence_info info_of(const struct text *text)
{
    struct aule_sequence_info info;
    ok(aule_sequence_info(text->sequence, &info));
    return info;
}

static void wait_for_others(struct text *text, int worker)
{
    uint32_t found = info_of(text).num_found;
    while (info_of(text).num_promised) {
        ok(text_wait(text, WAIT_MS));
        shared->waits[worker] += info_of(text).num_found > found;
        found = info_of(text).num_found;
    }
}

static void compute(struct text_world *world, struct text *text, int worker, uint32_t end)
{
    while (text->num_computed < end) {
        uint32_t count = end - text->num_computed < CHUNK ? end - text->num_computed : CHUNK;
        text_step(world, &text, &count, 1, NULL);
        shared->computed[worker] += (int)count;
    }
}

// Runs body(worker) in a process.
static pid_t start(void (*body)(int worker), int worker)
{
    pid_t pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        body(worker);
        _exit(0);
    }
    return pid;
}

static void expect_exit(pid_t pid)
{
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_msg(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a worker ended with %#x", status);
}

static void compute_all(int worker, void (*close)(struct text_world *world))
{
    struct text_world world;
    struct text text;
    int32_t tokens[PROMPT + OWN];
    make_text(worker, tokens);
    text_open(&world);
    pthread_barrier_wait(&shared->start);
    text_claim(&world, &text, tokens, PROMPT + OWN);
    wait_for_others(&text, worker);
    compute(&world, &text, worker, PROMPT + OWN);
    text_destroy(&text);
    close(&world);
}

static void whole_worker(int worker)
{
    compute_all(worker, text_close);
}

static void end_session(struct text_world *world)
{
    aule_session_close(world->session);
}

// Its neighbour stands still and holds blocks.
static void neighbour(int worker)
{
    compute_all(worker, end_session);
}

START_TEST(four_workers_that_start_with_one_prompt_at_the_same_instant_compute_it_once)
{
    pid_t pids[WORKERS];
    int whole = 0;
    for (int i = 0; i < WORKERS; i++)
        pids[i] = start(whole_worker, i);
    for (int i = 0; i < WORKERS; i++)
        expect_exit(pids[i]);
    for (int i = 0; i < WORKERS; i++) {
        whole += shared->computed[i] == PROMPT + OWN;
        ck_assert_msg(shared->computed[i] == PROMPT + OWN || shared->computed[i] == OWN,
                      "worker %d computed %d tokens", i, shared->computed[i]);
    }
    ck_assert_int_eq(whole, 1);
}
END_TEST

// Computes and publishes its first CHUNK, then stops.
static void stopping_worker(int worker)
{
    struct text_world world;
    struct text text;
    int32_t tokens[PROMPT + OWN];
    make_text(worker, tokens);
    text_open(&world);
    text_claim(&world, &text, tokens, PROMPT + OWN);
    pthread_barrier_wait(&shared->start);
    compute(&world, &text, worker, CHUNK + 1); // the second step publishes
    shared->halfway = true;
    for (;;)
        pause();
}

START_TEST(when_the_worker_that_computes_is_killed_one_of_the_others_goes_on)
{
    pid_t pids[WORKERS];
    int sum = 0, rest = 0;
    for (int i = 0; i < WORKERS; i++)
        pids[i] = start(i ? whole_worker : stopping_worker, i);
    while (!shared->halfway)
        usleep(1000);
    kill(pids[0], SIGKILL);
    ck_assert_int_eq(waitpid(pids[0], NULL, 0), pids[0]);
    for (int i = 1; i < WORKERS; i++) {
        expect_exit(pids[i]);
        sum += shared->computed[i];
        rest += shared->computed[i] == PROMPT - CHUNK + OWN;
    }
    ck_assert_int_eq(rest, 1);
    ck_assert_int_eq(sum, PROMPT - CHUNK + (WORKERS - 1) * OWN);
}
END_TEST

// On a busy machine others may be late, too. Then more than one computes, with the same rows.
START_TEST(when_the_worker_that_computes_stands_still_the_others_end_all_the_same)
{
    pid_t pids[WORKERS];
    for (int i = 0; i < WORKERS; i++)
        pids[i] = start(i ? neighbour : stopping_worker, i);
    while (!shared->halfway)
        usleep(1000);
    kill(pids[0], SIGSTOP);
    for (int i = 1; i < WORKERS; i++)
        expect_exit(pids[i]);
    kill(pids[0], SIGKILL);
    ck_assert_int_eq(waitpid(pids[0], NULL, 0), pids[0]);
}
END_TEST

START_TEST(a_waiting_sequence_gets_block_by_block_and_may_go_on_alone)
{
    struct text_world one, two;
    struct text first, second;
    int32_t tokens[PROMPT + OWN];
    make_text(0, tokens);
    text_open(&one);
    text_open(&two);
    text_claim(&one, &first, tokens, PROMPT + OWN);
    text_claim(&two, &second, tokens, PROMPT + OWN);
    ck_assert_uint_eq(info_of(&first).num_promised, 0);
    ck_assert_uint_eq(info_of(&second).num_promised, PROMPT);
    const struct aule_step_entry room = {.sequence = second.sequence};
    ok(aule_sequences_reserve(&room, 1, WAIT_MS)); // found blocks replace reserved ones
    expect(text_wait(&second, 0), AULE_TIMEOUT, "is not there yet");
    compute(&one, &first, 0, TEXT_BLOCK);
    compute(&one, &first, 0, TEXT_BLOCK + 1); // publishes
    ok(text_wait(&second, WAIT_MS));
    ck_assert_uint_eq(info_of(&second).num_found, TEXT_BLOCK);
    ck_assert_uint_eq(info_of(&second).num_promised, PROMPT - TEXT_BLOCK);
    expect(text_wait(&second, 20), AULE_TIMEOUT, "is not there yet");
    compute(&two, &second, 1, PROMPT + OWN); // after its deadline
    ck_assert_uint_eq(info_of(&second).num_promised, 0);
    ok(text_wait(&second, WAIT_MS));
    ck_assert_uint_eq(info_of(&second).num_found, TEXT_BLOCK);
    text_destroy(&second);
    text_destroy(&first);
    aule_step_destroy(two.step); // its batch holds blocks
    two.step = NULL;
    text_close(&one);
    text_close(&two);
}
END_TEST

START_TEST(truncating_and_destroying_a_sequence_let_the_next_one_compute)
{
    struct text_world world;
    struct text first, second, third;
    struct aule_sequence *sequence;
    int32_t tokens[PROMPT + OWN];
    const struct aule_sequence_params silent = {.claim = true};
    make_text(0, tokens);
    text_open(&world);
    text_claim(&world, &first, tokens, PROMPT);
    text_claim(&world, &second, tokens, PROMPT);
    text_claim(&world, &third, tokens, PROMPT);
    text_truncate(&first, 2 * TEXT_BLOCK + 1); // keeps its claim of two blocks
    expect(text_wait(&second, 0), AULE_TIMEOUT, "is not there yet");
    text_destroy(&first);
    ok(text_wait(&second, 0));
    ck_assert_uint_eq(info_of(&second).num_promised, 0);
    expect(text_wait(&third, 0), AULE_TIMEOUT, "is not there yet");
    compute(&world, &second, 0, PROMPT);
    text_destroy(&second); // publishes
    while (info_of(&third).num_promised)
        ok(text_wait(&third, WAIT_MS));
    ck_assert_uint_eq(info_of(&third).num_found, PROMPT);
    compute(&world, &third, 0, PROMPT); // the last token
    text_destroy(&third);
    expect(aule_sequence_create(world.cache, &silent, &sequence), AULE_INVALID,
           "claim without publish");
    text_close(&world);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("claims of clients");
    rig_add(suite, "claims", open_shared,
            (const TTest *const[]){
                four_workers_that_start_with_one_prompt_at_the_same_instant_compute_it_once,
                when_the_worker_that_computes_is_killed_one_of_the_others_goes_on,
                a_waiting_sequence_gets_block_by_block_and_may_go_on_alone,
                truncating_and_destroying_a_sequence_let_the_next_one_compute, NULL});
    rig_add(suite, "deadlines", open_impatient,
            (const TTest *const[]){
                when_the_worker_that_computes_stands_still_the_others_end_all_the_same, NULL});
    return check_main(suite);
}
