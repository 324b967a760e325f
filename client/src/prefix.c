// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// prefix.c - publishes a prompt's blocks and looks prompts up. Only the daemon compares tokens. Any
// thread.

#include "cache.h"
#include "caller.h"
#include "error.h"
#include "metadata.h"

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
    enum wire_answer expected;
};

static enum aule_status ask_inside(struct attachment *attachment, const struct aule_prefix *prefix,
                                   struct question *question, struct answer *answer)
{
    struct vector tokens = {.data = prefix->tokens,
                            .count = prefix->num_tokens,
                            .element_size = sizeof *prefix->tokens};
    struct metadata metadata;
    enum aule_status status = metadata_begin(attachment, &tokens, 1, question->beside, &metadata);
    if (status != AULE_OK)
        return status;
    *question->tokens = vector_ints(&tokens);
    *question->token_span = tokens.span;
    status = attachment_call(attachment, &question->request, 0, question->expected, answer);
    metadata_finish(attachment, &metadata);
    return status;
}

static enum aule_status ask(struct aule_cache *cache, const struct aule_prefix *prefix,
                            struct question *question, struct answer *answer)
{
    *answer = (struct answer){.message = NULL};
    enum aule_status status = check_prefix(cache, prefix);
    if (status == AULE_OK)
        status = attachment_enter(cache->attachment);
    if (status != AULE_OK)
        return status;
    status = ask_inside(cache->attachment, prefix, question, answer);
    attachment_leave(cache->attachment);
    return status;
}

enum aule_status aule_prefix_lookup_sized(struct aule_cache *cache,
                                          const struct aule_prefix *prefix, size_t prefix_size,
                                          uint32_t max_tokens, int32_t *block_ids,
                                          uint32_t *num_blocks)
{
    REQUIRE(cache);
    REQUIRE(prefix);
    struct aule_prefix whole;
    enum aule_status status = TAKE(&whole, prefix, prefix_size);
    if (status != AULE_OK)
        return status;
    REQUIRE(num_blocks);
    uint32_t room = whole.num_tokens / cache->block_size;
    if (room > 0)
        REQUIRE(block_ids);
    struct question question = {
        .request = {.command = WIRE_COMMAND_PREFIX_LOOKUP,
                    .prefix_lookup = {.cache = cache->id,
                                      .max_tokens = max_tokens,
                                      .extra_key = extra_key(&whole)}},
        .expected = WIRE_ANSWER_PREFIX_LOOKUP,
    };
    question.tokens = &question.request.prefix_lookup.tokens;
    question.token_span = &question.request.prefix_lookup.token_span;
    struct answer answer;
    status = ask(cache, &whole, &question, &answer);
    const struct wire_ints *blocks = &answer.reply.prefix_lookup.blocks;
    if (status == AULE_OK)
        status = copy_blocks(blocks, room, block_ids);
    *num_blocks = status == AULE_OK ? blocks->count : 0;
    answer_finish(&answer);
    return status;
}

enum aule_status aule_prefix_publish_sized(struct aule_cache *cache,
                                           const struct aule_prefix *prefix, size_t prefix_size,
                                           int32_t *block_ids, uint32_t *num_existing)
{
    REQUIRE(cache);
    REQUIRE(prefix);
    struct aule_prefix whole;
    enum aule_status status = TAKE(&whole, prefix, prefix_size);
    if (status != AULE_OK)
        return status;
    uint32_t num_blocks = whole.num_tokens / cache->block_size;
    if (num_blocks > 0)
        REQUIRE(block_ids);
    struct question question = {
        .request = {.command = WIRE_COMMAND_PREFIX_PUBLISH,
                    .prefix_publish = {.cache = cache->id,
                                       .blocks = {.data = block_ids, .count = num_blocks},
                                       .extra_key = extra_key(&whole)}},
        .beside = num_blocks * sizeof *block_ids,
        .expected = WIRE_ANSWER_PREFIX_PUBLISH,
    };
    question.tokens = &question.request.prefix_publish.tokens;
    question.token_span = &question.request.prefix_publish.token_span;
    struct answer answer;
    status = ask(cache, &whole, &question, &answer);
    const struct wire_prefix_publish_reply *reply = &answer.reply.prefix_publish;
    if (status == AULE_OK)
        status = copy_blocks(&reply->blocks, num_blocks, block_ids);
    if (status == AULE_OK && num_existing)
        *num_existing = reply->num_existing;
    answer_finish(&answer);
    return status;
}
