// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_client_fake_publish.c - the messages that publish blocks: what a sequence sends as it grows,
// and which blocks go back if the cache has others for the same tokens. Each test is a process with
// a fake daemon in it.

#include "aule/sequence.h"
#include "rigs/client_world.h"

#include <string.h>

enum { MOST = 8, BLOCK = 8 };

// What the daemon sees, and what it answers to the next publishing.
struct seen {
    int32_t status;
    int32_t instead[MOST]; // of block i of the message the cache has this one; 0: none
    struct wire_prefix_publish publish;
    int32_t first_token, blocks[MOST], released[4 * MOST], answer[MOST];
    uint32_t num_released, next_block;
};

static void answer_publish(struct seen *seen, const struct wire_prefix_publish *publish,
                           struct wire_reply *reply)
{
    uint32_t count = publish->blocks.count;
    seen->publish = *publish;
    seen->first_token = publish->tokens.data[0];
    memcpy(seen->blocks, publish->blocks.data, count * sizeof(int32_t));
    for (uint32_t i = 0; i < count; i++)
        seen->answer[i] = seen->instead[i] ? seen->instead[i] : seen->blocks[i];
    reply->status = seen->status;
    reply->message = seen->status ? "as the test wants it" : "";
    seen->status = 0;
    if (reply->status)
        return;
    reply->answer = WIRE_ANSWER_PREFIX_PUBLISH;
    reply->prefix_publish.blocks = (struct wire_ints){.data = seen->answer, .count = count};
}

static enum fake_action keep(struct fake_daemon *daemon, const struct wire_request *request,
                             struct wire_reply *reply)
{
    struct seen *seen = daemon->context;
    switch (request->command) {
    case WIRE_COMMAND_PREFIX_LOOKUP: reply->answer = WIRE_ANSWER_PREFIX_LOOKUP; break;
    case WIRE_COMMAND_BLOCKS_LEASE: // blocks of this lease have ids of their own
        for (uint32_t i = 0; i < request->blocks_lease.count; i++)
            daemon->blocks[i] = (int32_t)seen->next_block++;
        break;
    case WIRE_COMMAND_BLOCKS_RELEASE:
        for (uint32_t i = 0; i < request->blocks_release.blocks.count; i++)
            seen->released[seen->num_released++] = request->blocks_release.blocks.data[i];
        break;
    case WIRE_COMMAND_PREFIX_PUBLISH: answer_publish(seen, &request->prefix_publish, reply); break;
    default: break;
    }
    return FAKE_ANSWER;
}

static struct seen seen;
static struct aule_session *session;
static struct aule_cache *cache;
static struct aule_step *step;
static struct aule_sequence *sequence;
static int32_t tokens[MOST * BLOCK];

static void open_all(void)
{
    seen = (struct seen){.next_block = 10};
    for (int i = 0; i < MOST * BLOCK; i++)
        tokens[i] = 100 + i;
    fake_start(&fake, path, keep, &seen);
    session = open_session(0);
    cache = open_cache(session);
    ok(aule_step_create(cache, &step));
    const struct aule_sequence_params params = {
        .tokens = tokens, .num_tokens = 2 * BLOCK, .publish = true};
    ok(aule_sequence_create(cache, &params, &sequence));
}

static void close_all(void)
{
    aule_sequence_destroy(sequence);
    aule_step_destroy(step);
    aule_cache_close(cache);
    aule_session_close(session);
}

// Appends `count` tokens, the next of tokens[], and computes them; publishes what is computed.
static void grow(struct aule_sequence *of, uint32_t count)
{
    struct aule_sequence_info info;
    ok(aule_sequence_info(of, &info));
    ok(aule_sequence_append(of, tokens + info.num_tokens, count));
    struct aule_step_entry entry = {.sequence = of};
    ok(aule_step_make(step, &entry, 1, 0));
}

static uint32_t num_published(const struct aule_sequence *of)
{
    struct aule_sequence_info info;
    ok(aule_sequence_info(of, &info));
    return info.num_published;
}

static unsigned num_seen(enum wire_command command)
{
    return atomic_load(&fake.seen[command]);
}

START_TEST(a_sequence_sends_only_the_tokens_of_new_blocks)
{
    open_all();
    grow(sequence, 0);
    grow(sequence, BLOCK); // publishes the prompt
    ck_assert(!seen.publish.has_parent);
    ck_assert_uint_eq(seen.publish.tokens.count, 2 * BLOCK);
    grow(sequence, 1);
    ck_assert(seen.publish.has_parent);
    ck_assert_int_eq(seen.publish.parent, 11);
    ck_assert_uint_eq(seen.publish.tokens.count, BLOCK);
    ck_assert_int_eq(seen.first_token, 100 + 2 * BLOCK);
    ck_assert_uint_eq(seen.publish.blocks.count, 1);
    ck_assert_int_eq(seen.blocks[0], 12);
    ck_assert_uint_eq(num_published(sequence), 3);
    close_all();
}
END_TEST

START_TEST(a_sequence_whose_last_published_block_left_the_index_sends_all)
{
    open_all();
    grow(sequence, 0);
    grow(sequence, BLOCK);
    seen.status = AULE_NOT_FOUND;
    seen.instead[1] = 77; // another session's, which stayed in the index
    grow(sequence, 1);
    ck_assert_uint_eq(num_seen(WIRE_COMMAND_PREFIX_PUBLISH), 3);
    ck_assert(!seen.publish.has_parent);
    ck_assert_uint_eq(seen.publish.tokens.count, 3 * BLOCK);
    ck_assert_uint_eq(num_published(sequence), 3);
    seen.instead[1] = 0;
    grow(sequence, BLOCK);
    grow(sequence, 1);
    ck_assert_int_eq(seen.publish.parent, 12);
    close_all();
}
END_TEST

START_TEST(blocks_whose_writes_are_not_queued_are_published_later)
{
    open_all();
    grow(sequence, 0);
    seen.status = AULE_UNWRITTEN;
    grow(sequence, 1);
    ck_assert_uint_eq(num_published(sequence), 0);
    grow(sequence, 1);
    ck_assert_uint_eq(num_seen(WIRE_COMMAND_PREFIX_PUBLISH), 2);
    ck_assert_uint_eq(num_published(sequence), 2);
    close_all();
}
END_TEST

START_TEST(the_daemon_releases_replaced_blocks_unless_a_fork_has_them)
{
    struct aule_sequence *fork;
    open_all();
    grow(sequence, 0);
    ok(aule_sequence_fork(sequence, &fork));
    seen.instead[0] = 50;
    grow(sequence, BLOCK);
    ck_assert(!seen.publish.releases);
    ck_assert_uint_eq(num_seen(WIRE_COMMAND_BLOCKS_RELEASE), 0); // the fork still has block 10
    aule_sequence_destroy(fork);                                 // which publishes as well
    ck_assert_uint_eq(seen.num_released, 2);
    ck_assert_int_eq(seen.released[0], 10);
    ck_assert_int_eq(seen.released[1], 50); // its own hold of that block
    seen.instead[0] = 60;
    grow(sequence, 1);
    ck_assert(seen.publish.releases);
    unsigned before = num_seen(WIRE_COMMAND_BLOCKS_RELEASE);
    grow(sequence, BLOCK - 1);
    seen.instead[0] = 0;
    grow(sequence, 1);
    ck_assert_int_eq(seen.publish.parent, 60);
    ck_assert_uint_eq(num_seen(WIRE_COMMAND_BLOCKS_RELEASE), before);
    close_all();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("client_fake_publish");
    add(suite, "publishing",
        (const struct entry[]){
            {a_sequence_sends_only_the_tokens_of_new_blocks, 0},
            {a_sequence_whose_last_published_block_left_the_index_sends_all, 0},
            {blocks_whose_writes_are_not_queued_are_published_later, 0},
            {the_daemon_releases_replaced_blocks_unless_a_fork_has_them, 0},
            {NULL, 0},
        });
    return check_main(suite);
}
