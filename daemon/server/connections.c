// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// connections.c - see connections.h.

#include "connections.h"

#include "log.h"
#include "offload.h"
#include "session.h"
#include "state.h"

#include <inttypes.h>

static void came(struct server *server, const struct peer *peer)
{
    log_debug("connection of pid %" PRIu64 ", uid %u%s: open", peer->pid, peer->user.uid,
              peer->by_control ? ", by the control socket" : "");
    if (!peer->refusal)
        return;
    log_warn("connection of pid %" PRIu64 ": refused: %s", peer->pid, peer->refusal->text);
    core_metrics(server->core)[METRIC_REFUSED_CONNECTIONS]++;
}

static void went(struct server *server, struct peer *peer)
{
    log_debug("connection of pid %" PRIu64 ", uid %u: gone", peer->pid, peer->user.uid);
    if (peer->session)
        session_end(peer->session, true, "its connection is gone");
    offload_forget_peer(server, peer);
    listener_forget(server->listener, peer);
}

void connections_take(struct server *server)
{
    struct peer *peer;
    bool removed;
    const char *why;
    while (listener_next_event(server->listener, &peer, &removed)) {
        if (removed)
            went(server, peer);
        else
            came(server, peer);
    }
    uint32_t refused = listener_num_refused(server->listener, &why);
    if (!refused)
        return;
    core_metrics(server->core)[METRIC_REFUSED_CONNECTIONS] += refused;
    log_warn("daemon: %u connections closed at once, the last one because %s", refused, why);
}
