// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// listener.h - nng's raw REP socket: who is connected, with which credentials, what they sent, how
// an answer finds its way. Knows nothing of sessions or of what a message means. nng's threads call
// back into it; they only fill a queue and write an eventfd. All functions: dispatcher thread.

#ifndef AULE_SERVER_LISTENER_H
#define AULE_SERVER_LISTENER_H

#include "schema/status.h"

#include <sys/types.h>

struct listener;

// One connection. The listener owns it; it lives until listener_forget().
struct peer {
    uint32_t pipe;
    uint32_t uid;
    uint64_t pid;        // 0 = of another pid namespace
    enum status refusal; // OK, or what every command is answered: another user DENIED, one beyond
                         // max_connections LIMIT
    int64_t close_at_ns; // dispatcher's: when a refused connection is closed
    void *session;       // dispatcher's: the session of its handshake, NULL = none
    uint64_t unmapped_session; // dispatcher's: the last one that ended because it was not mapped in
                               // time; 0 = none
};

// The way back to who asked: nng's backtrace, which names the pipe and the request.
struct route {
    uint8_t header[8];
};

struct listener_params {
    const char *path;         // free to bind: socket_path_clear()
    uint32_t max_connections; // --max-connections; a few more are let in to be told, others closed
                              // at once
    uint32_t max_replies;     // that one peer may not have taken yet
    size_t max_message;       // bytes
    int wake_fd;              // eventfd, written when a connection came or went
};

// INVALID with nng's reason if it cannot listen.
enum status listener_open(const struct listener_params *params, struct listener **out,
                          struct error *error);
void listener_close(
    struct listener *listener); // removes the socket; takes NULL. nng must not be used afterwards
uint32_t listener_max_replies(void);              // any thread: that of the process's listener
int listener_fd(const struct listener *listener); // readable when listener_receive() has something

struct message {
    struct peer *peer;
    struct route route;
    const void *data; // 4 at mod 16: copy before decoding
    size_t size;
    void *handle; // nng's
};
// False: nothing there. Messages of connections that are gone are dropped. Ends with
// message_finish().
bool listener_receive(struct listener *listener, struct message *out);
void message_finish(struct message *message);

// Never blocks on the peer: replies that it has not taken pile up to max_replies (64, where large
// ones fill the place), later ones are lost to it alone. Without nng_cures.c they pile up to nng's
// 64, which many at once may exceed even where the peer reads. False without memory.
bool listener_reply(struct listener *listener, const struct route *route, const void *data,
                    size_t size);

// The next connection that came or went, in order; false: no news. After a `removed` one
// listener_forget() must follow.
bool listener_next_event(struct listener *listener, struct peer **peer, bool *removed);
void listener_forget(struct listener *listener, struct peer *peer);
void listener_hang_up(struct listener *listener,
                      const struct peer *peer);           // its removal comes as an event
uint32_t listener_num_refused(struct listener *listener); // since the last call: closed at once,
                                                          // because of max_connections or memory

#endif
