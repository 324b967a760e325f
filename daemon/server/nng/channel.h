// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// channel.h - one connection as bytes: requests in and answers out, in the framing of
// schema/frame.h. nng's stream carries them (streams.h). Knows neither who sends nor what a request
// means. It never blocks. Thread: dispatcher.

#ifndef AULE_SERVER_CHANNEL_H
#define AULE_SERVER_CHANNEL_H

#include "schema/frame.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct channel_answer;
struct ipc_stream;

struct channel {
    struct ipc_stream *stream; // owned; NULL = closed
    bool greeted;              // the peer's greeting has come
    bool in_body;              // the head of a request has come
    size_t got;               // bytes of the greeting, the head or the body, of the part being read
    size_t size;              // bytes of the body
    uint8_t head[FRAME_HEAD]; // or the greeting
    uint8_t *body;            // owned; NULL: it is too large, and its bytes are dropped
    struct channel_answer *answers; // that the stream has not taken yet; the oldest first; owned
    size_t unread;                  // bytes of them all
};

enum channel_news {
    CHANNEL_NOTHING, // nothing more has come yet
    CHANNEL_REQUEST, // *out is filled
    CHANNEL_OVER     // the peer has hung up or sent something that is no frame; or no memory
};

struct channel_request {
    uint32_t number; // goes back with the answer
    uint8_t *data;   // malloc'd, the caller's. NULL: `size` exceeds `most`
    size_t size;     // bytes
};

// Takes over a connection. The greeting goes with the first answer, or by channel_flush().
void channel_open(struct channel *channel, struct ipc_stream *stream);
void channel_close(struct channel *channel); // takes one that is closed
// Reads until one request is whole. `most`: bytes of a request that this peer may send now.
enum channel_news channel_read(struct channel *channel, size_t most, struct channel_request *out);
// Sends an answer, and keeps what the stream does not take. False: the peer has hung up, or there
// is no memory. Then the channel is of no use any more.
bool channel_write(struct channel *channel, uint32_t number, const void *data, size_t size);
bool channel_flush(struct channel *channel); // sends what was kept; false: as above

// True: a greeting or a request has begun, and its rest has not come.
bool channel_is_amid(const struct channel *channel);
size_t channel_held(const struct channel *channel); // bytes of memory: a request and unread answers

#endif
