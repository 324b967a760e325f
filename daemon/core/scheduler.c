// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// scheduler.c - deficit round robin by tokens attended. A session that was served `cost` tokens is that much in debt; rounds
// pay SCHEDULER_QUANTUM each, and the sessions wait in a heap for the round in which their debt is paid, so that rounds in
// which nobody may go cost nothing, and one step costs the logarithm of the waiting sessions. A run is never split: a big
// one goes when its session's turn comes, and the debt keeps that session from going again before the others had as much.
//
// Which runs go and how they lie in the submission are two questions: the n-th run that a session has in a submission goes
// into wave n, whatever the order of picking, so that sessions in step share waves and the engine merges their runs.

#include "scheduler.h"

#include <inttypes.h>
#include <stdlib.h>

#include "state.h"

static void wait_for_turn(struct scheduler *scheduler, struct core_session *session)
{
    heap_add(&scheduler->ready, &session->ready, session->served / SCHEDULER_QUANTUM);
}

void scheduler_ready(struct core_session *session)
{
    struct scheduler *scheduler = &session->core->scheduler;
    if (session->served < scheduler->now) // what it did not ask for while away is not owed to it
        session->served = scheduler->now;
    wait_for_turn(scheduler, session);
}

void scheduler_forget(struct core_session *session)
{
    heap_remove(&session->core->scheduler.ready, &session->ready);
}

// ---- building a submission ----

static struct run *pick(struct scheduler *scheduler, uint64_t number)
{
    struct core_session *session = HEAP_OBJECT(heap_first(&scheduler->ready), struct core_session, ready);
    struct run *run = session->queued;
    heap_remove(&scheduler->ready, &session->ready);
    if (session->served > scheduler->now)
        scheduler->now = session->served;
    if (__builtin_add_overflow(session->served, run->weight, &session->served))
        session->served = UINT64_MAX;
    if (session->submission != number)
        session->wave = 0;
    session->submission = number;
    run->wave = session->wave++;
    session->queued = run->next;
    if (session->queued)
        wait_for_turn(scheduler, session);
    return run;
}

// The work of the run whose turn it is; there is one.
static uint64_t next_work(const struct scheduler *scheduler)
{
    return HEAP_OBJECT(heap_first(&scheduler->ready), struct core_session, ready)->queued->work;
}

static uint32_t pick_runs(struct core *core, uint64_t number)
{
    struct scheduler *scheduler = &core->scheduler;
    uint32_t count = 0;
    uint64_t budget = SCHEDULER_BUDGET, room = core->params.max_run_work ? core->params.max_run_work : UINT64_MAX;
    while (count < SCHEDULER_MAX_RUNS && budget && heap_first(&scheduler->ready)) {
        if (count && next_work(scheduler) > room)
            break;
        struct run *run = pick(scheduler, number);
        budget -= run->weight < budget ? run->weight : budget;
        room -= run->work < room ? run->work : room;
        scheduler->picked[count++] = run;
    }
    return count;
}

// Sorts the picked runs by wave, in the order of picking within one; returns the number of waves.
static uint32_t lay_waves(struct scheduler *scheduler, struct submission *submission)
{
    uint32_t *ends = scheduler->wave_ends, waves = 0;
    for (uint32_t i = 0; i < submission->num_runs; i++) {
        uint32_t wave = scheduler->picked[i]->wave;
        while (waves <= wave)
            ends[waves++] = 0;
        ends[wave]++;
    }
    for (uint32_t w = 0, before = 0; w < waves; w++) { // from counts to begins
        uint32_t size = ends[w];
        ends[w] = before;
        before += size;
    }
    for (uint32_t i = 0; i < submission->num_runs; i++) { // begins become ends
        uint32_t place = ends[scheduler->picked[i]->wave]++;
        submission->runs[place] = scheduler->picked[i];
        scheduler->engine_runs[place] = scheduler->picked[i]->engine;
    }
    return waves;
}

static void end_all(struct submission *submission, enum status status, const struct error *error)
{
    const struct core_ticket_result result = {.status = status};
    for (uint32_t i = 0; i < submission->num_runs; i++) {
        run_explain(submission->runs[i], error->text);
        run_end(submission->runs[i], &result);
    }
}

// Delivering may free the runs, and the last one its session.
static void deliver(struct scheduler *scheduler, struct submission *submission)
{
    for (uint32_t i = 0; i < submission->num_runs; i++)
        scheduler->served[i] = submission->runs[i]->session;
    for (uint32_t i = 0; i < submission->num_runs; i++) {
        struct core_session *session = scheduler->served[i];
        run_deliver(session);
        session->num_in_flight--;
        session_passed(session);
    }
}

static void count_in_flight(struct submission *submission)
{
    for (uint32_t i = 0; i < submission->num_runs; i++)
        submission->runs[i]->session->num_in_flight++;
}

static void refused(struct core *core, enum status status, const struct error *error)
{
    if (status != STATUS_DEVICE_LOST)
        return;
    core->lost_why = *error;
    scheduler_lost(core);
}

static struct submission *next_submission(struct scheduler *s)
{
    return &s->in_flight[(s->first_in_flight + s->num_in_flight) % SCHEDULER_MAX_IN_FLIGHT];
}

static enum status submit(struct core *core, const struct engine_submission *order, struct submission *submission,
                          struct error *error)
{
    enum status status = engine_submit(core->engine, order, &submission->sequence, error);
    if (status == STATUS_OK) {
        core->scheduler.num_in_flight++;
        core->submissions++;
    }
    return status;
}

static void fail_runs(struct core *core, struct submission *submission, enum status status, const struct error *error)
{
    core_log(core, CORE_LOG_ERROR, "a submission of %" PRIu32 " runs failed: %s", submission->num_runs, error->text);
    end_all(submission, status, error);
    deliver(&core->scheduler, submission);
    refused(core, status, error);
}

static void submit_runs(struct core *core)
{
    struct scheduler *s = &core->scheduler;
    struct submission *submission = next_submission(s);
    struct error error = {0};
    submission->num_runs = pick_runs(core, ++s->submissions);
    const struct engine_submission order = {
        .runs = s->engine_runs,
        .num_runs = submission->num_runs,
        .wave_ends = s->wave_ends,
        .num_waves = lay_waves(s, submission),
    };
    count_in_flight(submission);
    enum status status = submit(core, &order, submission, &error);
    if (status != STATUS_OK)
        fail_runs(core, submission, status, &error);
}

// Zeroes have submissions of their own, so that one that is refused takes no run with it: fewer blocks are tried then, and
// the runs wait. With nothing in flight nothing would wake them, so they fail; the blocks stay in the list.
static void submit_zeroes(struct core *core)
{
    struct scheduler *s = &core->scheduler;
    struct submission *submission = next_submission(s);
    struct error error = {0};
    enum status status = STATUS_NO_MEMORY;
    submission->num_runs = 0;
    for (uint32_t count = zeroes_slice(core); count && status == STATUS_NO_MEMORY; count /= 2) {
        const struct engine_submission order = {.zeroes = core->zeroes, .num_zeroes = count};
        status = submit(core, &order, submission, &error);
        if (status == STATUS_OK)
            zeroes_drop(core, count);
    }
    if (status == STATUS_OK || (status == STATUS_NO_MEMORY && s->num_in_flight))
        return;
    submission->num_runs = pick_runs(core, ++s->submissions);
    lay_waves(s, submission);
    count_in_flight(submission);
    fail_runs(core, submission, status, &error);
}

void scheduler_submit(struct core *core)
{
    struct scheduler *s = &core->scheduler;
    while (!core->lost && s->num_in_flight < SCHEDULER_MAX_IN_FLIGHT && heap_first(&s->ready)) {
        uint32_t zeroes = core->num_zeroes, waiting = s->num_in_flight;
        if (!zeroes)
            submit_runs(core);
        else
            submit_zeroes(core);
        if (zeroes && zeroes == core->num_zeroes && waiting)
            return; // refused for now
    }
}

// ---- after the GPU ----

static int by_dispatch(const void *a, const void *b, void *results)
{
    const struct engine_run_result *all = results;
    uint32_t x = all[*(const uint32_t *)a].dispatch, y = all[*(const uint32_t *)b].dispatch;
    return (x > y) - (x < y);
}

// order[0 .. count) are the runs of one dispatch.
static void share(struct core *core, const struct submission *submission, const struct engine_event *event,
                  const uint32_t *order, uint32_t count)
{
    uint32_t sessions = 0;
    uint64_t stamp = ++core->last_stamp;
    for (uint32_t i = 0; i < count; i++) {
        struct core_session *session = submission->runs[order[i]]->session;
        sessions += session->stamp != stamp;
        session->stamp = stamp;
    }
    for (uint32_t i = 0; i < count; i++) {
        submission->runs[order[i]]->result = (struct core_ticket_result){
            .status = STATUS_OK,
            .gpu_ns = event->results[order[i]].gpu_ns,
            .num_runs = count,
            .num_sessions = sessions,
        };
    }
    if (sessions > core->max_sessions_per_dispatch)
        core->max_sessions_per_dispatch = sessions;
}

static void read_results(struct core *core, struct submission *submission, const struct engine_event *event)
{
    uint32_t *order = core->scheduler.order, good = 0;
    for (uint32_t i = 0; i < submission->num_runs; i++) {
        enum status status = i < event->num_results ? event->results[i].status : STATUS_INTERNAL;
        submission->runs[i]->result = (struct core_ticket_result){.status = status};
        if (status == STATUS_OK)
            order[good++] = i;
        else if (i < event->num_results)
            run_explain(submission->runs[i], event->results[i].message);
    }
    qsort_r(order, good, sizeof *order, by_dispatch, (void *)event->results);
    for (uint32_t first = 0, end; first < good; first = end) {
        uint32_t dispatch = event->results[order[first]].dispatch;
        for (end = first + 1; end < good && dispatch < event->num_dispatches; end++) { // from there on: none at all
            if (event->results[order[end]].dispatch != dispatch)
                break;
        }
        share(core, submission, event, order + first, end - first);
    }
}

static struct submission *take_first(struct scheduler *scheduler)
{
    struct submission *submission = &scheduler->in_flight[scheduler->first_in_flight];
    scheduler->first_in_flight = (scheduler->first_in_flight + 1) % SCHEDULER_MAX_IN_FLIGHT;
    scheduler->num_in_flight--;
    return submission;
}

void scheduler_done(struct core *core, const struct engine_event *event)
{
    struct scheduler *s = &core->scheduler;
    if (!s->num_in_flight || s->in_flight[s->first_in_flight].sequence != event->sequence) {
        if (!core->lost) // after a loss they are over already
            core_log(core, CORE_LOG_ERROR, "submission %" PRIu64 " is done, but is not the next one", event->sequence);
        return;
    }
    struct submission *submission = take_first(s);
    read_results(core, submission, event);
    core->dispatches += event->num_dispatches;
    for (uint32_t i = 0; i < submission->num_runs; i++) {
        const struct core_ticket_result result = submission->runs[i]->result;
        run_end(submission->runs[i], &result);
    }
    deliver(s, submission);
}

void scheduler_lost(struct core *core)
{
    struct core_session *session, *next;
    core->lost = true;
    core->news = true;
    while (core->scheduler.num_in_flight) {
        struct submission *submission = take_first(&core->scheduler);
        end_all(submission, STATUS_DEVICE_LOST, &core->lost_why);
        deliver(&core->scheduler, submission);
    }
    DL_FOREACH_SAFE(core->sessions, session, next)
    {
        run_drop_queued(session, STATUS_DEVICE_LOST);
        run_deliver(session);
    }
    zeroes_drop(core, core->num_zeroes);
}
