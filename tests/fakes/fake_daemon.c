// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// fake_daemon.c - see fake_daemon.h. It uses a raw REP socket, so that an unanswered request does
// not block others.

#include "fake_daemon.h"

#include <check.h>
#include <fcntl.h>
#include <nng/protocol/reqrep0/rep.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { POLL_MS = 20 };

static void make_segment(struct fake_daemon *fake, uint64_t session)
{
    if (fake->segment)
        munmap(fake->segment, fake->segment_size);
    if (fake->segment_name[0])
        shm_unlink(fake->segment_name); // the last client ended before it mapped it
    snprintf(fake->segment_name, sizeof fake->segment_name, "%sfake-%d-%u", WIRE_SEGMENT_PREFIX,
             (int)getpid(), (unsigned)session);
    fake->segment_size = fake->head + FAKE_ARENA + fake->places_size;
    int fd = shm_open(fake->segment_name, O_RDWR | O_CREAT | O_EXCL, 0600);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(ftruncate(fd, (off_t)fake->segment_size), 0);
    fake->segment = mmap(NULL, fake->segment_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ck_assert_ptr_ne(fake->segment, MAP_FAILED);
    close(fd);
    *(struct wire_segment_header *)fake->segment = (struct wire_segment_header){
        .magic = WIRE_SEGMENT_MAGIC,
        .version = WIRE_SEGMENT_VERSION,
        .header_bytes = sizeof(struct wire_segment_header),
        .epoch = fake->epoch,
        .session = session,
        .segment_size = fake->segment_size,
        .arena_offset = fake->head,
        .arena_size = FAKE_ARENA,
    };
}

static void hello(struct fake_daemon *fake, struct wire_reply *reply)
{
    uint64_t session = atomic_fetch_add(&fake->sessions, 1) + 1;
    make_segment(fake, session);
    reply->answer = WIRE_ANSWER_HELLO;
    reply->hello = (struct wire_hello_reply){
        .major = WIRE_PROTOCOL_MAJOR,
        .minor = WIRE_PROTOCOL_MINOR,
        .session = session,
        .epoch = fake->epoch,
        .segment_name = fake->segment_name,
        .segment_size = fake->segment_size,
        .arena_offset = fake->head,
        .arena_size = FAKE_ARENA,
        .places_size = fake->places_size,
        .max_message = WIRE_MAX_MESSAGE,
        .max_tickets = 4,
        .max_batches = 4,
        .device_name = "fake",
    };
}

static void lease(struct fake_daemon *fake, uint32_t count, struct wire_reply *reply)
{
    free(fake->blocks);
    fake->blocks = calloc(count ? count : 1, sizeof *fake->blocks);
    ck_assert_ptr_nonnull(fake->blocks);
    for (uint32_t i = 0; i < count; i++)
        fake->blocks[i] = (int32_t)i;
    reply->answer = WIRE_ANSWER_BLOCKS_LEASE;
    reply->blocks_lease.blocks = (struct wire_ints){.data = fake->blocks, .count = count};
}

static const struct wire_wait_reply done = {.num_runs = 1, .num_sessions = 1, .run_message = ""};

static void answer_run(struct fake_daemon *fake, const struct wire_run *run,
                       struct wire_reply *reply)
{
    const uint64_t ticket = ++fake->tickets;
    reply->answer = run->waits ? WIRE_ANSWER_WAIT : WIRE_ANSWER_RUN;
    if (run->waits)
        reply->wait = done;
    else
        reply->run.ticket = ticket;
    reply->ticket = run->waits ? ticket : 0;
}

static void answer(struct fake_daemon *fake, const struct wire_request *request,
                   struct wire_reply *reply)
{
    *reply = (struct wire_reply){.message = "", .answer = WIRE_ANSWER_EMPTY};
    switch (request->command) {
    case WIRE_COMMAND_HELLO: hello(fake, reply); break;
    case WIRE_COMMAND_MAPPED: shm_unlink(fake->segment_name); break;
    case WIRE_COMMAND_PING:
        reply->answer = WIRE_ANSWER_PING;
        reply->ping = (struct wire_ping_reply){.payload = request->ping.payload,
                                               .epoch = fake->epoch,
                                               .version = "fake",
                                               .socket = "",
                                               .major = WIRE_PROTOCOL_MAJOR};
        break;
    case WIRE_COMMAND_CACHE_OPEN:
        reply->answer = WIRE_ANSWER_CACHE_OPEN;
        reply->cache_open.cache = 7;
        break;
    case WIRE_COMMAND_BLOCKS_LEASE: lease(fake, request->blocks_lease.count, reply); break;
    case WIRE_COMMAND_BATCH_CREATE:
        reply->answer = WIRE_ANSWER_BATCH_CREATE;
        reply->batch_create.batch = 9 + fake->batches++;
        break;
    case WIRE_COMMAND_RUN: answer_run(fake, &request->run, reply); break;
    case WIRE_COMMAND_BLOCKS_COPY:
    case WIRE_COMMAND_MERGE:
        reply->answer = WIRE_ANSWER_RUN;
        reply->run.ticket = ++fake->tickets;
        break;
    case WIRE_COMMAND_WAIT:
        reply->answer = WIRE_ANSWER_WAIT;
        reply->wait = done;
        break;
    case WIRE_COMMAND_TICKETS_ENDED:
        reply->answer = WIRE_ANSWER_TICKETS_ENDED;
        reply->tickets_ended.ticket = fake->tickets;
        break;
    default: break;
    }
}

static void send_body(struct fake_daemon *fake, nng_msg *request, const void *data, size_t size)
{
    nng_msg *message;
    ck_assert_int_eq(nng_msg_alloc(&message, 0), 0);
    ck_assert_int_eq(
        nng_msg_header_append(message, nng_msg_header(request), nng_msg_header_len(request)), 0);
    ck_assert_int_eq(nng_msg_append(message, data, size), 0);
    if (nng_sendmsg(fake->socket, message, 0) != 0)
        nng_msg_free(message);
}

static void send_reply(struct fake_daemon *fake, nng_msg *request, const struct wire_reply *reply)
{
    struct wire_buffer buffer;
    struct error error;
    ck_assert_int_eq(wire_encode_reply(reply, &buffer, &error), STATUS_OK);
    send_body(fake, request, buffer.data, buffer.size);
    wire_buffer_finish(&buffer);
}

static void serve(struct fake_daemon *fake, nng_msg *message)
{
    size_t size = nng_msg_len(message);
    void *copy = malloc(size ? size : 1);
    ck_assert_ptr_nonnull(copy);
    memcpy(copy, nng_msg_body(message), size);
    struct wire_request request;
    struct wire_reply reply;
    struct error error;
    ck_assert_int_eq(wire_decode_request(copy, size, &request, &error), STATUS_OK);
    answer(fake, &request, &reply);
    atomic_fetch_add(&fake->seen[request.command], 1);
    enum fake_action action = fake->handler ? fake->handler(fake, &request, &reply) : FAKE_ANSWER;
    if (action == FAKE_ANSWER || action == FAKE_TWICE)
        send_reply(fake, message, &reply);
    if (action == FAKE_TWICE)
        send_reply(fake, message, &reply);
    if (action == FAKE_GARBAGE)
        send_body(fake, message, "no message of aule", 18);
    if (action == FAKE_HANG_UP)
        nng_pipe_close(nng_msg_get_pipe(message));
    free(copy);
}

static void on_pipe_removed(nng_pipe pipe, nng_pipe_ev event, void *context)
{
    struct fake_daemon *fake = context;
    (void)pipe;
    (void)event;
    atomic_fetch_add(&fake->connections_lost, 1);
}

static void *run(void *context)
{
    struct fake_daemon *fake = context;
    nng_msg *message;
    while (!atomic_load(&fake->stopping)) {
        if (nng_recvmsg(fake->socket, &message, 0) != 0)
            continue;
        serve(fake, message);
        nng_msg_free(message);
    }
    return NULL;
}

void fake_start(struct fake_daemon *fake, const char *path, fake_handler handler, void *context)
{
    static uint64_t lives = 1000;
    char url[128];
    *fake = (struct fake_daemon){
        .handler = handler, .context = context, .epoch = ++lives, .head = WIRE_PAGE};
    snprintf(fake->path, sizeof fake->path, "%s", path);
    snprintf(url, sizeof url, "ipc://%s", path);
    ck_assert_int_eq(nng_rep0_open_raw(&fake->socket), 0);
    ck_assert_int_eq(nng_socket_set_ms(fake->socket, NNG_OPT_RECVTIMEO, POLL_MS), 0);
    ck_assert_int_eq(nng_pipe_notify(fake->socket, NNG_PIPE_EV_REM_POST, on_pipe_removed, fake), 0);
    ck_assert_int_eq(nng_listen(fake->socket, url, NULL, 0), 0);
    ck_assert_int_eq(pthread_create(&fake->thread, NULL, run, fake), 0);
}

void fake_stop(struct fake_daemon *fake)
{
    if (!fake->path[0])
        return;
    // Closing the socket under the receiver is no way out: nng 1.5.2 can leave a raw receiver
    // asleep.
    atomic_store(&fake->stopping, true);
    pthread_join(fake->thread, NULL);
    nng_close(fake->socket);
    if (fake->segment)
        munmap(fake->segment, fake->segment_size);
    if (fake->segment_name[0])
        shm_unlink(fake->segment_name); // the client never said that it had mapped it
    free(fake->blocks);
    *fake = (struct fake_daemon){.handler = NULL};
}

uint8_t *fake_arena(const struct fake_daemon *fake)
{
    return fake->segment + fake->head;
}
