// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// lane.h - the ring lane of one attachment: runs and waits through the rings of its segment, for
// which no message goes out. Knows entries, rings and the doorbell. Any thread; answers.c has how
// they wait.

#ifndef AULE_CLIENT_LANE_H
#define AULE_CLIENT_LANE_H

#include "connection.h"
#include "segment.h"

struct lane;

// Which lane AULE_LANE asks for, and how long a thread spins: what the session's parameter, else
// AULE_RING_SPIN, else the rule says. AULE_INVALID: one of them is nothing that is known.
enum lane_choice { LANE_AUTO, LANE_NNG, LANE_RING };
struct lane_plan {
    enum lane_choice choice;
    int64_t spin_ns; // 0: nobody spins
};
enum aule_status lane_choose(int spin_us, struct lane_plan *plan);

// Opens the ring lane if the plan allows it and the daemon, whose socket is `path`, offers it and
// can be rung; else *out is NULL, which is a failure only where the plan wants the ring:
// AULE_UNSUPPORTED, AULE_VERSION, AULE_DAEMON_GONE; AULE_NO_MEMORY, AULE_MISMATCH of the bell.
// Unless the plan is LANE_NNG it always is one without memory for the lane (AULE_NO_MEMORY), and
// where the offered rings do not fit into the segment (AULE_MISMATCH). From then on the end of the
// connection ends the lane's waits.
enum aule_status lane_open(const struct lane_plan *plan, const char *path,
                           const struct wire_hello_reply *hello, const struct segment *segment,
                           struct connection *connection, struct lane **out);
void lane_close(struct lane *lane); // after connection_close(), before segment_close(); takes NULL
uint32_t lane_num_entries(const struct lane *lane); // 0 for NULL

// connection_call() by the ring, with *status its result; but here a RUN is no answer to a Run that
// waits (AULE_MALFORMED). False, and nothing has happened: the ring is no place for this command,
// or has none now, or there is no lane (NULL); it is to go as a message.
bool lane_call(struct lane *lane, const struct wire_request *request, const struct timeout *timeout,
               enum wire_answer expected, struct answer *answer, enum aule_status *status);

#endif
