// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// completer.c - the thread that waits for the GPU, one submission after the other, and posts their
// events. base/forecast.h decides when it sleeps, polls and waits. After an end it polls for the
// next submission. It is also the watchdog: if a submission of a GPU does not end in time, the
// device is lost.

#include "completer.h"

#include "base/list.h"
#include "base/relax.h"
#include "carrier.h"
#include "clocks.h"
#include "engine/plan/submission.h"
#include "engine/state/maker.h"
#include "engine/state/state.h"
#include "engine/vulkan/vk.h"
#include "staging.h"

#include <sys/prctl.h>

// The oldest submission that is not done. NULL: there will be none.
static struct submission *head(struct engine *engine)
{
    pthread_mutex_lock(&engine->lock);
    bool may_look = engine->watch.look_ns > 0 && engine->completed > 0; // once after each end
    while (!engine->lost && !engine->flying && !engine->submitter_gone) {
        if (may_look)
            engine_look_out(engine, &engine->num_flown, engine_patience_ns(engine));
        else
            pthread_cond_wait(&engine->changed, &engine->lock);
        may_look = false;
    }
    struct submission *submission = engine->lost ? NULL : engine->flying;
    pthread_mutex_unlock(&engine->lock);
    return submission;
}

// ---- the end of one submission ----

static int64_t now_ns(void *submission)
{
    (void)submission;
    return clock_now_ns();
}

static void sleep_until(void *submission, int64_t ns)
{
    const struct timespec time = clock_timespec(ns);
    (void)submission;
    // A signal may end it early; then the caller polls a little longer.
    clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &time, NULL);
}

// Wakes the submitter too: when the submission ends, more will probably be queued.
static void begin_to_look(struct engine *engine)
{
    pthread_mutex_lock(&engine->lock);
    atomic_store(&engine->looking, true);
    pthread_mutex_unlock(&engine->lock);
    pthread_cond_signal(&engine->more);
}

static bool has_passed(void *submission)
{
    const struct submission *s = submission;
    uint64_t value = 0; // if it cannot be read, the wait reports why
    if (!atomic_load(&s->engine->looking))
        begin_to_look(s->engine);
    const struct device *device = &s->engine->device;
    vkGetSemaphoreCounterValue(device->handle, device->streams[STREAM_RUNS].timeline, &value);
    if (value >= s->sequence)
        return true;
    cpu_relax();
    return false;
}

// Waits without polling. false: the submission will never end.
static bool wait_for_end(void *submission)
{
    const struct submission *s = submission;
    struct engine *engine = s->engine;
    struct device *device = &engine->device;
    atomic_store(&engine->looking, false);
    VkResult result = device_watch_stream(device, STREAM_RUNS, s->sequence);
    if (result == VK_SUCCESS)
        return true;
    if (result != VK_TIMEOUT) {
        vk_failed(device, "vkWaitSemaphores", result, NULL);
        if (result == VK_ERROR_DEVICE_LOST)
            return false;
    }
    atomic_store(&device->hung, true);
    device_lose(device, "submission %llu did not end in %llu ms (%s)",
                (unsigned long long)s->sequence, (unsigned long long)device->watchdog_ns / 1000000,
                vk_result_name(result));
    return false;
}

static const struct forecast_waiter waiter = {now_ns, has_passed, sleep_until, wait_for_end};

// ---- reporting ----

static void finish(struct submission *s)
{
    struct engine *engine = s->engine;
    bool due;
    s->node.event = (struct engine_event){
        .kind = ENGINE_EVENT_DONE,
        .sequence = s->sequence,
        .results = s->results,
        .num_results = s->num_runs,
        .num_dispatches = s->slot ? s->num_groups : 0,
        .prepared_ns = s->sent ? (uint64_t)(s->sent_ns - s->queued_ns) : 0,
    };
    atomic_fetch_add(&engine->device.num_passed, 1);
    pthread_mutex_lock(&engine->lock);
    LIST_DELETE(engine->flying, s);
    atomic_store(&engine->looking, false);
    if (s->slot)
        s->slot->busy = false;
    engine->completed = s->sequence;
    if (s->num_runs) {
        engine->num_with_runs--;
        engine->runs_ended_ns = clock_now_ns();
    }
    if (s->sent)
        atomic_store(&engine->device.streams[STREAM_RUNS].passed, s->sequence);
    carriers_notice(engine);
    event_post(engine, &s->node);
    due = jobs_are_due(engine);
    pthread_mutex_unlock(&engine->lock);
    engine_wake(engine); // before the other threads: a client waits for this
    pthread_cond_signal(&engine->more);
    if (due)
        maker_wake(engine);
}

void *completer_thread(void *argument)
{
    struct engine *engine = argument;
    struct submission *submission;
    prctl(PR_SET_TIMERSLACK, 1000L); // for this thread; the default may lengthen a sleep by 50 us
    while ((submission = head(engine))) {
        if (submission->slot) {
            if (!forecast_watch_await(&engine->watch, submission->shape, submission->sent_ns,
                                      &waiter, submission))
                break;
            stage_out(submission);
            clocks_read(submission);
        }
        finish(submission);
    }
    pthread_mutex_lock(&engine->lock);
    engine->completer_gone = true;
    pthread_cond_broadcast(&engine->changed);
    maker_wake(engine);
    pthread_mutex_unlock(&engine->lock);
    return NULL;
}
