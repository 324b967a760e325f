// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// streams.c - see streams.h. Each accept, receive and send is one asynchronous operation of nng. A
// thread of nng calls ended() when it is over; that notes it and rings, and does nothing else. The
// dispatcher touches an operation's buffer only while the operation is not under way.

#include "streams.h"

#include "base/list.h"
#include "base/socket_rule.h"
#include "nng_cures.h"
#include "server/bound.h"
#include "server/waker.h"

#include <errno.h>
#include <nng/nng.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BUFFER = 8 << 10, PATH_ROOM = 128 };

// What streams_next() may name.
struct node {
    struct streams *streams;
    uint32_t number;
    bool is_named; // false: streams_next() does not report it
    bool is_ready; // it is in streams->ready; guarded by the lock, as the next two
    struct node *prev, *next;
};

struct operation {
    nng_aio *aio; // owned
    struct node *node;
    bool under_way; // begun and not collected
    bool has_ended; // guarded by the lock
};

struct streams {
    int fd;               // an eventfd
    pthread_mutex_t lock; // guards the list, and the fields marked so
    struct node *ready;   // the oldest first
};

struct ear {
    struct node node;
    nng_stream_listener *listener;
    struct operation accepting;
    struct bound bound;
    char path[PATH_ROOM];
};

struct ipc_stream {
    struct node node;
    nng_stream *stream;
    int descriptor; // nng's; -1 = not known
    struct operation receiving, sending;
    bool over, broken; // nothing more can come; nothing more can go
    size_t in_at, in_end, out_at, out_end;
    uint8_t in[BUFFER], out[BUFFER];
};

// ---- what has news ----

// Called under the lock.
static void push(struct node *node)
{
    struct streams *streams = node->streams;
    if (node->is_ready || !node->is_named)
        return;
    if (!streams->ready)
        waker_ring(streams->fd);
    node->is_ready = true;
    LIST_APPEND(streams->ready, node);
}

static void forget(struct node *node)
{
    struct streams *streams = node->streams;
    pthread_mutex_lock(&streams->lock);
    node->is_named = false;
    if (node->is_ready)
        LIST_DELETE(streams->ready, node);
    node->is_ready = false;
    pthread_mutex_unlock(&streams->lock);
}

static void name(struct node *node, uint32_t number)
{
    pthread_mutex_lock(&node->streams->lock);
    node->number = number;
    node->is_named = true;
    pthread_mutex_unlock(&node->streams->lock);
}

static void say_again(struct node *node)
{
    pthread_mutex_lock(&node->streams->lock);
    push(node);
    pthread_mutex_unlock(&node->streams->lock);
}

bool streams_next(struct streams *streams, uint32_t *number)
{
    uint64_t count;
    pthread_mutex_lock(&streams->lock);
    struct node *node = streams->ready;
    if (node) {
        LIST_DELETE(streams->ready, node);
        node->is_ready = false;
        *number = node->number;
    }
    // Also if there was none: one that was closed may have rung.
    if (!streams->ready && read(streams->fd, &count, sizeof count) < 0)
        count = 0; // nobody rang
    pthread_mutex_unlock(&streams->lock);
    return node != NULL;
}

// ---- operations ----

static void ended(void *context)
{
    struct operation *operation = context;
    struct streams *streams = operation->node->streams;
    pthread_mutex_lock(&streams->lock);
    operation->has_ended = true;
    push(operation->node);
    pthread_mutex_unlock(&streams->lock);
}

static int operation_make(struct operation *operation, struct node *node)
{
    operation->node = node;
    return nng_aio_alloc(&operation->aio, ended, operation);
}

// It is over, as is a call of ended() for it.
static void operation_end(struct operation *operation)
{
    if (!operation->aio)
        return;
    nng_aio_stop(operation->aio);
    nng_aio_free(operation->aio);
    operation->aio = NULL;
}

// True: it was under way and is over; its result can be read.
static bool operation_collect(struct operation *operation)
{
    struct streams *streams = operation->node->streams;
    if (!operation->under_way)
        return false;
    pthread_mutex_lock(&streams->lock);
    const bool is_over = operation->has_ended;
    operation->has_ended = false;
    pthread_mutex_unlock(&streams->lock);
    operation->under_way = !is_over;
    return is_over;
}

// ---- all together ----

enum status streams_open(struct streams **out, struct error *error)
{
    struct streams *streams = calloc(1, sizeof *streams);
    if (!streams)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the sockets");
    pthread_mutex_init(&streams->lock, NULL);
    streams->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (streams->fd < 0) {
        streams_close(streams);
        return error_set(error, STATUS_INTERNAL, "no descriptor for the sockets");
    }
    *out = streams;
    return STATUS_OK;
}

void streams_close(struct streams *streams)
{
    if (!streams)
        return;
    nng_fini(); // joins nng's threads
    if (streams->fd >= 0)
        close(streams->fd);
    pthread_mutex_destroy(&streams->lock);
    free(streams);
}

int streams_fd(const struct streams *streams)
{
    return streams->fd;
}

// ---- ears ----

// nng removes the path at which it has listened, whatever lies there then. So it listens at another
// path, and the socket gets its own afterwards. If a byte more has no room, the last one is
// another.
static void first_path(const struct ear *ear, char first[PATH_ROOM])
{
    const size_t length = strlen(ear->path), kept = length < SOCKET_PATH_MAX ? length : length - 1;
    memcpy(first, ear->path, kept);
    memcpy(first + kept, "~", 2);
}

static enum status listen_at(struct ear *ear, mode_t mode, struct error *error)
{
    char first[PATH_ROOM], url[PATH_ROOM + 16];
    struct stat info;
    first_path(ear, first);
    snprintf(url, sizeof url, "ipc://%s", first);
    if (lstat(first, &info) == 0 && S_ISSOCK(info.st_mode))
        unlink(first); // a killed daemon's; the lock is ours
    int reason = nng_stream_listener_alloc(&ear->listener, url);
    if (!reason)
        reason = nng_stream_listener_set_int(ear->listener, NNG_OPT_IPC_PERMISSIONS, (int)mode);
    if (!reason)
        reason = nng_stream_listener_listen(ear->listener);
    if (!reason)
        reason = operation_make(&ear->accepting, &ear->node);
    if (reason)
        return error_set(error, STATUS_INVALID, "cannot listen at %s: %s", first,
                         nng_strerror(reason));
    if (rename(first, ear->path) != 0)
        return error_set(error, STATUS_INVALID, "cannot rename %s to %s: %s", first, ear->path,
                         strerror(errno));
    ear->bound = bound_at(ear->path);
    return STATUS_OK;
}

enum status ear_open(struct streams *streams, uint32_t number, const char *path, mode_t mode,
                     struct ear **out, struct error *error)
{
    struct ear *ear = calloc(1, sizeof *ear);
    if (!ear)
        return error_set(error, STATUS_NO_MEMORY, "no memory for the socket %s", path);
    ear->node.streams = streams;
    snprintf(ear->path, sizeof ear->path, "%s", path);
    name(&ear->node, number);
    enum status status = listen_at(ear, mode, error);
    if (status != STATUS_OK) {
        ear_close(ear);
        return status;
    }
    ear_resume(ear);
    *out = ear;
    return STATUS_OK;
}

void ear_unlink(const struct ear *ear)
{
    if (ear)
        bound_remove(&ear->bound, ear->path);
}

void ear_close(struct ear *ear)
{
    if (!ear)
        return;
    ear_unlink(ear);
    if (ear->listener)
        nng_stream_listener_close(ear->listener);
    const bool accepted = ear->accepting.under_way;
    if (ear->accepting.aio)
        nng_aio_stop(ear->accepting.aio);
    if (accepted && nng_aio_result(ear->accepting.aio) == 0)
        nng_stream_free(nng_aio_get_output(ear->accepting.aio, 0));
    operation_end(&ear->accepting);
    forget(&ear->node);
    if (ear->listener)
        nng_stream_listener_free(ear->listener);
    free(ear);
}

void ear_resume(struct ear *ear)
{
    ear->accepting.under_way = true;
    nng_stream_listener_accept(ear->listener, ear->accepting.aio);
}

static struct ipc_stream *ipc_stream_make(struct streams *streams, nng_stream *connection)
{
    const int descriptor = nng_accepted_descriptor(connection);
    struct ipc_stream *stream = calloc(1, sizeof *stream);
    if (!stream) {
        nng_stream_free(connection);
        return NULL;
    }
    stream->node.streams = streams;
    stream->stream = connection;
    stream->descriptor = descriptor;
    if (operation_make(&stream->receiving, &stream->node) == 0 &&
        operation_make(&stream->sending, &stream->node) == 0)
        return stream;
    ipc_stream_close(stream);
    return NULL;
}

enum ear_news ear_accept(struct ear *ear, struct ipc_stream **out)
{
    if (!operation_collect(&ear->accepting))
        return EAR_NOTHING;
    const int reason = nng_aio_result(ear->accepting.aio);
    if (reason)
        return reason == NNG_ENOFILES ? EAR_NO_DESCRIPTORS : EAR_FAILED;
    *out = ipc_stream_make(ear->node.streams, nng_aio_get_output(ear->accepting.aio, 0));
    if (!*out)
        return EAR_FAILED;
    ear_resume(ear);
    return EAR_STREAM;
}

// ---- one connection ----

bool ipc_stream_credentials(const struct ipc_stream *stream, struct ipc_peer *peer)
{
    uint64_t uid, gid, pid = 0;
    if (nng_stream_get_uint64(stream->stream, NNG_OPT_IPC_PEER_UID, &uid) != 0 ||
        nng_stream_get_uint64(stream->stream, NNG_OPT_IPC_PEER_GID, &gid) != 0)
        return false;
    nng_stream_get_uint64(stream->stream, NNG_OPT_IPC_PEER_PID, &pid);
    *peer = (struct ipc_peer){(uint32_t)uid, (uint32_t)gid, pid};
    return true;
}

int ipc_stream_descriptor(const struct ipc_stream *stream)
{
    return stream->descriptor;
}

static void begin_to_receive(struct ipc_stream *stream)
{
    nng_iov part = {stream->in, sizeof stream->in};
    stream->in_at = stream->in_end = 0;
    stream->receiving.under_way = true;
    nng_aio_set_iov(stream->receiving.aio, 1, &part);
    nng_stream_recv(stream->stream, stream->receiving.aio);
}

void ipc_stream_watch(struct ipc_stream *stream, uint32_t number)
{
    name(&stream->node, number);
    begin_to_receive(stream);
}

static void collect_received(struct ipc_stream *stream)
{
    if (!operation_collect(&stream->receiving))
        return;
    if (nng_aio_result(stream->receiving.aio) == 0)
        stream->in_end = nng_aio_count(stream->receiving.aio);
    else
        stream->over = true;
}

ssize_t ipc_stream_receive(struct ipc_stream *stream, void *to, size_t size)
{
    collect_received(stream);
    const size_t has = stream->in_end - stream->in_at, taken = has < size ? has : size;
    if (taken == 0)
        return stream->over ? 0 : -1;
    memcpy(to, stream->in + stream->in_at, taken);
    stream->in_at += taken;
    if (stream->in_at == stream->in_end)
        begin_to_receive(stream);
    return (ssize_t)taken;
}

bool ipc_stream_is_over(struct ipc_stream *stream)
{
    collect_received(stream);
    return stream->over || stream->broken;
}

void ipc_stream_again(struct ipc_stream *stream)
{
    say_again(&stream->node);
}

static void begin_to_send(struct ipc_stream *stream)
{
    nng_iov part = {stream->out + stream->out_at, stream->out_end - stream->out_at};
    stream->sending.under_way = true;
    nng_aio_set_iov(stream->sending.aio, 1, &part);
    nng_stream_send(stream->stream, stream->sending.aio);
}

// True: the buffer can be added to.
static bool collect_sent(struct ipc_stream *stream)
{
    if (operation_collect(&stream->sending)) {
        stream->broken |= nng_aio_result(stream->sending.aio) != 0;
        stream->out_at += nng_aio_count(stream->sending.aio);
        if (stream->out_at == stream->out_end)
            stream->out_at = stream->out_end = 0;
        else if (!stream->broken)
            begin_to_send(stream);
    }
    return !stream->sending.under_way;
}

static size_t add(struct ipc_stream *stream, const struct iovec *part)
{
    const size_t room = sizeof stream->out - stream->out_end;
    const size_t taken = part->iov_len < room ? part->iov_len : room;
    memcpy(stream->out + stream->out_end, part->iov_base, taken);
    stream->out_end += taken;
    return taken;
}

ssize_t ipc_stream_send(struct ipc_stream *stream, const struct iovec *parts, size_t count,
                        bool more)
{
    size_t taken = 0;
    const bool is_free = collect_sent(stream);
    if (stream->broken)
        return -1;
    if (!is_free)
        return 0;
    for (size_t i = 0; i < count; i++)
        taken += add(stream, &parts[i]);
    if (!more && stream->out_end > stream->out_at)
        begin_to_send(stream);
    return (ssize_t)taken;
}

void ipc_stream_close(struct ipc_stream *stream)
{
    if (!stream)
        return;
    forget(&stream->node);
    nng_stream_close(stream->stream);
    operation_end(&stream->receiving);
    operation_end(&stream->sending);
    nng_stream_free(stream->stream);
    free(stream);
}
