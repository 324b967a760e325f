// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// handle_session.c - the handlers of Hello, Mapped, DeviceArena, Ping and CloseSession. session.c
// has the life of a session. Dispatcher thread.

#include "server/dispatch.h"
#include "server/session.h"

#include <unistd.h>

enum status handle_hello(struct call *call)
{
    enum status status =
        session_start(call->server, call->peer, &call->request->hello, &call->asker, &call->error);
    call->later = status == STATUS_OK;
    return status;
}

enum status handle_mapped(struct call *call)
{
    session_mapped(call->session);
    return STATUS_OK;
}

enum status handle_device_arena(struct call *call)
{
    call->reply.answer = WIRE_ANSWER_DEVICE_ARENA;
    return session_export(call->session, &call->reply.device_arena, &call->error);
}

enum status handle_ping(struct call *call)
{
    call->reply.answer = WIRE_ANSWER_PING;
    call->reply.ping = (struct wire_ping_reply){
        .payload = call->request->ping.payload,
        .epoch = call->server->epoch,
        .version = AULE_VERSION_STRING,
        .major = WIRE_PROTOCOL_MAJOR,
        .minor = WIRE_PROTOCOL_MINOR,
        .pid = (uint64_t)getpid(),
        .socket = call->server->socket,
    };
    return STATUS_OK;
}

enum status handle_close_session(struct call *call)
{
    session_end(call->session, false, "closed by its client");
    call->session = NULL;
    return STATUS_OK;
}
