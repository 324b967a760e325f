// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// lane.h - the ring lane of one attachment: runs and waits through the rings of its segment, for which no message goes out. Knows entries,
// rings and the doorbell. Any thread.

#ifndef AULE_CLIENT_LANE_H
#define AULE_CLIENT_LANE_H

#include "connection.h"
#include "segment.h"

struct lane;

// Which lane AULE_LANE asks for. AULE_INVALID: it is neither nng nor ring.
enum lane_choice { LANE_AUTO, LANE_NNG, LANE_RING };
enum aule_status lane_choose(enum lane_choice *choice);

// Opens the ring lane if `choice` allows it and the daemon, whose socket is `path`, offers it; else *out is NULL. AULE_UNSUPPORTED: it is
// asked for and not offered. From then on the end of the connection ends the lane's waits.
enum aule_status lane_open(enum lane_choice choice, const char *path, const struct wire_hello_reply *hello,
                           const struct segment *segment, struct connection *connection, struct lane **out);
void lane_close(struct lane *lane); // after connection_close(), before segment_close(); takes NULL

bool lane_takes(const struct lane *lane, enum wire_command command); // false for NULL

// connection_call() for a Run or a Wait. AULE_BUSY: the ring was full for `wait_ms`, which is its own time for a place there.
enum aule_status lane_call(struct lane *lane, const struct wire_request *request, int wait_ms,
                           const struct timeout *timeout, enum wire_answer expected, struct answer *answer);
// A Run that is answered when it is done: *answer is of the kind WAIT. After a failure *ticket is the Run's, 0 if there is none.
enum aule_status lane_run(struct lane *lane, const struct wire_request *run, int wait_ms, const struct timeout *timeout,
                          struct answer *answer, uint64_t *ticket);

#endif
