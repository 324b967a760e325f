// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// listener.h - nng's raw REP socket: its connections with their credentials, the messages that they
// send, and the way back for answers. Knows nothing of sessions or of what a message means.
// All functions: dispatcher thread, unless noted. nng's threads only queue connection events here
// and write an eventfd.

#ifndef AULE_SERVER_LISTENER_H
#define AULE_SERVER_LISTENER_H

#include "schema/status.h"

#include <sys/types.h>

struct groups;
struct listener;

// One connection. The listener owns it; it lives until listener_forget().
struct peer {
    uint32_t pipe; // nng's id of the connection
    uint32_t uid, gid;
    uint64_t pid; // 0 = of another pid namespace
    // OK, or the status of the answer to each of its commands. DENIED: the peer is another user, of
    // no group. LIMIT: it is above max_connections.
    enum status refusal;
    // The dispatcher's; the listener does not use them.
    int64_t close_at_ns;       // when a refused connection is closed
    void *session;             // struct session of its Hello; NULL = none
    uint64_t unmapped_session; // its last session that ended without Mapped in time; 0 = none
};

// True: the peer is root or the daemon's user, not only a member of a group. Any thread.
bool listener_is_operator(const struct peer *peer);

// The way back to a client that asked: nng's header, which has the pipe and the request.
struct route {
    uint8_t header[8];
};

struct listener_params {
    const char *path;            // of the socket; nothing is there, see socket_path_clear()
    uint32_t max_connections;    // --max-connections; a few more are accepted and refused with a
                                 // reason, others are closed at once
    const struct groups *groups; // lent; NULL = only root and the process's user may connect
    uint32_t max_replies;        // queued for one peer that does not read them
    size_t max_message;          // bytes
    int wake_fd;                 // eventfd, written when a connection opens or ends; not owned
};

// INVALID: it cannot listen; the error has nng's reason.
enum status listener_open(const struct listener_params *params, struct listener **out,
                          struct error *error);
// Removes the socket and ends nng's threads; nng must not be used afterwards. Takes NULL.
void listener_close(struct listener *listener);
uint32_t listener_max_replies(void); // any thread: max_replies of the process's listener
int listener_fd(const struct listener *listener); // readable while listener_receive() has messages

struct message {
    struct peer *peer;
    struct route route;
    const void *data; // its address is 4 modulo 16, so copy it before decoding
    size_t size;      // bytes
    void *handle;     // nng's message; owned
};
// False: there is no message. Messages of connections that have ended are dropped. End each message
// with message_finish().
bool listener_receive(struct listener *listener, struct message *out);
void message_finish(struct message *message);

// Never blocks on the peer. Up to max_replies replies are queued for a peer that does not read
// them, or nng's 64 if they are large; further ones to this peer are lost. Without nng_cures.c the
// queue has only 64, so that a burst could lose replies even to a peer that reads. False: no
// memory. Then the connection is closed, because its client would wait in vain.
bool listener_reply(struct listener *listener, const struct route *route, const void *data,
                    size_t size);

// Takes the oldest event: a connection opened, or ended (`removed`). After `removed` the caller
// calls listener_forget(). False: no event.
bool listener_next_event(struct listener *listener, struct peer **peer, bool *removed);
void listener_forget(struct listener *listener, struct peer *peer);
// Closes a connection; its end then comes as an event.
void listener_hang_up(struct listener *listener, const struct peer *peer);
// Connections closed at once since the last call, because of max_connections or memory.
uint32_t listener_num_refused(struct listener *listener);

#endif
