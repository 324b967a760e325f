// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// connections.c - see connections.h.

#include "connections.h"

#include "dispatch.h"
#include "log.h"
#include "session.h"
#include "state.h"

#include <inttypes.h>
#include <stdlib.h>
#include <utlist.h>

// A refused connection stays open this long, so that its client can ask and read why.
static const int64_t refused_stay_ns = 3000 * NS_PER_MS;

void connections_expire(struct server *server, int64_t now_ns)
{
    for (struct refused *refused = server->refused; refused; refused = refused->next) {
        if (refused->peer->close_at_ns <= now_ns)
            listener_hang_up(server->listener, refused->peer);
        else
            server_arm(server, refused->peer->close_at_ns);
    }
}

// Every command of this connection is answered with the reason, until connections_expire() closes
// it.
static void refuse(struct server *server, struct peer *peer)
{
    struct error error;
    dispatch_explain(server, peer, &error);
    log_warn("connection of pid %" PRIu64 ": refused: %s", peer->pid, error.text);
    core_metrics(server->core)[METRIC_REFUSED_CONNECTIONS]++;
    struct refused *refused = calloc(1, sizeof *refused);
    if (!refused) {
        listener_hang_up(server->listener, peer);
        return;
    }
    refused->peer = peer;
    peer->close_at_ns = clock_now_ns() + refused_stay_ns;
    LL_PREPEND(server->refused, refused);
    server_arm(server, peer->close_at_ns);
}

static void came(struct server *server, struct peer *peer)
{
    server->num_connections += peer->refusal != STATUS_LIMIT;
    log_debug("connection of pid %" PRIu64 ", uid %u: open", peer->pid, peer->uid);
    if (peer->refusal != STATUS_OK)
        refuse(server, peer);
}

static void went(struct server *server, struct peer *peer)
{
    struct refused *refused, *next;
    server->num_connections -= peer->refusal != STATUS_LIMIT;
    log_debug("connection of pid %" PRIu64 ", uid %u: gone", peer->pid, peer->uid);
    if (peer->session)
        session_end(peer->session, true, "its connection is gone");
    LL_FOREACH_SAFE(server->refused, refused, next)
    {
        if (refused->peer == peer) {
            LL_DELETE(server->refused, refused);
            free(refused);
        }
    }
    listener_forget(server->listener, peer);
}

void connections_take(struct server *server)
{
    struct peer *peer;
    bool removed;
    while (listener_next_event(server->listener, &peer, &removed)) {
        if (removed)
            went(server, peer);
        else
            came(server, peer);
    }
    uint32_t refused = listener_num_refused(server->listener);
    if (!refused)
        return;
    core_metrics(server->core)[METRIC_REFUSED_CONNECTIONS] += refused;
    log_warn("daemon: %u connections closed at once: %u are open, --max-connections is %u", refused,
             server->num_connections, server->params->max_connections);
}

void connections_forget(struct server *server)
{
    struct refused *refused, *next;
    LL_FOREACH_SAFE(server->refused, refused, next)
    {
        free(refused);
    }
    server->refused = NULL;
}
