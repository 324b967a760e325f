// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_client_offer.c - sequences that go from one process to another through the real daemon, and
// the death of either. Rows that the taker computes have the same bits as those of a sequence that
// one process computed alone.

#include "rigs/text_world.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PROMPT = 2 * TEXT_BLOCK + 3, ROW = TEXT_HEADS * TEXT_DIM };

static struct text_world world;
static struct text prompt; // what the giver computes, and the taker should get

static void fill_prompt(void)
{
    prompt = (struct text){.num_tokens = PROMPT, .num_computed = PROMPT};
    for (uint32_t i = 0; i < TEXT_MOST; i++)
        prompt.tokens[i] = (int32_t)(1000 + i * 7 % 97);
}

static void open_daemon(void)
{
    rig_setup();
    fill_prompt();
}

static void compute_and_offer(struct text_world *giver, bool publish)
{
    struct text text, *list = &text;
    text_create(giver, &text, prompt.tokens, PROMPT, publish);
    text_step(giver, &list, NULL, 1, NULL);
    ok(aule_sequence_offer(text.sequence, "request", -1));
}

static void take(struct text_world *taker, struct text *text)
{
    *text = prompt;
    ok(aule_sequence_take(taker->cache, "request", WAIT_MS, &text->sequence));
    ck_assert_mem_eq(aule_sequence_tokens(text->sequence), prompt.tokens,
                     PROMPT * sizeof *prompt.tokens);
}

// Decodes three tokens of `text`, and the same by a sequence that takes and finds nothing.
static void decode_and_compare(struct text_world *with, struct text *text)
{
    struct text fresh = prompt, *both[] = {text, &fresh};
    const uint32_t first = prompt.num_tokens;
    float outs[2][ROW];
    const struct aule_sequence_params params = {
        .tokens = prompt.tokens, .num_tokens = PROMPT, .extra_key = "fresh", .extra_key_size = 5};
    fresh.num_computed = 0;
    ok(aule_sequence_create(with->cache, &params, &fresh.sequence));
    text_step(with, &both[1], &first, 1, NULL);
    for (uint32_t n = 0; n < 3; n++) {
        for (int i = 0; i < 2; i++) {
            text_append(both[i], prompt.tokens + PROMPT + n, 1);
            text_step(with, &both[i], NULL, 1, outs[i]);
        }
        ck_assert_mem_eq(outs[0], outs[1], sizeof outs[0]);
    }
    text_destroy(&fresh);
}

// ---- two processes ----

struct process {
    pid_t pid;
    int said; // a byte from the process: it has done its part, and waits for a signal
};

static void say_and_wait(int pipe_end)
{
    (void)!write(pipe_end, "", 1);
    for (;;)
        pause();
}

static struct process start(void (*work)(void))
{
    int ends[2];
    ck_assert_int_eq(pipe(ends), 0);
    struct process process = {.pid = fork(), .said = ends[0]};
    ck_assert_int_ge(process.pid, 0);
    if (process.pid == 0) {
        text_open(&world);
        work();
        say_and_wait(ends[1]);
    }
    close(ends[1]);
    return process;
}

static void wait_until_done(const struct process *process)
{
    char byte;
    ck_assert_int_eq(read(process->said, &byte, 1), 1);
}

static void kill_process(const struct process *process)
{
    ck_assert_int_eq(kill(process->pid, SIGKILL), 0);
    ck_assert_int_eq(waitpid(process->pid, NULL, 0), process->pid);
    close(process->said);
}

static void be_giver(void)
{
    compute_and_offer(&world, false);
}

static void be_taker(void)
{
    struct text text;
    take(&world, &text);
}

START_TEST(a_decode_process_goes_on_where_a_prefill_process_has_died)
{
    struct text text;
    const struct process giver = start(be_giver);
    text_open(&world);
    take(&world, &text); // waits until the offer is there
    kill_process(&giver);
    ok(aule_sequence_accept(text.sequence));
    decode_and_compare(&world, &text);
    text_destroy(&text);
    text_close(&world);
}
END_TEST

START_TEST(a_giver_takes_back_what_a_dead_taker_did_not_accept)
{
    struct text text, nothing = {.sequence = NULL};
    const struct process taker = start(be_taker);
    text_open(&world);
    compute_and_offer(&world, true);
    wait_until_done(&taker);
    expect(aule_sequence_take(world.cache, "request", 0, &nothing.sequence), AULE_BUSY,
           "has taken offer \"request\"");
    kill_process(&taker);
    take(&world, &text); // waits until the daemon has noticed
    ok(aule_sequence_accept(text.sequence));
    decode_and_compare(&world, &text);
    text_destroy(&text);
    text_close(&world);
}
END_TEST

START_TEST(an_offer_that_nobody_took_ends_with_its_giver)
{
    struct aule_sequence *sequence;
    const struct process giver = start(be_giver);
    text_open(&world);
    wait_until_done(&giver);
    kill_process(&giver);
    rig_expect_nothing_held();
    expect(aule_sequence_take(world.cache, "request", 10, &sequence), AULE_NOT_FOUND,
           "no offer named \"request\"");
    ck_assert_ptr_null(sequence);
    text_close(&world);
}
END_TEST

// ---- two sessions of one process ----

static struct text_world second;

START_TEST(a_taker_publishes_forks_and_truncates_what_it_took)
{
    struct text text, fork, *list = &text;
    struct aule_sequence_info info;
    text_open(&world);
    text_open(&second);
    compute_and_offer(&world, true);
    take(&second, &text);
    ok(aule_sequence_info(text.sequence, &info));
    ck_assert_uint_eq(info.num_published, 2);
    ck_assert_uint_eq(info.num_blocks, 3);
    text_fork(&text, &fork); // neither it nor its parent may write the part-filled block yet
    text_append(&text, prompt.tokens, TEXT_BLOCK);
    text_step(&second, &list, NULL, 1, NULL); // into a copy
    ok(aule_sequence_accept(text.sequence));
    ok(aule_sequence_accept(text.sequence)); // again
    text_truncate(&text, TEXT_BLOCK + 1);
    text_append(&text, prompt.tokens + 5, TEXT_BLOCK);
    text_step(&second, &list, NULL, 1, NULL);
    list = &fork;
    text_append(&fork, prompt.tokens + 9, 1);
    text_step(&second, &list, NULL, 1, NULL);
    text_destroy(&text);
    text_destroy(&fork);
    aule_step_destroy(second.step);
    second.step = NULL;
    text_close(&world);
    aule_session_close(second.session);
}
END_TEST

START_TEST(a_giver_keeps_the_blocks_that_its_forks_share)
{
    struct text text, fork, taken, *list = &text;
    text_open(&world);
    text_create(&world, &text, prompt.tokens, PROMPT, false);
    text_step(&world, &list, NULL, 1, NULL);
    text_fork(&text, &fork);
    ok(aule_sequence_offer(text.sequence, "request", WAIT_MS));
    take(&world, &taken); // the giver itself
    ok(aule_sequence_accept(taken.sequence));
    struct text *both[] = {&fork, &taken};
    for (int i = 0; i < 2; i++) { // each writes its own copy of the part-filled block
        text_truncate(both[i], PROMPT - 1);
        text_append(both[i], prompt.tokens + 20 + i, 1);
    }
    text_step(&world, both, NULL, 2, NULL); // holds every row against float64
    text_destroy(&fork);
    text_destroy(&taken);
    text_close(&world);
}
END_TEST

START_TEST(a_sequence_that_is_destroyed_unaccepted_goes_back)
{
    struct text text;
    text_open(&world);
    text_open(&second);
    compute_and_offer(&world, false);
    take(&second, &text);
    expect(aule_sequence_offer(text.sequence, "other", -1), AULE_INVALID, "is not accepted");
    text_destroy(&text);
    take(&second, &text);
    text_destroy(&text);
    take(&world, &text);
    ok(aule_sequence_accept(text.sequence));
    decode_and_compare(&world, &text);
    text_destroy(&text);
    aule_session_close(second.session);
    text_close(&world);
}
END_TEST

START_TEST(hand_overs_refuse_what_makes_no_sense_with_the_values)
{
    struct aule_sequence *sequence = NULL, *other = NULL;
    const struct aule_sequence_params params = {.tokens = prompt.tokens, .num_tokens = PROMPT};
    char name[300];
    text_open(&world);
    memset(name, 'x', sizeof name);
    name[256] = 0;
    ok(aule_sequence_create(world.cache, &params, &sequence));
    expect(aule_sequence_offer(sequence, name, -1), AULE_INVALID, "256 bytes");
    expect(aule_sequence_offer(sequence, NULL, -1), AULE_INVALID, "0 bytes");
    expect(aule_sequence_offer(sequence, "a", -2), AULE_INVALID, "-2");
    expect(aule_sequence_offer(NULL, "a", 0), AULE_INVALID, "sequence");
    expect(aule_sequence_take(world.cache, "a", 0, &other), AULE_NOT_FOUND, "\"a\"");
    expect(aule_sequence_take(world.cache, "", 0, &other), AULE_INVALID, "0 bytes");
    expect(aule_sequence_take(NULL, "a", 0, &other), AULE_INVALID, "cache");
    expect(aule_sequence_accept(NULL), AULE_INVALID, "sequence");
    ok(aule_sequence_accept(sequence));        // it was never offered
    ok(aule_sequence_offer(sequence, "a", 1)); // nothing of it is computed
    ok(aule_sequence_create(world.cache, &params, &other));
    while (aule_sequence_offer(other, "a", -1) != AULE_OK) // until the first one has expired
        usleep(1000);
    ok(aule_sequence_take(world.cache, "a", 0, &sequence));
    ck_assert_mem_eq(aule_sequence_tokens(sequence), prompt.tokens, PROMPT * sizeof(int32_t));
    aule_sequence_destroy(sequence);
    aule_session_close(world.session);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client offer");
    check_case(suite, "processes", open_daemon, rig_teardown,
               (const TTest *const[]){a_decode_process_goes_on_where_a_prefill_process_has_died,
                                      a_giver_takes_back_what_a_dead_taker_did_not_accept,
                                      an_offer_that_nobody_took_ends_with_its_giver, NULL},
               1);
    check_case(suite, "sessions", open_daemon, rig_teardown,
               (const TTest *const[]){a_taker_publishes_forks_and_truncates_what_it_took,
                                      a_giver_keeps_the_blocks_that_its_forks_share,
                                      a_sequence_that_is_destroyed_unaccepted_goes_back,
                                      hand_overs_refuse_what_makes_no_sense_with_the_values, NULL},
               1);
    return check_main(suite);
}
