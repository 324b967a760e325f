// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// raw_client.h - speaks the protocol over nng and wire.h, or over a bare Unix socket. So a test can
// send messages that libaule-client never sends. Asserts (check) what a daemon owes to any client:
// an answer comes in time and can be decoded. Each client belongs to one thread.

#ifndef AULE_TESTS_RAW_CLIENT_H
#define AULE_TESTS_RAW_CLIENT_H

#include "daemon_state.h"
#include "schema/wire.h"

#include <nng/nng.h>

struct raw_client {
    char path[128];             // of the socket
    bool one_socket;            // all commands go to it; set by the test
    struct raw_client *control; // for commands that only the control socket serves; NULL: not yet
    nng_socket socket;
    uint64_t session, epoch;       // of its handshake; sent with every command
    int segment_fd;                // stays open, so that a test can shrink it; -1 = none
    void *segment;                 // mapped, or NULL
    struct wire_hello_reply hello; // its strings are not valid
    char segment_name[64];
    uint64_t answer[(WIRE_MAX_MESSAGE + 4096) / 8]; // the bytes of the last answer
};

// Malloc'd and connected; raw_close() ends it. It has sent nothing yet.
struct raw_client *raw_open(const char *socket_path);
void raw_close(struct raw_client *raw);

// Sends bytes as they are, and waits for the answer. *reply is valid until the next call;
// wire_reply_finish() frees its arrays.
void raw_send(struct raw_client *raw, const void *data, size_t size, struct wire_reply *reply);
// Sets session and epoch (if they are 0), encodes, sends. A command that only the control socket
// serves goes there.
void raw_call(struct raw_client *raw, const struct wire_request *request, struct wire_reply *reply);
// The same in two parts, so that one command can wait in the daemon while others of its session are
// sent. raw_begin() returns when the message is on its way. The daemon handles the messages of a
// connection in order.
struct raw_pending {
    struct raw_client *raw;
    nng_ctx context;
    nng_aio *aio;
};
void raw_begin(struct raw_client *raw, const struct wire_request *request,
               struct raw_pending *pending);
void raw_end(struct raw_pending *pending, struct wire_reply *reply); // as raw_send()
// Returns only the status. It must be `expect`, or the test fails with the daemon's error.
void raw_expect(struct raw_client *raw, const struct wire_request *request, int expect);

// Only Hello (version and sizes as given); *reply as in raw_call(). Sets session and epoch if it
// succeeds.
void raw_hello(struct raw_client *raw, uint64_t arena_size, struct wire_reply *reply);
// Hello, map the segment, Mapped. All must succeed.
void raw_attach(struct raw_client *raw, uint64_t arena_size);
uint8_t *raw_arena(struct raw_client *raw);
extern uint64_t raw_device_arena; // bytes that clients ask for in their greeting
// raw_open() and raw_attach() in one.
struct raw_client *raw_session(const char *socket_path, uint64_t arena_size);

// The blocks of all states together must be those of the pool.
struct daemon_state raw_inspect(struct raw_client *raw);
// A counter or gauge by the name that aule-ctl metrics shows; -1: there is none.
int64_t raw_metric(struct raw_client *raw, const char *name);

// A bare connection: the SP handshake is done, frames are written by hand. Returns a descriptor.
int bare_connect(const char *socket_path, bool shake_hands);
bool bare_send(int fd, const void *payload, size_t size,
               uint32_t request_id); // false: the peer accepts no more at the moment

#endif
