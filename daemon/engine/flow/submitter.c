// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// submitter.c - the thread that takes submissions in order and gives them to the GPU: plan, stage
// in, record, submit. A submission that fails here has no slot; it goes to the completer all the
// same, so that events stay in order.

#include "submitter.h"

#include "base/list.h"
#include "base/relax.h"
#include "engine/plan/plan.h"
#include "engine/state/state.h"
#include "engine/vulkan/vk.h"
#include "record.h"
#include "staging.h"

#include <xxhash.h>

enum { BRIEF = 4 }; // a brief look takes this part of a look

static struct slot *free_slot(struct engine *engine)
{
    for (int i = 0; i < ENGINE_SLOTS; i++)
        if (!engine->slots[i].busy)
            return &engine->slots[i];
    return NULL;
}

// With the lock held. Whether a submission will probably come soon, because one is ending or has
// ended. True once for each end, so that the submitter polls once.
static bool expects_more(const struct engine *engine, uint64_t looked_after)
{
    bool idle = engine->last_sequence > 0 && engine->completed == engine->last_sequence;
    return engine->watch.look_ns > 0 && !engine->waiting && engine->completed != looked_after &&
           (idle || atomic_load(&engine->looking));
}

// Whether a submission will probably come soon, because engine_expect() says so.
static bool is_announced(const struct engine *engine)
{
    return !engine->waiting && engine->patience_ns > 0 &&
           atomic_load(&engine->num_expected) != engine->heard;
}

static int64_t longer(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

// Without the lock. After a short submission the completer polls the GPU at once. If the submitter
// went to sleep before that, the completer would have to wake it, and would see the end as much
// later, some 35 us. So the submitter waits for a moment until it knows, unless more is queued.
// After a long submission, which the completer sleeps through at first, it waits in vain.
static void await_completer(const struct engine *engine)
{
    const int64_t end_ns = clock_now_ns() + engine->watch.look_ns / BRIEF;
    while (!atomic_load(&engine->looking) &&
           atomic_load(&engine->num_queued) == atomic_load(&engine->num_flown) &&
           clock_now_ns() < end_ns)
        cpu_relax();
}

// The next submission, with a slot. NULL: there will be none.
static struct submission *take(struct engine *engine)
{
    struct submission *submission = NULL;
    struct slot *slot = NULL;
    uint64_t looked_after = UINT64_MAX;
    pthread_mutex_lock(&engine->lock);
    while (!engine->lost &&
           !(engine->waiting ? (slot = free_slot(engine)) != NULL : engine->stopping)) {
        const bool more = expects_more(engine, looked_after);
        if (more || is_announced(engine)) {
            const int64_t least_ns = more ? engine->watch.look_ns : 0,
                          most_ns = longer(engine->patience_ns, least_ns);
            engine->heard = atomic_load(&engine->num_expected);
            engine->patience_ns -= engine_look_out(engine, &engine->num_queued, most_ns);
            looked_after = engine->completed;
        } else {
            pthread_cond_wait(&engine->more, &engine->lock);
        }
    }
    if (!engine->lost && engine->waiting) {
        submission = engine->waiting;
        LIST_DELETE(engine->waiting, submission);
        submission->slot = slot;
        slot->busy = true;
        engine->heard = atomic_load(&engine->num_expected);
        engine->patience_ns = engine_patience_ns(engine);
    }
    pthread_mutex_unlock(&engine->lock);
    return submission;
}

// ---- the shape: submissions of equal shape take about as long ----

// The first four binary digits. A sequence that grows by a few tokens keeps its shape.
static uint64_t about(uint64_t number)
{
    uint32_t digits = 0;
    for (uint64_t rest = number; rest; rest /= 2)
        digits++;
    return digits > 4 ? number >> (digits - 4) << (digits - 4) : number;
}

static uint64_t shape_of(const struct submission *s)
{
    uint64_t hash = XXH3_64bits(&s->num_ranges, sizeof s->num_ranges);
    for (uint32_t i = 0; i < s->num_groups; i++) {
        const struct group *group = &s->groups[i];
        const uint32_t counts[] = {group->kind, group->num_runs, group->num_items,
                                   group->num_tokens, group->num_merges};
        hash = XXH3_64bits_withSeed(&group->geometry, sizeof group->geometry, hash);
        hash = XXH3_64bits_withSeed(counts, sizeof counts, hash);
    }
    for (uint32_t i = 0; i < s->num_runs; i++) {
        const struct engine_run *run = &s->runs[i];
        const uint64_t sizes[] = {about(run->batch ? run->batch->num_keys : 0), run->num_heads};
        hash = XXH3_64bits_withSeed(sizes, sizeof sizes, hash);
    }
    return hash ? hash : 1;
}

// ---- giving it to the GPU ----

static enum status send(struct submission *s, struct error *error)
{
    struct device *device = &s->engine->device;
    enum status status = record(s, error);
    if (status != STATUS_OK)
        return status;
    VK_TRY(device_submit(device, STREAM_RUNS, s->slot->commands, s->sequence, VK_NULL_HANDLE));
    s->sent = true;
    s->sent_ns = clock_now_ns();
    s->shape = shape_of(s);
fail:
    return status;
}

// Fails a submission of which nothing reached the GPU.
static void give_up(struct submission *s, const struct error *error)
{
    struct engine *engine = s->engine;
    device_log(&engine->device, 0, "submission %llu fails: %s", (unsigned long long)s->sequence,
               error->text);
    // The caller believes that the blocks are zeroed. Losing the device is better than showing one
    // tenant's data to another.
    if (s->num_zeroes)
        device_lose(&engine->device, "%u blocks could not be zeroed: %s", s->num_zeroes,
                    error->text);
    for (uint32_t i = 0; i < s->num_runs; i++) {
        if (plan_group(s, i) != NO_GROUP) {
            plan_break_slices(&s->runs[i]);
            submission_fail(s, i, error);
        }
        plan_forget(s, i);
    }
    pthread_mutex_lock(&engine->lock);
    s->slot->busy = false;
    s->slot = NULL;
    pthread_mutex_unlock(&engine->lock);
}

static void process(struct submission *s)
{
    struct engine *engine = s->engine;
    struct error error = {0};
    pthread_mutex_lock(&engine->lock);
    uint64_t completed = engine->completed;
    pthread_mutex_unlock(&engine->lock);
    pipelines_begin(&engine->pipelines, s->sequence, completed);
    plan_build(s);
    if (stage_in(s) && send(s, &error) != STATUS_OK)
        give_up(s, &error);
    const bool sent = s->sent; // the completer may free `s` from here on
    pthread_mutex_lock(&engine->lock);
    LIST_APPEND(engine->flying, s);
    pthread_mutex_unlock(&engine->lock);
    atomic_fetch_add(&engine->num_flown, 1);
    pthread_cond_broadcast(&engine->changed); // wakes the completer, which takes the lock
    if (sent)
        await_completer(engine);
}

void *submitter_thread(void *argument)
{
    struct engine *engine = argument;
    struct submission *submission;
    engine->patience_ns = engine_patience_ns(engine);
    while ((submission = take(engine)))
        process(submission);
    pthread_mutex_lock(&engine->lock);
    engine->submitter_gone = true;
    pthread_cond_broadcast(&engine->changed);
    pthread_mutex_unlock(&engine->lock);
    return NULL;
}
