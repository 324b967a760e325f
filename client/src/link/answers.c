// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// answers.c - see answers.h. No thread is forgotten. While threads sleep on conditions of their
// own, one thread watches the ring or was just woken to do so. A thread that leaves while no other
// thread watches the ring wakes one that sleeps. If the connection ends, the leader leaves first,
// and each thread that leaves wakes the next one.

#include "answers.h"

#include "base/list.h"
#include "base/relax.h"

#include <sys/prctl.h>

enum { SPINS_A_LOOK = 64 };
enum {
    BATCHES_KNOWN = 16, // a session runs few batches at a time
    CAUTION = 4,        // see forecast.h: other sessions' work also delays answers
};
// How late a sleep may end: a core may have to wake first.
static const int64_t early_ns = 100000;
static const unsigned long slack_ns = 1000;

void answers_init(struct answers *answers, const struct ring_place *place, int64_t spin_ns)
{
    *answers = (struct answers){.spin_ns = spin_ns,
                                .forecast.times = {.num_kinds = BATCHES_KNOWN, .caution = CAUTION}};
    pthread_mutex_init(&answers->mutex, NULL);
    ring_client_init(&answers->ring, place);
}

void answers_finish(struct answers *answers)
{
    pthread_mutex_destroy(&answers->mutex);
}

// ---- when answers are expected; under the mutex ----

static int64_t expect(const struct answers *answers, const struct wire_submission *submission,
                      int64_t start_ns)
{
    int64_t end_ns = 0;
    if (submission->command == WIRE_COMMAND_WAIT)
        end_ns = forecast_ticket_end(&answers->forecast, submission->wait.ticket);
    else if (submission->command == WIRE_COMMAND_RUN && submission->run.waits)
        end_ns = forecast_end(&answers->forecast.times, submission->run.entry.batch, start_ns);
    return end_ns > start_ns ? end_ns : start_ns;
}

int64_t answers_expected(const struct answers *answers, int64_t now_ns)
{
    const struct waiter *waiter;
    int64_t first_ns = INT64_MAX;
    LIST_EACH(answers->waiters, waiter) {
        const int64_t expected_ns = waiter->expected_ns;
        if (!waiter->answered && expected_ns + answers->spin_ns > now_ns && expected_ns < first_ns)
            first_ns = expected_ns;
    }
    return first_ns == INT64_MAX ? 0 : first_ns;
}

static void learn(struct answers *answers, const struct waiter *waiter)
{
    const struct wire_submission *submission = waiter->submission;
    const struct wire_completion *completion = &waiter->completion;
    struct forecast_tickets *forecast = &answers->forecast;
    const int64_t now_ns = clock_now_ns();
    const bool runs = submission->command == WIRE_COMMAND_RUN;
    if (completion->status != STATUS_OK)
        return;
    if (submission->command == WIRE_COMMAND_WAIT)
        forecast_ticket_ended(forecast, submission->wait.ticket, waiter->start_ns, now_ns);
    else if (runs && submission->run.waits)
        forecast_learn(&forecast->times, submission->run.entry.batch, now_ns - waiter->start_ns);
    else if (runs)
        forecast_ticket_began(forecast, completion->ticket, submission->run.entry.batch,
                              waiter->start_ns);
}

// ---- handing out answers; under the mutex ----

// Hands out all posted answers. An answer whose thread has given up is dropped.
static void hand_out(struct answers *answers)
{
    uint64_t entry[WIRE_COMPLETION_SIZE / sizeof(uint64_t)];
    enum ring_look look;
    while ((look = ring_consume(&answers->ring, entry)) == RING_TAKEN) {
        struct wire_completion completion;
        struct waiter *waiter;
        wire_get_completion(entry, &completion);
        LIST_EACH(answers->waiters, waiter) {
            if (waiter->submission->sequence == completion.sequence)
                break;
        }
        if (!waiter)
            continue;
        waiter->completion = completion;
        waiter->answered = true;
        if (waiter->sleeps)
            pthread_cond_signal(&waiter->news);
    }
    answers->broken |= look == RING_BROKEN;
}

static void find_leader(const struct answers *answers)
{
    struct waiter *waiter;
    if (answers->led)
        return;
    LIST_EACH(answers->waiters, waiter) {
        if (waiter->sleeps) {
            pthread_cond_signal(&waiter->news);
            return;
        }
    }
}

// ---- waiting ----

static bool spin(const struct answers *answers, uint32_t consumed, int64_t end_ns)
{
    do {
        for (int i = 0; i < SPINS_A_LOOK; i++) {
            if (ring_posted(&answers->ring, consumed))
                return true;
            cpu_relax();
        }
    } while (clock_now_ns() < end_ns);
    return false;
}

// Sleeps until `end_ns` at the latest.
static void rest(struct answers *answers, uint32_t consumed, int64_t end_ns)
{
    const int64_t left_ns = end_ns - clock_now_ns();
    const struct timespec left = clock_timespec(left_ns);
    if (left_ns > 0)
        ring_sleep(&answers->ring, consumed, end_ns == FOREVER ? NULL : &left);
}

// What the leader knows when it releases the mutex.
struct outlook {
    uint32_t consumed;
    int64_t now_ns, end_ns;
    int64_t expected_ns; // the earliest answer; 0: unknown
    int64_t spin_end_ns; // until then it spins for that answer
    int64_t next_ns;     // the earliest answer expected after that; FOREVER: none is known
};

static struct outlook look_ahead(const struct answers *answers, int left_ms)
{
    struct outlook look = {.consumed = answers->ring.consumed,
                           .now_ns = clock_now_ns(),
                           .end_ns = FOREVER,
                           .next_ns = FOREVER};
    if (left_ms >= 0)
        look.end_ns = look.now_ns + left_ms * NS_PER_MS;
    if (!answers->spin_ns)
        return look;
    look.expected_ns = answers_expected(answers, look.now_ns);
    look.spin_end_ns =
        (look.expected_ns > look.now_ns ? look.expected_ns : look.now_ns) + answers->spin_ns;
    const int64_t next_ns = answers_expected(answers, look.spin_end_ns);
    if (next_ns)
        look.next_ns = next_ns;
    return look;
}

// Sleeps until shortly before `expected_ns`. The kernel may lengthen a sleep by the thread's timer
// slack, 50 us unless the program has set another one. Then a client's run misses the dispatch of
// the others, so the slack is short meanwhile.
static void rest_before(struct answers *answers, const struct outlook *look, int64_t expected_ns)
{
    const int64_t end_ns = clock_earlier(expected_ns - early_ns, look->end_ns);
    if (end_ns <= clock_now_ns())
        return;
    const int usual = prctl(PR_GET_TIMERSLACK);
    const bool set = usual > (int)slack_ns && prctl(PR_SET_TIMERSLACK, slack_ns) == 0;
    rest(answers, look->consumed, end_ns);
    if (set)
        prctl(PR_SET_TIMERSLACK, (unsigned long)usual);
}

// Without the mutex. Waits until an answer is posted or the time is over; may return too early. If
// the answer is expected much later, it sleeps first and spins only near that time.
static void watch(struct answers *answers, const struct outlook *look)
{
    bool sleeps_first = answers->spin_ns && look->expected_ns - look->now_ns > 2 * early_ns;
    if (sleeps_first)
        rest_before(answers, look, look->expected_ns);
    else if (answers->spin_ns &&
             spin(answers, look->consumed, clock_earlier(look->spin_end_ns, look->end_ns)))
        return;
    else if (look->next_ns != FOREVER)
        rest_before(answers, look, look->next_ns);
    else
        rest(answers, look->consumed, look->end_ns);
}

// With the mutex, which is released meanwhile. Looks for the earliest answer that any thread
// expects.
static void lead(struct answers *answers, int left_ms)
{
    const struct outlook look = look_ahead(answers, left_ms);
    answers->led = true;
    pthread_mutex_unlock(&answers->mutex);
    watch(answers, &look);
    pthread_mutex_lock(&answers->mutex);
    answers->led = false;
}

// With the mutex, which is released meanwhile.
static void follow(struct answers *answers, struct waiter *waiter, int left_ms)
{
    clock_init_cond(&waiter->news);
    waiter->sleeps = true;
    clock_wait(&waiter->news, &answers->mutex, clock_deadline_ns(left_ms));
    waiter->sleeps = false;
    pthread_cond_destroy(&waiter->news);
}

bool answers_await(struct answers *answers, struct waiter *waiter, const struct timeout *timeout)
{
    pthread_mutex_lock(&answers->mutex);
    for (;;) {
        hand_out(answers);
        if (waiter->answered || answers->broken || ring_interrupted(&answers->ring))
            break;
        int left_ms = timeout_left(timeout);
        if (left_ms == 0)
            break;
        if (answers->led)
            follow(answers, waiter, left_ms);
        else
            lead(answers, left_ms);
    }
    LIST_DELETE(answers->waiters, waiter);
    if (answers->spin_ns && waiter->answered)
        learn(answers, waiter);
    find_leader(answers);
    pthread_mutex_unlock(&answers->mutex);
    return waiter->answered;
}

// ---- submitting ----

// Under the mutex.
static enum answers_place place(struct answers *answers, struct wire_submission *submission,
                                struct waiter *waiter)
{
    uint64_t entry[WIRE_SUBMISSION_SIZE / sizeof(uint64_t)];
    hand_out(answers);
    if (answers->over || answers->broken || ring_interrupted(&answers->ring))
        return ANSWERS_NO_PLACE;
    *waiter = (struct waiter){.submission = submission};
    submission->sequence = answers->ring.submitted;
    wire_put_submission(submission, entry);
    if (!ring_submit(&answers->ring, entry))
        return ANSWERS_NO_PLACE;
    enum ring_ear ear = ring_ear(&answers->ring);
    answers->over = ear == RING_OVER;
    if (answers->over)
        return ANSWERS_NO_PLACE;
    if (answers->spin_ns) {
        waiter->start_ns = clock_now_ns();
        waiter->expected_ns = expect(answers, submission, waiter->start_ns);
    }
    LIST_APPEND(answers->waiters, waiter);
    return ear == RING_ASLEEP ? ANSWERS_PLACED_ASLEEP : ANSWERS_PLACED;
}

enum answers_place answers_submit(struct answers *answers, struct wire_submission *submission,
                                  struct waiter *waiter)
{
    pthread_mutex_lock(&answers->mutex);
    enum answers_place placed = place(answers, submission, waiter);
    pthread_mutex_unlock(&answers->mutex);
    return placed;
}

bool answers_broken(struct answers *answers)
{
    pthread_mutex_lock(&answers->mutex);
    bool broken = answers->broken;
    pthread_mutex_unlock(&answers->mutex);
    return broken;
}
