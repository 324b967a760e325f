// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// handle_cache.c - the handlers of caches and blocks: from a verified command to a call of core and
// back. They limit sizes so that a reply can hold the result; core checks the rest. Dispatcher
// thread.

#include "server/offload.h"
#include "server/park.h"
#include "server/session.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static enum status check_open(struct call *call, const struct wire_cache_open *open)
{
    size_t length = strlen(open->name);
    if (length == 0 || length > WIRE_MAX_NAME)
        return error_set(&call->error, STATUS_INVALID,
                         "a cache's name of %zu bytes; it needs 1 to %u", length, WIRE_MAX_NAME);
    if (open->fingerprint.count > WIRE_MAX_FINGERPRINT)
        return error_set(&call->error, STATUS_INVALID, "a fingerprint of %u bytes; at most %u fit",
                         open->fingerprint.count, WIRE_MAX_FINGERPRINT);
    if (open->block_bytes > UINT32_MAX)
        return error_set(&call->error, STATUS_UNSUPPORTED,
                         "block_bytes %" PRIu64 ": an opaque block has less than 4 GiB",
                         open->block_bytes);
    return STATUS_OK;
}

enum status handle_cache_open(struct call *call)
{
    const struct wire_cache_open *open = &call->request->cache_open;
    struct core_cache_info info;
    enum status status = check_open(call, open);
    if (status != STATUS_OK)
        return status;
    const struct core_cache_identity identity = {
        .name = open->name,
        .num_layers = open->num_layers,
        .kv =
            {
                .num_kv_heads = open->num_kv_heads,
                .head_dim_k = open->head_dim_k,
                .head_dim_v = open->head_dim_v,
                .block_size = open->block_size,
                .k_dtype = (enum dtype)open->k_dtype,
                .v_dtype = (enum dtype)open->v_dtype,
                .v_is_k_prefix = open->v_is_k_prefix,
                .scale_mode = (enum scale_mode)open->scale_mode,
                .block_bytes = (uint32_t)open->block_bytes,
            },
        .fingerprint = open->fingerprint.data,
        .fingerprint_size = open->fingerprint.count,
    };
    status = core_cache_open(call->session->core, &identity, &info, &call->error);
    if (status != STATUS_OK)
        return status;
    call->reply.answer = WIRE_ANSWER_CACHE_OPEN;
    call->reply.cache_open = (struct wire_cache_open_reply){
        .cache = info.cache, .chunk_blocks = info.chunk_blocks, .block_bytes = info.block_bytes};
    return STATUS_OK;
}

enum status handle_cache_close(struct call *call)
{
    return core_cache_close(call->session->core, call->request->cache_close.cache, &call->error);
}

enum status handle_cache_state(struct call *call)
{
    struct core_counts counts;
    enum status status = core_cache_counts(call->session->core, call->request->cache_state.cache,
                                           &counts, &call->error);
    if (status != STATUS_OK)
        return status;
    call->reply.answer = WIRE_ANSWER_CACHE_STATE;
    call->reply.cache_state = (struct wire_cache_state_reply){
        .total_blocks = counts.total,
        .free_blocks = counts.free,
        .leased_blocks = counts.leased,
        .held_blocks = counts.held,
        .cached_blocks = counts.cached,
        .quarantined_blocks = counts.quarantined,
        .limit_blocks = counts.limit,
        .available_blocks = counts.available,
        .block_bytes = counts.block_bytes,
    };
    return STATUS_OK;
}

// ---- attached processes ----

struct attach {
    uint64_t cache;
    uint32_t part;
};

static enum status wait_for_memory(struct core_session *session, struct core_wait *wait, void *own,
                                   struct error *error)
{
    const struct attach *attach = own;
    (void)error;
    core_wait_for_news(session, wait, attach->cache);
    return STATUS_OK;
}

static bool retry_attach(struct parked *parked, bool last)
{
    const struct attach *attach = (const void *)parked->own;
    struct wire_reply reply = {.message = "", .answer = WIRE_ANSWER_CACHE_ATTACH};
    struct error error = {.status = STATUS_OK};
    enum status status =
        session_attach(parked->session, attach->cache, attach->part, &reply.cache_attach, &error);
    return park_tried(parked, status, status == STATUS_BUSY && !last, &reply, &error);
}

// BUSY: the memory is not made yet.
enum status handle_cache_attach(struct call *call)
{
    static const struct park_kind kind = {
        .size = sizeof(struct attach), .wait = wait_for_memory, .retry = retry_attach};
    const struct wire_cache_attach *given = &call->request->cache_attach;
    const struct attach attach = {given->cache, given->part};
    enum status status = call_check_time(call, "timeout_ms", given->timeout_ms);
    if (status != STATUS_OK)
        return status;
    const int64_t deadline_ns = clock_deadline_ns(given->timeout_ms);
    call->reply.answer = WIRE_ANSWER_CACHE_ATTACH;
    core_cache_want_memory(call->session->core, attach.cache);
    status = session_attach(call->session, attach.cache, attach.part, &call->reply.cache_attach,
                            &call->error);
    if (status != STATUS_BUSY || clock_now_ns() >= deadline_ns)
        return status;
    return park(call, &(struct park_command){.kind = &kind, .deadline_ns = deadline_ns}, &attach);
}

enum status handle_cache_report(struct call *call)
{
    const struct wire_cache_report *report = &call->request->cache_report;
    const struct core_report told = {.cache = report->cache,
                                     .slots = report->slots.data,
                                     .num_slots = report->slots.count,
                                     .first_layer = report->first_layer,
                                     .num_layers = report->num_layers,
                                     .passed = report->passed};
    uint64_t mark = 0;
    enum status status = core_cache_report(call->session->core, &told, &mark, &call->error);
    call->reply.answer = WIRE_ANSWER_CACHE_REPORT;
    call->reply.cache_report.mark = mark;
    return status;
}

// ---- blocks ----

static enum status check_lease(struct call *call, const struct wire_blocks_lease *lease)
{
    enum status status = call_check_time(call, "timeout_ms", lease->timeout_ms);
    if (status != STATUS_OK)
        return status;
    if (lease->count == 0)
        return error_set(&call->error, STATUS_INVALID, "a lease of 0 blocks");
    if (lease->count > DISPATCH_MAX_IDS)
        return error_set(&call->error, STATUS_LIMIT,
                         "a lease of %u blocks; one message holds at most %zu ids", lease->count,
                         (size_t)DISPATCH_MAX_IDS);
    return STATUS_OK;
}

struct lease {
    uint64_t cache;
    uint32_t count;
    bool only_growth; // its timeout is 0: it waits only for a chunk that is being made
};

static enum status wait_for_blocks(struct core_session *session, struct core_wait *wait, void *own,
                                   struct error *error)
{
    const struct lease *lease = own;
    return core_wait_for_blocks(session, wait, lease->cache, lease->count, lease->only_growth,
                                error);
}

// `blocks` has room for them. *waits: chunks are being made, or the lease has time.
static enum status try_lease(struct core_session *session, const struct core_wait *wait,
                             const struct lease *lease, int32_t *blocks, bool *waits,
                             struct wire_reply *reply, struct error *error)
{
    bool growing = false;
    const enum status status =
        core_blocks_lease(session, wait, lease->cache, lease->count, blocks, &growing, error);
    *waits = status == STATUS_NO_BLOCKS && (growing || !lease->only_growth);
    reply->answer = WIRE_ANSWER_BLOCKS_LEASE;
    reply->blocks_lease.blocks = (struct wire_ints){blocks, lease->count};
    return status;
}

// The error of core says how many blocks there are.
static bool retry_lease(struct parked *parked, bool last)
{
    const struct lease *lease = (const void *)parked->own;
    struct wire_reply reply = {.message = ""};
    struct error error = {.status = STATUS_OK};
    bool waits = false;
    int32_t *blocks = malloc(lease->count * sizeof *blocks);
    enum status status =
        blocks
            ? try_lease(parked->session->core, &parked->wait, lease, blocks, &waits, &reply, &error)
            : error_set(&error, STATUS_NO_MEMORY, "the daemon has no memory for %u block ids",
                        lease->count);
    waits = park_tried(parked, status, waits && !last, &reply, &error);
    free(blocks);
    return waits;
}

enum status handle_blocks_lease(struct call *call)
{
    static const struct park_kind kind = {
        .size = sizeof(struct lease), .wait = wait_for_blocks, .retry = retry_lease};
    const struct wire_blocks_lease *given = &call->request->blocks_lease;
    const struct lease lease = {given->cache, given->count, given->timeout_ms == 0};
    bool waits = false;
    call->asker.again = given->again;
    enum status status = check_lease(call, given);
    if (status != STATUS_OK)
        return status;
    if (core_has_news(call->server->core))
        park_retry(call->server); // older leases get free blocks first
    int32_t *blocks = call_alloc(call, lease.count, sizeof *blocks);
    if (!blocks)
        return call->error.status;
    status =
        try_lease(call->session->core, NULL, &lease, blocks, &waits, &call->reply, &call->error);
    if (!waits)
        return status;
    const struct park_command command = {
        .kind = &kind,
        .deadline_ns = clock_deadline_ns(lease.only_growth ? -1 : given->timeout_ms)};
    return park(call, &command, &lease);
}

static enum status end_release(struct call *call, void *context, bool *more)
{
    struct core_pieces **pieces = context;
    return core_pieces_next(*pieces, more, &call->error);
}

static void drop_release(void *context)
{
    core_pieces_discard(*(struct core_pieces **)context);
}

static enum status release_long(struct call *call, const struct wire_blocks_release *release)
{
    static const struct offload_steps steps = {NULL, end_release, drop_release, NULL};
    const uint32_t count = release->blocks.count;
    struct core_pieces **pieces = call_alloc(call, 1, sizeof(struct core_pieces *));
    int32_t *blocks = pieces ? call_alloc(call, count, sizeof *blocks) : NULL;
    if (!blocks)
        return call->error.status;
    memcpy(blocks, release->blocks.data, count * sizeof *blocks);
    enum status status = core_release_begin(call->session->core, release->cache, blocks, count,
                                            pieces, &call->error);
    if (status != STATUS_OK)
        return status;
    status = offload_start(call, &steps, pieces, count * sizeof *blocks);
    if (status != STATUS_OK)
        core_pieces_discard(*pieces);
    return status;
}

enum status handle_blocks_release(struct call *call)
{
    const struct wire_blocks_release *release = &call->request->blocks_release;
    if (release->blocks.count > core_piece_blocks(call->server->core))
        return release_long(call, release);
    return core_blocks_release(call->session->core, release->cache, release->blocks.data,
                               release->blocks.count, &call->error);
}
