// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// listener.h - the daemon's two sockets for requests: their connections with credentials, the
// requests that they send, and the way back for answers. Workers use the one at the daemon's path.
// Operators use the control socket beside it, which only the daemon's user and root can open.
// Knows neither sessions nor what a request means. Nothing here blocks on a peer. Thread:
// dispatcher.
//
// No peer can make others wait or the daemon keep much memory:
// - Credentials are read before a connection gets a place (places.h). Some connections without a
//   place are kept for a moment, so that their clients can ask and read why; all others read why
//   when they are closed.
// - A connection is closed if a greeting or a request does not end in time, or if it has no session
//   and is idle.
// - Requests of a peer that does not read its answers are not read, either.
// - Requests that are not whole and answers that are not read share one limit, max_bytes. Above it,
//   the user with the most loses the connection that stands still for the longest time.

#ifndef AULE_SERVER_LISTENER_H
#define AULE_SERVER_LISTENER_H

#include "places.h"
#include "schema/status.h"

#include <sys/types.h>

struct groups;
struct listener;

// One connection. The listener owns it; it lives until listener_forget().
struct peer {
    uint32_t pipe; // number of the connection
    struct place_user user;
    uint64_t pid;    // 0 = of another pid namespace
    bool by_control; // it came by the control socket
    // NULL, or the answer to each of its commands: the daemon does not serve this user, or there is
    // no place for it. Such a connection is closed soon. The listener's.
    const struct error *refusal;
    int64_t active_ns; // of its last request or answer, and of the end of its session
    // The dispatcher's. While `session` is set, the connection may be idle and send large requests.
    void *session;             // struct session of its Hello; NULL = none
    uint64_t unmapped_session; // its last session that ended without Mapped in time; 0 = none
};

// True: the peer is root or the daemon's user, not only a member of a group.
bool listener_is_operator(const struct peer *peer);
// owner_open() for its connection.
int listener_owner(const struct peer *peer);

// The way back to a client that asked.
struct route {
    uint32_t pipe, number;
};

struct listener_params {
    const char *path;            // of the socket for workers; nothing is there, see take_place()
    const struct groups *groups; // lent; NULL = only root and the process's user may connect
    uint32_t max_connections;    // --max-connections, without those of the control socket
    double tenant_share;         // --tenant-share
    size_t max_message;          // bytes of a request
    uint64_t max_bytes;          // --max-message-memory
    int64_t idle_ns;             // --idle-timeout
};

// INVALID, INTERNAL: it cannot listen; the error has the reason.
enum status listener_open(const struct listener_params *params, struct listener **out,
                          struct error *error);
void listener_close(struct listener *listener);        // removes the sockets; takes NULL
void listener_unlink(const struct listener *listener); // removes only the files
// Readable while there are requests, answers to send, or connections that come or go.
int listener_fd(const struct listener *listener);

struct message {
    struct peer *peer;
    struct route route;
    const void *data; // NULL: the peer may not send so much now, and it was dropped
    size_t size;      // bytes
    void *handle;     // owned
};
// Takes what has come, and gives the next request. False: there is none, for now; ask again while
// listener_fd() is readable. End each message with message_finish().
bool listener_receive(struct listener *listener, struct message *out);
void message_finish(struct message *message);
// Bytes of a request that the peer may send now.
size_t listener_max_request(const struct listener *listener, const struct peer *peer);

// Sends an answer, or keeps it until its peer reads. Answers to a peer that has gone are dropped.
// False: no memory. Then the connection is closed, because its client would wait in vain.
bool listener_reply(struct listener *listener, const struct route *route, const void *data,
                    size_t size);

// Takes the oldest event: a connection opened, or ended (`removed`). After `removed` the caller
// calls listener_forget(). False: no event.
bool listener_next_event(struct listener *listener, struct peer **peer, bool *removed);
void listener_forget(struct listener *listener, struct peer *peer);
// Closes connections whose time is over; their ends come as events.
void listener_expire(struct listener *listener, int64_t now_ns);
// When to call listener_expire() and listener_next_event(), or FOREVER.
int64_t listener_deadline_ns(const struct listener *listener);
// Connections closed at once since the last call, with the reason of the last one.
uint32_t listener_num_refused(struct listener *listener, const char **why);

#endif
