// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// session.c - see session.h. The life of a session is the top's affair (core/session_life.c).

#include "session.h"

#include "ledger.h"

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
    uint64_t most = session->ledger->params->max_batch_memory, has = session->batch_memory;
    if (!most || (has <= most && bytes <= most - has))
        return STATUS_OK;
    return error_set(error, STATUS_LIMIT,
                     "%" PRIu64 " bytes of %s more would exceed the session's limit of %" PRIu64
                     " (--max-batch-memory); its batches and unreaped runs have %" PRIu64,
                     bytes, what, most, has);
}
