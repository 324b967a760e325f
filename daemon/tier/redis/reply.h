// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// reply.h - reads what a Redis server answers (RESP 2), line by line, and puts the bytes of a
// value where they belong without a copy between. Knows no sockets: the caller reads into
// reply_wants() and says how much came. It trusts nothing: a line has a limit, and so has a value.
// One thread.

#ifndef AULE_TIER_REDIS_REPLY_H
#define AULE_TIER_REDIS_REPLY_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

enum {
    REPLY_BUFFER = 16384, // bytes; at most so many of a value are copied
    REPLY_LINE_MOST = 512,
    REPLY_SAID = 40,  // letters of a line that a sentence quotes
    REPLY_PIECES = 2, // places of one value
    REPLY_VECTORS = REPLY_PIECES + 1,
};
// Twice the largest part of a block. A longer value is none of ours, and is not read to its end.
#define REPLY_BULK_MOST (UINT64_C(2) << 20)

enum reply_event {
    REPLY_MORE,   // read more bytes
    REPLY_LINE,   // `type`, `number` and `text` are set; a '$' with number >= 0 has bytes to come
    REPLY_BULK,   // these bytes came
    REPLY_BROKEN, // this is no RESP
};

struct reply {
    // REPLY_LINE
    char type;                  // '+' '-' ':' '$' '*'
    int64_t number;             // of ':' '$' '*'; -1 is nil
    char text[REPLY_LINE_MOST]; // of '+' and '-', without its end
    char said[REPLY_SAID + 1];  // how the last line begins, also one that is broken; printable
    // the value that is being read
    bool in_bulk;
    uint64_t bulk_left; // bytes to come, with the CR LF
    struct iovec places[REPLY_PIECES];
    uint32_t num_places, place;
    // read and not used
    uint32_t begin, end;
    char buffer[REPLY_BUFFER];
};

void reply_init(struct reply *reply);
// What comes next in the bytes read so far.
enum reply_event reply_next(struct reply *reply);
// Behind a REPLY_LINE of '$' with number >= 0: where its bytes go, one place after the other. More
// bytes than the places hold are dropped. A place without memory (iov_base NULL) is none.
void reply_places(struct reply *reply, const struct iovec *places, uint32_t num_places);
// The rest of the value is dropped. The places are not touched again.
void reply_drop(struct reply *reply);
// Says what the server answered to `command`: a sentence without its end.
void reply_quote(const struct reply *reply, const char *command, char *to, size_t size);
// Where the next bytes go: fills `to` and returns how many of its entries.
int reply_wants(struct reply *reply, struct iovec to[REPLY_VECTORS]);
void reply_got(struct reply *reply, size_t bytes); // at most what it wanted

#endif
