// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_client_reaped.c - failed runs, and the tickets that the library reaps itself. Each test is a
// process with a fake daemon in it.

#include "rigs/client_world.h"

#include <pthread.h>
#include <semaphore.h>
#include <time.h>

static enum fake_action failing_wait(struct fake_daemon *daemon, const struct wire_request *request,
                                     struct wire_reply *reply)
{
    (void)daemon;
    if (request->command == WIRE_COMMAND_WAIT) {
        reply->wait.run_status = STATUS_DEVICE_LOST;
        reply->wait.run_message = "the GPU hung";
    }
    return FAKE_ANSWER;
}

START_TEST(a_run_that_failed_says_why)
{
    fake_start(&fake, path, failing_wait, NULL);
    struct aule_session *session = open_session(0);
    struct aule_cache *cache = open_cache(session);
    struct aule_batch *batch = create_batch(cache);
    expect(aule_ticket_wait(session, submit_one(batch), 0, NULL), AULE_DEVICE_LOST, "the GPU hung");
    aule_batch_destroy(batch);
    aule_cache_close(cache);
    aule_session_close(session);
}
END_TEST

// Whether the request waits for the end of a run that has a ticket, and how long.
static bool waits(const struct wire_request *request, int *ms)
{
    const bool run = request->command == WIRE_COMMAND_RUN;
    *ms = run ? request->run.wait_ms : request->wait.timeout_ms;
    return run ? request->run.waits : request->command == WIRE_COMMAND_WAIT;
}

// The ticket of a run stays.
static void refuse(struct wire_reply *reply, enum status status, const char *message)
{
    reply->status = status;
    reply->message = message;
    reply->answer = WIRE_ANSWER_EMPTY;
}

static enum fake_action late_run(struct fake_daemon *daemon, const struct wire_request *request,
                                 struct wire_reply *reply)
{
    bool *done = daemon->context;
    int ms;
    if (waits(request, &ms) && !*done)
        refuse(reply, STATUS_TIMEOUT, "ticket 1 is not done");
    return FAKE_ANSWER;
}

START_TEST(a_run_whose_wait_timed_out_is_reaped_by_the_next_submission)
{
    bool done = false;
    const struct aule_run_params run = {.num_heads = 1};
    fake_start(&fake, path, late_run, &done);
    struct aule_session *session = open_session(0);
    struct aule_cache *cache = open_cache(session);
    struct aule_batch *batch = create_batch(cache);
    for (int i = 0; i < 12; i++)
        expect(aule_run(batch, &run, 0, NULL), AULE_TIMEOUT, "ticket 1");
    done = true;
    unsigned before = atomic_load(&fake.seen[WIRE_COMMAND_WAIT]);
    ck_assert_int_eq(aule_run_submit(batch, &run, 0, NULL), AULE_OK);
    ck_assert_uint_eq(atomic_load(&fake.seen[WIRE_COMMAND_WAIT]), before + 12);
    aule_batch_destroy(batch);
    aule_cache_close(cache);
    aule_session_close(session);
}
END_TEST

// Acts like the daemon: if max_tickets are unreaped, a run waits until one is reaped, without a
// limit.
struct crowd {
    unsigned unreaped;
    bool stuck; // no run ever ends
};

static enum fake_action crowded(struct fake_daemon *daemon, const struct wire_request *request,
                                struct wire_reply *reply)
{
    struct crowd *crowd = daemon->context;
    int ms;
    if (request->command == WIRE_COMMAND_RUN && crowd->unreaped == 4) {
        refuse(reply, STATUS_BUSY, "4 tickets of the session are unreaped");
        reply->ticket = 0;
        return request->run.timeout_ms == 0 ? FAKE_ANSWER : FAKE_SILENCE;
    }
    if (request->command == WIRE_COMMAND_RUN)
        crowd->unreaped++;
    if (waits(request, &ms) && (crowd->stuck || ms == 0)) {
        refuse(reply, STATUS_TIMEOUT, "the ticket is not done");
        nanosleep(&(struct timespec){.tv_nsec = ms * 1000000L}, NULL);
    } else if (waits(request, &ms)) {
        crowd->unreaped--;
    }
    return FAKE_ANSWER;
}

// The loop index is the number of the caller's own tickets.
START_TEST(a_run_without_end_waits_for_the_runs_that_were_abandoned)
{
    struct crowd crowd = {0};
    const struct aule_run_params run = {.num_heads = 1};
    fake_start(&fake, path, crowded, &crowd);
    struct aule_session *session = open_session(0);
    struct aule_cache *cache = open_cache(session);
    struct aule_batch *batch = create_batch(cache);
    for (int i = 0; i < _i; i++)
        submit_one(batch);
    for (int i = _i; i < 4; i++)
        expect(aule_run(batch, &run, 0, NULL), AULE_TIMEOUT, "not done");
    expect(aule_run(batch, &run, 0, NULL), AULE_BUSY, "4 tickets");
    crowd.stuck = true;
    expect(aule_run(batch, &run, 50, NULL), AULE_BUSY, "4 tickets");
    crowd.stuck = false;
    for (int i = 0; i < 10; i++)
        ck_assert_int_eq(aule_run(batch, &run, -1, NULL), AULE_OK);
    aule_batch_destroy(batch);
    aule_cache_close(cache);
    aule_session_close(session);
}
END_TEST

// A daemon with two tickets: the first run ends when a wait for it arrives, the second never ends.
static enum fake_action first_ends(struct fake_daemon *daemon, const struct wire_request *request,
                                   struct wire_reply *reply)
{
    static const char *const why = "as the test wants it";
    unsigned *unreaped = daemon->context;
    if (request->command == WIRE_COMMAND_RUN && *unreaped < 2) {
        ++*unreaped;
        if (request->run.waits)
            refuse(reply, STATUS_TIMEOUT, why);
    } else if (request->command == WIRE_COMMAND_RUN) {
        refuse(reply, STATUS_BUSY, why);
        reply->ticket = 0;
    } else if (request->command == WIRE_COMMAND_WAIT && request->wait.ticket == 1 &&
               request->wait.timeout_ms > 0) {
        --*unreaped;
    } else if (request->command == WIRE_COMMAND_WAIT) {
        refuse(reply, STATUS_TIMEOUT, why);
    }
    return FAKE_ANSWER;
}

START_TEST(of_the_runs_that_were_abandoned_the_oldest_is_waited_for)
{
    unsigned unreaped = 0;
    const struct aule_run_params run = {.num_heads = 1};
    fake_start(&fake, path, first_ends, &unreaped);
    struct aule_session *session = open_session(0);
    struct aule_cache *cache = open_cache(session);
    struct aule_batch *batch = create_batch(cache);
    for (int i = 0; i < 2; i++)
        expect(aule_run(batch, &run, 0, NULL), AULE_TIMEOUT, "as the test wants it");
    ck_assert_int_eq(aule_run_submit(batch, &run, 60000, NULL), AULE_OK);
    aule_batch_destroy(batch);
    aule_cache_close(cache);
    aule_session_close(session);
}
END_TEST

// There is one ticket. The first wait finds no room in the daemon, and a run waits for the ticket
// as long as its timeout allows.
struct cramped {
    bool taken, refused;
    sem_t begun;
};

static enum fake_action cramped(struct fake_daemon *daemon, const struct wire_request *request,
                                struct wire_reply *reply)
{
    static const char *const why = "there is no room";
    struct cramped *at = daemon->context;
    int ms;
    if (request->command == WIRE_COMMAND_RUN) {
        const int timeout_ms = request->run.timeout_ms;
        const bool refuses = at->taken;
        at->taken = true;
        sem_post(&at->begun);
        if (refuses && timeout_ms < 0)
            return FAKE_SILENCE;
        nanosleep(&(struct timespec){.tv_nsec = (refuses ? timeout_ms : 100) * 1000000L}, NULL);
        if (refuses) {
            refuse(reply, STATUS_BUSY, why);
            reply->ticket = 0;
            return FAKE_ANSWER;
        }
    }
    if (waits(request, &ms)) {
        at->taken = !at->refused;
        if (!at->refused)
            refuse(reply, STATUS_LIMIT, why);
        at->refused = true;
    }
    return FAKE_ANSWER;
}

static void *run_without_a_wait(void *batch)
{
    expect(aule_run(batch, &(struct aule_run_params){.num_heads = 1}, 5000, NULL), AULE_LIMIT,
           "no room");
    return NULL;
}

START_TEST(a_run_whose_wait_finds_no_place_is_reaped_by_the_next)
{
    struct cramped at = {.taken = false};
    sem_init(&at.begun, 0, 0);
    fake_start(&fake, path, cramped, &at);
    struct aule_session *session = open_session(0);
    struct aule_cache *cache = open_cache(session);
    struct aule_batch *batch = create_batch(cache);
    run_without_a_wait(batch);
    ck_assert(at.taken);
    ck_assert_int_eq(aule_run(batch, &(struct aule_run_params){.num_heads = 1}, 0, NULL), AULE_OK);
    aule_batch_destroy(batch);
    aule_cache_close(cache);
    aule_session_close(session);
}
END_TEST

// When this thread begins to wait for the ticket, the other thread's run has it; then that run
// gives it up.
START_TEST(a_run_without_end_reaps_what_another_thread_abandons_meanwhile)
{
    struct cramped at = {.taken = false};
    pthread_t other;
    sem_init(&at.begun, 0, 0);
    fake_start(&fake, path, cramped, &at);
    struct aule_session *session = open_session(0);
    struct aule_cache *cache = open_cache(session);
    struct aule_batch *batch = create_batch(cache);
    ck_assert_int_eq(pthread_create(&other, NULL, run_without_a_wait, batch), 0);
    sem_wait(&at.begun);
    ck_assert_int_eq(aule_run(batch, &(struct aule_run_params){.num_heads = 1}, -1, NULL), AULE_OK);
    pthread_join(other, NULL);
    aule_batch_destroy(batch);
    aule_cache_close(cache);
    aule_session_close(session);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client_reaped");
    add(suite, "tickets",
        (const struct entry[]){
            {a_run_that_failed_says_why, 0},
            {a_run_whose_wait_timed_out_is_reaped_by_the_next_submission, 0},
            {a_run_without_end_waits_for_the_runs_that_were_abandoned, 4},
            {of_the_runs_that_were_abandoned_the_oldest_is_waited_for, 0},
            {a_run_whose_wait_finds_no_place_is_reaped_by_the_next, 0},
            {a_run_without_end_reaps_what_another_thread_abandons_meanwhile, 0},
            {NULL, 0},
        });
    return check_main(suite);
}
