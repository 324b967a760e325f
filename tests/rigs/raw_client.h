// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// raw_client.h - the protocol spoken by hand, over nng and wire.h or over a bare Unix socket, so
// that a test can say what libaule-client never would. Asserts (check) what any daemon owes any
// client: that an answer comes in time and decodes. One thread a client.

#ifndef AULE_TESTS_RAW_CLIENT_H
#define AULE_TESTS_RAW_CLIENT_H

#include "schema/wire.h"

#include <nng/nng.h>

struct raw_client {
    nng_socket socket;
    uint64_t session, epoch;       // of its handshake; sent along with every command
    int segment_fd;                // kept open, to shrink it; -1 = none
    void *segment;                 // mapped, or NULL
    struct wire_hello_reply hello; // its strings are not valid
    char segment_name[64];
    uint64_t answer[(WIRE_MAX_MESSAGE + 4096) / 8]; // the last answer's bytes
};

// Malloc'd and connected; raw_close() ends it. Nothing is sent yet.
struct raw_client *raw_open(const char *socket_path);
void raw_close(struct raw_client *raw);

// Send bytes as they are, and wait for the answer. *reply is valid until the next call; its arrays
// end with wire_reply_finish().
void raw_send(struct raw_client *raw, const void *data, size_t size, struct wire_reply *reply);
// Fill in session and epoch (unless set), encode, send.
void raw_call(struct raw_client *raw, const struct wire_request *request, struct wire_reply *reply);
// The same in two parts, so that one command can wait in the daemon while others of its session are
// sent: raw_begin() is over when the message is on its way, and the daemon takes those of one
// connection in their order.
struct raw_pending {
    struct raw_client *raw;
    nng_ctx context;
    nng_aio *aio;
};
void raw_begin(struct raw_client *raw, const struct wire_request *request,
               struct raw_pending *pending);
void raw_end(struct raw_pending *pending, struct wire_reply *reply); // as raw_send()
// The status alone; `expect` must be it, or the test fails with the daemon's sentence.
void raw_expect(struct raw_client *raw, const struct wire_request *request, int expect);

// Hello only (version, sizes as given); *reply as in raw_call(). Sets session and epoch if it went
// well.
void raw_hello(struct raw_client *raw, uint64_t arena_size, struct wire_reply *reply);
// Hello, map the segment, Mapped; all must go well.
void raw_attach(struct raw_client *raw, uint64_t arena_size);
uint8_t *raw_arena(struct raw_client *raw);
extern uint32_t raw_minor; // the protocol minor that clients greet with
// raw_open() and raw_attach() in one.
struct raw_client *raw_session(const char *socket_path, uint64_t arena_size);

struct wire_inspect_daemon_reply raw_inspect(
    struct raw_client *raw); // strings and lists are not valid

// A bare connection: the SP handshake done, frames by hand. Returns a descriptor.
int bare_connect(const char *socket_path, bool shake_hands);
bool bare_send(int fd, const void *payload, size_t size,
               uint32_t request_id); // false: the peer takes no more now

#endif
