// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// handle_operate.c - the handlers of what an operator changes while the daemon serves: sessions,
// caches, limits and the log. handle_inspect.c has what an operator looks at. Dispatcher thread.

#include "server/dispatch.h"
#include "server/log.h"
#include "server/session.h"

#include <inttypes.h>

enum status handle_kill_session(struct call *call)
{
    uint64_t id = call->request->kill_session.session;
    struct session *session = session_find(call->server, id);
    if (!session)
        return error_set(&call->error, STATUS_NOT_FOUND, "there is no session %" PRIu64, id);
    session_end(session, true, "ended by an operator");
    return STATUS_OK;
}

enum status handle_drop_cache(struct call *call)
{
    return core_cache_drop(call->server->core, call->request->drop_cache.cache, &call->error);
}

enum status handle_prefix_unpin(struct call *call)
{
    const struct wire_prefix_unpin *unpin = &call->request->prefix_unpin;
    struct core_unpinned gone;
    enum status status =
        core_prefix_unpin(call->server->core, unpin->cache, unpin->block, &gone, &call->error);
    if (status != STATUS_OK)
        return status;
    log_info("daemon: an operator unpins %" PRIu32 " prefixes of cache %" PRIu64, gone.num_prefixes,
             unpin->cache);
    call->reply.answer = WIRE_ANSWER_PREFIX_UNPIN;
    call->reply.prefix_unpin = (struct wire_prefix_unpin_reply){gone.num_prefixes, gone.num_blocks};
    return STATUS_OK;
}

enum status handle_limit_tenant(struct call *call)
{
    const struct wire_limit_tenant *limit = &call->request->limit_tenant;
    const struct core_limits limits = {limit->blocks, limit->cached, limit->floor};
    enum status status =
        core_tenant_limit(call->server->core, limit->tenant, &limits, &call->error);
    if (status == STATUS_OK)
        log_info("daemon: an operator limits tenant %" PRIu64 " to %" PRIu64 " blocks, %" PRIu64
                 " cached, floor %" PRIu64,
                 limit->tenant, limit->blocks, limit->cached, limit->floor);
    return status;
}

enum status handle_limit_session(struct call *call)
{
    const struct wire_limit_session *limit = &call->request->limit_session;
    const struct session *session = session_find(call->server, limit->session);
    if (!session || !session->core)
        return error_set(&call->error, STATUS_NOT_FOUND, "there is no session %" PRIu64,
                         limit->session);
    core_session_limit(session->core, limit->blocks);
    log_info("%s: an operator limits it to %" PRIu64 " blocks", session->label, limit->blocks);
    return STATUS_OK;
}

enum status handle_log(struct call *call)
{
    const uint32_t wanted = call->request->log.level;
    if (wanted > WIRE_LOG_DEBUG)
        return error_set(&call->error, STATUS_UNSUPPORTED, "the log has no level %u", wanted);
    call->reply.answer = WIRE_ANSWER_LOG;
    call->reply.log.before = (uint32_t)(WIRE_LOG_ERROR + log_highest());
    if (wanted == WIRE_LOG_SHOW)
        return STATUS_OK;
    const enum log_level level = (enum log_level)(wanted - WIRE_LOG_ERROR);
    log_info("daemon: an operator sets the log level to %s", log_level_names[level]);
    log_set_level(level);
    return STATUS_OK;
}

enum status handle_retired(struct call *call)
{
    return error_set(&call->error, STATUS_VERSION,
                     "a command of protocol 2; the daemon speaks protocol %u.%u",
                     WIRE_PROTOCOL_MAJOR, WIRE_PROTOCOL_MINOR);
}
