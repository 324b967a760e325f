// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// raw_client.c - see raw_client.h.

#include "raw_client.h"

#include "base/socket_rule.h"

#include <check.h>
#include <fcntl.h>
#include <nng/protocol/reqrep0/req.h>
#include <nng/supplemental/util/platform.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum { ANSWER_DEADLINE_MS = 120000 };

// EAGAIN: the queue of connections that are not accepted yet is full, for example after hundreds at
// once.
static int dial(nng_socket socket, const char *url)
{
    enum { AGAIN_MS = 10 };
    int reason = nng_dial(socket, url, NULL, 0);
    for (int waited_ms = 0; reason == NNG_EAGAIN && waited_ms < ANSWER_DEADLINE_MS;
         waited_ms += AGAIN_MS) {
        nng_msleep(AGAIN_MS);
        reason = nng_dial(socket, url, NULL, 0);
    }
    return reason;
}

struct raw_client *raw_open(const char *socket_path)
{
    struct raw_client *raw = calloc(1, sizeof *raw);
    char url[160];
    ck_assert_ptr_nonnull(raw);
    raw->segment_fd = -1;
    snprintf(raw->path, sizeof raw->path, "%s", socket_path);
    snprintf(url, sizeof url, "ipc://%s", socket_path);
    ck_assert_int_eq(nng_req0_open(&raw->socket), 0);
    nng_socket_set_ms(raw->socket, NNG_OPT_REQ_RESENDTIME, NNG_DURATION_INFINITE);
    nng_socket_set_ms(raw->socket, NNG_OPT_RECVTIMEO, ANSWER_DEADLINE_MS);
    nng_socket_set_ms(raw->socket, NNG_OPT_SENDTIMEO, ANSWER_DEADLINE_MS);
    int reason = dial(raw->socket, url);
    ck_assert_msg(reason == 0, "nng_dial(%s): %s", url, nng_strerror(reason));
    return raw;
}

void raw_close(struct raw_client *raw)
{
    if (!raw)
        return;
    nng_close(raw->socket);
    raw_close(raw->control);
    if (raw->segment)
        munmap(raw->segment, raw->hello.segment_size);
    if (raw->segment_fd >= 0)
        close(raw->segment_fd);
    free(raw);
}

// Takes ownership of the message.
static void take_answer(struct raw_client *raw, nng_msg *message, struct wire_reply *reply)
{
    struct error error;
    ck_assert_uint_le(nng_msg_len(message), sizeof raw->answer);
    memcpy(raw->answer, nng_msg_body(message), nng_msg_len(message));
    int status = wire_decode_reply(raw->answer, nng_msg_len(message), reply, &error);
    ck_assert_msg(status == STATUS_OK, "the answer does not decode: %s", error.text);
    nng_msg_free(message);
}

static nng_msg *message_of(const void *data, size_t size)
{
    nng_msg *message;
    ck_assert_int_eq(nng_msg_alloc(&message, 0), 0);
    ck_assert_int_eq(nng_msg_append(message, data, size), 0);
    return message;
}

void raw_send(struct raw_client *raw, const void *data, size_t size, struct wire_reply *reply)
{
    nng_msg *message = message_of(data, size);
    ck_assert_int_eq(nng_sendmsg(raw->socket, message, 0), 0);
    int reason = nng_recvmsg(raw->socket, &message, 0);
    ck_assert_msg(reason == 0, "no answer: %s", nng_strerror(reason));
    take_answer(raw, message, reply);
}

static struct wire_buffer encode(struct raw_client *raw, const struct wire_request *request)
{
    struct wire_request filled = *request;
    struct wire_buffer buffer;
    struct error error;
    if (!filled.session)
        filled.session = raw->session;
    if (!filled.epoch)
        filled.epoch = raw->epoch;
    int status = wire_encode_request(&filled, &buffer, &error);
    ck_assert_msg(status == STATUS_OK, "the request does not encode: %s", error.text);
    return buffer;
}

static struct raw_client *control_of(struct raw_client *raw)
{
    char path[sizeof raw->path + sizeof SOCKET_CONTROL];
    snprintf(path, sizeof path, "%s" SOCKET_CONTROL, raw->path);
    if (!raw->control) {
        raw->control = raw_open(path);
        raw->control->one_socket = true;
    }
    return raw->control;
}

void raw_call(struct raw_client *raw, const struct wire_request *request, struct wire_reply *reply)
{
    if (!raw->one_socket && wire_command_rules(request->command) & WIRE_BY_CONTROL)
        raw = control_of(raw);
    struct wire_buffer buffer = encode(raw, request);
    raw_send(raw, buffer.data, buffer.size, reply);
    wire_buffer_finish(&buffer);
}

void raw_begin(struct raw_client *raw, const struct wire_request *request,
               struct raw_pending *pending)
{
    struct wire_buffer buffer = encode(raw, request);
    *pending = (struct raw_pending){.raw = raw};
    ck_assert_int_eq(nng_ctx_open(&pending->context, raw->socket), 0);
    nng_ctx_set_ms(pending->context, NNG_OPT_REQ_RESENDTIME, NNG_DURATION_INFINITE);
    ck_assert_int_eq(nng_aio_alloc(&pending->aio, NULL, NULL), 0);
    nng_aio_set_timeout(pending->aio, ANSWER_DEADLINE_MS);
    nng_aio_set_msg(pending->aio, message_of(buffer.data, buffer.size));
    nng_ctx_send(pending->context, pending->aio);
    nng_aio_wait(pending->aio);
    ck_assert_int_eq(nng_aio_result(pending->aio), 0);
    nng_ctx_recv(pending->context, pending->aio);
    wire_buffer_finish(&buffer);
}

void raw_end(struct raw_pending *pending, struct wire_reply *reply)
{
    nng_aio_wait(pending->aio);
    int reason = nng_aio_result(pending->aio);
    ck_assert_msg(reason == 0, "no answer: %s", nng_strerror(reason));
    take_answer(pending->raw, nng_aio_get_msg(pending->aio), reply);
    nng_aio_free(pending->aio);
    nng_ctx_close(pending->context);
}

void raw_expect(struct raw_client *raw, const struct wire_request *request, int expect)
{
    struct wire_reply reply;
    raw_call(raw, request, &reply);
    ck_assert_msg(reply.status == expect, "%s: %s (%s) instead of %s",
                  wire_command_name(request->command), status_name(reply.status), reply.message,
                  status_name(expect));
    if (expect != STATUS_OK)
        ck_assert_uint_gt(strlen(reply.message), 10);
    wire_reply_finish(&reply);
}

uint64_t raw_device_arena;

void raw_hello(struct raw_client *raw, uint64_t arena_size, struct wire_reply *reply)
{
    const struct wire_request request = {
        .command = WIRE_COMMAND_HELLO,
        .hello = {WIRE_PROTOCOL_MAJOR, WIRE_PROTOCOL_MINOR, "raw", "tests", arena_size,
                  raw_device_arena},
    };
    raw_call(raw, &request, reply);
    if (reply->status != STATUS_OK)
        return;
    ck_assert_int_eq(reply->answer, WIRE_ANSWER_HELLO);
    raw->hello = reply->hello;
    raw->session = reply->hello.session;
    raw->epoch = reply->hello.epoch;
    snprintf(raw->segment_name, sizeof raw->segment_name, "%s", reply->hello.segment_name);
}

void raw_attach(struct raw_client *raw, uint64_t arena_size)
{
    struct wire_reply reply;
    raw_hello(raw, arena_size, &reply);
    ck_assert_msg(reply.status == STATUS_OK, "Hello: %s", reply.message);
    raw->segment_fd = shm_open(raw->segment_name, O_RDWR, 0);
    ck_assert_int_ge(raw->segment_fd, 0);
    raw->segment =
        mmap(NULL, raw->hello.segment_size, PROT_READ | PROT_WRITE, MAP_SHARED, raw->segment_fd, 0);
    ck_assert_ptr_ne(raw->segment, MAP_FAILED);
    const struct wire_segment_header *header = raw->segment;
    ck_assert_uint_eq(header->magic, WIRE_SEGMENT_MAGIC);
    ck_assert_uint_eq(header->version, WIRE_SEGMENT_VERSION);
    ck_assert_uint_eq(header->session, raw->session);
    ck_assert_uint_eq(header->epoch, raw->epoch);
    ck_assert_uint_eq(header->segment_size, raw->hello.segment_size);
    ck_assert_uint_eq(header->arena_offset, raw->hello.arena_offset);
    raw_expect(raw, &(struct wire_request){.command = WIRE_COMMAND_MAPPED}, STATUS_OK);
}

uint8_t *raw_arena(struct raw_client *raw)
{
    return (uint8_t *)raw->segment + raw->hello.arena_offset;
}

struct raw_client *raw_session(const char *socket_path, uint64_t arena_size)
{
    struct raw_client *raw = raw_open(socket_path);
    raw_attach(raw, arena_size);
    return raw;
}

static void ask_metrics(struct raw_client *raw, struct wire_reply *reply)
{
    raw_call(raw, &(struct wire_request){.command = WIRE_COMMAND_METRICS}, reply);
    ck_assert_int_eq(reply->status, STATUS_OK);
    ck_assert_int_eq(reply->answer, WIRE_ANSWER_METRICS);
}

int64_t raw_metric(struct raw_client *raw, const char *name)
{
    int64_t value = -1;
    struct wire_reply reply;
    ask_metrics(raw, &reply);
    const struct wire_metrics_reply *told = &reply.metrics;
    for (uint32_t i = 0; i < told->names.count; i++)
        if (strcmp(told->names.data[i], name) == 0)
            value = told->values.data[i];
    wire_reply_finish(&reply);
    return value;
}

struct daemon_state raw_inspect(struct raw_client *raw)
{
    struct daemon_state state = {.num_sessions = 0};
    struct wire_reply reply;
    ask_metrics(raw, &reply);
    for (uint32_t i = 0; i < reply.metrics.names.count; i++)
        daemon_state_take(&state, reply.metrics.names.data[i],
                          (uint64_t)reply.metrics.values.data[i]);
    wire_reply_finish(&reply);
    ck_assert_uint_eq(state.free_blocks + state.leased_blocks + state.held_blocks +
                          state.cached_blocks + state.quarantined_blocks,
                      state.pool_blocks);
    return state;
}

// ---- without nng ----

int bare_connect(const char *socket_path, bool shake_hands)
{
    static const uint8_t greeting[8] = {0, 'S', 'P', 0, 0, 0x30, 0, 0}; // REQ
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    uint8_t answer[8];
    snprintf(address.sun_path, sizeof address.sun_path, "%s", socket_path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    ck_assert_int_ge(fd, 0);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    if (!shake_hands)
        return fd;
    ck_assert_int_eq(send(fd, greeting, sizeof greeting, MSG_NOSIGNAL), sizeof greeting);
    ck_assert_int_eq(recv(fd, answer, sizeof answer, MSG_WAITALL), sizeof answer);
    ck_assert_uint_eq(answer[5], 0x31); // REP
    return fd;
}

static void put_big_endian(uint8_t *out, uint64_t value, int size)
{
    for (int i = size - 1; i >= 0; i--, value >>= 8)
        out[i] = (uint8_t)value;
}

bool bare_send(int fd, const void *payload, size_t size, uint32_t request_id)
{
    uint8_t *frame = malloc(13 + size);
    ck_assert_ptr_nonnull(frame);
    frame[0] = 1;
    put_big_endian(frame + 1, size + 4, 8);
    put_big_endian(frame + 9, request_id | 0x80000000u, 4);
    memcpy(frame + 13, payload, size);
    ssize_t sent = send(fd, frame, 13 + size, MSG_NOSIGNAL | MSG_DONTWAIT);
    free(frame);
    return sent == (ssize_t)(13 + size);
}
