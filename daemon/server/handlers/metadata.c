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

enum status metadata_check(struct call *call, const struct metadata *fields, uint32_t num_fields,
                           struct fetched *out, uint64_t *bytes)
{
    enum status status = STATUS_OK;
    *bytes = 0;
    for (uint32_t i = 0; status == STATUS_OK && i < num_fields; i++) {
        const struct metadata *field = &fields[i];
        out[i] = (struct fetched){field->inline_data, field->inline_count};
        if (field->span.count) {
            status = check_span(call, field);
            out[i].count = (uint32_t)field->span.count;
        }
        *bytes += (uint64_t)out[i].count * field->element_size;
    }
    return status;
}

static enum status copy(struct call *call, const struct metadata *field, const void *from,
                        struct fetched *out)
{
    void *to = call_alloc(call, out->count, field->element_size);
    if (!to)
        return call->error.status;
    memcpy(to, from, (size_t)out->count * field->element_size);
    out->data = to;
    return STATUS_OK;
}

enum status metadata_keep(struct call *call, const struct metadata *fields, uint32_t num_fields,
                          struct fetched *out)
{
    enum status status = STATUS_OK;
    for (uint32_t i = 0; status == STATUS_OK && i < num_fields; i++) {
        if (!fields[i].span.count && out[i].count)
            status = copy(call, &fields[i], out[i].data, &out[i]);
    }
    return status;
}

enum status metadata_copy(struct call *call, const struct metadata *fields, uint32_t num_fields,
                          struct fetched *out)
{
    const struct segment *segment = &call->session->segment;
    const uint8_t *arena = (const uint8_t *)segment->base + segment->arena_offset;
    enum status status = STATUS_OK;
    for (uint32_t i = 0; status == STATUS_OK && i < num_fields; i++) {
        if (fields[i].span.count)
            status = copy(call, &fields[i], arena + fields[i].span.offset, &out[i]);
    }
    return status;
}

enum status metadata_fetch(struct call *call, const struct metadata *field, const void **data,
                           uint32_t *count)
{
    struct fetched got = {0};
    uint64_t bytes;
    enum status status = metadata_check(call, field, 1, &got, &bytes);
    if (status == STATUS_OK)
        status = metadata_copy(call, field, 1, &got);
    *data = got.data;
    *count = got.count;
    if (status != STATUS_OK || !field->span.count)
        return status;
    status = session_check_copy(call->session, field->name, &call->error);
    if (status != STATUS_OK)
        call->session = NULL;
    return status;
}
