// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// ring_end.c - see ring_end.h.

#include "ring_end.h"

#include "daemon_step.h"
#include "daemon_suite.h"

#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

const char *bell_path(void)
{
    static char path[sizeof daemon_.socket + 8];
    snprintf(path, sizeof path, "%s.bell", daemon_.socket);
    return path;
}

struct ring_end open_end(void)
{
    return open_end_of(ARENA);
}

struct ring_end open_end_of(uint64_t arena_size)
{
    struct ring_end end = {.raw = raw_session(daemon_.socket, arena_size)};
    const struct wire_hello_reply *hello = &end.raw->hello;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    ck_assert_uint_gt(hello->ring_entries, 0);
    const struct ring_place place = {
        .submissions = (uint8_t *)end.raw->segment + hello->submission_ring_offset,
        .completions = (uint8_t *)end.raw->segment + hello->completion_ring_offset,
        .num_entries = hello->ring_entries,
        .submission_size = hello->ring_entry_size,
        .completion_size = WIRE_COMPLETION_SIZE,
    };
    ring_client_init(&end.ring, &place);
    ck_assert_str_eq(hello->doorbell, strrchr(bell_path(), '/') + 1);
    memcpy(address.sun_path, bell_path(), strlen(bell_path()) + 1);
    end.bell = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    ck_assert_int_eq(connect(end.bell, (const struct sockaddr *)&address, sizeof address), 0);
    return end;
}

void close_end(struct ring_end *end)
{
    close(end->bell);
    raw_close(end->raw);
}

void ring_bell(struct ring_end *end)
{
    if (ring_ear(&end->ring) == RING_ASLEEP)
        send(end->bell, "", 1, MSG_NOSIGNAL);
}

uint32_t put(struct ring_end *end, struct wire_submission submission)
{
    uint64_t entry[WIRE_SUBMISSION_SIZE / 8];
    submission.sequence = end->ring.submitted;
    wire_put_submission(&submission, entry);
    ck_assert(ring_submit(&end->ring, entry));
    ring_bell(end);
    return submission.sequence;
}

struct wire_completion get(struct ring_end *end)
{
    const struct timespec rest = {.tv_nsec = 100000000};
    uint64_t entry[WIRE_COMPLETION_SIZE / 8];
    struct wire_completion completion;
    enum ring_look look;
    for (int i = 0; (look = ring_consume(&end->ring, entry)) == RING_NOTHING && i < SLEEP_MS / 100;
         i++)
        ring_sleep(&end->ring, end->ring.consumed, &rest);
    ck_assert_int_eq(look, RING_TAKEN);
    wire_get_completion(entry, &completion);
    return completion;
}

struct wire_completion call(struct ring_end *end, struct wire_submission submission)
{
    uint32_t sequence = put(end, submission);
    struct wire_completion completion = get(end);
    ck_assert_uint_eq(completion.sequence, sequence);
    return completion;
}

struct wire_submission run_of(uint64_t batch)
{
    return (struct wire_submission){.command = WIRE_COMMAND_RUN,
                                    .run = run_request(batch, SLEEP_MS).run};
}

struct wire_submission wait_of(uint64_t ticket)
{
    return (struct wire_submission){.command = WIRE_COMMAND_WAIT, .wait = {ticket, SLEEP_MS}};
}

uint64_t fresh_batch(struct raw_client *raw, uint64_t cache)
{
    static int32_t block;
    static int64_t slots[BLOCK];
    lease(raw, cache, 1, &block);
    slots_of(block, slots);
    const struct wire_request request = fill_request(cache, &block, slots);
    return create_batch(raw, &request);
}

// ---- commands in places ----

struct wire_submission placed_at(struct ring_end *end, const struct wire_request *request,
                                 uint64_t offset, uint64_t room)
{
    struct wire_request whole = *request;
    struct wire_buffer buffer;
    struct error error;
    whole.session = whole.session ? whole.session : end->raw->session;
    whole.epoch = whole.epoch ? whole.epoch : end->raw->epoch;
    ck_assert_msg(wire_encode_request(&whole, &buffer, &error) == STATUS_OK, "%s", error.text);
    memcpy(raw_arena(end->raw) + offset, buffer.data, buffer.size);
    const struct wire_submission submission = {
        .command = request->command, .message = {offset, buffer.size}, .room = room};
    wire_buffer_finish(&buffer);
    return submission;
}

struct wire_submission placed(struct ring_end *end, const struct wire_request *request)
{
    return placed_at(end, request, PLACE, ROOM);
}

struct wire_reply reply_of(const struct ring_end *end, const struct wire_completion *completion)
{
    static uint64_t copy[ROOM / 8];
    struct wire_reply reply;
    struct error error;
    ck_assert_msg(completion->status == STATUS_OK, "%s", completion->text);
    ck_assert_uint_le(completion->ticket, ROOM);
    memcpy(copy, raw_arena(end->raw) + PLACE, completion->ticket);
    ck_assert_msg(wire_decode_reply(copy, completion->ticket, &reply, &error) == STATUS_OK, "%s",
                  error.text);
    ck_assert_int_eq(reply.status, STATUS_OK);
    ck_assert_uint_eq(reply.answer, completion->answer);
    return reply;
}

struct wire_reply ask_placed(struct ring_end *end, const struct wire_request *request)
{
    const struct wire_completion completion = call(end, placed(end, request));
    return reply_of(end, &completion);
}

struct wire_request lease_request(uint64_t cache, uint32_t count, int timeout_ms)
{
    return (struct wire_request){.command = WIRE_COMMAND_BLOCKS_LEASE,
                                 .blocks_lease = {cache, count, timeout_ms}};
}
