// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// attention_cases.h - random attention problems as plain data: sequences with their queries, their
// blocks with what is in them before and after the run. Contents are kept by blocks as the pool has
// them, wherever the run will find them. Knows the oracle's and engine.h's words; drives no engine.
// Everything follows from one seed.

#ifndef AULE_ATTENTION_CASES_H
#define AULE_ATTENTION_CASES_H

#include "attention_parameters.h"

#include <stddef.h>

// One sequence: which keys it has, what it asks. It owns its arrays; the blocks belong to the case.
struct attention_seq {
    uint32_t q_len, kv_len, num_blocks; // num_blocks = ceil(kv_len / block_size)
    int32_t *blocks;                    // physical ids
    uint8_t *q, *k,
        *v;         // [q_len, heads, head_dim] packed, io dtype; k and v NULL if nothing is written
    int64_t *slots; // [q_len], or NULL
    int32_t *positions; // [q_len], or NULL if no set of parameters has positions
    uint8_t *mask;      // [ceil(q_len * kv_len / 8)], likewise
};

struct attention_case {
    struct attention_shape shape;
    struct attention_parameters parameters[2];
    struct dice dice;
    struct attention_seq *seqs;
    uint32_t num_seqs;
    uint32_t num_blocks;       // physical blocks; all chunks of the cache
    uint64_t block_bytes;      // of one block of the layer
    uint8_t **before, **after; // [num_blocks] contents; what nobody wrote is poison. `after`: once
                               // every batch has run
};

enum attention_writes {
    WRITES_SOME, // in some sequences, and there not of every token
    WRITES_NONE,
    WRITES_ALL,
};

// What a case is made of. Zero fields are left to the dice, but for those of the shape that have a
// meaning when zero: place, scale mode, MLA, splits.
struct attention_wish {
    struct attention_shape shape;
    uint32_t num_seqs;
    uint32_t q_len, kv_len;           // of every sequence, if kv_len is given
    const uint32_t *q_lens, *kv_lens; // [num_seqs], or NULL
    const int32_t *table;             // [num_seqs, table_columns] which blocks, if given
    uint32_t table_columns;
    uint32_t longest; // keys of a sequence
    uint32_t work;    // most multiply-adds of all Q K products together, in thousands
    enum attention_writes writes;
};

// Element (kv head, key, dim 0) of a sequence's K (or V) in the blocks as they are `after` or
// before the run.
void *attention_case_element(const struct attention_case *problem, const struct attention_seq *seq,
                             uint32_t head, uint32_t key, bool value, bool after);

// NULL: no memory.
struct attention_case *attention_case_create(uint64_t seed, const struct attention_wish *wish);
void attention_case_destroy(struct attention_case *problem); // takes NULL

#endif
