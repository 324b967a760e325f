// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// attention_contents.h - the bytes of a case: how a block of the pool is laid out, what a row of K
// or V becomes in it, and what the tests put there. Knows no arena.

#ifndef AULE_ATTENTION_CONTENTS_H
#define AULE_ATTENTION_CONTENTS_H

#include "attention_cases.h"

// Where row (kv head, token of the block) lies in a block, K or V, and its scale (only with
// SCALE_PER_TOKEN_HEAD).
uint64_t block_row_at(const struct attention_shape *shape, uint32_t head, uint32_t token,
                      bool value);
uint64_t block_scale_at(const struct attention_shape *shape, uint32_t head, uint32_t token,
                        bool value);
uint64_t block_bytes_of(const struct attention_shape *shape);
bool shape_scaled(const struct attention_shape *shape,
                  bool value); // its elements stand for themselves times something
void block_poison(const struct attention_shape *shape,
                  uint8_t *block); // NaN, or in int8 the number that no rounding gives

// Puts a row of K or V, before and after the run. Rounded and scaled as when it is written.
void attention_row_put(struct attention_case *problem, const struct attention_seq *seq,
                       uint32_t head, uint32_t key, bool value, const float *row);

// What the tensors of a sequence and the blocks hold: keys and values, fresh ones too; then what
// asks.
bool attention_seq_fill(struct attention_case *problem, struct attention_seq *seq,
                        uint32_t shared_keys);
bool attention_seq_ask(struct attention_case *problem, struct attention_seq *seq);
uint64_t attention_mask_bytes(const struct attention_seq *seq, uint32_t rows);

// K that was turned as it was written is not known to the last bit. If the row of query token
// `query` in `block`, as the device left it, is a rounding of what it should be within some 5e-7 of
// each pair, the row becomes what `after` has. False: `text` says why not.
bool attention_row_adopt(struct attention_case *problem, const struct attention_seq *seq,
                         uint32_t query, uint32_t head, const uint8_t *block, char *text,
                         size_t size);

#endif
