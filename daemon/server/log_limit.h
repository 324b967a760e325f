// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// log_limit.h - how often each kind of line is written. A kind is a format string, known by its
// address, so nothing that a client sends makes a kind. Knows no clock and writes nothing. Thread:
// any, under the caller's lock.

#ifndef AULE_SERVER_LOG_LIMIT_H
#define AULE_SERVER_LOG_LIMIT_H

#include "log.h"

#include <stddef.h>

enum {
    LOG_KINDS = 256,     // further kinds share one limit
    LOG_BURST = 64,      // lines of a kind at once
    LOG_TEXT_ROOM = 512, // of a line that is left out; more of it is cut
};

struct log_kind {
    const char *format; // NULL = free
    enum log_level level;
    uint32_t used;            // lines that are not paid back yet; one a second is
    int64_t paid_ns;          // until when
    uint64_t left_out;        // since the last line of this kind
    char last[LOG_TEXT_ROOM]; // text of the last one that was left out
};

struct log_limit {
    struct log_kind kinds[LOG_KINDS + 1]; // a hash table; the last entry is for all others
    uint32_t num_waiting;                 // kinds with lines that were left out
};

// True: a line of this kind may be written at `now_ns`; *left_out is how many were not since the
// last one. False: `text` is kept instead, for log_limit_next().
bool log_limit_allows(struct log_limit *limit, enum log_level level, const char *format,
                      const char *text, int64_t now_ns, uint64_t *left_out);
// A kind whose lines were left out and that may be written again; with `all`, any such kind. Its
// count and text are the caller's to write. NULL: there is none.
const struct log_kind *log_limit_next(struct log_limit *limit, bool all, int64_t now_ns,
                                      uint64_t *left_out);

#endif
