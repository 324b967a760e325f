// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// monitor_prefix.c - lists the prefix index. A page may be empty, so the caller asks for each page;
// monitor_lists.c has the lists that come whole. Any thread.

#include "client/src/caller.h"
#include "client/src/error.h"
#include "monitor.h"

#include <stdlib.h>
#include <string.h>

static void convert_prefix(const struct wire_inspect_prefix_reply *reply, uint32_t i,
                           struct aule_prefix_state *to)
{
    const struct wire_prefix_state *from = &reply->nodes.data[i];
    *to = (struct aule_prefix_state){
        .tree = from->tree,
        .hits = from->hits,
        .age_ms = from->age_ms,
        .block = from->block,
        .parent = from->parent,
        .depth = from->depth,
        .state = (enum aule_block_kind)from->state,
        .holders = from->holders,
        .keep = (enum aule_keep)from->keep,
        .extra_key_size = from->extra_key_size,
        .visible = from->visible,
    };
    COPY_TEXT(to->tenant, reply->tenants.data[i]);
    const uint32_t most = sizeof to->tokens / sizeof *to->tokens;
    for (uint32_t t = 0; t < most && t < reply->num_tokens; t++)
        to->tokens[t] = reply->tokens.data[i * reply->num_tokens + t];
}

// The caller may use ids as indices: those of blocks are below `total`, and a parent may be -1.
static enum aule_status check_prefixes(const struct wire_inspect_prefix_reply *reply)
{
    for (uint32_t i = 0; i < reply->nodes.count; i++) {
        const int32_t block = reply->nodes.data[i].block, parent = reply->nodes.data[i].parent;
        if (block < 0 || (uint32_t)block >= reply->total || parent < -1 ||
            (parent >= 0 && (uint32_t)parent >= reply->total))
            return fail(AULE_MALFORMED, "the daemon answered block %d behind block %d of %u", block,
                        parent, reply->total);
    }
    return AULE_OK;
}

// *entries is malloc'd, [reply->nodes.count] of entry_size bytes each.
static enum aule_status take_prefixes(const struct wire_inspect_prefix_reply *reply, uint32_t first,
                                      size_t entry_size, char **entries)
{
    if ((uint64_t)reply->nodes.count * reply->num_tokens != reply->tokens.count ||
        (reply->next <= first && first < reply->total))
        return fail(AULE_MALFORMED,
                    "the daemon answered %u blocks with %u token ids, and goes on at %u behind %u",
                    reply->nodes.count, reply->tokens.count, reply->next, first);
    enum aule_status status = check_prefixes(reply);
    if (status != AULE_OK)
        return status;
    *entries = calloc((size_t)reply->nodes.count + 1, entry_size);
    if (!*entries)
        return fail(AULE_NO_MEMORY, "no memory for a list of %u entries", reply->nodes.count);
    for (uint32_t i = 0; i < reply->nodes.count; i++) {
        struct aule_prefix_state whole;
        convert_prefix(reply, i, &whole);
        caller_give(*entries + i * entry_size, entry_size, &whole, sizeof whole);
    }
    return AULE_OK;
}

enum aule_status aule_monitor_prefix_sized(struct aule_monitor *monitor, uint64_t cache,
                                           uint32_t *next, struct aule_prefix_state **array,
                                           size_t entry_size, uint32_t *count)
{
    REQUIRE(monitor);
    REQUIRE(next);
    REQUIRE_ENTRY;
    REQUIRE(count);
    const struct wire_request request = {.command = WIRE_COMMAND_INSPECT_PREFIX,
                                         .inspect_prefix = {.cache = cache, .first = *next}};
    char *entries;
    struct answer answer;
    enum aule_status status = monitor_ask(monitor, &request, WIRE_ANSWER_INSPECT_PREFIX, &answer);
    if (status != AULE_OK)
        return status;
    const struct wire_inspect_prefix_reply *reply = &answer.reply.inspect_prefix;
    status = take_prefixes(reply, *next, entry_size, &entries);
    if (status == AULE_OK) {
        *next = reply->next < reply->total ? reply->next : 0;
        *array = (struct aule_prefix_state *)(void *)entries;
        *count = reply->nodes.count;
    }
    answer_finish(&answer);
    return status;
}

enum aule_status aule_monitor_tokens_sized(struct aule_monitor *monitor, uint64_t cache,
                                           int32_t block, struct aule_block_tokens *tokens,
                                           size_t tokens_size)
{
    REQUIRE(monitor);
    REQUIRE(tokens);
    const struct wire_request request = {.command = WIRE_COMMAND_PREFIX_TOKENS,
                                         .prefix_tokens = {.cache = cache, .block = block}};
    struct answer answer;
    enum aule_status status = monitor_ask(monitor, &request, WIRE_ANSWER_PREFIX_TOKENS, &answer);
    if (status != AULE_OK)
        return status;
    const struct wire_prefix_tokens_reply *reply = &answer.reply.prefix_tokens;
    struct aule_block_tokens whole = {.num_tokens = reply->tokens.count,
                                      .extra_key_size = reply->extra_key.count};
    if (reply->tokens.count > sizeof whole.tokens / sizeof *whole.tokens ||
        reply->extra_key.count > sizeof whole.extra_key) {
        status = fail(AULE_MALFORMED, "the daemon answered %u token ids and %u bytes of a key",
                      reply->tokens.count, reply->extra_key.count);
    } else {
        memcpy(whole.tokens, reply->tokens.data, reply->tokens.count * sizeof *whole.tokens);
        if (reply->extra_key.count)
            memcpy(whole.extra_key, reply->extra_key.data, reply->extra_key.count);
        GIVE(tokens, tokens_size, whole);
    }
    answer_finish(&answer);
    return status;
}
