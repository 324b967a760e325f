// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// handle_prefix.c - the handlers of prefixes and claims: from a verified command to a call of core
// and back, at once or after a wait. They limit sizes so that a reply can hold the result; core
// checks the rest. Dispatcher thread.

#include "metadata.h"
#include "server/fault.h"
#include "server/park.h"

#include <stdlib.h>
#include <string.h>

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

// `claim` NULL: the look-up had none.
static void fill_lookup_reply(struct wire_reply *reply, struct core_session *session,
                              uint64_t cache, const int32_t *blocks, uint32_t count,
                              const struct core_claim *claim)
{
    reply->answer = WIRE_ANSWER_PREFIX_LOOKUP;
    reply->prefix_lookup = (struct wire_prefix_lookup_reply){
        .blocks = {blocks, count},
        .num_tokens = count * core_cache_block_size(session, cache),
        .claim = claim ? claim->claim : 0,
        .num_promised = claim ? claim->num_promised : 0,
    };
}

static enum status no_memory(size_t room, struct error *error)
{
    return error_set(error, STATUS_NO_MEMORY, "the daemon has no memory for %zu block ids", room);
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
    fill_lookup_reply(&call->reply, session, lookup->cache, blocks, claim.num_found, &claim);
    return status;
}

// ---- a look-up that waits for blocks from tiers ----

struct lookup {
    uint64_t cache, load;      // load 0: nothing comes
    struct core_prefix prefix; // owned by a parked one
    uint32_t max_tokens;
};

static void finish_lookup(void *own)
{
    struct lookup *lookup = own;
    free((void *)lookup->prefix.tokens);
    free((void *)lookup->prefix.extra_key);
}

static bool keep_lookup(void *own)
{
    struct core_prefix *prefix = &((struct lookup *)own)->prefix;
    const size_t size = prefix->num_tokens * sizeof *prefix->tokens;
    int32_t *tokens = malloc(size + 1);
    uint8_t *extra_key = malloc(prefix->extra_key_size + (size_t)1);
    if (tokens && size)
        memcpy(tokens, prefix->tokens, size);
    if (extra_key && prefix->extra_key_size)
        memcpy(extra_key, prefix->extra_key, prefix->extra_key_size);
    prefix->tokens = tokens;
    prefix->extra_key = extra_key;
    if (tokens && extra_key)
        return true;
    finish_lookup(own);
    return false;
}

static enum status wait_for_load(struct core_session *session, struct core_wait *wait, void *own,
                                 struct error *error)
{
    const struct lookup *lookup = own;
    (void)error;
    core_wait_for_load(session, wait, lookup->cache, lookup->load);
    return STATUS_OK;
}

// `blocks` has room for all full blocks of the prefix.
static enum status take_found(struct core_session *session, const struct lookup *lookup,
                              int32_t *blocks, struct wire_reply *reply, struct error *error)
{
    uint32_t count;
    enum status status = core_prefix_lookup(session, lookup->cache, &lookup->prefix,
                                            lookup->max_tokens, blocks, &count, error);
    fill_lookup_reply(reply, session, lookup->cache, blocks, count, NULL);
    return status;
}

// At its deadline it is answered with what is there.
static bool retry_lookup(struct parked *parked, bool last)
{
    struct core_session *session = parked->session->core;
    const struct lookup *lookup = (const void *)parked->own;
    struct wire_reply reply = {.message = ""};
    struct error error = {.status = STATUS_OK};
    const uint32_t block_size = core_cache_block_size(session, lookup->cache); // 0: it was closed
    if (!last && block_size && core_load_runs(parked->session->server->core, lookup->load))
        return true;
    const size_t room = block_size ? lookup->prefix.num_tokens / block_size + (size_t)1 : 1;
    int32_t *blocks = malloc(room * sizeof *blocks);
    enum status status =
        blocks ? take_found(session, lookup, blocks, &reply, &error) : no_memory(room, &error);
    if (status == STATUS_OK)
        park_answer(parked, &reply);
    else
        park_refuse(parked, &error);
    free(blocks);
    return false;
}

// A look-up that cannot wait is answered at once, without what tiers have. One that waits does so
// for WIRE_LOOKUP_WAIT_MS at most: a client waits for its answer as long as its session's timeout,
// which is 10 s by default.
static enum status find_prefix(struct call *call, const struct lookup *lookup, uint32_t num_blocks)
{
    static const struct park_kind kind = {.size = sizeof *lookup,
                                          .wait = wait_for_load,
                                          .retry = retry_lookup,
                                          .keep = keep_lookup,
                                          .finish = finish_lookup};
    const struct core_prefix *prefix = &lookup->prefix;
    const struct park_command command = {
        .kind = &kind,
        .deadline_ns = clock_deadline_ns(WIRE_LOOKUP_WAIT_MS),
        .bytes = prefix->num_tokens * sizeof *prefix->tokens + prefix->extra_key_size,
    };
    if (lookup->load && park(call, &command, lookup) == STATUS_OK)
        return STATUS_OK;
    call->error.status = STATUS_OK;
    int32_t *blocks = call_alloc(call, num_blocks + (size_t)1, sizeof *blocks);
    return blocks ? take_found(call->session->core, lookup, blocks, &call->reply, &call->error)
                  : call->error.status;
}

enum status handle_prefix_lookup(struct call *call)
{
    const struct wire_prefix_lookup *given = &call->request->prefix_lookup;
    const struct prefix_fields fields = {given->tokens, given->token_span, given->extra_key};
    struct core_session *session = call->session->core;
    struct lookup lookup = {.cache = given->cache, .max_tokens = given->max_tokens};
    uint32_t num_blocks = 0;
    if (given->load >= CORE_NUM_LOADS)
        return error_set(&call->error, STATUS_UNSUPPORTED, "blocks cannot be loaded in way %u",
                         given->load);
    enum status status = fetch_prefix(call, &fields, &lookup.prefix);
    if (status == STATUS_OK)
        status = count_blocks(call, lookup.prefix.num_tokens,
                              core_cache_block_size(session, given->cache), &num_blocks);
    if (status != STATUS_OK)
        return status;
    core_prefix_load(session, given->cache, &lookup.prefix, given->max_tokens,
                     (enum core_load)given->load, &lookup.load);
    return given->claim ? claim_prefix(call, given, &lookup.prefix, num_blocks)
                        : find_prefix(call, &lookup, num_blocks);
}

// ---- blocks that others compute ----

struct claim_wait {
    uint64_t cache, claim;
};

static enum status wait_for_claim(struct core_session *session, struct core_wait *wait, void *own,
                                  struct error *error)
{
    const struct claim_wait *claim = own;
    return core_wait_for_claim(session, wait, claim->cache, claim->claim, error);
}

// Takes what has come, with room for all of it in `blocks`.
static enum status take_claimed(struct core_session *session, const struct claim_wait *claim,
                                int32_t *blocks, struct wire_reply *reply, struct error *error)
{
    struct core_claim now;
    uint32_t count;
    enum status status =
        core_claim_take(session, claim->cache, claim->claim, blocks, &count, &now, error);
    if (status == STATUS_OK)
        fill_lookup_reply(reply, session, claim->cache, blocks, count, &now);
    return status;
}

static bool retry_claim(struct parked *parked, bool last)
{
    struct core_session *session = parked->session->core;
    const struct claim_wait *claim = (const void *)parked->own;
    struct wire_reply reply = {.message = ""};
    struct error error = {.status = STATUS_OK};
    if (!last && core_claim_waits(session, claim->cache, claim->claim))
        return true;
    size_t room = core_claim_missing(session, claim->cache, claim->claim) + (size_t)1;
    int32_t *blocks = malloc(room * sizeof *blocks);
    enum status status =
        blocks ? take_claimed(session, claim, blocks, &reply, &error) : no_memory(room, &error);
    const bool waits = !last && status == STATUS_TIMEOUT;
    if (status == STATUS_OK)
        park_answer(parked, &reply);
    else if (!waits)
        park_refuse(parked, &error);
    free(blocks);
    return waits;
}

enum status handle_claim_wait(struct call *call)
{
    static const struct park_kind kind = {
        .size = sizeof(struct claim_wait), .wait = wait_for_claim, .retry = retry_claim};
    const struct wire_claim_wait *given = &call->request->claim_wait;
    const struct claim_wait claim = {given->cache, given->claim};
    enum status status = call_check_time(call, "timeout_ms", given->timeout_ms);
    if (status != STATUS_OK)
        return status;
    const int64_t deadline_ns = clock_deadline_ns(given->timeout_ms);
    size_t room = core_claim_missing(call->session->core, claim.cache, claim.claim) + (size_t)1;
    int32_t *blocks = call_alloc(call, room, sizeof *blocks);
    if (!blocks)
        return call->error.status;
    status = take_claimed(call->session->core, &claim, blocks, &call->reply, &call->error);
    if (status != STATUS_TIMEOUT || clock_now_ns() >= deadline_ns)
        return status;
    return park(call, &(struct park_command){.kind = &kind, .deadline_ns = deadline_ns}, &claim);
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
