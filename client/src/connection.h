// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// connection.h - one connection to one daemon: requests go out, the answers come back. Knows the
// wire, not what a session is. Any thread; calls of several threads run side by side.

#ifndef AULE_CLIENT_CONNECTION_H
#define AULE_CLIENT_CONNECTION_H

#include "aule/aule.h"
#include "schema/wire.h"
#include "timeout.h"

struct connection;

// An answer whose strings and vectors point into `message`; ended with answer_finish().
struct answer {
    struct wire_reply reply;
    void *message; // owned
    bool missing;  // after a failure: AULE_TIMEOUT is this side's, the daemon has said nothing
};
void answer_finish(struct answer *answer); // takes a zeroed one

// Connects to the daemon at `path` (the connection keeps a copy) and waits for it as long as
// `timeout` has left. AULE_DAEMON_GONE: nobody listens. AULE_DENIED: the file system refuses.
// AULE_TIMEOUT. AULE_FORKED.
enum aule_status connection_open(const char *path, const struct timeout *timeout,
                                 struct connection **out);

const char *connection_path(const struct connection *connection); // of the daemon's socket

// In a process other than the one that opened it, frees memory only. No call may be pending. Takes
// NULL.
void connection_close(struct connection *connection);

// `command` had no answer within timeout_ms: closes the pipe, so that the daemon takes back what
// the connection has and will not give it more. Every other call returns AULE_DAEMON_GONE. Returns
// AULE_TIMEOUT.
enum aule_status connection_hang_up(struct connection *connection, const char *command,
                                    int timeout_ms);

// Every pending call and every later one returns AULE_DAEMON_GONE; the connection stays until
// connection_close().
void connection_interrupt(struct connection *connection);

// Sends the request and waits, as long as `timeout` has left or until the daemon is gone, for an
// answer of the kind `expected`. On AULE_OK *answer is the caller's to finish; on anything else it
// is zeroed but for `missing` and the reply's ticket: the daemon's own status with its sentence,
// AULE_TIMEOUT, AULE_DAEMON_GONE, AULE_LIMIT (the request is too large for a message),
// AULE_MALFORMED (the answer). The ticket is what the peer claims, nothing more. Of a Run that
// waits, which expects a WAIT, a RUN is an answer too: a daemon before protocol 2.4 gives it its
// ticket at once.
enum aule_status connection_call(struct connection *connection, const struct wire_request *request,
                                 const struct timeout *timeout, enum wire_answer expected,
                                 struct answer *answer);

// Calls `ended` as soon as no call can be answered any more: the pipe went, or connection_hang_up()
// or connection_interrupt(); maybe at once, maybe more than once, in any thread, never after
// connection_close(). It must not call anything of the connection.
void connection_watch(struct connection *connection, void (*ended)(void *context), void *context);
// AULE_OK while calls can be answered, else what connection_call() of `command` would return.
enum aule_status connection_end_error(struct connection *connection, const char *command);

// Like connection_call() for the last request of a connection that was interrupted; the answer is
// dropped.
void connection_farewell(struct connection *connection, const struct wire_request *request,
                         int timeout_ms);

#endif
