// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// metadata.c - see metadata.h.

#include "metadata.h"

#include "server/session.h"

#include <inttypes.h>
#include <string.h>

static enum status check_span(struct call *call, const struct metadata *field)
{
    const struct segment *segment = &call->session->segment;
    const struct wire_span *span = &field->span;
    uint64_t size, limit = call->server->params->max_metadata;
    if (field->inline_data)
        return error_set(&call->error, STATUS_INVALID,
                         "%s is given in the message and as a span of %" PRIu64 " elements",
                         field->name, span->count);
    if (span->offset % field->element_size)
        return error_set(&call->error, STATUS_MISALIGNED,
                         "%s: arena offset %" PRIu64 " is no multiple of %u", field->name,
                         span->offset, field->element_size);
    if (__builtin_mul_overflow(span->count, (uint64_t)field->element_size, &size) ||
        size > segment->arena_size || span->offset > segment->arena_size - size)
        return error_set(&call->error, STATUS_OUT_OF_RANGE,
                         "%s: %" PRIu64 " elements of %u bytes at offset %" PRIu64
                         " reach past the arena of %" PRIu64 " bytes",
                         field->name, span->count, field->element_size, span->offset,
                         segment->arena_size);
    if (size > limit || call->metadata_size > limit - size || span->count > UINT32_MAX)
        return error_set(&call->error, STATUS_LIMIT,
                         "%s: %" PRIu64 " bytes of metadata after %" PRIu64
                         " bytes in other arrays exceed --max-metadata %" PRIu64,
                         field->name, size, call->metadata_size, limit);
    call->metadata_size += size;
    return STATUS_OK;
}

static enum status copy_span(struct call *call, const struct metadata *field, const void **data)
{
    struct session *session = call->session;
    const uint8_t *arena = (const uint8_t *)session->segment.base + session->segment.arena_offset;
    void *copy = call_alloc(call, field->span.count, field->element_size);
    if (!copy)
        return call->error.status;
    memcpy(copy, arena + field->span.offset, field->span.count * field->element_size);
    enum status status = session_check_copy(session, field->name, &call->error);
    if (status == STATUS_OK)
        *data = copy;
    else
        call->session = NULL;
    return status;
}

enum status metadata_fetch(struct call *call, const struct metadata *field, const void **data,
                           uint32_t *count)
{
    *data = field->inline_data;
    *count = field->inline_count;
    if (field->span.count == 0)
        return STATUS_OK;
    enum status status = check_span(call, field);
    if (status == STATUS_OK)
        status = copy_span(call, field, data);
    *count = (uint32_t)field->span.count;
    return status;
}
