// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_client_fake_sequence.c - what sequences do with the daemon's blocks: copies that fail, steps
// that rest, and forks in several threads. Each test is a process with a fake daemon in it.

#include "aule/sequence.h"
#include "rigs/client_world.h"

#include <string.h>

enum { BLOCK = 8, MOST_BLOCKS = 4096, MOST_PUBLISHED = 64, NUM_TOKENS = 512 };

// What the daemon knows. Its blocks have ids from 0 on, and no id is leased twice.
struct seen {
    enum { UNKNOWN, LEASED, RELEASED } blocks[MOST_BLOCKS];
    uint32_t num_blocks;
    bool fails;       // the next copy ends with AULE_NO_MEMORY
    bool silent;      // a wait has no answer
    uint32_t waits;   // that find a copy still under way
    bool busy;        // a copy that does not wait for a ticket gets none
    uint64_t copying; // the ticket of a copy that nobody has waited for; 0: none
    int32_t from, to; // of the last copy
    int32_t published[MOST_PUBLISHED];
};

static void answer_lease(struct fake_daemon *daemon, struct seen *seen, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        ck_assert_uint_lt(seen->num_blocks, MOST_BLOCKS);
        seen->blocks[seen->num_blocks] = LEASED;
        daemon->blocks[i] = (int32_t)seen->num_blocks++;
    }
}

static void note_release(struct seen *seen, const struct wire_ints *blocks)
{
    for (uint32_t i = 0; i < blocks->count; i++) {
        ck_assert_int_eq(seen->blocks[blocks->data[i]], LEASED);
        seen->blocks[blocks->data[i]] = RELEASED;
    }
}

static void answer_copy(struct seen *seen, const struct wire_blocks_copy *copy,
                        struct wire_reply *reply)
{
    ck_assert_uint_eq(copy->flags & WIRE_RUN_DETACHED, 0);
    if (seen->busy && copy->timeout_ms == 0) {
        *reply = (struct wire_reply){
            .status = STATUS_BUSY, .message = "no ticket is free", .answer = WIRE_ANSWER_EMPTY};
        return;
    }
    seen->copying = reply->run.ticket;
    seen->from = copy->from.data[0];
    seen->to = copy->to.data[0];
}

static enum fake_action answer_wait(struct seen *seen, const struct wire_wait *wait,
                                    struct wire_reply *reply)
{
    ck_assert_int_ge(wait->timeout_ms, 0); // else a silent daemon would keep the client for ever
    if (seen->silent)
        return FAKE_SILENCE;
    if (seen->waits > 0) {
        seen->waits--;
        *reply = (struct wire_reply){
            .status = STATUS_TIMEOUT, .message = "not done", .answer = WIRE_ANSWER_EMPTY};
        return FAKE_ANSWER;
    }
    if (seen->fails) {
        reply->wait.run_status = STATUS_NO_MEMORY;
        reply->wait.run_message = "as the test wants it";
    }
    seen->fails = false;
    seen->copying = 0;
    return FAKE_ANSWER;
}

static void answer_publish(struct seen *seen, const struct wire_ints *blocks,
                           struct wire_reply *reply)
{
    ck_assert_uint_le(blocks->count, MOST_PUBLISHED);
    memcpy(seen->published, blocks->data, blocks->count * sizeof(int32_t));
    reply->answer = WIRE_ANSWER_PREFIX_PUBLISH;
    reply->prefix_publish.blocks =
        (struct wire_ints){.data = seen->published, .count = blocks->count};
}

static enum fake_action keep(struct fake_daemon *daemon, const struct wire_request *request,
                             struct wire_reply *reply)
{
    struct seen *seen = daemon->context;
    switch (request->command) {
    case WIRE_COMMAND_PREFIX_LOOKUP: reply->answer = WIRE_ANSWER_PREFIX_LOOKUP; break;
    case WIRE_COMMAND_BLOCKS_LEASE: answer_lease(daemon, seen, request->blocks_lease.count); break;
    case WIRE_COMMAND_BLOCKS_RELEASE: note_release(seen, &request->blocks_release.blocks); break;
    case WIRE_COMMAND_BLOCKS_COPY: answer_copy(seen, &request->blocks_copy, reply); break;
    case WIRE_COMMAND_WAIT: return answer_wait(seen, &request->wait, reply);
    case WIRE_COMMAND_PREFIX_PUBLISH:
        answer_publish(seen, &request->prefix_publish.blocks, reply);
        break;
    default: break;
    }
    return FAKE_ANSWER;
}

static struct seen seen;
static struct aule_session *session;
static struct aule_cache *cache;
static struct aule_sequence *sequence;
static int32_t tokens[NUM_TOKENS];

static void open_for(bool publish, int grace_ms)
{
    const struct aule_sequence_params params = {
        .tokens = tokens, .num_tokens = BLOCK / 2, .publish = publish};
    fake_start(&fake, path, keep, &seen);
    session = open_session(grace_ms);
    cache = open_cache(session);
    ok(aule_sequence_create(cache, &params, &sequence));
}

static void open_all(bool publish)
{
    open_for(publish, 0);
}

static void close_all(void)
{
    aule_sequence_destroy(sequence);
    aule_cache_close(cache);
    aule_session_close(session);
}

static enum aule_status step_over(struct aule_step *step, struct aule_sequence *of)
{
    struct aule_step_entry entry = {.sequence = of};
    return aule_step_make(step, &entry, 1, 0);
}

static uint32_t num_computed(const struct aule_sequence *of)
{
    struct aule_sequence_info info;
    ok(aule_sequence_info(of, &info));
    return info.num_computed;
}

// ---- copies ----

START_TEST(a_copy_that_fails_fails_its_step_which_can_be_made_again)
{
    struct aule_step *step;
    struct aule_sequence *fork;
    open_all(false);
    ok(aule_step_create(cache, &step));
    ok(step_over(step, sequence)); // block 0
    ok(aule_sequence_fork(sequence, &fork));
    ok(aule_sequence_append(fork, tokens, 1));
    seen.fails = true;
    expect(step_over(step, fork), AULE_NO_MEMORY, "failed: as the test wants it");
    ck_assert_ptr_null(aule_step_batch(step));
    ck_assert_uint_eq(num_computed(fork), BLOCK / 2);
    ck_assert_int_eq(seen.to, 1);
    ck_assert_int_eq(seen.blocks[1], RELEASED);
    ck_assert_int_eq(seen.blocks[0], LEASED);
    ok(step_over(step, fork));
    ck_assert_uint_eq(num_computed(fork), BLOCK / 2 + 1);
    ck_assert_int_eq(seen.from, 0);
    ck_assert_int_eq(seen.to, 2);
    ck_assert_uint_eq(seen.copying, 0); // the step has waited for it
    aule_sequence_destroy(fork);
    ck_assert_int_eq(seen.blocks[2], RELEASED);
    aule_step_destroy(step);
    close_all();
}
END_TEST

START_TEST(a_reservation_whose_copy_fails_leases_nothing)
{
    struct aule_step *step;
    struct aule_sequence *fork;
    open_all(false);
    ok(aule_step_create(cache, &step));
    ok(step_over(step, sequence));
    ok(aule_sequence_fork(sequence, &fork));
    const struct aule_step_entry entries[] = {{fork, 2 * BLOCK, 0}, {sequence, 1, 0}};
    seen.fails = true;
    expect(aule_sequences_reserve(entries, 2, 0), AULE_NO_MEMORY, "as the test wants it");
    ck_assert_uint_gt(seen.num_blocks, 1);
    for (uint32_t i = 1; i < seen.num_blocks; i++)
        ck_assert_int_eq(seen.blocks[i], RELEASED);
    ok(aule_sequences_reserve(entries, 2, 0));
    aule_sequence_destroy(fork);
    aule_step_destroy(step);
    close_all();
}
END_TEST

START_TEST(a_step_waits_for_a_ticket_of_its_copy_also_if_it_has_a_batch)
{
    struct aule_step *step;
    struct aule_sequence *fork;
    open_all(false);
    ok(aule_step_create(cache, &step));
    ok(step_over(step, sequence));
    ok(aule_sequence_fork(sequence, &fork));
    ok(aule_sequence_append(fork, tokens, 1));
    seen.busy = true;
    struct aule_step_entry entry = {.sequence = fork};
    ok(aule_step_make(step, &entry, 1, 1000));
    ck_assert_uint_eq(num_computed(fork), BLOCK / 2 + 1);
    for (uint32_t i = 0; i + 1 < seen.num_blocks; i++) // block 0 and the copy are in use
        ck_assert_int_eq(seen.blocks[i], i == 0 ? LEASED : RELEASED);
    aule_sequence_destroy(fork);
    aule_step_destroy(step);
    close_all();
}
END_TEST

START_TEST(a_step_waits_for_its_copy_as_long_as_the_daemon_answers)
{
    struct aule_step *step;
    struct aule_sequence *fork;
    open_for(false, 300);
    ok(aule_step_create(cache, &step));
    ok(step_over(step, sequence));
    ok(aule_sequence_fork(sequence, &fork));
    ok(aule_sequence_append(fork, tokens, 1));
    seen.waits = 3;
    ok(step_over(step, fork));
    ck_assert_uint_eq(seen.waits, 0);
    ck_assert_uint_eq(seen.copying, 0);
    ok(aule_sequence_append(sequence, tokens, 1));
    ok(aule_sequence_append(fork, tokens, 1));
    aule_sequence_destroy(fork);
    ok(aule_sequence_fork(sequence, &fork));
    ok(aule_sequence_append(fork, tokens, 2));
    seen.silent = true;
    expect(step_over(step, fork), AULE_DAEMON_GONE, "did not answer");
    aule_sequence_destroy(fork);
    aule_step_destroy(step);
    close_all();
}
END_TEST

// ---- rest ----

START_TEST(a_step_that_rests_has_no_batch_until_it_is_made_again)
{
    static const uint8_t mask[BLOCK] = {0};
    struct aule_step *step;
    struct aule_batch *batch;
    open_all(false);
    ok(aule_step_create(cache, &step));
    aule_step_rest(step); // it has none yet
    aule_step_rest(NULL);
    ok(step_over(step, sequence));
    aule_step_rest(step);
    aule_step_rest(step);
    ck_assert_uint_eq(atomic_load(&fake.seen[WIRE_COMMAND_BATCH_DESTROY]), 1);
    ck_assert_ptr_null(aule_step_batch(step));
    expect(aule_step_masked(step, mask, sizeof mask, &batch), AULE_INVALID, "not made");
    ok(aule_sequence_append(sequence, tokens, 1));
    ok(step_over(step, sequence));
    ck_assert_ptr_nonnull(aule_step_batch(step));
    ck_assert_uint_eq(atomic_load(&fake.seen[WIRE_COMMAND_BATCH_CREATE]), 2);
    ck_assert_uint_eq(atomic_load(&fake.seen[WIRE_COMMAND_BATCH_ADVANCE]), 0);
    aule_step_destroy(step);
    close_all();
}
END_TEST

// ---- threads ----

enum { NUM_THREADS = 3, NUM_ROUNDS = 40 };

// Forks its sequence, which both write, and ends the fork.
static void branch(struct aule_step *step, struct aule_sequence *of)
{
    struct aule_sequence *fork;
    ok(aule_sequence_fork(of, &fork));
    ok(aule_sequence_append(fork, tokens, 1));
    ok(step_over(step, fork));
    ok(aule_sequence_append(of, tokens, 2));
    ok(step_over(step, of));
    aule_sequence_destroy(fork);
}

static void *grow(void *context)
{
    struct aule_sequence *mine = context;
    struct aule_step *step;
    ok(aule_step_create(cache, &step));
    for (int round = 0; round < NUM_ROUNDS; round++) {
        ok(aule_sequence_append(mine, tokens, 3));
        ok(step_over(step, mine));
        if (round % 3 == 0)
            ok(aule_sequence_truncate(mine, num_computed(mine) - 2));
        if (round % 5 == 0)
            branch(step, mine);
    }
    aule_step_destroy(step);
    aule_sequence_destroy(mine);
    return NULL;
}

START_TEST(threads_that_use_forks_of_one_sequence_release_every_block_once)
{
    pthread_t threads[NUM_THREADS];
    struct aule_sequence *forks[NUM_THREADS];
    struct aule_step *step;
    open_all(true);
    ok(aule_step_create(cache, &step));
    ok(aule_sequence_append(sequence, tokens, 2 * BLOCK)); // the last block is part-filled
    ok(step_over(step, sequence));
    for (int i = 0; i < NUM_THREADS; i++)
        ok(aule_sequence_fork(sequence, &forks[i]));
    for (int i = 0; i < NUM_THREADS; i++)
        ck_assert_int_eq(pthread_create(&threads[i], NULL, grow, forks[i]), 0);
    aule_sequence_destroy(sequence); // the threads release its blocks, or this does
    sequence = NULL;
    for (int i = 0; i < NUM_THREADS; i++)
        ck_assert_int_eq(pthread_join(threads[i], NULL), 0);
    aule_step_destroy(step);
    ck_assert_uint_gt(seen.num_blocks, 3);
    for (uint32_t i = 0; i < seen.num_blocks; i++)
        ck_assert_msg(seen.blocks[i] == RELEASED, "block %u is lost", i);
    close_all();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client_fake_sequence");
    add(suite, "sequences",
        (const struct entry[]){
            {a_copy_that_fails_fails_its_step_which_can_be_made_again, 0},
            {a_reservation_whose_copy_fails_leases_nothing, 0},
            {a_step_waits_for_a_ticket_of_its_copy_also_if_it_has_a_batch, 0},
            {a_step_waits_for_its_copy_as_long_as_the_daemon_answers, 0},
            {a_step_that_rests_has_no_batch_until_it_is_made_again, 0},
            {threads_that_use_forks_of_one_sequence_release_every_block_once, 0},
            {NULL, 0},
        });
    return check_main(suite);
}
