// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// test_daemon_places.c - commands in the arena, behind entries of the submission ring of a real
// aule-daemon, sent by a raw client: they do what their messages do, in the ring's order. Bad
// places and bytes that change while the daemon reads them harm nobody else.

#include "rigs/check_main.h"
#include "rigs/daemon_step.h"
#include "rigs/daemon_suite.h"
#include "rigs/dice.h"
#include "rigs/ring_end.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { END = ARENA + (128 << 10) }; // of the bytes for places, which follow the arena

// For a command whose answer is empty.
static void tell(struct ring_end *end, const struct wire_request *request)
{
    const struct wire_completion completion = call(end, placed(end, request));
    ck_assert_msg(completion.status == STATUS_OK, "%s", completion.text);
    ck_assert_uint_eq(completion.answer, WIRE_ANSWER_EMPTY);
}

static void lease_by_ring(struct ring_end *end, uint64_t cache, uint32_t count, int32_t *blocks)
{
    const struct wire_request request = lease_request(cache, count, SLEEP_MS);
    const struct wire_reply reply = ask_placed(end, &request);
    ck_assert_uint_eq(reply.blocks_lease.blocks.count, count);
    memcpy(blocks, reply.blocks_lease.blocks.data, count * sizeof *blocks);
}

static void run_by_ring(struct ring_end *end, uint64_t batch, float value)
{
    put_step(end->raw, value);
    struct wire_completion run = call(end, run_of(batch));
    ck_assert_msg(run.status == STATUS_OK, "%s", run.text);
    ck_assert_int_eq(call(end, wait_of(run.ticket)).run_status, STATUS_OK);
    check_out(end->raw, value);
}

// ---- what they do ----

START_TEST(a_whole_step_goes_by_the_ring_without_a_message)
{
    int32_t block, tokens[BLOCK] = {1, 2, 3, 4, 5, 6, 7, 8};
    int64_t slots[BLOCK];
    start(NULL);
    struct ring_end end = open_end();
    uint64_t cache = open_cache(end.raw, "c");
    lease_by_ring(&end, cache, 1, &block);
    slots_of(block, slots);
    const struct wire_request create = fill_request(cache, &block, slots);
    const struct wire_reply made = ask_placed(&end, &create);
    uint64_t batch = made.batch_create.batch;
    ck_assert_uint_eq(made.batch_create.num_tokens, BLOCK);
    run_by_ring(&end, batch, 3);
    const struct wire_request publish = {
        .command = WIRE_COMMAND_PREFIX_PUBLISH,
        .prefix_publish = {.cache = cache, .tokens = {tokens, BLOCK}, .blocks = {&block, 1}}};
    const struct wire_reply published = ask_placed(&end, &publish);
    ck_assert_uint_eq(published.prefix_publish.blocks.count, 1);
    ck_assert_int_eq(published.prefix_publish.blocks.data[0], block);
    ck_assert_uint_eq(raw_inspect(end.raw).held_blocks, 1);
    tell(&end,
         &(struct wire_request){.command = WIRE_COMMAND_BATCH_DESTROY, .batch_destroy = {batch}});
    tell(&end, &(struct wire_request){.command = WIRE_COMMAND_BLOCKS_RELEASE,
                                      .blocks_release = {cache, {&block, 1}}});
    ck_assert_uint_eq(raw_inspect(end.raw).cached_blocks, 1);
    close_end(&end);
}
END_TEST

// The client waits for neither answer. The first block has 1 in each row of V, the second 3. So a
// run that saw only the second block would give 3, and one that was not advanced would, too.
START_TEST(a_run_behind_an_advance_in_one_ring_computes_the_next_step)
{
    static const int32_t cu_seqlens_q[] = {0, BLOCK}, seq_lens[] = {BLOCK};
    int32_t blocks[2], table[2];
    int64_t slots[BLOCK];
    start(NULL);
    struct ring_end end = open_end();
    uint64_t cache = open_cache(end.raw, "c");
    lease_by_ring(&end, cache, 2, blocks);
    slots_of(blocks[0], slots);
    table[0] = blocks[0];
    table[1] = -1;
    const struct wire_request create = {.command = WIRE_COMMAND_BATCH_CREATE,
                                        .batch_create = {.cache = cache,
                                                         .num_seqs = 1,
                                                         .max_blocks = 2,
                                                         .cu_seqlens_q = {cu_seqlens_q, 2},
                                                         .seq_lens_kv = {seq_lens, 1},
                                                         .block_table = {table, 2},
                                                         .slot_mapping = {slots, BLOCK}}};
    uint64_t batch = ask_placed(&end, &create).batch_create.batch;
    run_by_ring(&end, batch, 1);
    slots_of(blocks[1], slots);
    const int32_t entry[] = {0, 1, blocks[1]};
    const struct wire_request advance = {
        .command = WIRE_COMMAND_BATCH_ADVANCE,
        .batch_advance = {.batch = batch, .entries = {entry, 3}, .slot_mapping = {slots, BLOCK}}};
    put_step(end.raw, 3);
    put(&end, placed(&end, &advance));
    put(&end, run_of(batch));
    ck_assert_int_eq(get(&end).status, STATUS_OK);
    struct wire_completion run = get(&end);
    ck_assert_msg(run.status == STATUS_OK, "%s", run.text);
    ck_assert_int_eq(call(&end, wait_of(run.ticket)).run_status, STATUS_OK);
    const float *out = floats_at(end.raw, OUT_AT);
    for (int i = 0; i < BLOCK * DIM; i++)
        ck_assert(out[i] > 1.01f && out[i] < 2.99f);
    close_end(&end);
}
END_TEST

START_TEST(a_lease_that_waits_is_answered_in_its_place)
{
    int32_t blocks[8];
    start((const char *const[]){"--max-blocks", "8", NULL});
    struct ring_end end = open_end();
    uint64_t cache = open_cache(end.raw, "c");
    lease_by_ring(&end, cache, 8, blocks);
    const struct wire_request more = lease_request(cache, 3, SLEEP_MS);
    put(&end, placed(&end, &more));
    release(end.raw, cache, blocks, 4); // by message
    const struct wire_completion completion = get(&end);
    const struct wire_reply reply = reply_of(&end, &completion);
    ck_assert_uint_eq(reply.blocks_lease.blocks.count, 3);
    ck_assert_uint_eq(raw_inspect(end.raw).leased_blocks, 7);
    close_end(&end);
}
END_TEST

START_TEST(refusals_are_those_of_messages)
{
    start((const char *const[]){"--max-blocks", "8", NULL});
    struct ring_end end = open_end();
    uint64_t cache = open_cache(end.raw, "c");
    struct wire_reply reply;
    const struct wire_request requests[] = {
        lease_request(cache, 9, 0),
        lease_request(cache + 1, 1, 0),
        lease_request(cache, 1, -2),
        {.command = WIRE_COMMAND_BATCH_DESTROY, .batch_destroy = {77}},
        {.command = WIRE_COMMAND_BATCH_ADVANCE, .batch_advance = {.batch = 78}},
        {.command = WIRE_COMMAND_BATCH_DESTROY, .session = end.raw->session + 1},
        {.command = WIRE_COMMAND_BATCH_DESTROY, .epoch = end.raw->epoch + 1},
    };
    for (size_t i = 0; i < sizeof requests / sizeof *requests; i++) {
        const struct wire_completion completion = call(&end, placed(&end, &requests[i]));
        raw_call(end.raw, &requests[i], &reply);
        ck_assert_int_ne(reply.status, STATUS_OK);
        ck_assert_int_eq(completion.status, reply.status);
        ck_assert_str_eq(completion.text, reply.message);
    }
    close_end(&end);
}
END_TEST

START_TEST(a_command_without_room_for_its_answer_is_not_done)
{
    start(NULL);
    struct ring_end end = open_end();
    uint64_t cache = open_cache(end.raw, "c");
    const struct wire_request request = lease_request(cache, 4, SLEEP_MS);
    uint8_t *place = raw_arena(end.raw) + PLACE;
    const struct wire_submission cramped = placed_at(&end, &request, PLACE, 20);
    uint8_t before[ROOM];
    memcpy(before, place, sizeof before);
    const struct wire_completion completion = call(&end, cramped);
    ck_assert_int_eq(completion.status, STATUS_LIMIT);
    ck_assert_msg(strstr(completion.text, "may take 528 bytes, and its room has 20"), "%s",
                  completion.text);
    ck_assert_mem_eq(place, before, sizeof before);
    ck_assert_uint_eq(raw_inspect(end.raw).leased_blocks, 0);
    close_end(&end);
}
END_TEST

// Both sessions' entries lie there before the daemon looks. Those of the first take longer than a
// turn may take, and its last one leases all blocks. The second session's lease comes before that.
START_TEST(a_session_with_heavy_entries_keeps_its_turn_short)
{
    enum { ENTRIES_A_TURN = 32, COLUMNS = 2 << 20, LARGE_ARENA = 16 << 20, TABLE = 1 << 20 };
    static const int32_t cu_seqlens_q[] = {0, 1}, seq_lens[] = {COLUMNS * BLOCK};
    int32_t blocks[8];
    start((const char *const[]){"--max-blocks", "8", NULL});
    struct ring_end heavy = open_end_of(LARGE_ARENA), light = open_end();
    uint64_t cache = open_cache(heavy.raw, "c"), other = open_cache(light.raw, "c");
    lease(heavy.raw, cache, 8, blocks); // so that the pool has grown
    release(heavy.raw, cache, blocks + 1, 7);
    int32_t *table = (int32_t *)(void *)(raw_arena(heavy.raw) + TABLE);
    for (int i = 0; i < COLUMNS - 1; i++)
        table[i] = blocks[0];
    table[COLUMNS - 1] = blocks[1]; // not held, so the batch is refused
    const struct wire_request create = {.command = WIRE_COMMAND_BATCH_CREATE,
                                        .batch_create = {.cache = cache,
                                                         .num_seqs = 1,
                                                         .max_blocks = COLUMNS,
                                                         .cu_seqlens_q = {cu_seqlens_q, 2},
                                                         .seq_lens_kv = {seq_lens, 1},
                                                         .block_table_span = {TABLE, COLUMNS}}};
    const struct wire_request all = lease_request(cache, 7, 0), one = lease_request(other, 1, 0);
    const struct wire_submission batch = placed_at(&heavy, &create, 65536, ROOM),
                                 last = placed(&heavy, &all);
    ck_assert_int_eq(kill(daemon_.pid, SIGSTOP), 0);
    for (int i = 1; i < ENTRIES_A_TURN; i++)
        put(&heavy, batch);
    put(&heavy, last);
    put(&light, placed(&light, &one));
    ck_assert_int_eq(kill(daemon_.pid, SIGCONT), 0);
    ck_assert_int_eq(get(&light).status, STATUS_OK);
    for (int i = 1; i < ENTRIES_A_TURN; i++) {
        const struct wire_completion completion = get(&heavy);
        ck_assert_msg(strstr(completion.text, "is not held"), "%s", completion.text);
    }
    ck_assert_int_eq(get(&heavy).status, STATUS_NO_BLOCKS);
    close_end(&light);
    close_end(&heavy);
}
END_TEST

// The arena is the program's alone.
START_TEST(the_last_bytes_behind_the_arena_are_a_place_and_no_tensor)
{
    start(NULL);
    struct ring_end end = open_end();
    uint64_t batch = fresh_batch(end.raw, open_cache(end.raw, "c"));
    const struct wire_request destroy = {.command = WIRE_COMMAND_BATCH_DESTROY,
                                         .batch_destroy = {batch}};
    struct wire_submission run = run_of(batch);
    ck_assert_uint_eq(end.raw->hello.arena_size, ARENA);
    ck_assert_uint_eq(end.raw->hello.places_size, END - ARENA);
    run.run.entry.out.offset = ARENA;
    const struct wire_completion refusal = call(&end, run);
    ck_assert_msg(refusal.status == STATUS_OUT_OF_RANGE, "%s", refusal.text);
    const struct wire_completion done = call(&end, placed_at(&end, &destroy, END - 512, 512));
    ck_assert_msg(done.status == STATUS_OK, "%s", done.text);
    close_end(&end);
}
END_TEST

// ---- bad entries ----

static const struct bad_place {
    const char *text; // in the refusal
    enum status status;
    uint32_t command; // 0: that of the message
    uint64_t offset, count, room;
} bad_places[] = {
    {"names no message", STATUS_INVALID, 0, PLACE, 0, ROOM},
    {"offset 32772, which is no multiple of 8", STATUS_MISALIGNED, 0, PLACE + 4, 128, ROOM},
    {"8 bytes with room for 0 at offset 196608 reaches past the arena and its places, which have "
     "196608",
     STATUS_OUT_OF_RANGE, 0, END, 8, 0},
    {"16 bytes with room for 0 at offset 196600", STATUS_OUT_OF_RANGE, 0, END - 8, 16, 0},
    {"8 bytes with room for 16 at offset 196600", STATUS_OUT_OF_RANGE, 0, END - 8, 8, 16},
    {"18446744073709551615 bytes", STATUS_OUT_OF_RANGE, 0, 8, UINT64_MAX, 0},
    {"room for 18446744073709551615", STATUS_OUT_OF_RANGE, 0, 8, 8, UINT64_MAX},
    {"offset 18446744073709551608", STATUS_OUT_OF_RANGE, 0, UINT64_MAX - 7, 128, 128},
    {"its message is BATCH_DESTROY", STATUS_MALFORMED, WIRE_COMMAND_BATCH_ADVANCE, PLACE, 0, ROOM},
    {"(PREFIX_LOOKUP) has no place", STATUS_UNSUPPORTED, WIRE_COMMAND_PREFIX_LOOKUP, PLACE, 0,
     ROOM},
    {"(CLOSE_SESSION) has no place", STATUS_UNSUPPORTED, WIRE_COMMAND_CLOSE_SESSION, PLACE, 0,
     ROOM},
    {"4000000000 (UNKNOWN) has no place", STATUS_UNSUPPORTED, 4000000000u, PLACE, 0, ROOM},
    {"the message is not aule's", STATUS_MALFORMED, 0, PLACE + 8, 64, ROOM},
};

START_TEST(a_bad_place_is_refused_with_its_values)
{
    const struct bad_place *bad = &bad_places[_i];
    const struct wire_request request = {.command = WIRE_COMMAND_BATCH_DESTROY,
                                         .batch_destroy = {1}};
    start(NULL);
    struct ring_end end = open_end();
    struct wire_submission submission = placed(&end, &request);
    if (bad->command)
        submission.command = bad->command;
    else
        submission.message = (struct wire_span){bad->offset, bad->count};
    submission.room = bad->room;
    const struct wire_completion completion = call(&end, submission);
    ck_assert_msg(completion.status == (int)bad->status && strstr(completion.text, bad->text),
                  "%d: %s", completion.status, completion.text);
    ck_assert_int_eq(call(&end, placed(&end, &request)).status, STATUS_NOT_FOUND); // it goes on
    close_end(&end);
}
END_TEST

START_TEST(a_message_larger_than_any_may_be_is_refused_with_its_size)
{
    enum { LARGE_ARENA = 4 << 20 };
    const struct wire_request request = {.command = WIRE_COMMAND_BATCH_DESTROY};
    start(NULL);
    struct ring_end end = open_end_of(LARGE_ARENA);
    struct wire_submission submission = placed(&end, &request);
    submission.message.count = WIRE_MAX_MESSAGE + 1;
    const struct wire_completion completion = call(&end, submission);
    ck_assert_int_eq(completion.status, STATUS_MALFORMED);
    ck_assert_msg(strstr(completion.text, "1048577 bytes exceeds"), "%s", completion.text);
    close_end(&end);
}
END_TEST

// ---- hostile ----

static void others_still_work(struct ring_end *other, uint64_t batch)
{
    run_by_ring(other, batch, 5);
}

// A process that changes bytes of the place until it is killed.
static pid_t scribble(uint8_t *place)
{
    struct dice dice = {99};
    pid_t scribbler = fork();
    if (scribbler == 0) {
        for (;;) {
            volatile uint8_t *byte = &place[dice_below(&dice, 256)];
            *byte = (uint8_t)(*byte ^ 1u << dice_below(&dice, 8));
        }
    }
    return scribbler;
}

// Any command that the ring takes, over ids that may exist.
static struct wire_request some_request(struct dice *dice, uint64_t cache, uint64_t batch,
                                        int32_t *blocks, int64_t *slots)
{
    const struct wire_ints list = {blocks, 1 + dice_below(dice, 3)};
    switch (dice_below(dice, 8)) {
    case 0: return lease_request(cache, 1, 0);
    case 1:
        return (struct wire_request){.command = WIRE_COMMAND_BLOCKS_RELEASE,
                                     .blocks_release = {cache, list}};
    case 2:
        return (struct wire_request){.command = WIRE_COMMAND_BATCH_ADVANCE,
                                     .batch_advance = {.batch = batch,
                                                       .seq_lens_kv = {blocks, 1},
                                                       .slot_mapping = {slots, BLOCK}}};
    case 3:
        return (struct wire_request){.command = WIRE_COMMAND_BATCH_DESTROY,
                                     .batch_destroy = {batch + dice_below(dice, 2)}};
    case 4:
        return (struct wire_request){
            .command = WIRE_COMMAND_PREFIX_PUBLISH,
            .prefix_publish = {.cache = cache, .tokens = {blocks, 3}, .blocks = list}};
    case 5:
        return (struct wire_request){
            .command = WIRE_COMMAND_BLOCKS_COPY,
            .blocks_copy = {.cache = cache, .from = list, .to = list, .flags = WIRE_RUN_DETACHED}};
    case 6:
        return (struct wire_request){.command = WIRE_COMMAND_CACHE_REPORT,
                                     .cache_report = {.cache = cache, .slots = {slots, 3}}};
    default: return fill_request(cache, blocks, slots);
    }
}

// _i 0: bytes are changed before the entry is there; 1: while the daemon reads them.
START_TEST(messages_of_any_bytes_are_answered_each_and_harm_nobody)
{
    enum { ROUNDS = 1500 };
    struct dice dice = {17};
    int32_t blocks[3] = {0, 1, 2};
    int64_t slots[BLOCK];
    start(NULL);
    struct ring_end good = open_end(), bad = open_end();
    uint64_t cache = open_cache(good.raw, "c"), batch = fresh_batch(good.raw, cache);
    uint64_t own = fresh_batch(bad.raw, open_cache(bad.raw, "c"));
    uint8_t *place = raw_arena(bad.raw) + PLACE;
    slots_of(1, slots);
    const pid_t scribbler = _i ? scribble(place) : 0;
    for (int i = 0; i < ROUNDS; i++) {
        const struct wire_request request = some_request(&dice, cache, own, blocks, slots);
        struct wire_submission submission = placed(&bad, &request);
        for (uint32_t k = 0; k < dice_below(&dice, 5); k++)
            place[dice_below(&dice, (uint32_t)submission.message.count)] =
                (uint8_t)dice_next(&dice);
        const struct wire_completion completion = call(&bad, submission);
        if (completion.status == STATUS_OK && completion.answer == WIRE_ANSWER_RUN)
            call(&bad, wait_of(completion.ticket));
    }
    if (scribbler) {
        kill(scribbler, SIGKILL);
        waitpid(scribbler, NULL, 0);
    }
    others_still_work(&good, batch);
    close_end(&bad);
    close_end(&good);
}
END_TEST

// Leaves `size` bytes of the arena. The rings stay.
static void shrink_arena(struct ring_end *end, uint64_t size)
{
    const uint64_t left = end->raw->hello.arena_offset + size;
    ck_assert_int_eq(ftruncate(end->raw->segment_fd, (off_t)left), 0);
}

static void expect_end(struct ring_end *end)
{
    struct wire_reply reply = {.status = STATUS_OK};
    for (int i = 0; i < DEADLINE_S * 100 && reply.status != STATUS_NO_SESSION; i++) {
        raw_call(end->raw, &(struct wire_request){.command = WIRE_COMMAND_CACHE_STATE}, &reply);
        nap();
    }
    ck_assert_int_eq(reply.status, STATUS_NO_SESSION);
}

// The request ends on the first of two pages; the second page is lost. A daemon whose memcpy() goes
// forward reads the whole request, but cannot know that. It must publish nothing.
START_TEST(a_message_whose_last_page_is_lost_does_nothing_and_ends_its_session_alone)
{
    static const int32_t tokens[BLOCK] = {1, 2, 3, 4, 5, 6, 7, 8};
    int32_t block;
    int64_t slots[BLOCK];
    uint64_t words[WIRE_SUBMISSION_SIZE / 8];
    start(NULL);
    struct ring_end good = open_end(), bad = open_end();
    uint64_t cache = open_cache(bad.raw, "c"), same = open_cache(good.raw, "c");
    lease_by_ring(&bad, cache, 1, &block);
    slots_of(block, slots);
    const struct wire_request create = fill_request(cache, &block, slots);
    run_by_ring(&bad, ask_placed(&bad, &create).batch_create.batch, 3);
    const struct wire_request publish = {
        .command = WIRE_COMMAND_PREFIX_PUBLISH,
        .prefix_publish = {.cache = cache, .tokens = {tokens, BLOCK}, .blocks = {&block, 1}}};
    struct wire_submission submission = placed_at(&bad, &publish, PLACE - WIRE_PAGE, ROOM);
    submission.message.count = 2 * WIRE_PAGE;
    submission.sequence = bad.ring.submitted;
    wire_put_submission(&submission, words);
    shrink_arena(&bad, PLACE);
    ck_assert(ring_submit(&bad.ring, words));
    ring_bell(&bad);
    expect_end(&bad);
    ck_assert_uint_eq(raw_inspect(good.raw).held_blocks, 0);
    ck_assert_uint_eq(raw_inspect(good.raw).cached_blocks, 0);
    others_still_work(&good, fresh_batch(good.raw, same));
    close_end(&bad);
    close_end(&good);
}
END_TEST

// Two sessions: one holds all eight blocks, and a lease of the other waits for three, by ring.
static struct waiting_lease {
    struct ring_end holder, waiter;
    uint64_t cache; // the holder's
    int32_t blocks[8];
} open_waiting_lease(void)
{
    struct waiting_lease w;
    start((const char *const[]){"--max-blocks", "8", NULL});
    w.holder = open_end();
    w.waiter = open_end();
    w.cache = open_cache(w.holder.raw, "c");
    lease_by_ring(&w.holder, w.cache, 8, w.blocks);
    const struct wire_request more = lease_request(open_cache(w.waiter.raw, "c"), 3, SLEEP_MS);
    put(&w.waiter, placed(&w.waiter, &more));
    // No command has this number. When it is refused, the daemon has taken the lease, too.
    const uint32_t behind = put(&w.waiter, (struct wire_submission){.command = UINT32_MAX});
    ck_assert_uint_eq(get(&w.waiter).sequence, behind);
    return w;
}

// The daemon writes the answer into pages that are gone.
START_TEST(a_segment_shrunk_under_an_answer_ends_its_session_alone)
{
    struct waiting_lease w = open_waiting_lease();
    shrink_arena(&w.waiter, 0);
    release(w.holder.raw, w.cache, w.blocks, 8);
    expect_end(&w.waiter);
    others_still_work(&w.holder, fresh_batch(w.holder.raw, w.cache));
    close_end(&w.waiter);
    close_end(&w.holder);
}
END_TEST

START_TEST(a_session_ends_while_a_lease_of_its_ring_waits)
{
    struct waiting_lease w = open_waiting_lease();
    close_end(&w.waiter);
    while (raw_inspect(w.holder.raw).num_sessions > 1)
        nap();
    release(w.holder.raw, w.cache, w.blocks, 8);
    ck_assert_uint_eq(raw_inspect(w.holder.raw).leased_blocks, 0);
    others_still_work(&w.holder, fresh_batch(w.holder.raw, w.cache));
    close_end(&w.holder);
}
END_TEST

int main(void)
{
    const TTest *const commands[] = {
        a_whole_step_goes_by_the_ring_without_a_message,
        a_run_behind_an_advance_in_one_ring_computes_the_next_step,
        a_lease_that_waits_is_answered_in_its_place,
        refusals_are_those_of_messages,
        a_command_without_room_for_its_answer_is_not_done,
        a_session_with_heavy_entries_keeps_its_turn_short,
        the_last_bytes_behind_the_arena_are_a_place_and_no_tensor,
        a_message_larger_than_any_may_be_is_refused_with_its_size,
        a_message_whose_last_page_is_lost_does_nothing_and_ends_its_session_alone,
        a_segment_shrunk_under_an_answer_ends_its_session_alone,
        a_session_ends_while_a_lease_of_its_ring_waits,
        NULL,
    };
    const TTest *const places[] = {a_bad_place_is_refused_with_its_values, NULL};
    const TTest *const damaged[] = {messages_of_any_bytes_are_answered_each_and_harm_nobody, NULL};
    Suite *suite = suite_create("daemon_places");
    suite_add(suite, "commands", commands, 1);
    suite_add(suite, "places", places, sizeof bad_places / sizeof *bad_places);
    suite_add(suite, "damaged", damaged, 2);
    return check_main(suite);
}
