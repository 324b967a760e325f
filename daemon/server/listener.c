// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// listener.c - see listener.h. nng calls on_pipe_event() on its own threads and under its own
// locks; there only the pipe's options may be read. One lock guards the table of peers and the
// queue of events. An entry contains its two events, so queueing them cannot fail. Only the
// dispatcher removes entries, so its pointers to them stay valid.

#include "listener.h"

#include "base/container_of.h"
#include "base/hash.h"
#include "groups.h"
#include "waker.h"

#include <nng/nng.h>
#include <nng/protocol/reqrep0/rep.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { REPLY_QUEUE = 1024, REQUEST_QUEUE = 64, MAX_SURPLUS = 16 };

static atomic_uint max_replies; // read by nng's threads, through nng_cures.c

struct event {
    struct entry *entry;
    bool removed;
    struct event *next;
};

struct entry {
    struct peer peer;
    bool gone; // the connection has ended, but messages of it may still be in nng's queue
    struct event added_event, removed_event;
    UT_hash_handle hh; // by peer.pipe
};

struct listener {
    const struct groups *groups; // lent
    nng_socket socket;
    bool is_open;
    int receive_fd, wake_fd; // nng's; not owned
    uint32_t max_connections;
    pthread_mutex_t lock;  // guards all below
    struct entry *entries; // by pipe; owned
    struct event *events;  // oldest first
    uint32_t num_surplus;  // entries that are refused with LIMIT
    uint32_t num_refused;  // connections closed at once since listener_num_refused()
};

// Called under the lock.
static void push_event(struct listener *listener, struct event *event, struct entry *entry,
                       bool removed)
{
    event->entry = entry;
    event->removed = removed;
    LL_APPEND(listener->events, event);
}

bool listener_is_operator(const struct peer *peer)
{
    return peer->uid == 0 || peer->uid == geteuid();
}

static bool read_credentials(const struct listener *listener, nng_pipe pipe, struct peer *peer)
{
    uint64_t uid, gid, pid = 0;
    if (nng_pipe_get_uint64(pipe, NNG_OPT_IPC_PEER_UID, &uid) != 0 ||
        nng_pipe_get_uint64(pipe, NNG_OPT_IPC_PEER_GID, &gid) != 0)
        return false;
    nng_pipe_get_uint64(pipe, NNG_OPT_IPC_PEER_PID, &pid);
    peer->pipe = (uint32_t)nng_pipe_id(pipe);
    peer->uid = (uint32_t)uid;
    peer->pid = pid;
    peer->gid = (uint32_t)gid;
    bool served = listener_is_operator(peer) || groups_have(listener->groups, peer->uid, peer->gid);
    peer->refusal = served ? STATUS_OK : STATUS_DENIED;
    return true;
}

// Called under the lock. Up to MAX_SURPLUS connections above max_connections are accepted, so that
// their commands can be answered LIMIT. False: this one must be closed at once.
static bool find_place(struct listener *listener, struct peer *peer)
{
    if (HASH_COUNT(listener->entries) - listener->num_surplus < listener->max_connections)
        return true;
    peer->refusal = STATUS_LIMIT;
    return listener->num_surplus < MAX_SURPLUS;
}

// False: close the connection.
static bool add(struct listener *listener, nng_pipe pipe)
{
    struct entry *entry = calloc(1, sizeof *entry);
    pthread_mutex_lock(&listener->lock);
    if (entry && read_credentials(listener, pipe, &entry->peer) &&
        find_place(listener, &entry->peer))
        HASH_ADD(hh, listener->entries, peer.pipe, sizeof entry->peer.pipe, entry);
    bool added = entry && HASH_ADDED(entry);
    if (added) {
        push_event(listener, &entry->added_event, entry, false);
        listener->num_surplus += entry->peer.refusal == STATUS_LIMIT;
    } else {
        listener->num_refused++;
    }
    pthread_mutex_unlock(&listener->lock);
    if (!added)
        free(entry);
    return added;
}

static void mark_removed(struct listener *listener, nng_pipe pipe)
{
    uint32_t id = (uint32_t)nng_pipe_id(pipe);
    struct entry *entry;
    pthread_mutex_lock(&listener->lock);
    HASH_FIND(hh, listener->entries, &id, sizeof id, entry);
    if (entry && !entry->gone) { // no entry: add() refused it
        entry->gone = true;
        push_event(listener, &entry->removed_event, entry, true);
    }
    pthread_mutex_unlock(&listener->lock);
}

static void on_pipe_event(nng_pipe pipe, nng_pipe_ev event, void *context)
{
    struct listener *listener = context;
    if (event == NNG_PIPE_EV_REM_POST)
        mark_removed(listener, pipe);
    else if (!add(listener, pipe))
        nng_pipe_close(pipe);
    waker_ring(listener->wake_fd);
}

static int set_options(nng_socket socket, const struct listener_params *params)
{
    int reason = nng_socket_set_size(socket, NNG_OPT_RECVMAXSZ, params->max_message);
    if (!reason)
        // Clients connect directly, so the header of a message has 8 bytes: struct route.
        reason = nng_socket_set_int(socket, NNG_OPT_MAXTTL, 1);
    if (!reason)
        reason = nng_socket_set_int(socket, NNG_OPT_RECVBUF, REQUEST_QUEUE);
    if (!reason)
        reason = nng_socket_set_int(socket, NNG_OPT_SENDBUF, REPLY_QUEUE);
    return reason;
}

static int watch_pipes(struct listener *listener)
{
    int reason = nng_pipe_notify(listener->socket, NNG_PIPE_EV_ADD_PRE, on_pipe_event, listener);
    return reason
               ? reason
               : nng_pipe_notify(listener->socket, NNG_PIPE_EV_REM_POST, on_pipe_event, listener);
}

static int start(struct listener *listener, const struct listener_params *params)
{
    char url[160];
    nng_listener ear;
    snprintf(url, sizeof url, "ipc://%s", params->path);
    int reason = nng_listener_create(&ear, listener->socket, url);
    if (!reason)
        reason = nng_listener_set_int(ear, NNG_OPT_IPC_PERMISSIONS, params->groups ? 0666 : 0600);
    if (!reason)
        reason = nng_listener_set_size(ear, NNG_OPT_RECVMAXSZ, params->max_message);
    return reason ? reason : nng_listener_start(ear, 0);
}

enum status listener_open(const struct listener_params *params, struct listener **out,
                          struct error *error)
{
    struct listener *listener = calloc(1, sizeof *listener);
    if (!listener)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the listener");
    pthread_mutex_init(&listener->lock, NULL);
    listener->wake_fd = params->wake_fd;
    listener->max_connections = params->max_connections;
    listener->groups = params->groups;
    atomic_store(&max_replies, params->max_replies);
    int reason = nng_rep0_open_raw(&listener->socket);
    listener->is_open = reason == 0;
    if (!reason)
        reason = set_options(listener->socket, params);
    if (!reason)
        reason = watch_pipes(listener);
    if (!reason)
        reason = start(listener, params);
    if (!reason)
        reason = nng_socket_get_int(listener->socket, NNG_OPT_RECVFD, &listener->receive_fd);
    if (reason) {
        listener_close(listener);
        return error_set(error, STATUS_INVALID, "cannot listen at %s: %s", params->path,
                         nng_strerror(reason));
    }
    *out = listener;
    return STATUS_OK;
}

void listener_close(struct listener *listener)
{
    if (!listener)
        return;
    if (listener->is_open)
        nng_close(listener->socket);
    nng_fini(); // joins nng's threads, so no callback comes after this
    struct entry *entry, *next;
    HASH_ITER(hh, listener->entries, entry, next)
    {
        HASH_DEL(listener->entries, entry);
        free(entry);
    }
    pthread_mutex_destroy(&listener->lock);
    free(listener);
}

uint32_t listener_max_replies(void)
{
    return atomic_load(&max_replies);
}

int listener_fd(const struct listener *listener)
{
    return listener->receive_fd;
}

static struct peer *find_living(struct listener *listener, nng_msg *message)
{
    uint32_t id = (uint32_t)nng_pipe_id(nng_msg_get_pipe(message));
    struct entry *entry;
    pthread_mutex_lock(&listener->lock);
    HASH_FIND(hh, listener->entries, &id, sizeof id, entry);
    struct peer *peer = entry && !entry->gone ? &entry->peer : NULL;
    pthread_mutex_unlock(&listener->lock);
    return peer;
}

bool listener_receive(struct listener *listener, struct message *out)
{
    nng_msg *message;
    while (nng_recvmsg(listener->socket, &message, NNG_FLAG_NONBLOCK) == 0) {
        struct peer *peer = find_living(listener, message);
        if (peer && nng_msg_header_len(message) == sizeof out->route.header) {
            *out = (struct message){
                .peer = peer,
                .data = nng_msg_body(message),
                .size = nng_msg_len(message),
                .handle = message,
            };
            memcpy(out->route.header, nng_msg_header(message), sizeof out->route.header);
            return true;
        }
        nng_msg_free(message);
    }
    return false;
}

void message_finish(struct message *message)
{
    nng_msg_free(message->handle);
    message->handle = NULL;
}

// nng writes it in network byte order.
static nng_pipe pipe_of(const struct route *route)
{
    const uint8_t *h = route->header;
    return (nng_pipe){.id =
                          (uint32_t)h[0] << 24 | (uint32_t)h[1] << 16 | (uint32_t)h[2] << 8 | h[3]};
}

bool listener_reply(struct listener *listener, const struct route *route, const void *data,
                    size_t size)
{
    nng_msg *message = NULL;
    const bool made = nng_msg_alloc(&message, 0) == 0;
    // This may block, but only briefly: an nng thread empties the queue, whatever the peers do.
    if (made && nng_msg_append(message, data, size) == 0 &&
        nng_msg_header_append(message, route->header, sizeof route->header) == 0 &&
        nng_sendmsg(listener->socket, message, 0) == 0)
        return true;
    if (made)
        nng_msg_free(message);
    nng_pipe_close(pipe_of(route));
    return false;
}

bool listener_next_event(struct listener *listener, struct peer **peer, bool *removed)
{
    pthread_mutex_lock(&listener->lock);
    struct event *event = listener->events;
    if (event) {
        LL_DELETE(listener->events, event);
        *peer = &event->entry->peer;
        *removed = event->removed;
    }
    pthread_mutex_unlock(&listener->lock);
    return event != NULL;
}

void listener_forget(struct listener *listener, struct peer *peer)
{
    struct entry *entry = container_of(peer, struct entry, peer);
    pthread_mutex_lock(&listener->lock);
    HASH_DEL(listener->entries, entry);
    listener->num_surplus -= peer->refusal == STATUS_LIMIT;
    pthread_mutex_unlock(&listener->lock);
    free(entry);
}

void listener_hang_up(struct listener *listener, const struct peer *peer)
{
    (void)listener;
    nng_pipe_close((nng_pipe){.id = peer->pipe});
}

uint32_t listener_num_refused(struct listener *listener)
{
    pthread_mutex_lock(&listener->lock);
    uint32_t count = listener->num_refused;
    listener->num_refused = 0;
    pthread_mutex_unlock(&listener->lock);
    return count;
}
