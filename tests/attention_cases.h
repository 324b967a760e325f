// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// attention_cases.h - random attention problems as plain data: sequences with their queries, their blocks with what is in
// them before and after the run, and batches laid out in an arena's bytes. Knows the oracle and engine.h's structs; drives
// no engine. Everything follows from one seed.

#ifndef AULE_ATTENTION_CASES_H
#define AULE_ATTENTION_CASES_H

#include "engine.h"
#include "oracle.h"

struct dice {
    uint64_t state;
};
uint64_t dice_next(struct dice *dice);
uint32_t dice_below(struct dice *dice, uint32_t end);                  // 0 .. end - 1; end > 0
uint32_t dice_between(struct dice *dice, uint32_t low, uint32_t high); // both included
bool dice_chance(struct dice *dice, uint32_t percent);
float dice_normal(struct dice *dice); // mean 0, deviation about 1, never beyond 3

struct attention_shape {
    uint32_t num_kv_heads, group, head_dim, block_size; // group: query heads a KV head
    uint32_t num_layers, layer, chunk_blocks;
    enum dtype io_dtype, k_dtype, v_dtype;
    bool causal;
    float scale;
    uint32_t features, other_features; // bits; of the case's first and of its second set of parameters
};
uint32_t shape_heads(const struct attention_shape *shape);

enum {
    FEATURE_SOFT_CAP = 1,
    FEATURE_ALIBI = 2,
    FEATURE_WINDOW = 4,
    FEATURE_MASK = 8,
    FEATURE_POSITIONS = 16,
    FEATURE_SINKS = 32,
    FEATURE_LSE = 64,
    FEATURES_ALL = 127,
    MAX_HEADS = 64,
};

// What a run may ask for. A case has two sets, so that runs with different ones meet in a wave and in a dispatch.
struct attention_parameters {
    uint32_t features;
    bool causal;
    int32_t window_left, window_right;
    float soft_cap;
    float slopes[MAX_HEADS], sinks[MAX_HEADS];
};

// One sequence: which keys it has, what it asks. It owns its arrays; the blocks belong to the case.
struct attention_seq {
    uint32_t q_len, kv_len, num_blocks; // num_blocks = ceil(kv_len / block_size)
    int32_t *blocks;                    // physical ids
    uint8_t *q, *k, *v;                 // [q_len, heads, head_dim] packed, io dtype; k and v NULL if nothing is written
    int64_t *slots;                     // [q_len], or NULL
    int32_t *positions;                 // [q_len], or NULL if no set of parameters has positions
    uint8_t *mask;                      // [ceil(q_len * kv_len / 8)], likewise
};

struct attention_case {
    struct attention_shape shape;
    struct attention_parameters parameters[2];
    struct dice dice;
    struct attention_seq *seqs;
    uint32_t num_seqs;
    uint32_t num_blocks;       // physical blocks; all chunks of the cache
    uint64_t block_bytes;      // of one block of the layer
    uint8_t **before, **after; // [num_blocks] contents; what nobody wrote is NaN. `after`: once every batch has run
};

enum attention_writes {
    WRITES_SOME, // in some sequences, and there not of every token
    WRITES_NONE,
    WRITES_ALL,
};

// What a case is made of. Zero fields are left to the dice.
struct attention_wish {
    struct attention_shape shape;
    uint32_t num_seqs;
    uint32_t q_len, kv_len; // of every sequence, if kv_len is given
    uint32_t longest;       // keys of a sequence
    uint32_t work;          // most multiply-adds of all Q K products together, in thousands
    enum attention_writes writes;
};

// Element (kv head, key, dim 0) of a sequence's K (or V) in the blocks as they are `after` or before the run.
void *attention_case_element(const struct attention_case *problem, const struct attention_seq *seq, uint32_t head,
                             uint32_t key, bool value, bool after);

// NULL: no memory.
struct attention_case *attention_case_create(uint64_t seed, const struct attention_wish *wish);
void attention_case_destroy(struct attention_case *problem); // takes NULL

// Some sequences of a case as one batch, its tensors laid out in an arena.
struct attention_batch {
    const struct attention_case *problem;
    const struct attention_parameters *parameters; // of the case
    uint32_t num_seqs, num_tokens, max_blocks;
    int32_t *cu_seqlens_q, *seq_lens_kv, *block_table;
    int64_t *slot_mapping; // NULL if no sequence writes
    int32_t *positions;    // NULL = none
    uint8_t *mask;         // NULL = none
    uint64_t *mask_starts; // [num_seqs], in bits
    uint64_t mask_bytes;
    struct engine_tensor q, k, v, out, lse; // lse.dtype 0 = not wanted
};

// Where the next tensor may go in an arena image; all that was not given to a tensor's elements stays as it was.
struct attention_image {
    uint8_t *bytes;
    uint64_t size, used;
};

// Sequence order[i] of `problem` becomes sequence i, under set `set` of its parameters. Writes q, k, v into the image, reserves out, with gaps and strides
// by the dice. Table entries that no query sees are garbage. False: no memory, or the image is full.
bool attention_batch_init(struct attention_batch *batch, const struct attention_case *problem, uint32_t set,
                          const uint32_t *order, uint32_t num_seqs, struct attention_image *image, struct dice *dice);
void attention_batch_finish(struct attention_batch *batch); // takes a zeroed one

// The batch for the oracle, which reads the case's blocks as they are after the run, and q from the image.
struct oracle_params attention_batch_oracle(const struct attention_batch *batch, const uint8_t *arena);

#endif
