// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// lane.h - the ring lane of one life: sends commands through the rings of its segment,
// without messages over the socket. A run or a wait lies in its entry, another command in a place:
// bytes behind the arena that are the lane's own. Knows entries, places, rings and the doorbell.
// Any thread; answers.c says how threads wait.

#ifndef AULE_CLIENT_LANE_H
#define AULE_CLIENT_LANE_H

#include "connection.h"
#include "segment.h"

struct lane;

// Reads which lane AULE_LANE asks for, and how long a thread spins: by the session's parameter,
// else by AULE_RING_SPIN, else by the rule. AULE_INVALID: one of them has an unknown value.
enum lane_choice { LANE_AUTO, LANE_NNG, LANE_RING };
struct lane_plan {
    enum lane_choice choice;
    int64_t spin_ns; // 0: no thread spins
};
enum aule_status lane_choose(int spin_us, struct lane_plan *plan);

// What the lane uses of a life. Segment and connection must live as long as the lane.
struct lane_parts {
    const struct segment *segment;
    struct connection *connection;
};
// Opens the ring lane if the plan allows it, the daemon with the socket `path` offers it, and its
// doorbell can be reached. Otherwise *out is NULL. With LANE_RING that is a failure:
// AULE_UNSUPPORTED: not offered. AULE_VERSION: entries of another size. AULE_DAEMON_GONE,
// AULE_NO_MEMORY, AULE_MISMATCH: the doorbell.
// These are failures with LANE_AUTO, too: AULE_NO_MEMORY for the lane itself, and AULE_MISMATCH if
// the offered rings do not fit into the segment.
// After AULE_OK the end of the connection ends the lane's waits.
enum aule_status lane_open(const struct lane_plan *plan, const char *path,
                           const struct wire_hello_reply *hello, const struct lane_parts *parts,
                           struct lane **out);
void lane_close(struct lane *lane); // after connection_close(), before segment_close(); takes NULL
uint32_t lane_num_entries(const struct lane *lane); // 0 for NULL

// connection_call() through the ring; its result is *status. One difference: a RUN is no answer to
// a Run that waits (AULE_MALFORMED). False: nothing has happened, and the command must go as a
// message. The ring does not take this command, or the ring is full, or there is no place for the
// command, or `lane` is NULL.
bool lane_call(struct lane *lane, const struct wire_request *request, const struct timeout *timeout,
               enum wire_answer expected, struct answer *answer, enum aule_status *status);

#endif
