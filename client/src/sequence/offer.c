// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// offer.c - hands sequences over to other sessions. The daemon keeps an offered sequence, its token
// ids included, and knows who may write its blocks. See sequence.h for threads.

#include "client/src/caller.h"
#include "client/src/error.h"
#include "client/src/metadata.h"
#include "sequence.h"
#include "settle.h"

#include <stdlib.h>
#include <string.h>

static enum aule_status check(const char *name, int timeout_ms)
{
    if (!name || !name[0] || strlen(name) > WIRE_MAX_NAME)
        return fail(AULE_INVALID, "an offer's name of %zu bytes; it needs 1 to %u",
                    name ? strlen(name) : 0, WIRE_MAX_NAME);
    return timeout_check(timeout_ms);
}

// ---- to offer ----

// What the message has beside the sequence's own arrays.
struct lists {
    int32_t *blocks;
    uint8_t *keep; // forks share the block: the session keeps its hold on it
};

static void fill_lists(const struct aule_sequence *sequence, struct lists *lists)
{
    for (uint32_t i = 0; i < sequence->num_blocks; i++) {
        struct seq_block *block = sequence->blocks[i];
        lists->blocks[i] = block->id;
        lists->keep[i] = atomic_load(&block->sharers) > 1;
    }
}

static enum aule_status send_inside(const struct aule_sequence *sequence, const struct lists *lists,
                                    const char *name, int timeout_ms)
{
    struct life *life = sequence->cache->life;
    struct vector tokens = {.data = sequence->num_known ? sequence->tokens : NULL,
                            .count = sequence->num_known,
                            .element_size = sizeof *sequence->tokens};
    const uint64_t beside = sequence->num_blocks * (sizeof *lists->blocks + sizeof *lists->keep);
    struct metadata metadata;
    struct answer answer;
    enum aule_status status = metadata_begin(life, &tokens, 1, beside, &metadata);
    if (status != AULE_OK)
        return status;
    struct wire_request request = {
        .command = WIRE_COMMAND_OFFER,
        .offer = {.cache = sequence->cache->id,
                  .name = name,
                  .blocks = {lists->blocks, sequence->num_blocks},
                  .keep = {lists->keep, sequence->num_blocks},
                  .tokens = vector_ints(&tokens),
                  .token_span = tokens.span,
                  .num_stored = sequence->num_stored,
                  .num_computed = sequence->num_computed,
                  .num_tokens = sequence->num_tokens,
                  .extra_key = {sequence->extra_key, sequence->extra_key_size},
                  .publish = sequence->publish,
                  .timeout_ms = timeout_ms},
    };
    status = life_call(life, &request, 0, WIRE_ANSWER_EMPTY, &answer);
    answer_finish(&answer);
    metadata_finish(life, &metadata);
    return status;
}

static enum aule_status send_offer(const struct aule_sequence *sequence, const struct lists *lists,
                                   const char *name, int timeout_ms)
{
    enum aule_status status = cache_check_count(sequence->cache, "an offer", sequence->num_blocks);
    if (status == AULE_OK)
        status = life_enter(sequence->cache->life);
    if (status != AULE_OK)
        return status;
    status = send_inside(sequence, lists, name, timeout_ms);
    life_leave(sequence->cache->life);
    return status;
}

// The daemon has the blocks now, except the holds on those that were kept. From now on a fork
// copies such a block before it writes into it, as if this sequence still shared it.
static void forget_blocks(struct aule_sequence *sequence, const struct lists *lists)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < sequence->num_blocks; i++) {
        struct seq_block *block = sequence->blocks[i];
        if (lists->keep[i]) {
            atomic_store(&block->sealed, true);
            sequence->blocks[kept++] = block;
        } else {
            free(block);
        }
    }
    sequence->num_blocks = kept;
}

enum aule_status aule_sequence_offer(struct aule_sequence *sequence, const char *name,
                                     int timeout_ms)
{
    USE(sequence);
    enum aule_status status = check(name, timeout_ms);
    if (status == AULE_OK && sequence->offer)
        status = fail(AULE_INVALID, "the sequence was taken and is not accepted");
    if (status != AULE_OK)
        return status;
    error_mute(true);
    (void)sequence_publish(sequence);
    error_mute(false);
    const size_t room = (size_t)sequence->num_blocks + 1;
    struct lists lists = {malloc(room * sizeof *lists.blocks), malloc(room)};
    if (lists.blocks && lists.keep) {
        fill_lists(sequence, &lists);
        status = send_offer(sequence, &lists, name, timeout_ms);
    } else {
        status = fail(AULE_NO_MEMORY, "no memory to offer %u blocks", sequence->num_blocks);
    }
    if (status == AULE_OK) {
        forget_blocks(sequence, &lists);
        sequence->given = true;
        aule_sequence_destroy(sequence); // its memory goes when this call leaves
    }
    free(lists.blocks);
    free(lists.keep);
    return status;
}

// ---- to take ----

static enum aule_status check_reply(const struct wire_offer_take_reply *reply, uint32_t block_size)
{
    const uint64_t room = (uint64_t)reply->blocks.count * block_size;
    if (reply->access.count == reply->blocks.count && reply->tokens.count <= reply->num_known &&
        reply->num_known <= reply->num_tokens && reply->num_computed <= reply->num_stored &&
        reply->num_stored <= reply->num_tokens && reply->num_stored <= room &&
        reply->num_tokens <= INT32_MAX)
        return AULE_OK;
    return fail(AULE_MALFORMED,
                "the daemon answered an offer of %u tokens, %u ids, %u stored, %u computed, %u "
                "blocks",
                reply->num_tokens, reply->num_known, reply->num_stored, reply->num_computed,
                reply->blocks.count);
}

// Asks for the ids that did not fit the first answer.
static enum aule_status fetch_tokens(struct aule_sequence *sequence, uint32_t num_known)
{
    enum aule_status status = AULE_OK;
    while (status == AULE_OK && sequence->num_known < num_known) {
        struct wire_request request = {
            .command = WIRE_COMMAND_OFFER_TOKENS,
            .offer_tokens = {.offer = sequence->offer, .first = sequence->num_known}};
        struct answer answer;
        status = life_ask(sequence->cache->life, &request, 0, WIRE_ANSWER_OFFER_TOKENS, &answer);
        if (status != AULE_OK)
            return status;
        const struct wire_ints *tokens = &answer.reply.offer_tokens.tokens;
        if (tokens->count == 0 || tokens->count > num_known - sequence->num_known)
            status = fail(AULE_MALFORMED, "the daemon answered %u token ids of %u left",
                          tokens->count, num_known - sequence->num_known);
        else
            status = sequence_keep_tokens(sequence, tokens->data, tokens->count);
        answer_finish(&answer);
    }
    return status;
}

static enum aule_status take_blocks(struct aule_sequence *sequence,
                                    const struct wire_offer_take_reply *reply)
{
    enum aule_status status = sequence_make_room(sequence, reply->blocks.count);
    bool sealed = true; // all so far
    for (uint32_t i = 0; status == AULE_OK && i < reply->blocks.count; i++) {
        struct seq_block *block = seq_block_create(reply->blocks.data[i], true);
        if (!block)
            return fail(AULE_NO_MEMORY, "no memory for a sequence of %u blocks",
                        reply->blocks.count);
        sequence->blocks[sequence->num_blocks++] = block;
        sealed = sealed && reply->access.data[i] == WIRE_OFFER_SEALED;
        sequence->num_published += sealed;
    }
    return status;
}

// On failure the holds on blocks that the sequence does not have yet are released.
static enum aule_status fill(struct aule_sequence *sequence,
                             const struct wire_offer_take_reply *reply)
{
    enum aule_status status = take_blocks(sequence, reply);
    if (status == AULE_OK)
        status = sequence_keep_tokens(sequence, reply->tokens.data, reply->tokens.count);
    if (status == AULE_OK)
        status = fetch_tokens(sequence, reply->num_known);
    if (status == AULE_OK)
        status = sequence_keep_tokens(sequence, NULL, reply->num_tokens - reply->num_known);
    sequence->num_stored = reply->num_stored;
    sequence->num_computed = reply->num_computed;
    uint32_t full = sequence->num_stored / sequence->cache->block_size;
    if (sequence->num_published > full)
        sequence->num_published = full;
    if (sequence->num_blocks < reply->blocks.count) {
        error_mute(true);
        blocks_release(sequence->cache, reply->blocks.count - sequence->num_blocks,
                       reply->blocks.data + sequence->num_blocks);
        error_mute(false);
    }
    return status;
}

// Without memory for a sequence the offer goes back.
static enum aule_status make_from(struct aule_cache *cache,
                                  const struct wire_offer_take_reply *reply,
                                  struct aule_sequence **out)
{
    const struct aule_sequence_params params = {.publish = reply->publish,
                                                .extra_key = reply->extra_key.data,
                                                .extra_key_size = reply->extra_key.count};
    enum aule_status status = sequence_make(cache, &params, out);
    if (*out) {
        (*out)->offer = reply->offer;
        return status == AULE_OK ? fill(*out, reply) : status;
    }
    error_mute(true);
    blocks_release(cache, reply->blocks.count, reply->blocks.data);
    error_mute(false);
    settle_give_back(cache, reply->offer);
    return status;
}

enum aule_status aule_sequence_take(struct aule_cache *cache, const char *name, int timeout_ms,
                                    struct aule_sequence **out)
{
    REQUIRE(out);
    *out = NULL;
    USE(cache);
    struct aule_sequence *sequence = NULL;
    struct answer answer;
    enum aule_status status = check(name, timeout_ms);
    if (status != AULE_OK)
        return status;
    struct wire_request request = {
        .command = WIRE_COMMAND_OFFER_TAKE,
        .offer_take = {.cache = cache->id, .name = name, .timeout_ms = timeout_ms}};
    status = life_ask(cache->life, &request, timeout_ms, WIRE_ANSWER_OFFER_TAKE, &answer);
    if (status != AULE_OK)
        return status;
    const struct wire_offer_take_reply *reply = &answer.reply.offer_take;
    status = check_reply(reply, cache->block_size);
    if (status == AULE_OK)
        status = make_from(cache, reply, &sequence);
    answer_finish(&answer);
    if (status == AULE_OK)
        return sequence_open(sequence, out);
    sequence_end(sequence);
    return status;
}

// ---- to accept ----

// The sequence may have replaced some blocks by copies since it took the offer.
static void take_leases(struct aule_sequence *sequence, const struct wire_offer_settle_reply *reply)
{
    for (uint32_t i = 0; i < reply->blocks.count && i < sequence->num_blocks; i++) {
        struct seq_block *block = sequence->blocks[i];
        if (block->id == reply->blocks.data[i])
            atomic_store(&block->sealed, reply->access.data[i] != WIRE_OFFER_WRITE);
    }
}

enum aule_status aule_sequence_accept(struct aule_sequence *sequence)
{
    USE(sequence);
    struct answer answer;
    if (!sequence->offer)
        return AULE_OK;
    enum aule_status status = settle_offer(sequence->cache, sequence->offer, true, &answer);
    if (status != AULE_OK)
        return status;
    const struct wire_offer_settle_reply *reply = &answer.reply.offer_settle;
    if (reply->access.count == reply->blocks.count)
        take_leases(sequence, reply);
    else
        status = fail(AULE_MALFORMED, "the daemon answered %u blocks with %u rights",
                      reply->blocks.count, reply->access.count);
    sequence->offer = 0;
    answer_finish(&answer);
    return status;
}
