// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// prefix.c - publishes a prompt's blocks, looks prompts up and claims what is missing. Only the
// daemon compares tokens. Any thread.

#include "prefix.h"

#include "caller.h"
#include "error.h"
#include "metadata.h"

#include <stdlib.h>
#include <string.h>

static enum aule_status check_prefix(const struct aule_cache *cache,
                                     const struct aule_prefix *prefix)
{
    if (prefix->num_tokens > 0 && !prefix->tokens)
        return fail(AULE_INVALID, "tokens is NULL, but num_tokens is %u", prefix->num_tokens);
    if (prefix->extra_key_size > WIRE_MAX_EXTRA_KEY)
        return fail(AULE_INVALID, "extra_key_size = %zu; at most %u are allowed",
                    prefix->extra_key_size, WIRE_MAX_EXTRA_KEY);
    if (prefix->extra_key_size > 0 && !prefix->extra_key)
        return fail(AULE_INVALID, "extra_key is NULL, but extra_key_size is %zu",
                    prefix->extra_key_size);
    return cache_check_count(cache, "a prefix", prefix->num_tokens / cache->block_size);
}

static struct wire_bytes extra_key(const struct aule_prefix *prefix)
{
    return (struct wire_bytes){.data = prefix->extra_key_size ? prefix->extra_key : NULL,
                               .count = (uint32_t)prefix->extra_key_size};
}

static enum aule_status copy_blocks(const struct wire_ints *blocks, uint32_t room,
                                    int32_t *block_ids)
{
    if (blocks->count > room)
        return fail(AULE_MALFORMED, "the daemon answered %u blocks for a prefix of %u",
                    blocks->count, room);
    if (blocks->count > 0)
        memcpy(block_ids, blocks->data, blocks->count * sizeof *block_ids);
    return AULE_OK;
}

// A command over a prefix, complete except for its tokens.
struct question {
    struct wire_request request;
    struct wire_ints *tokens; // the place of its tokens inside the request
    struct wire_span *token_span;
    uint64_t beside; // bytes of block ids in the message
    int wait_ms;     // for which the daemon may wait
    enum wire_answer expected;
};

static enum aule_status ask_inside(struct life *life, const struct aule_prefix *prefix,
                                   struct question *question, struct answer *answer)
{
    struct vector tokens = {.data = prefix->tokens,
                            .count = prefix->num_tokens,
                            .element_size = sizeof *prefix->tokens};
    struct metadata metadata;
    enum aule_status status = metadata_begin(life, &tokens, 1, question->beside, &metadata);
    if (status != AULE_OK)
        return status;
    *question->tokens = vector_ints(&tokens);
    *question->token_span = tokens.span;
    status = life_call(life, &question->request, question->wait_ms, question->expected, answer);
    metadata_finish(life, &metadata);
    return status;
}

static enum aule_status ask(struct aule_cache *cache, const struct aule_prefix *prefix,
                            struct question *question, struct answer *answer)
{
    *answer = (struct answer){.message = NULL};
    enum aule_status status = check_prefix(cache, prefix);
    if (status == AULE_OK)
        status = life_enter(cache->life);
    if (status != AULE_OK)
        return status;
    status = ask_inside(cache->life, prefix, question, answer);
    life_leave(cache->life);
    return status;
}

// What the answer says of the prompt's blocks, of which there are `room`.
static enum aule_status read_lookup(const struct wire_prefix_lookup_reply *reply, uint32_t room,
                                    int32_t *block_ids, struct aule_claim *claim)
{
    uint32_t count = reply->blocks.count;
    enum aule_status status = copy_blocks(&reply->blocks, room, block_ids);
    if (status == AULE_OK && reply->num_promised > room - count)
        status = fail(AULE_MALFORMED, "the daemon promised %u blocks of %u, of which %u are there",
                      reply->num_promised, room, count);
    if (status == AULE_OK)
        *claim = (struct aule_claim){.id = reply->claim,
                                     .max_blocks = room,
                                     .num_blocks = count,
                                     .num_promised = reply->claim ? reply->num_promised : 0};
    return status;
}

static enum aule_status look_up(struct aule_cache *cache, const struct aule_prefix *prefix,
                                size_t prefix_size, uint32_t max_tokens, bool claims,
                                int32_t *block_ids, struct aule_claim *claim)
{
    struct aule_prefix whole;
    enum aule_status status = TAKE(&whole, prefix, prefix_size);
    if (status != AULE_OK)
        return status;
    uint32_t room = whole.num_tokens / cache->block_size;
    if (room > 0)
        REQUIRE(block_ids);
    struct question question = {
        .request = {.command = WIRE_COMMAND_PREFIX_LOOKUP,
                    .prefix_lookup = {.cache = cache->id,
                                      .max_tokens = max_tokens,
                                      .extra_key = extra_key(&whole),
                                      .claim = claims,
                                      .load = (uint32_t)whole.load}},
        .wait_ms = claims ? 0 : WIRE_LOOKUP_WAIT_MS,
        .expected = WIRE_ANSWER_PREFIX_LOOKUP,
    };
    question.tokens = &question.request.prefix_lookup.tokens;
    question.token_span = &question.request.prefix_lookup.token_span;
    struct answer answer;
    status = ask(cache, &whole, &question, &answer);
    if (status == AULE_OK)
        status = read_lookup(&answer.reply.prefix_lookup, room, block_ids, claim);
    answer_finish(&answer);
    return status;
}

enum aule_status aule_prefix_lookup_sized(struct aule_cache *cache,
                                          const struct aule_prefix *prefix, size_t prefix_size,
                                          uint32_t max_tokens, int32_t *block_ids,
                                          uint32_t *num_blocks)
{
    USE(cache);
    REQUIRE(prefix);
    REQUIRE(num_blocks);
    struct aule_claim claim = {.id = 0};
    enum aule_status status =
        look_up(cache, prefix, prefix_size, max_tokens, false, block_ids, &claim);
    *num_blocks = claim.num_blocks;
    return status;
}

enum aule_status aule_prefix_keep_sized(struct aule_cache *cache, const struct aule_prefix *prefix,
                                        size_t prefix_size, enum aule_keep keep,
                                        uint32_t *num_tokens)
{
    USE(cache);
    REQUIRE(prefix);
    REQUIRE(num_tokens);
    *num_tokens = 0;
    struct aule_prefix whole;
    enum aule_status status = TAKE(&whole, prefix, prefix_size);
    if (status != AULE_OK)
        return status;
    struct question question = {
        .request = {.command = WIRE_COMMAND_PREFIX_KEEP,
                    .prefix_keep = {.cache = cache->id,
                                    .extra_key = extra_key(&whole),
                                    .keep = (uint32_t)keep}},
        .expected = WIRE_ANSWER_PREFIX_KEEP,
    };
    question.tokens = &question.request.prefix_keep.tokens;
    question.token_span = &question.request.prefix_keep.token_span;
    struct answer answer;
    status = ask(cache, &whole, &question, &answer);
    if (status == AULE_OK)
        *num_tokens = answer.reply.prefix_keep.num_tokens;
    answer_finish(&answer);
    return status;
}

// ---- claims ----

enum aule_status aule_prefix_claim_sized(struct aule_cache *cache, const struct aule_prefix *prefix,
                                         size_t prefix_size, uint32_t max_tokens,
                                         int32_t *block_ids, struct aule_claim *claim)
{
    USE(cache);
    REQUIRE(prefix);
    REQUIRE(claim);
    *claim = (struct aule_claim){.id = 0};
    return look_up(cache, prefix, prefix_size, max_tokens, true, block_ids, claim);
}

enum aule_status aule_claim_wait(struct aule_cache *cache, struct aule_claim *claim, int timeout_ms,
                                 int32_t *block_ids)
{
    USE(cache);
    REQUIRE(claim);
    REQUIRE(block_ids);
    enum aule_status status = timeout_check(timeout_ms);
    if (status != AULE_OK)
        return status;
    struct wire_request request = {
        .command = WIRE_COMMAND_CLAIM_WAIT,
        .claim_wait = {.cache = cache->id, .claim = claim->id, .timeout_ms = timeout_ms}};
    struct answer answer;
    struct aule_claim more = {.id = 0};
    status = life_ask(cache->life, &request, timeout_ms, WIRE_ANSWER_PREFIX_LOOKUP, &answer);
    if (status == AULE_OK)
        status = read_lookup(&answer.reply.prefix_lookup, claim->max_blocks - claim->num_blocks,
                             block_ids + claim->num_blocks, &more);
    answer_finish(&answer);
    if (status != AULE_OK)
        return status;
    claim->id = more.id;
    claim->num_blocks += more.num_blocks;
    claim->num_promised = more.num_promised;
    return AULE_OK;
}

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

enum aule_status claim_release(struct aule_cache *cache, struct aule_claim *claim,
                               uint32_t num_blocks)
{
    if (claim->id == 0)
        return AULE_OK;
    struct wire_request request = {
        .command = WIRE_COMMAND_CLAIM_RELEASE,
        .claim_release = {.cache = cache->id, .claim = claim->id, .num_blocks = num_blocks}};
    enum aule_status status = life_tell(cache->life, &request);
    if (status != AULE_OK)
        return status;
    claim->max_blocks = smaller(claim->max_blocks, num_blocks);
    if (claim->max_blocks <= claim->num_blocks)
        *claim =
            (struct aule_claim){.max_blocks = claim->max_blocks, .num_blocks = claim->max_blocks};
    claim->num_promised = smaller(claim->num_promised, claim->max_blocks - claim->num_blocks);
    return AULE_OK;
}

enum aule_status aule_claim_release(struct aule_cache *cache, struct aule_claim *claim,
                                    uint32_t num_blocks)
{
    USE(cache);
    REQUIRE(claim);
    return claim_release(cache, claim, num_blocks);
}

// ---- publishing ----

enum aule_status prefix_publish(struct aule_cache *cache,
                                const struct prefix_publishing *publishing, int32_t *block_ids,
                                uint32_t *num_existing)
{
    const struct aule_prefix *prefix = &publishing->prefix;
    uint32_t num_blocks = prefix->num_tokens / cache->block_size;
    struct question question = {
        .request = {.command = WIRE_COMMAND_PREFIX_PUBLISH,
                    .prefix_publish = {.cache = cache->id,
                                       .blocks = {.data = block_ids, .count = num_blocks},
                                       .extra_key = extra_key(prefix),
                                       .has_parent = publishing->parent != NULL,
                                       .parent = publishing->parent ? *publishing->parent : 0,
                                       .releases = publishing->releases,
                                       .written = publishing->written,
                                       .passed = publishing->passed}},
        .beside = num_blocks * sizeof *block_ids,
        .expected = WIRE_ANSWER_PREFIX_PUBLISH,
    };
    question.tokens = &question.request.prefix_publish.tokens;
    question.token_span = &question.request.prefix_publish.token_span;
    struct answer answer;
    enum aule_status status = ask(cache, prefix, &question, &answer);
    const struct wire_prefix_publish_reply *reply = &answer.reply.prefix_publish;
    if (status == AULE_OK)
        status = copy_blocks(&reply->blocks, num_blocks, block_ids);
    if (status == AULE_OK && num_existing)
        *num_existing = reply->num_existing;
    if (status == AULE_OK && publishing->mark)
        *publishing->mark = reply->mark;
    answer_finish(&answer);
    return status;
}

enum aule_status aule_prefix_publish_sized(struct aule_cache *cache,
                                           const struct aule_prefix *prefix, size_t prefix_size,
                                           int32_t *block_ids, uint32_t *num_existing)
{
    USE(cache);
    REQUIRE(prefix);
    struct prefix_publishing publishing = {.releases = true};
    enum aule_status status = TAKE(&publishing.prefix, prefix, prefix_size);
    if (status != AULE_OK)
        return status;
    if (publishing.prefix.num_tokens >= cache->block_size)
        REQUIRE(block_ids);
    return prefix_publish(cache, &publishing, block_ids, num_existing);
}
