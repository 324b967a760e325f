// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// session.h - the life of a session: handshake, segment on the job thread, Mapped, end. A session
// ends with its connection, its process, its CloseSession, an operator's KillSession, a shrunk
// segment, or the daemon. Dispatcher thread.

#ifndef AULE_SERVER_SESSION_H
#define AULE_SERVER_SESSION_H

#include "state.h"

// Start the session that `hello` asks for; the reply to `asker` comes when its segment is ready. On
// failure nothing was started.
enum status session_start(struct server *server, struct peer *peer, const struct wire_hello *hello,
                          const struct asker *asker, struct error *error);
void session_mapped(struct session *session);
// `died`: blocks with GPU work in flight are quarantined. `why` is for the log and for its parked
// commands, which are answered if the connection lives. The session must not be used afterwards.
void session_end(struct session *session, bool died, const char *why);
struct session *session_find(struct server *server, uint64_t id); // living ones only; NULL
void session_end_all(struct server *server, const char *why);
void session_check_segments(struct server *server);         // end those whose segment was shrunk
void session_expire(struct server *server, int64_t now_ns); // end those that never sent Mapped
void session_gone(void *context, void *owner);              // core_params.session_gone

#endif
