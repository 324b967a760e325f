// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// lane.h - the ring lane: takes runs and waits out of the sessions' submission rings, has them
// served by the very handlers of the nng lane, and puts the answers into the completion rings.
// Knows entries, rings and the doorbell; not what a run is. Dispatcher thread.
//
// Order between the lanes: the daemon serves what it takes, and each lane in its own order. So
// whatever a client sends on either lane after it has had the answer to an earlier request comes
// after that; requests that are under way together have no order.

#ifndef AULE_SERVER_LANE_H
#define AULE_SERVER_LANE_H

#include "state.h"

// The doorbell: a datagram socket beside the daemon's, of that name and .bell, so that no two
// daemons share one. A path that does not fit is no failure: there is no ring lane then, and the
// log says so.
enum status lane_open_bell(struct server *server, struct error *error);
void lane_close_bell(struct server *server); // removes its file; takes a server without one

void lane_open(struct session *session); // its client has mapped the segment
// It ends, and its parked commands are answered: what its ring still holds is refused, then nothing
// is taken from there any more, nor put.
void lane_close(struct session *session, const char *why);
void lane_hear_bell(struct server *server);
// Serves what lies in the rings: of each session a bounded number, in turns, for a bounded time.
void lane_serve(struct server *server);
// Whether something lies in a ring that is awake; a load each.
bool lane_has_news(const struct server *server);
uint32_t lane_count_awake(const struct server *server);
// Before the dispatcher sleeps: from now on clients ring. False: there is something to do, or soon
// will be; it may not sleep.
bool lane_fall_asleep(struct server *server);

// The answer to what came by the ring of `asker`.
void lane_answer(struct server *server, const struct asker *asker, const struct wire_reply *reply);

#endif
