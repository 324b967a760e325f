// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// connection.h - one connection to one daemon: sends requests and receives their answers. Knows the
// wire, but not sessions. Any thread; calls of several threads run side by side.
//
// Four functions end a connection:
//   connection_hang_up()     a call had no answer: closes the pipe
//   connection_interrupt()   the owner ends it: fails all calls; the pipe stays
//   connection_farewell()    sends one last request after connection_interrupt()
//   connection_close()       frees it

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
    // After a failure: no answer came, or none that could be read, so that what the daemon did is
    // unknown. Else the daemon's answer is the failure.
    bool missing;
};
void answer_finish(struct answer *answer); // takes a zeroed one
// Finishes all but `missing` and the reply's ticket.
void answer_drop(struct answer *answer);
// Decodes answer->message of `size` bytes to answer->reply.
enum aule_status answer_decode(struct answer *answer, size_t size, const char *command);
// AULE_OK: the reply is a success of the kind `expected`. Else the daemon's status with its
// sentence, or AULE_MALFORMED.
enum aule_status answer_judge(const struct wire_reply *reply, enum wire_answer expected,
                              const char *command);

// Connects to the daemon at `path`. The connection keeps a copy of the path. Waits for what
// `timeout` has left. AULE_DAEMON_GONE: nothing listens. AULE_DENIED: the file system or peer.h
// refuses.
// AULE_TIMEOUT. AULE_NO_MEMORY: also no thread or no descriptor.
enum aule_status connection_open(const char *path, const struct timeout *timeout,
                                 struct connection **out);

const char *connection_path(const struct connection *connection); // of the daemon's socket

// No call may be pending. In a forked child this frees memory and closes the child's copy of the
// descriptor; the parent's connection stays. Takes NULL.
void connection_close(struct connection *connection);

// Call this if the answer to `command` is missing. Closes the pipe, so that the daemon takes back
// what the connection has and gives it nothing more. Every other call then returns
// AULE_DAEMON_GONE.
void connection_hang_up(struct connection *connection, const char *command);

// Every pending call and every later one returns AULE_DAEMON_GONE; the connection stays until
// connection_close().
void connection_interrupt(struct connection *connection);

// Sends the request and waits for an answer of the kind `expected`, for what `timeout` has left or
// until the daemon is gone. On AULE_OK the caller must finish *answer.
// A failure is the daemon's own status with its sentence, or one of these: AULE_TIMEOUT,
// AULE_DAEMON_GONE, AULE_LIMIT (the request is too large for a message), AULE_MALFORMED (the
// answer). *answer is zeroed then, except `missing` and the reply's ticket, which the peer claims
// and nothing has checked.
enum aule_status connection_call(struct connection *connection, const struct wire_request *request,
                                 const struct timeout *timeout, enum wire_answer expected,
                                 struct answer *answer);

// Sends the request and returns; the answer goes to heard(). If the connection ends first, heard()
// is never called. On failure the request may still reach the daemon, if a part of it was sent, but
// its answer is dropped. heard() runs in the reader thread, which may post
// again, but must not call. `reply` is NULL if the answer cannot be read; else it is lent.
typedef void (*connection_heard)(void *context, const struct wire_reply *reply);
enum aule_status connection_post(struct connection *connection, const struct wire_request *request,
                                 const struct timeout *timeout, connection_heard heard,
                                 void *context);

// Calls watcher->ended() as soon as no call can be answered any more, because the pipe is gone or
// after connection_hang_up() or connection_interrupt(). It may be called at once, more than once
// and in any thread, but not after connection_close(). It must not call functions of the
// connection. The watcher is the caller's and stays in place until connection_close().
struct connection_watcher {
    void (*ended)(void *context);
    void *context;
    struct connection_watcher *prev, *next; // the connection's
};
void connection_watch(struct connection *connection, struct connection_watcher *watcher);
// AULE_OK while calls can be answered; else the status that connection_call() of `command` would
// return.
enum aule_status connection_end_error(struct connection *connection, const char *command);

// True: the daemon has closed the connection because it had no session and asked nothing for long
// (--idle-timeout). A request that has no answer was not served. Does not wait.
bool connection_was_idle(struct connection *connection);

// Sends the last request of a connection that was interrupted, as connection_call() does, and drops
// the answer.
void connection_farewell(struct connection *connection, const struct wire_request *request,
                         int timeout_ms);

#endif
