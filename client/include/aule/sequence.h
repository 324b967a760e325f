/* SPDX-License-Identifier: Apache-2.0 */
/* SPDX-FileCopyrightText: The aule authors */

/*
 * sequence.h - token sequences over a cache. With sequences, a worker keeps no block tables, slot
 * mappings or leases of its own: the library manages them through the calls of aule.h.
 *
 * The order of a program: create a sequence from its prompt. Once a model step, call
 * aule_step_make() over the sequences of that step, run each layer over aule_step_batch(), and
 * append the sampled tokens. Destroy the sequence at the end. Examples: examples/.
 *
 * Threads: any thread may use any sequence, but only one thread at a time may use the same one. The
 * same holds for a step together with the sequences that it is made over. Forks of a sequence are
 * separate sequences.
 * Destroy sequences and steps before you close their cache. If it is closed first, calls on them
 * are refused (AULE_INVALID). After this, AULE_DAEMON_GONE or AULE_EPOCH they can only be
 * destroyed: create new ones from the tokens. A thread may destroy one that another thread uses; it
 * ends when that call has returned.
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
    bool claim;                   /* claim the blocks that are missing, so that no two sequences
                                     compute the same ones; needs `publish` */
    enum aule_load load;          /* of the prompt's blocks that are kept outside the GPU */
};

AULE_API enum aule_status aule_sequence_create_sized(struct aule_cache *cache,
                                                     const struct aule_sequence_params *params,
                                                     size_t params_size,
                                                     struct aule_sequence **sequence);

/*
 * Creates a sequence and looks its prompt up in the prefix cache. The sequence holds the blocks
 * that are found. Their tokens need no computing, except the last token of the prompt, whose output
 * the caller needs. No block is leased yet.
 * With `claim` it also claims the blocks that are missing, see aule_prefix_claim(). Of several
 * sequences with one prompt, the first computes it; the others call aule_sequence_wait(). The
 * sequence has its claim until it has published the prompt, is truncated or is destroyed; a fork
 * has none.
 * AULE_INVALID: also `claim` without `publish`. Other statuses: those of aule_prefix_lookup() and
 * aule_prefix_claim(), AULE_NO_MEMORY. On any but AULE_OK *sequence is NULL.
 */
static inline enum aule_status aule_sequence_create(struct aule_cache *cache,
                                                    const struct aule_sequence_params *params,
                                                    struct aule_sequence **sequence)
{
    return aule_sequence_create_sized(cache, params, sizeof *params, sequence);
}

/*
 * Waits for blocks of the prompt that other sequences compute, of this session or of others.
 * Needs `claim`, and no step may have computed tokens yet. The usual loop:
 *
 *     do aule_sequence_info(sequence, &info);
 *     while (info.num_promised && aule_sequence_wait(sequence, 10000) == AULE_OK);
 *
 * Returns as soon as one block more is there: then num_found has grown, and num_promised is what
 * others still compute. Also returns when the next block has become this sequence's to compute,
 * because the sequence that computed it has ended: then num_promised is 0. Returns at once if it is
 * 0 already. Waits at most `timeout_ms` milliseconds, 0 asks once, -1 waits for ever. To go on
 * without waiting is right at any time: the sequence then computes what it has not found.
 * AULE_TIMEOUT: no block came. Other statuses: those of aule_claim_wait(), except that its
 * AULE_NOT_FOUND is AULE_OK here, and num_promised is 0: the claim has ended.
 */
AULE_API enum aule_status aule_sequence_wait(struct aule_sequence *sequence, int timeout_ms);

/*
 * Publishes the computed full blocks that are still unpublished, if `publish` was set, and releases
 * the claim and all blocks. Blocks that live batches or runs in flight name are released when these
 * end. Takes NULL.
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
 * Publishes no block that has a token from `num_tokens` on, until the sequence is truncated to
 * `num_tokens` tokens or fewer. The tokens and their K and V stay. A claim on such blocks ends. Call
 * this before the next step of the sequence if K and V of these tokens are not those of the plain
 * prompt, for instance under another mask. aule_sequence_tokens() returns NULL while there are such
 * tokens. AULE_OUT_OF_RANGE: the sequence has fewer
 * tokens. AULE_SEALED: a block with such a token is published already; nothing has changed.
 */
AULE_API enum aule_status aule_sequence_keep_private(struct aule_sequence *sequence,
                                                     uint32_t num_tokens);

/*
 * Creates a sequence with the same tokens, which shares all blocks that hold computed tokens. If
 * the last block is part-filled, the first of the two sequences to write into it gets a copy, made
 * on the GPU. The fork publishes if `sequence` does. AULE_NO_MEMORY.
 */
AULE_API enum aule_status aule_sequence_fork(const struct aule_sequence *sequence,
                                             struct aule_sequence **fork);

/*
 * Publishes the computed full blocks that are still unpublished, also if `publish` was not set.
 * Steps do this by themselves for a sequence that publishes. If runs have not written one of them
 * in every layer, all of them are left for a later call, and this returns AULE_OK.
 * Statuses: those of aule_prefix_publish() but AULE_UNWRITTEN, AULE_NO_MEMORY.
 */
AULE_API enum aule_status aule_sequence_publish(struct aule_sequence *sequence);

/*
 * aule_cache_report() and aule_sequence_publish() by one message, for a session that is attached to
 * the cache. Call this after your kernels have written all tokens of the unpublished full blocks in
 * all layers and have finished. `passed` and `mark` (NULL: not wanted) are those of
 * aule_cache_report(). Slots of the last, part-filled block are not reported. If a block cannot be
 * published, its slots count as reported nevertheless.
 * Statuses: those of both.
 */
AULE_API enum aule_status aule_sequence_publish_written(struct aule_sequence *sequence,
                                                        uint64_t passed, uint64_t *mark);

/*
 * Offers the sequence under `name` to the sessions of this tenant that have the cache open. On
 * AULE_OK the offer has the sequence, and `sequence` is gone, as after aule_sequence_destroy().
 * Runs that compute it may still be in flight: the offer can be taken when they have succeeded.
 * The offer ends after `timeout_ms` milliseconds (-1: never) if nobody has it then, and with this
 * session if nobody has taken it; its blocks are then free, or cached if they are published.
 * The giver calls aule_sequence_take() to take it back. The offered blocks count against the
 * giver's quota until a taker accepts.
 * AULE_INVALID: the name has not 1 to 255 bytes, timeout_ms is below -1, the sequence was taken and
 * is not accepted, or the tenant offers another sequence under the name in this cache. AULE_BUSY: a
 * batch that has not run yet writes one of the blocks. AULE_LIMIT: --max-tickets, or
 * --max-batch-memory for the token ids. AULE_UNWRITTEN: a run of a step that was made was not
 * submitted, or has failed. AULE_NO_MEMORY. On failure the sequence stays.
 */
AULE_API enum aule_status aule_sequence_offer(struct aule_sequence *sequence, const char *name,
                                              int timeout_ms);

/*
 * Takes the sequence that is offered under `name`, with all its tokens and blocks; it publishes if
 * the giver's did. Waits at most `timeout_ms` milliseconds until there is such an offer that can be
 * taken; 0 asks once, -1 waits for ever. The giver takes its own sequence back this way.
 * The sequence can be used at once. But until aule_sequence_accept() the giver has a right to it:
 * aule_sequence_destroy(), or the end of this session, gives it back as it was offered, and the
 * giver or another session can take it then. If the giver's session ends first, this session has
 * the sequence, and no other one can take it any more.
 * AULE_NOT_FOUND: there was no such offer in time. AULE_BUSY: there was, but another session has
 * taken it, or runs that compute it are not done. AULE_UNWRITTEN: such a run has failed; only the
 * giver can take the sequence. AULE_QUOTA: as of aule_blocks_lease(). AULE_LIMIT: this session has
 * taken --max-tickets sequences and accepted none of them. AULE_INVALID: the name has not 1 to 255
 * bytes, or timeout_ms is below -1. AULE_NO_MEMORY. On any but AULE_OK *sequence is NULL.
 */
AULE_API enum aule_status aule_sequence_take(struct aule_cache *cache, const char *name,
                                             int timeout_ms, struct aule_sequence **sequence);

/*
 * Call this once the sequence that was taken may not go back any more, for example after its first
 * token. It is this session's alone from now on, also if the giver has ended. Before this call the
 * first write into a part-filled block copies the block, after it the block is written in place.
 * AULE_OK also if the sequence was not taken.
 * AULE_MALFORMED, with a sentence about blocks and rights: the sequence is this session's, but the
 * library does not know which blocks it may write, so writes still copy. After any other failure
 * the sequence is as it was before the call, so call again; if the session has ended, the giver has
 * its right to it.
 */
AULE_API enum aule_status aule_sequence_accept(struct aule_sequence *sequence);

struct aule_sequence_info {
    uint32_t num_tokens;
    uint32_t num_computed;        /* of these, tokens that a step computed or the cache had */
    uint32_t num_found;           /* tokens of the prompt that the prefix cache had */
    uint32_t num_blocks;          /* leased and held ones, those shared with forks included */
    uint32_t num_published;       /* blocks that others can find */
    uint32_t num_promised;        /* tokens behind num_found that other sequences compute now, as
                                     of the last aule_sequence_wait() or the creation */
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
 * 0: does not wait, -1: waits for ever. If blocks are copied, it then waits until the copy has
 * ended, behind this session's queued runs, however long that takes. So no run reads a copy that
 * has failed.
 * A block that a batch still names is not free: the step that last used a sequence keeps its blocks
 * until its next aule_step_make() or its end. So call aule_step_rest() for a step that idles.
 * Statuses: those of aule_blocks_lease() and aule_blocks_copy(); if the copy failed, the status
 * with which it ended. AULE_DAEMON_GONE: also if the daemon did not answer during that wait; then
 * the session has ended. AULE_INVALID: a sequence is NULL, occurs twice or belongs to another
 * cache. AULE_LIMIT: more than 2^31 - 1 tokens or blocks. On failure nothing is leased.
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
 *
 *     tokens of a sequence   | found or computed | this step   | appended |
 *     rows of q, k, v, out                       | row, row+1, |
 *     blocks                 | sealed, shared    | leased, own |
 *
 * Publishes full blocks that earlier steps computed; blocks that cannot be published now are tried
 * again later. Leases blocks as aule_sequences_reserve() does, copies shared blocks that are
 * written, waits for the copy as that does, and makes the batch. If the same sequences compute as
 * many tokens as in the step before, only the changes are sent; else the batch is a new one.
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

/*
 * The same for an attached process (aule_cache_attach()), whose own kernels compute the step: it
 * makes no batch, and sends no message unless blocks are leased or published. Launch your kernels
 * over aule_step_tables(), and report the slots that they have written in every layer. Blocks are
 * published by a later step once they are reported. Statuses: those of aule_step_make().
 */
AULE_API enum aule_status aule_step_plan(struct aule_step *step, struct aule_step_entry *entries,
                                         uint32_t num_entries, int timeout_ms);

/* What the step computes, and where. Owned by the step; valid until it is made or planned again. */
struct aule_step_tables {
    uint32_t num_seqs, max_blocks, num_tokens;
    const int32_t *cu_seqlens_q;  /* [num_seqs + 1] */
    const int32_t *seq_lens_kv;   /* [num_seqs] this step's tokens included */
    const int32_t *block_table;   /* [num_seqs, max_blocks]; -1: none */
    const int64_t *slot_mapping;  /* [num_tokens]; -1: K and V are there already */
};
AULE_API enum aule_status aule_step_tables_sized(const struct aule_step *step,
                                                 struct aule_step_tables *tables,
                                                 size_t tables_size);
/* AULE_INVALID: the step is not made. */
static inline enum aule_status aule_step_tables(const struct aule_step *step,
                                                struct aule_step_tables *tables)
{
    return aule_step_tables_sized(step, tables, sizeof *tables);
}

/* The step's batch, for runs. Valid until the next aule_step_make() or aule_step_rest(); NULL
   before the first and after a rest. */
AULE_API struct aule_batch *aule_step_batch(const struct aule_step *step);

/*
 * Ends the step's batch: blocks that only the batch still names become free, as soon as no run in
 * flight uses them. Call this when the step will not be made again soon. The step stays; its next
 * aule_step_make() makes a new batch. Takes NULL, and a step without a batch.
 */
AULE_API void aule_step_rest(struct aule_step *step);

/*
 * Creates a batch of the step's sequences in which a custom mask replaces causal, as in
 * aule_batch_params: one part for each entry, of its num_tokens queries and its computed tokens.
 * Runs may use it in place of the step's batch. Ends with aule_batch_destroy(), before the step.
 * AULE_INVALID: there is no step yet, or mask is NULL. Other statuses: those of
 * aule_batch_create(). On failure *batch is NULL.
 */
AULE_API enum aule_status aule_step_masked(const struct aule_step *step, const void *mask,
                                           size_t mask_size, struct aule_batch **batch);

#ifdef __cplusplus
}
#endif

#endif
