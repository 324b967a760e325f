// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// session.h - the life of a session: Hello, its segment on the job thread, Mapped, the end. It ends
// with its connection, its client's process, CloseSession, KillSession, a shrunk segment, or the
// daemon. Knows nothing of blocks or runs, which are core's. Thread: dispatcher.

#ifndef AULE_SERVER_SESSION_H
#define AULE_SERVER_SESSION_H

#include "state.h"

// Starts the session that `hello` asks for. `asker` gets its answer when the segment is ready. On
// failure nothing was started.
enum status session_start(struct server *server, struct peer *peer, const struct wire_hello *hello,
                          const struct asker *asker, struct error *error);
void session_mapped(struct session *session); // the client has mapped the segment
// Ends the session; the caller must not use it again. `died`: blocks that runs in flight use are
// quarantined. `why` goes to the log, and to its parked commands if the connection lives.
void session_end(struct session *session, bool died, const char *why);
// The pidfd says so. After an attached session has ended, its blocks wait for this.
void session_process_gone(struct session *session);
// A session that is UNMAPPED or OPEN. NULL: there is none with this id.
struct session *session_find(struct server *server, uint64_t id);
void session_end_all(struct server *server, const char *why);
void session_check_segments(struct server *server); // ends sessions whose segment was shrunk
// Call this after a copy out of the session's segment, whose lost pages read as zeroes. NO_SESSION:
// it was shrunk, and the session has ended. `what` names the copied thing in the error.
enum status session_check_copy(struct session *session, const char *what, struct error *error);
// Ends sessions whose Mapped did not come in time, and arms the deadlines of others.
void session_expire(struct server *server, int64_t now_ns);
// core_params.session_gone. Its segment goes when it has no offloaded command: offload.c calls this
// again then.
void session_gone(void *context, void *owner);

// Gives the session's client a token for one descriptor of its device arena.
enum status session_export(struct session *session, struct wire_device_arena_reply *reply,
                           struct error *error);
// Attaches the session to a cache, and gives its client a token for one descriptor of allocation
// `part`. BUSY: the memory is not made yet.
enum status session_attach(struct session *session, uint64_t cache, uint32_t part,
                           struct wire_cache_attach_reply *reply, struct error *error);
// exports_params.redeem; `context` is the server.
enum status session_redeem(void *context, const uint8_t token[WIRE_TOKEN_SIZE],
                           const struct exports_peer *peer, int *fd, struct error *error);

#endif
