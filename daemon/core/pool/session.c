// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// session.c - see session.h. The life of a session is the top's affair (core/session_life.c).

#include "session.h"

#include "base/list.h"
#include "ledger.h"
#include "pieces.h"
#include "pool.h"
#include "salt.h"
#include "tenant.h"

#include <inttypes.h>

enum status session_usable(const struct core_session *session, struct error *error)
{
    const struct ledger *ledger = session->ledger;
    if (ledger->lost)
        return error_set(error, STATUS_DEVICE_LOST, "the device is lost: %s",
                         ledger->lost_why.text);
    return STATUS_OK;
}

enum status session_check_batch_memory(const struct core_session *session, uint64_t bytes,
                                       const char *what, struct error *error)
{
    uint64_t most = session->ledger->params->max_batch_memory, has = session->memory.batches;
    if (!most || (has <= most && bytes <= most - has))
        return tenant_check_memory(session->salt->tenant, bytes, what, error);
    return error_set(error, STATUS_LIMIT,
                     "%" PRIu64 " bytes of %s more would exceed the session's limit of %" PRIu64
                     " (--max-batch-memory); its batches and unreaped runs have %" PRIu64,
                     bytes, what, most, has);
}

void session_count_memory(struct core_session *session, uint64_t bytes)
{
    session->memory.all += bytes;
    session->salt->tenant->memory += bytes;
    session->pool->memory += bytes;
}

void session_charge(struct core_session *session, uint64_t bytes)
{
    session->memory.batches += bytes;
    session_count_memory(session, bytes);
}

void session_discharge(struct core_session *session, uint64_t bytes)
{
    session_charge(session, -bytes);
}

enum status core_memory_check(const struct core_session *session, uint64_t bytes, const char *what,
                              struct error *error)
{
    return tenant_check_memory(session->salt->tenant, bytes, what, error);
}

void core_memory_count(struct core_session *session, int64_t by)
{
    session_count_memory(session, (uint64_t)by);
}

// ---- calls in pieces ----

uint32_t piece_of(const struct core_session *session, uint32_t left)
{
    const uint32_t most = session->ledger->params->piece_blocks;
    return left < most ? left : most;
}

enum status core_pieces_next(struct core_pieces *pieces, bool *more, struct error *error)
{
    *more = false;
    return pieces->next(pieces, more, error);
}

void core_pieces_discard(struct core_pieces *pieces)
{
    if (pieces)
        pieces->discard(pieces);
}

// ---- waits ----

void session_begin_wait(struct core_session *session, struct core_wait *wait,
                        enum core_wait_kind kind, uint64_t cache)
{
    *wait = (struct core_wait){.kind = kind, .session = session, .cache = cache};
    LIST_APPEND(session->waits.list, wait);
}

void session_end_wait(struct core_wait *wait)
{
    struct core_session *session = wait->session;
    ledger_unwake(session->ledger, wait);
    LIST_DELETE(session->waits.list, wait);
    wait->session = NULL;
}

void session_wake(struct core_session *session, uint64_t cache)
{
    struct core_wait *wait;
    LIST_EACH(session->waits.list, wait) {
        if (wait->cache == cache)
            ledger_wake(session->ledger, wait);
    }
}
