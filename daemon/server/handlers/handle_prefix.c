// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// handle_prefix.c - the handlers of prefixes and claims: from a verified command to a call of core
// and back, at once or after a wait. They limit sizes so that a reply can hold the result; core
// checks the rest. Thread: dispatcher; fill_long(): job thread.

#include "metadata.h"
#include "server/offload.h"
#include "server/park.h"

#include <stdlib.h>
#include <string.h>

struct prefix_fields {
    struct wire_ints tokens;
    struct wire_span span;
    struct wire_bytes extra_key;
};

static enum status check_extra_key(struct call *call, const struct prefix_fields *fields)
{
    if (fields->extra_key.count <= WIRE_MAX_EXTRA_KEY)
        return STATUS_OK;
    return error_set(&call->error, STATUS_INVALID, "an extra key of %u bytes; at most %u fit",
                     fields->extra_key.count, WIRE_MAX_EXTRA_KEY);
}

static enum status fetch_prefix(struct call *call, const struct prefix_fields *fields,
                                struct core_prefix *out)
{
    const struct metadata tokens = {"tokens", fields->tokens.data, fields->tokens.count,
                                    fields->span, sizeof(int32_t)};
    const void *data;
    uint32_t count;
    enum status status = check_extra_key(call, fields);
    if (status == STATUS_OK)
        status = metadata_fetch(call, &tokens, &data, &count);
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

// ---- calls in pieces ----

// A command over more blocks than core serves at once. In the call's memory.
enum { TOKENS, EXTRA_KEY, BLOCKS, NUM_KEPT };
struct long_call {
    struct core_pieces *pieces; // NULL: not begun yet
    struct metadata fields[NUM_KEPT];
    struct fetched kept[NUM_KEPT]; // BLOCKS: its own copy
    uint64_t cache;
};

static uint64_t num_tokens_of(const struct prefix_fields *fields)
{
    return fields->span.count ? fields->span.count : fields->tokens.count;
}

static bool is_long(const struct call *call, const struct prefix_fields *fields, uint64_t cache)
{
    const uint32_t block_size = core_cache_block_size(call->session->core, cache);
    return block_size && num_tokens_of(fields) / block_size > core_piece_blocks(call->server->core);
}

// Thread: job.
static enum status fill_long(struct call *call, void *context)
{
    struct long_call *own = context;
    return metadata_copy(call, own->fields, NUM_KEPT, own->kept);
}

static void drop_long(void *context)
{
    core_pieces_discard(((struct long_call *)context)->pieces);
}

static struct core_prefix prefix_of(const struct long_call *own)
{
    return (struct core_prefix){.tokens = own->kept[TOKENS].data,
                                .num_tokens = own->kept[TOKENS].count,
                                .extra_key = own->kept[EXTRA_KEY].data,
                                .extra_key_size = own->kept[EXTRA_KEY].count};
}

// `own` is zeroed memory of the call, which begins with the struct.
static enum status keep_long(struct call *call, const struct prefix_fields *fields,
                             struct wire_ints blocks, uint64_t cache, struct long_call *own,
                             uint64_t *bytes)
{
    enum status status = check_extra_key(call, fields);
    if (status != STATUS_OK)
        return status;
    own->cache = cache;
    own->fields[TOKENS] = (struct metadata){"tokens", fields->tokens.data, fields->tokens.count,
                                            fields->span, sizeof(int32_t)};
    own->fields[EXTRA_KEY] = (struct metadata){
        "extra_key", fields->extra_key.data, fields->extra_key.count, {0}, sizeof(uint8_t)};
    own->fields[BLOCKS] =
        (struct metadata){"blocks", blocks.data, blocks.count, {0}, sizeof(int32_t)};
    status = metadata_check(call, own->fields, NUM_KEPT, own->kept, bytes);
    return status == STATUS_OK ? metadata_keep(call, own->fields, NUM_KEPT, own->kept) : status;
}

// ---- look-ups ----

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
    park_tried(parked, status, false, &reply, &error);
    free(blocks);
    return false;
}

// It waits for WIRE_LOOKUP_WAIT_MS at most: a client waits for its answer as long as its session's
// timeout, which is 10 s by default.
static enum status park_lookup(struct call *call, const struct lookup *lookup)
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
    return park(call, &command, lookup);
}

// A look-up that cannot wait is answered at once, without what tiers have.
static enum status find_prefix(struct call *call, const struct lookup *lookup, uint32_t num_blocks)
{
    if (lookup->load && park_lookup(call, lookup) == STATUS_OK)
        return STATUS_OK;
    call->error.status = STATUS_OK;
    int32_t *blocks = call_alloc(call, num_blocks + (size_t)1, sizeof *blocks);
    return blocks ? take_found(call->session->core, lookup, blocks, &call->reply, &call->error)
                  : call->error.status;
}

struct long_lookup {
    struct long_call call;
    uint32_t max_tokens, num_blocks;
    enum core_load load;
    bool claims;
    struct core_claim result;
    int32_t *blocks;
};

// True: the look-up waits for a load.
static bool begin_load(struct call *call, const struct long_lookup *own,
                       const struct core_prefix *prefix)
{
    struct lookup lookup = {
        .cache = own->call.cache, .prefix = *prefix, .max_tokens = own->max_tokens};
    core_prefix_load(call->session->core, lookup.cache, prefix, own->max_tokens, own->load,
                     &lookup.load);
    return !own->claims && lookup.load && park_lookup(call, &lookup) == STATUS_OK;
}

static enum status begin_long_lookup(struct call *call, struct long_lookup *own)
{
    const struct core_prefix prefix = prefix_of(&own->call);
    if (begin_load(call, own, &prefix))
        return STATUS_OK;
    call->error.status = STATUS_OK;
    own->blocks = call_alloc(call, own->num_blocks + (size_t)1, sizeof *own->blocks);
    return own->blocks ? core_lookup_begin(call->session->core, own->call.cache, &prefix,
                                           own->max_tokens, own->claims, own->blocks, &own->result,
                                           &own->call.pieces, &call->error)
                       : call->error.status;
}

static enum status end_long_lookup(struct call *call, void *context, bool *more)
{
    struct long_lookup *own = context;
    enum status status = own->call.pieces ? STATUS_OK : begin_long_lookup(call, own);
    if (status != STATUS_OK || call->later)
        return status;
    status = core_pieces_next(own->call.pieces, more, &call->error);
    if (status == STATUS_OK && !*more)
        fill_lookup_reply(&call->reply, call->session->core, own->call.cache, own->blocks,
                          own->result.num_found, &own->result);
    return status;
}

static enum status find_long_prefix(struct call *call, const struct prefix_fields *fields)
{
    static const struct offload_steps steps = {fill_long, end_long_lookup, drop_long,
                                               "a long look-up"};
    const struct wire_prefix_lookup *given = &call->request->prefix_lookup;
    struct long_lookup *own = call_alloc(call, 1, sizeof *own);
    uint64_t bytes;
    if (!own)
        return call->error.status;
    own->max_tokens = given->max_tokens;
    own->load = (enum core_load)given->load;
    own->claims = given->claim;
    enum status status =
        keep_long(call, fields, (struct wire_ints){0}, given->cache, &own->call, &bytes);
    if (status == STATUS_OK)
        status = count_blocks(call, own->call.kept[TOKENS].count,
                              core_cache_block_size(call->session->core, given->cache),
                              &own->num_blocks);
    return status == STATUS_OK ? offload_start(call, &steps, own, bytes) : status;
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
    if (is_long(call, &fields, given->cache))
        return find_long_prefix(call, &fields);
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
    const bool waits =
        park_tried(parked, status, !last && status == STATUS_TIMEOUT, &reply, &error);
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

// ---- publishing ----

// What an attached process has written of blocks that it publishes.
static enum status report_written(struct call *call, const struct wire_prefix_publish *publish,
                                  uint64_t passed, const int32_t *blocks, uint32_t count,
                                  uint64_t *mark)
{
    const struct core_report told = {.cache = publish->cache, .passed = passed};
    return publish->written
               ? core_blocks_report(call->session->core, &told, blocks, count, mark, &call->error)
               : STATUS_OK;
}

static void fill_publish_reply(struct call *call, const int32_t *blocks, uint32_t count,
                               uint32_t existing, uint64_t mark)
{
    call->reply.answer = WIRE_ANSWER_PREFIX_PUBLISH;
    call->reply.prefix_publish = (struct wire_prefix_publish_reply){
        .blocks = {blocks, count}, .num_existing = existing, .mark = mark};
}

struct long_publish {
    struct long_call call;
    int32_t *blocks;
    uint32_t count, reported, existing;
    uint64_t mark;
};

static enum status report_next(struct call *call, struct long_publish *own, bool *more)
{
    const struct wire_prefix_publish *publish = &call->request->prefix_publish;
    const uint32_t most = core_piece_blocks(call->server->core), left = own->count - own->reported,
                   count = left < most ? left : most;
    uint64_t mark = 0;
    enum status status = report_written(call, publish, own->reported ? 0 : publish->passed,
                                        own->blocks + own->reported, count, &mark);
    if (!own->reported)
        own->mark = mark;
    own->reported += count;
    *more = true;
    return status;
}

static enum status begin_long_publish(struct call *call, struct long_publish *own)
{
    const struct wire_prefix_publish *publish = &call->request->prefix_publish;
    struct core_prefix prefix = prefix_of(&own->call);
    prefix.has_parent = publish->has_parent;
    prefix.parent = publish->parent;
    prefix.releases = publish->releases;
    return core_publish_begin(call->session->core, publish->cache, &prefix, own->blocks, own->count,
                              &own->existing, &own->call.pieces, &call->error);
}

static enum status end_long_publish(struct call *call, void *context, bool *more)
{
    struct long_publish *own = context;
    enum status status = STATUS_OK;
    own->blocks = (int32_t *)own->call.kept[BLOCKS].data; // a copy
    own->count = own->call.kept[BLOCKS].count;
    if (call->request->prefix_publish.written && own->reported < own->count)
        return report_next(call, own, more);
    if (!own->call.pieces)
        status = begin_long_publish(call, own);
    if (status == STATUS_OK)
        status = core_pieces_next(own->call.pieces, more, &call->error);
    if (status == STATUS_OK && !*more)
        fill_publish_reply(call, own->blocks, own->count, own->existing, own->mark);
    return status;
}

static enum status publish_long(struct call *call, const struct prefix_fields *fields)
{
    static const struct offload_steps steps = {fill_long, end_long_publish, drop_long,
                                               "a long publication"};
    const struct wire_prefix_publish *publish = &call->request->prefix_publish;
    struct long_publish *own = call_alloc(call, 1, sizeof *own);
    uint64_t bytes;
    enum status status =
        own ? keep_long(call, fields, publish->blocks, publish->cache, &own->call, &bytes)
            : call->error.status;
    return status == STATUS_OK ? offload_start(call, &steps, own, bytes) : status;
}

enum status handle_prefix_publish(struct call *call)
{
    const struct wire_prefix_publish *publish = &call->request->prefix_publish;
    const struct prefix_fields fields = {publish->tokens, publish->token_span, publish->extra_key};
    struct core_prefix prefix;
    uint32_t count = publish->blocks.count, existing = 0;
    uint64_t mark = 0;
    if (is_long(call, &fields, publish->cache))
        return publish_long(call, &fields);
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
    status = report_written(call, publish, publish->passed, blocks, count, &mark);
    if (status == STATUS_OK)
        status = core_prefix_publish(call->session->core, publish->cache, &prefix, blocks, count,
                                     &existing, &call->error);
    if (status == STATUS_OK)
        fill_publish_reply(call, blocks, count, existing, mark);
    return status;
}
