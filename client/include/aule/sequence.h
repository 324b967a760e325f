/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The aule authors */

/*
 * sequence.h - token sequences over a cache. With sequences, a worker keeps no block tables, slot
 * mappings or leases of its own: the library manages them through the calls of aule.h.
 *
 * The order of a program: create a sequence from its prompt. Once a model step, call
 * aule_step_make() over the sequences of that step, run each layer over aule_step_batch(), and
 * append the sampled tokens. Destroy the sequence at the end. Examples: tests/client/examples.
 *
 * Threads: any thread may use any sequence, but only one thread at a time may use the same one. The
 * same holds for a step together with the sequences that it is made over. Forks of a sequence are
 * separate sequences.
 * Destroy sequences and steps before you close their cache. After AULE_DAEMON_GONE or AULE_EPOCH
 * they can only be destroyed: create new ones from the tokens.
 */

/* Laid out by hand. */
/* clang-format off */
#ifndef AULE_SEQUENCE_H
#define AULE_SEQUENCE_H

#include "aule.h"

#ifdef __cplusplus
extern "C" {
#endif

struct aule_sequence;

struct aule_sequence_params {
    const int32_t *tokens;        /* [num_tokens] the prompt; copied */
    uint32_t num_tokens;
    const void *extra_key;        /* as in aule_prefix; copied */
    size_t extra_key_size;
    bool publish;                 /* publish full blocks as they are computed; others find them */
};

AULE_API enum aule_status aule_sequence_create_sized(struct aule_cache *cache,
                                                     const struct aule_sequence_params *params,
                                                     size_t params_size,
                                                     struct aule_sequence **sequence);

/*
 * Creates a sequence and looks its prompt up in the prefix cache. The sequence holds the blocks
 * that are found. Their tokens need no computing, except the last token of the prompt, whose output
 * the caller needs. No block is leased yet.
 * Statuses: those of aule_prefix_lookup(), AULE_NO_MEMORY. On any but AULE_OK *sequence is NULL.
 */
static inline enum aule_status aule_sequence_create(struct aule_cache *cache,
                                                    const struct aule_sequence_params *params,
                                                    struct aule_sequence **sequence)
{
    return aule_sequence_create_sized(cache, params, sizeof *params, sequence);
}

/*
 * Publishes the computed full blocks that are still unpublished, if `publish` was set, and releases
 * all blocks. Blocks that live batches or runs in flight name are released when these end. Takes
 * NULL.
 */
AULE_API void aule_sequence_destroy(struct aule_sequence *sequence);

/*
 * Appends `count` tokens for later steps to compute. Sends no message: a step leases the blocks of
 * all its sequences by one message. `tokens` NULL: the ids are not known, and the sequence
 * publishes no block from there on. AULE_LIMIT: more than 2^31 - 1 tokens. AULE_NO_MEMORY. On
 * failure nothing changes.
 */
AULE_API enum aule_status aule_sequence_append(struct aule_sequence *sequence,
                                               const int32_t *tokens, uint32_t count);

/*
 * Drops the tokens from `num_tokens` on, and releases blocks that held only dropped tokens. Tokens
 * appended later are written in place; a block that is sealed, or that a fork shares, is copied
 * first. AULE_OUT_OF_RANGE: the sequence has fewer tokens.
 */
AULE_API enum aule_status aule_sequence_truncate(struct aule_sequence *sequence,
                                                 uint32_t num_tokens);

/*
 * Creates a sequence with the same tokens, which shares all blocks that hold computed tokens. If
 * the last block is part-filled, the first of the two sequences to write into it gets a copy, made
 * on the GPU. The fork publishes if `sequence` does. AULE_NO_MEMORY.
 */
AULE_API enum aule_status aule_sequence_fork(const struct aule_sequence *sequence,
                                             struct aule_sequence **fork);

struct aule_sequence_info {
    uint32_t num_tokens;
    uint32_t num_computed;        /* of these, tokens that a step computed or the cache had */
    uint32_t num_found;           /* tokens of the prompt that the prefix cache had */
    uint32_t num_blocks;          /* leased and held ones, those shared with forks included */
    uint32_t num_published;       /* blocks that others can find */
};
AULE_API enum aule_status aule_sequence_info_sized(const struct aule_sequence *sequence,
                                                   struct aule_sequence_info *info,
                                                   size_t info_size);
/* Fills *info. Sends no message. */
static inline enum aule_status aule_sequence_info(const struct aule_sequence *sequence,
                                                  struct aule_sequence_info *info)
{
    return aule_sequence_info_sized(sequence, info, sizeof *info);
}

/* The token ids, [num_tokens]. Owned by the sequence; valid until its next append or destroy. NULL
   if some ids are not known. */
AULE_API const int32_t *aule_sequence_tokens(const struct aule_sequence *sequence);

/* A sequence's part in a step or a reservation. */
struct aule_step_entry {
    struct aule_sequence *sequence;
    uint32_t num_tokens;          /* 0: all that are not computed yet */
    uint32_t row;                 /* set by aule_step_make() */
};

/*
 * Leases the blocks that the next num_tokens tokens of each sequence need, counted from the
 * computed tokens, for all entries or for none. num_tokens may exceed what was appended so far. An
 * admission control calls this before it lets a request in. Every sequence occurs once.
 * Waits at most `timeout_ms` milliseconds for blocks, and for a ticket if shared blocks are copied;
 * 0 asks once, -1 waits for ever. A block that a batch still names is not free: the step that last
 * used a sequence keeps its blocks until its next aule_step_make() or its end.
 * Statuses: those of aule_blocks_lease() and aule_blocks_copy(). AULE_INVALID: a sequence is NULL,
 * occurs twice or belongs to another cache. AULE_LIMIT: more than 2^31 - 1 tokens or blocks. On
 * failure nothing is leased.
 */
AULE_API enum aule_status aule_sequences_reserve(const struct aule_step_entry *entries,
                                                 uint32_t num_entries, int timeout_ms);

/* Makes one model step after another over sequences of one cache. */
struct aule_step;

AULE_API enum aule_status aule_step_create(struct aule_cache *cache, struct aule_step **step);
AULE_API void aule_step_destroy(struct aule_step *step); /* takes NULL; ends its batch */

/*
 * Call this once a model step. Entry i computes the next num_tokens tokens of its sequence. On
 * AULE_OK num_tokens is their number, and `row` is the first row of the entry's tokens in q, k, v
 * and out; rows follow one another in the order of the entries.
 * Publishes full blocks that earlier steps computed; blocks that cannot be published now are tried
 * again later. Leases blocks as aule_sequences_reserve() does, copies shared blocks that are
 * written, and makes the batch. If the same sequences compute as many tokens as in the step before,
 * only the changes are sent; else the batch is a new one.
 * After this call the tokens count as computed. So submit the runs of every layer before you make
 * the next step. If a run is not submitted or fails, truncate the sequences.
 * AULE_INVALID: there is no entry, an entry wants more tokens than its sequence has left, or a
 * sequence occurs twice or belongs to another cache. Other statuses: those of
 * aule_sequences_reserve() and aule_batch_create(). On failure the entries are as they were, no
 * sequence has computed more than before, and the step has no batch. Blocks that were leased stay
 * with their sequences.
 */
AULE_API enum aule_status aule_step_make(struct aule_step *step, struct aule_step_entry *entries,
                                         uint32_t num_entries, int timeout_ms);

/* The step's batch, for runs. Valid until the next aule_step_make(); NULL before the first. */
AULE_API struct aule_batch *aule_step_batch(const struct aule_step *step);

#ifdef __cplusplus
}
#endif

#endif
