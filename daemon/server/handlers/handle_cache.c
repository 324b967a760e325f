// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// handle_cache.c - the handlers of caches, blocks and prefixes: from a verified command to a call
// of core and back. They limit sizes so that a reply can hold the result; core checks the rest.
// Dispatcher thread.

#include "metadata.h"
#include "server/dispatch.h"
#include "server/fault.h"
#include "server/park.h"

#include <string.h>

// A look-up without a claim waits this long for blocks that tiers bring. A client waits for its
// answer as long as its session's timeout, which is 10 s by default.

enum status handle_cache_open(struct call *call)
{
    const struct wire_cache_open *open = &call->request->cache_open;
    struct core_cache_info info;
    size_t length = strlen(open->name);
    if (length == 0 || length > WIRE_MAX_NAME)
        return error_set(&call->error, STATUS_INVALID,
                         "a cache's name of %zu bytes; it needs 1 to %u", length, WIRE_MAX_NAME);
    if (open->fingerprint.count > WIRE_MAX_FINGERPRINT)
        return error_set(&call->error, STATUS_INVALID, "a fingerprint of %u bytes; at most %u fit",
                         open->fingerprint.count, WIRE_MAX_FINGERPRINT);
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
            },
        .fingerprint = open->fingerprint.data,
        .fingerprint_size = open->fingerprint.count,
    };
    enum status status = core_cache_open(call->session->core, &identity, &info, &call->error);
    if (status != STATUS_OK)
        return status;
    call->reply.answer = WIRE_ANSWER_CACHE_OPEN;
    call->reply.cache_open = (struct wire_cache_open_reply){
        .cache = info.cache, .chunk_blocks = info.chunk_blocks, .block_bytes = info.block_bytes};
    return STATUS_OK;
}

enum status handle_cache_close(struct call *call)
{
    enum status status =
        core_cache_close(call->session->core, call->request->cache_close.cache, &call->error);
    if (status == STATUS_OK)
        park_cache_closed(call->session, call->request->cache_close.cache);
    return status;
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

enum status handle_cache_attach(struct call *call)
{
    const struct wire_cache_attach *attach = &call->request->cache_attach;
    enum status status = call_check_time(call, "timeout_ms", attach->timeout_ms);
    if (status != STATUS_OK)
        return status;
    return park_attach(call, attach->cache, attach->part, clock_deadline_ns(attach->timeout_ms));
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

// There are not enough free blocks now. Parks the lease if it has a timeout, or if blocks of a
// growing chunk come soon.
static enum status wait_for_blocks(struct call *call, bool growing)
{
    const struct wire_blocks_lease *lease = &call->request->blocks_lease;
    if (lease->timeout_ms == 0 && !growing)
        return STATUS_NO_BLOCKS;
    const struct parked parked = {
        .kind = PARKED_LEASE,
        .deadline_ns = clock_deadline_ns(lease->timeout_ms == 0 ? -1 : lease->timeout_ms),
        .only_growth = lease->timeout_ms == 0,
        .lease = {lease->cache, lease->count},
    };
    return park(call, &parked);
}

enum status handle_blocks_lease(struct call *call)
{
    const struct wire_blocks_lease *lease = &call->request->blocks_lease;
    bool growing = false;
    call->asker.again = lease->again;
    enum status status = check_lease(call, lease);
    if (status != STATUS_OK)
        return status;
    if (core_has_news(call->server->core))
        park_retry_leases(call->server); // older leases get free blocks first
    int32_t *blocks = call_alloc(call, lease->count, sizeof *blocks);
    if (!blocks)
        return call->error.status;
    status = core_lease_turn(call->session->core, NULL, lease->cache, lease->count, &call->error);
    if (status == STATUS_OK)
        status = core_blocks_lease(call->session->core, lease->cache, lease->count, blocks,
                                   &growing, &call->error);
    else
        growing = core_cache_grows(call->session->core, lease->cache);
    if (status == STATUS_NO_BLOCKS)
        return wait_for_blocks(call, growing);
    call->reply.answer = WIRE_ANSWER_BLOCKS_LEASE;
    call->reply.blocks_lease.blocks = (struct wire_ints){blocks, lease->count};
    return status;
}

enum status handle_blocks_release(struct call *call)
{
    const struct wire_blocks_release *release = &call->request->blocks_release;
    return core_blocks_release(call->session->core, release->cache, release->blocks.data,
                               release->blocks.count, &call->error);
}

// ---- prefixes ----

struct prefix_fields {
    struct wire_ints tokens;
    struct wire_span span;
    struct wire_bytes extra_key;
};

static enum status fetch_prefix(struct call *call, const struct prefix_fields *fields,
                                struct core_prefix *out)
{
    const struct metadata tokens = {"tokens", fields->tokens.data, fields->tokens.count,
                                    fields->span, sizeof(int32_t)};
    const void *data;
    uint32_t count;
    if (fields->extra_key.count > WIRE_MAX_EXTRA_KEY)
        return error_set(&call->error, STATUS_INVALID, "an extra key of %u bytes; at most %u fit",
                         fields->extra_key.count, WIRE_MAX_EXTRA_KEY);
    enum status status = metadata_fetch(call, &tokens, &data, &count);
    if (status != STATUS_OK)
        return status;
    *out = (struct core_prefix){.tokens = data,
                                .num_tokens = count,
                                .extra_key = fields->extra_key.data,
                                .extra_key_size = fields->extra_key.count};
    return STATUS_OK;
}

// Counts the full blocks of the tokens. block_size 0: no such cache is open; the count is 0, and
// core then fails with an error text. LIMIT: their ids do not fit a reply.
static enum status count_blocks(struct call *call, uint32_t num_tokens, uint32_t block_size,
                                uint32_t *count)
{
    *count = block_size ? num_tokens / block_size : 0;
    if (*count > DISPATCH_MAX_IDS)
        return error_set(&call->error, STATUS_LIMIT,
                         "%u tokens make %u blocks; one message holds at most %zu ids", num_tokens,
                         *count, (size_t)DISPATCH_MAX_IDS);
    return STATUS_OK;
}

static enum status claim_prefix(struct call *call, const struct wire_prefix_lookup *lookup,
                                const struct core_prefix *prefix, uint32_t num_blocks)
{
    struct core_session *session = call->session->core;
    struct core_claim claim;
    int32_t *blocks = call_alloc(call, num_blocks + (size_t)1, sizeof *blocks);
    if (!blocks)
        return call->error.status;
    const enum status status = core_prefix_claim(session, lookup->cache, prefix, lookup->max_tokens,
                                                 blocks, &claim, &call->error);
    call->reply.answer = WIRE_ANSWER_PREFIX_LOOKUP;
    call->reply.prefix_lookup = (struct wire_prefix_lookup_reply){
        .blocks = {blocks, claim.num_found},
        .num_tokens = claim.num_found * core_cache_block_size(session, lookup->cache),
        .claim = claim.claim,
        .num_promised = claim.num_promised};
    return status;
}

enum status handle_prefix_lookup(struct call *call)
{
    const struct wire_prefix_lookup *lookup = &call->request->prefix_lookup;
    const struct prefix_fields fields = {lookup->tokens, lookup->token_span, lookup->extra_key};
    struct core_session *session = call->session->core;
    struct park_lookup whole = {.cache = lookup->cache, .max_tokens = lookup->max_tokens};
    if (lookup->load >= CORE_NUM_LOADS)
        return error_set(&call->error, STATUS_UNSUPPORTED, "blocks cannot be loaded in way %u",
                         lookup->load);
    enum status status = fetch_prefix(call, &fields, &whole.prefix);
    if (status == STATUS_OK)
        status = count_blocks(call, whole.prefix.num_tokens,
                              core_cache_block_size(session, lookup->cache), &whole.num_blocks);
    if (status != STATUS_OK)
        return status;
    // A client before minor 9 does not know that a look-up without a claim may wait.
    const bool waits = lookup->claim || call->session->minor >= 9;
    core_prefix_load(session, lookup->cache, &whole.prefix, lookup->max_tokens,
                     waits ? (enum core_load)lookup->load : CORE_LOAD_NEVER, &whole.load);
    return lookup->claim ? claim_prefix(call, lookup, &whole.prefix, whole.num_blocks)
                         : park_lookup(call, &whole, clock_deadline_ns(WIRE_LOOKUP_WAIT_MS));
}

enum status handle_claim_wait(struct call *call)
{
    const struct wire_claim_wait *wait = &call->request->claim_wait;
    enum status status = call_check_time(call, "timeout_ms", wait->timeout_ms);
    if (status != STATUS_OK)
        return status;
    return park_claim(call, wait->cache, wait->claim, clock_deadline_ns(wait->timeout_ms));
}

enum status handle_claim_release(struct call *call)
{
    const struct wire_claim_release *release = &call->request->claim_release;
    return core_claim_release(call->session->core, release->cache, release->claim,
                              release->num_blocks, &call->error);
}

enum status handle_prefix_keep(struct call *call)
{
    const struct wire_prefix_keep *keep = &call->request->prefix_keep;
    const struct prefix_fields fields = {keep->tokens, keep->token_span, keep->extra_key};
    struct core_prefix prefix;
    uint32_t num_tokens = 0;
    enum status status = fetch_prefix(call, &fields, &prefix);
    if (status != STATUS_OK)
        return status;
    status = core_prefix_keep(call->session->core, keep->cache, &prefix, (enum core_keep)keep->keep,
                              &num_tokens, &call->error);
    call->reply.answer = WIRE_ANSWER_PREFIX_KEEP;
    call->reply.prefix_keep = (struct wire_prefix_keep_reply){.num_tokens = num_tokens};
    return status;
}

// What an attached process has written of the blocks that it publishes.
static enum status report_published(struct call *call, const struct wire_prefix_publish *publish,
                                    uint64_t *mark)
{
    const struct core_report told = {.cache = publish->cache, .passed = publish->passed};
    if (!publish->written)
        return STATUS_OK;
    return core_blocks_report(call->session->core, &told, publish->blocks.data,
                              publish->blocks.count, mark, &call->error);
}

enum status handle_prefix_publish(struct call *call)
{
    const struct wire_prefix_publish *publish = &call->request->prefix_publish;
    const struct prefix_fields fields = {publish->tokens, publish->token_span, publish->extra_key};
    struct core_prefix prefix;
    uint32_t count = publish->blocks.count, existing = 0;
    uint64_t mark = 0;
    enum status status = fetch_prefix(call, &fields, &prefix);
    if (status != STATUS_OK)
        return status;
    prefix.has_parent = publish->has_parent;
    prefix.parent = publish->parent;
    prefix.releases = publish->releases;
    int32_t *blocks = call_alloc(call, (size_t)count + 1, sizeof *blocks);
    if (!blocks)
        return call->error.status;
    if (count)
        memcpy(blocks, publish->blocks.data, count * sizeof *blocks);
    status = report_published(call, publish, &mark);
    if (status == STATUS_OK)
        status = core_prefix_publish(call->session->core, publish->cache, &prefix, blocks, count,
                                     &existing, &call->error);
    if (status == STATUS_OK && count && existing == 0)
        fault_note_publish(&call->server->fault, publish->cache, blocks[0]);
    call->reply.answer = WIRE_ANSWER_PREFIX_PUBLISH;
    call->reply.prefix_publish = (struct wire_prefix_publish_reply){
        .blocks = {blocks, count}, .num_existing = existing, .mark = mark};
    return status;
}
