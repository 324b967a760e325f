// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// status.h - the statuses of commands: a list that daemon, client and wire share; and the element
// types of dtypes.h as an enum. The public header has the same values; client/src/status.c asserts
// it.

// Laid out by hand, one entry a line.
// clang-format off
#ifndef AULE_SCHEMA_STATUS_H
#define AULE_SCHEMA_STATUS_H

#include "dtypes.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

// X(NAME, value on the wire, text). Append; never renumber, never reuse a value.
#define AULE_STATUS_MAP(X)                                                                         \
    X(OK,             0,  "success")                                                               \
    X(INVALID,        1,  "an argument is out of its range")                                       \
    X(UNSUPPORTED,    2,  "this library, daemon or device does not do it")                         \
    X(DENIED,         3,  "the caller may not do this")                                            \
    X(NO_MEMORY,      4,  "out of host, shared or device memory")                                  \
    X(NO_BLOCKS,      5,  "the pool has no free block")                                            \
    X(QUOTA,          6,  "the session's own limit is reached")                                    \
    X(NOT_HELD,       7,  "a block is not held by this session")                                   \
    X(SEALED,         8,  "a block is sealed; sealed contents never change")                       \
    X(UNWRITTEN,      9,  "a slot is needed that no run has written in its layer")                 \
    X(DUPLICATE_SLOT, 10, "a slot occurs twice in one batch")                                      \
    X(OUT_OF_RANGE,   11, "an id, a length or an offset points outside what it indexes")           \
    X(MISALIGNED,     12, "an offset or a stride is not aligned")                                  \
    X(MISMATCH,       13, "the object exists with another identity, shape or element type")        \
    X(NOT_FOUND,      14, "no such object")                                                        \
    X(LIMIT,          15, "a limit is reached; the sentence names its option")                     \
    X(BUSY,           16, "too many unreaped tickets, or the object is in use")                    \
    X(TIMEOUT,        17, "the deadline passed; the work may go on")                               \
    X(MALFORMED,      18, "the message is truncated, corrupt or oversized")                        \
    X(VERSION,        19, "the protocol versions do not match")                                    \
    X(NO_SESSION,     20, "the connection has no such session")                                    \
    X(EPOCH,          21, "the handle belongs to an earlier life of the daemon")                   \
    X(DAEMON_GONE,    22, "the daemon is gone or cannot be reached")                               \
    X(DEVICE_LOST,    23, "the GPU stopped; reopen the session")                                   \
    X(FORKED,         24, "the object was opened before fork(); a child opens its own")            \
    X(STOPPING,       25, "the daemon is stopping and takes no new work")                          \
    X(INTERNAL,       26, "a defect in aule; please report it")

enum status {
#define X(name, value, text) STATUS_##name = value,
    AULE_STATUS_MAP(X)
#undef X
};

enum dtype {
#define X(name, value, text, size, largest) DTYPE_##name = value,
    AULE_DTYPE_MAP(X)
#undef X
};

// What a stored element of an 8-bit dtype stands for: its own value; its value times a scale of the
// run; its value times a stored scale of its token and KV head. aule.h has the same values.
enum scale_mode { SCALE_NONE = 0, SCALE_PER_TENSOR = 1, SCALE_PER_TOKEN_HEAD = 2 };

// The name ("NOT_HELD") and the text of a status; "UNKNOWN" for other values. Static strings.
const char *status_name(int status);
const char *status_text(int status);

// The name ("f16") and the element size in bytes of a dtype; "unknown" and 0 for other values.
const char *dtype_name(int dtype);
uint32_t dtype_size(int dtype);

// A failure: its status, and one sentence with the values that were wrong.
struct error {
    enum status status;
    char text[384];
};

// Fills *error unless it is NULL. Returns `status`, so that a check reads `return error_set(...)`.
enum status error_set(struct error *error, enum status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#ifdef __cplusplus
}
#endif

#endif
