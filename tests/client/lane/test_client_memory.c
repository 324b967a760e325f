// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_client_memory.c - allocations of the library fail, each one that a call makes, once, before
// and after the daemon has the command. The call says NO_MEMORY or does without. The session goes
// on, the same call succeeds afterwards, and the daemon holds nothing that the caller does not know
// of. With the real daemon; the linker wraps malloc and its kin, which fail in the calling thread.

#include "aule/sequence.h"
#include "fakes/failing_memory.h"
#include "rigs/client_step.h"

#include <string.h>

enum { MANY = 60 }; // the most allocations that one call has

// ---- failing allocations ----

static unsigned fail_at; // the n-th allocation of the next call

static enum aule_status told(enum aule_status status)
{
    failing_countdown = 0;
    fail_at = 0;
    return status;
}

// Allocation fail_at of this call fails. Check's assertions allocate, so there are none inside.
#define FAILING(call) (failing_countdown = fail_at, told(call))

// ---- what a session has before the call ----

static struct scene {
    struct step step; // four leased blocks
    struct aule_batch *batch, *other;
    struct aule_ticket ticket;
    bool ticket_open;
    int32_t more[3];
    bool has_more;
    int32_t tokens[20]; // of the sequence; no other scene has them
    struct aule_sequence *sequence, *fork;
    struct aule_step *plan;
} scene;

static struct step watcher; // another session with the same cache

static void compute_prompt(void)
{
    struct aule_step_entry entry = {.sequence = scene.sequence};
    ok(aule_step_make(scene.plan, &entry, 1, WAIT_MS));
    run_every_layer(&scene.step, aule_step_batch(scene.plan));
}

static struct aule_sequence_params text(void)
{
    return (struct aule_sequence_params){
        .tokens = scene.tokens, .num_tokens = prompt.num_tokens, .publish = true};
}

static void open_scene(int32_t number)
{
    scene = (struct scene){.has_more = false};
    memcpy(scene.tokens, prompt.tokens, sizeof scene.tokens);
    scene.tokens[0] = 1000 + number;
    const struct aule_sequence_params params = text();
    open_step(&scene.step, NULL);
    scene.batch = create_batch(&scene.step);
    run_every_layer(&scene.step, scene.batch);
    ok(aule_run_submit(scene.batch, &scene.step.run, WAIT_MS, &scene.ticket));
    scene.ticket_open = true;
    ok(aule_sequence_create(scene.step.cache, &params, &scene.sequence));
    ok(aule_step_create(scene.step.cache, &scene.plan));
    compute_prompt();
}

// Ends what the caller knows of. Then the daemon may hold nothing for the session.
static void close_scene(void)
{
    struct step *step = &scene.step;
    aule_step_destroy(scene.plan);
    aule_sequence_destroy(scene.sequence);
    aule_sequence_destroy(scene.fork);
    if (scene.ticket_open)
        ok(aule_ticket_wait(step->session, scene.ticket, WAIT_MS, NULL));
    aule_batch_destroy(scene.batch);
    aule_batch_destroy(scene.other);
    ok(aule_blocks_release(step->cache, 4, step->blocks));
    if (scene.has_more)
        ok(aule_blocks_release(step->cache, 3, scene.more));
    const struct aule_cache_state state = state_of(watcher.cache);
    ck_assert_uint_eq(state.leased_blocks + state.held_blocks + state.quarantined_blocks, 0);
    close_step(step);
}

// ---- calls ----

static enum aule_status lease(void)
{
    enum aule_status status = FAILING(aule_blocks_lease(scene.step.cache, 3, WAIT_MS, scene.more));
    scene.has_more = status == AULE_OK;
    return status;
}

// The fourth block is in no batch. It is leased again for the end.
static enum aule_status release(void)
{
    enum aule_status status =
        FAILING(aule_blocks_release(scene.step.cache, 1, &scene.step.blocks[3]));
    if (status == AULE_OK)
        ok(aule_blocks_lease(scene.step.cache, 1, WAIT_MS, &scene.step.blocks[3]));
    return status;
}

static enum aule_status create(void)
{
    scene.step.batch.slot_mapping = NULL; // the first batch writes these
    return FAILING(aule_batch_create(scene.step.cache, &scene.step.batch, &scene.other));
}

static enum aule_status advance(void)
{
    const struct aule_advance next = {.seq_lens_kv = scene.step.lens,
                                      .slot_mapping = scene.step.slots};
    return FAILING(aule_batch_advance(scene.batch, &next));
}

static enum aule_status run(void)
{
    return FAILING(aule_run(scene.batch, &scene.step.run, WAIT_MS, NULL));
}

static enum aule_status submit(void)
{
    struct aule_ticket ticket;
    enum aule_status status =
        FAILING(aule_run_submit(scene.batch, &scene.step.run, WAIT_MS, &ticket));
    if (status == AULE_OK)
        ok(aule_ticket_wait(scene.step.session, ticket, WAIT_MS, NULL));
    return status;
}

static enum aule_status wait_for_run(void)
{
    enum aule_status status =
        FAILING(aule_ticket_wait(scene.step.session, scene.ticket, WAIT_MS, NULL));
    scene.ticket_open = status != AULE_OK;
    return status;
}

static enum aule_status copy(void)
{
    struct aule_ticket ticket;
    enum aule_status status = FAILING(aule_blocks_copy(scene.step.cache, 1, &scene.step.blocks[0],
                                                       &scene.step.blocks[3], WAIT_MS, &ticket));
    if (status == AULE_OK)
        ok(aule_ticket_wait(scene.step.session, ticket, WAIT_MS, NULL));
    return status;
}

static enum aule_status publish(void)
{
    uint32_t existing;
    return FAILING(aule_prefix_publish(scene.step.cache, &prompt, scene.step.blocks, &existing));
}

static enum aule_status publish_sequence(void)
{
    return FAILING(aule_sequence_publish(scene.sequence));
}

static enum aule_status create_sequence(void)
{
    const struct aule_sequence_params params = text();
    ok(aule_sequence_publish(scene.sequence)); // and finds it
    return FAILING(aule_sequence_create(scene.step.cache, &params, &scene.fork));
}

// A token is left to compute.
static struct aule_step_entry next_of(struct aule_sequence *sequence)
{
    static const int32_t token = 7;
    struct aule_sequence_info info;
    ok(aule_sequence_info(sequence, &info));
    if (info.num_tokens == info.num_computed)
        ok(aule_sequence_append(sequence, &token, 1));
    return (struct aule_step_entry){.sequence = sequence};
}

static enum aule_status make_step(void)
{
    struct aule_step_entry entry = next_of(scene.sequence);
    return FAILING(aule_step_make(scene.plan, &entry, 1, WAIT_MS));
}

// The last block is shared, so the step copies it.
static enum aule_status make_step_of_fork(void)
{
    if (!scene.fork)
        ok(aule_sequence_fork(scene.sequence, &scene.fork));
    struct aule_step_entry entry = next_of(scene.fork);
    return FAILING(aule_step_make(scene.plan, &entry, 1, WAIT_MS));
}

static enum aule_status plan(void)
{
    struct aule_step_entry entry = next_of(scene.sequence);
    return FAILING(aule_step_plan(scene.plan, &entry, 1, WAIT_MS));
}

static enum aule_status destroy(void)
{
    failing_countdown = fail_at;
    aule_batch_destroy(scene.batch);
    scene.batch = NULL;
    return told(AULE_OK);
}

static enum aule_status destroy_sequence(void)
{
    failing_countdown = fail_at;
    aule_sequence_destroy(scene.sequence);
    scene.sequence = NULL;
    return told(AULE_OK);
}

static const struct {
    enum aule_status (*make)(void);
    bool needs_none; // no allocation
} calls[] = {
    {lease, false},
    {release, false},
    {create, false},
    {advance, false},
    {run, true},
    {submit, true},
    {wait_for_run, true},
    {copy, false},
    {publish, false},
    {publish_sequence, false},
    {create_sequence, false},
    {make_step, false},
    {make_step_of_fork, false},
    {plan, false},
    {destroy, false},
    {destroy_sequence, false},
};

// The n-th allocation of the call fails, if there is one.
static void fail_and_repeat(enum aule_status (*call)(void), unsigned n)
{
    atomic_store(&failing_count, 0);
    fail_at = n;
    enum aule_status status = call();
    if (status == AULE_OK)
        return;
    ck_assert_msg(status == AULE_NO_MEMORY && atomic_load(&failing_count) == 1,
                  "allocation %u: %s: %s", n, aule_status_name(status), aule_error());
    ok(call());
}

START_TEST(an_allocation_that_fails_around_a_ring_command_loses_nothing)
{
    unsigned n = 0;
    watcher.session = open_session(NULL);
    watcher.cache = open_cache(watcher.session);
    do {
        ck_assert_uint_lt(n, MANY);
        open_scene(_i * MANY + (int32_t)n);
        fail_and_repeat(calls[_i].make, ++n);
        close_scene();
    } while (atomic_load(&failing_count) > 0);
    ck_assert(calls[_i].needs_none ? n == 1 : n > 1);
    aule_cache_close(watcher.cache);
    aule_session_close(watcher.session);
}
END_TEST

static void launch_daemon(void)
{
    launch(NULL);
}

int main(void)
{
    const struct entry every[] = {{an_allocation_that_fails_around_a_ring_command_loses_nothing,
                                   sizeof calls / sizeof *calls},
                                  {NULL, 0}};
    Suite *suite = suite_create("client, memory");
    add_shared(suite, "calls", launch_daemon, every);
    return check_main(suite);
}
