// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// streams.h - nng's byte streams over Unix sockets, as a dispatcher wants them: calls that never
// block, and one descriptor that is readable while something can go on. Knows neither frames nor
// who may connect. nng's own threads do the reading and writing, into a small buffer each way, so
// a connection takes no other memory here. Thread: dispatcher.
//
// The layer of nng above, its sockets, has messages as well. But it keeps requests that are not
// whole and answers that nobody reads, and nobody can bound or see them there.

#ifndef AULE_SERVER_STREAMS_H
#define AULE_SERVER_STREAMS_H

#include "schema/status.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <sys/uio.h>

struct streams;    // all ears and streams of one dispatcher
struct ear;        // accepts connections at a path
struct ipc_stream; // one connection

enum status streams_open(struct streams **out, struct error *error);
// Ends nng's threads. Ears and streams are closed before. Takes NULL.
void streams_close(struct streams *streams);
int streams_fd(const struct streams *streams); // readable while streams_next() has something
// The number of an ear or a stream with news. Several pieces of news are reported once. False: none
// has news.
bool streams_next(struct streams *streams, uint32_t *number);

// Listens at `path` with the permissions `mode`. Nothing lies there; see side_socket_clear().
enum status ear_open(struct streams *streams, uint32_t number, const char *path, mode_t mode,
                     struct ear **out, struct error *error);
void ear_unlink(const struct ear *ear); // removes the socket's file, unless another lies there now
void ear_close(struct ear *ear);        // the same, and ends it; takes NULL

enum ear_news {
    EAR_NOTHING,
    EAR_STREAM,         // *out is the caller's; the ear goes on
    EAR_NO_DESCRIPTORS, // the process has none for the next connection. Call ear_resume()
    EAR_FAILED          // mostly for want of memory. Call ear_resume(), perhaps later
};
enum ear_news ear_accept(struct ear *ear, struct ipc_stream **out);
void ear_resume(struct ear *ear);

struct ipc_peer {
    uint32_t uid, gid;
    uint64_t pid; // 0 = of another pid namespace
};
bool ipc_stream_credentials(const struct ipc_stream *stream, struct ipc_peer *peer);
int ipc_stream_descriptor(const struct ipc_stream *stream); // lent; -1: nng does not tell it
// Begins to receive. From now on streams_next() names the stream by this number.
void ipc_stream_watch(struct ipc_stream *stream, uint32_t number);
// Bytes that came; 0: the peer has hung up; -1: nothing for now.
ssize_t ipc_stream_receive(struct ipc_stream *stream, void *to, size_t size);
// Bytes that it took, at most what its buffer has room for; -1: the peer has hung up. `more`: the
// bytes may wait for the next call.
ssize_t ipc_stream_send(struct ipc_stream *stream, const struct iovec *parts, size_t count,
                        bool more);
bool ipc_stream_is_over(
    struct ipc_stream *stream); // the peer has hung up, and nothing is left to receive
void ipc_stream_again(struct ipc_stream *stream); // streams_next() names it once more
void ipc_stream_close(struct ipc_stream *stream); // what was sent still arrives; takes NULL

#endif
