// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// lane.h - the ring lane: it takes requests from the sessions' submission rings and puts the
// answers into the completion rings. A run or a wait lies in its entry; other commands lie in
// places, behind the arena or in it, and so do answers that no entry can hold. The handlers are
// those of messages. Knows entries, places, rings and the doorbell, not what a command does.
// Thread: dispatcher.
//
// Order: each lane serves its requests in the order in which they were sent. Between the lanes
// there is no order, unless the client waits for the answer to one request before it sends the
// next.

#ifndef AULE_SERVER_LANE_H
#define AULE_SERVER_LANE_H

#include "state.h"

// Opens the doorbell: a datagram socket with the path of the daemon's socket and .bell. If that
// path is too long for a socket, there is no ring lane; the log says so, and it is no failure.
enum status lane_open_bell(struct server *server, struct error *error);
void lane_close_bell(struct server *server); // removes its file; takes a server without one

void lane_open(struct session *session); // call this when the client has mapped the segment
// Call this when the session ends, after its parked commands were answered. It answers the entries
// that are left in the submission ring with NO_SESSION and `why`. Then the rings are not used
// again.
void lane_close(struct session *session, const char *why);
// Takes no entry from lane_hold() to lane_release(). The dispatcher may sleep meanwhile.
void lane_hold(struct session *session);
void lane_release(struct session *session);
void lane_hear_bell(struct server *server); // the doorbell's descriptor is readable
// Serves requests from all rings in turns; number and time are bounded.
void lane_serve(struct server *server);
// True: a ring that is awake has a request. One load for each such ring.
bool lane_has_news(const struct server *server);
uint32_t lane_count_awake(const struct server *server);
// Call this before the dispatcher sleeps; from then on clients ring the doorbell. False: a ring has
// a request or is still polled, so the dispatcher must not sleep.
bool lane_fall_asleep(struct server *server);

// Answers a request that came by the ring of asker->ring. A client that polls sees the answer at
// once; one that sleeps is woken by lane_wake_clients().
void lane_answer(struct server *server, const struct asker *asker, const struct wire_reply *reply);
// Call this after one or several answers. A wake-up is a system call and may give the core to the
// client, so all are answered first.
void lane_wake_clients(struct server *server);

#endif
