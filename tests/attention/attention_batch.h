// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// attention_batch.h - sequences of a case as one batch: its metadata in each of the forms that
// engine.h takes, its tensors laid out in the bytes of an arena, K and V too where they lie there.
// Knows the oracle's words; drives no engine.

#ifndef AULE_ATTENTION_BATCH_H
#define AULE_ATTENTION_BATCH_H

#include "attention_cases.h"
#include "oracle/oracle.h"

// How a batch's tokens lie in its tensors.
enum attention_tokens {
    TOKENS_ANY,         // by the dice
    TOKENS_PLAIN,       // one sequence after the other
    TOKENS_INTERLEAVED, // in any order, by token_rows
    TOKENS_PADDED,      // with tokens that are no queries, by q_lens
    TOKENS_DENSE,       // some tensors with an outer stride, and perhaps such tokens
    TOKENS_FORMS,
};
struct attention_form {
    enum attention_tokens tokens;
    enum engine_place place;
};

struct attention_batch {
    const struct attention_case *problem;
    const struct attention_parameters *parameters; // of the case
    struct attention_form form;
    uint32_t num_seqs, num_tokens, max_blocks;
    int32_t *cu_seqlens_q, *seq_lens_kv;
    int32_t *q_lens;       // NULL = all tokens are queries
    int32_t *token_rows;   // NULL = token t is row t
    int32_t *block_table;  // NULL in ENGINE_ROWS
    int32_t *kv_starts;    // ENGINE_ROWS
    int64_t *slot_mapping; // NULL if no sequence writes
    int32_t *positions;    // NULL = none
    uint8_t *mask;         // NULL = none
    uint64_t *mask_starts; // [num_seqs], in bits
    uint64_t mask_bytes;
    struct wire_tensor q, k, v, out,
        lse; // lse.dtype 0 = not wanted; k and v are placed if something is written
    struct wire_tensor keys, values; // dtype 0 = not there
};

// Where the next tensor may go in an arena image; all that was not given to a tensor's elements
// stays as it was.
struct attention_image {
    uint8_t *bytes;
    uint64_t size, used;
    uint64_t poisoned; // so many bytes are poison where no tensor lies; those behind them nobody
                       // has touched
    struct wire_tensor keys,
        values; // the case's blocks, once a batch over block tensors has placed them: all share one
};

// Sequence order[i] of `problem` becomes sequence i, under set `set` of its parameters. Writes q,
// k, v into the image, and K and V as they are before the run where the place is the arena;
// reserves out, with gaps and strides by the dice. Table entries that no query sees are garbage.
// `form` NULL: any, in the case's place. False: no memory, or the image is full.
bool attention_batch_init(struct attention_batch *batch, const struct attention_case *problem,
                          uint32_t set, const uint32_t *order, uint32_t num_seqs,
                          const struct attention_form *form, struct attention_image *image,
                          struct dice *dice);
void attention_batch_finish(struct attention_batch *batch); // takes a zeroed one

// Where token i of sequence s lies in a tensor of the batch, head 0; and its LSE.
uint64_t attention_batch_at(const struct attention_batch *batch, const struct wire_tensor *tensor,
                            uint32_t seq, uint32_t i);
uint64_t attention_batch_lse_at(const struct attention_batch *batch, uint32_t seq, uint32_t i);
// The sequence of a token and which of its tokens it is.
uint32_t attention_batch_seq(const struct attention_batch *batch, uint32_t token, uint32_t *i);

// The batch for the oracle: q, and K and V that lie in the arena, from the image; those of the pool
// from the case, as after the run.
struct oracle_params attention_batch_oracle(const struct attention_batch *batch,
                                            const uint8_t *arena);

// One block, as the pool would have it, out of the image's block tensors.
void attention_image_block(const struct attention_image *image,
                           const struct attention_case *problem, uint32_t block, uint8_t *bytes);

// Room for `bytes` at a multiple of 16, some way behind what is used; and a tensor of [tokens,
// heads, head_dim] with strides by the dice.
uint64_t attention_image_take(struct attention_image *image, struct dice *dice, uint64_t bytes);
struct wire_tensor attention_image_place(struct attention_image *image, struct dice *dice,
                                         enum dtype dtype, uint32_t tokens, uint32_t heads,
                                         uint32_t head_dim);
struct wire_tensor attention_image_place_lse(struct attention_image *image, struct dice *dice,
                                             uint32_t tokens, uint32_t heads);

#endif
