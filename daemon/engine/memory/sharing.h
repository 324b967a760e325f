// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// sharing.h - which sequences of a batch have the same keys in the same places: their block tables
// begin alike. First, once a batch, the sequences in an order in which those that begin alike stand
// together; then, for sequences that are cut into parts, the crowds: those that share one part.
// Knows tables and lengths only, nothing of kernels.

#ifndef AULE_ENGINE_SHARING_H
#define AULE_ENGINE_SHARING_H

#include <stdbool.h>
#include <stdint.h>

// Tables as a batch has them.
struct sharing_tables {
    const int32_t *table; // [num_seqs, max_blocks]
    const uint32_t
        *used; // [num_seqs] leading entries that count; 0 = the sequence has no part in this
    uint32_t num_seqs, max_blocks;
};

struct sharing_place {
    uint32_t seq;
    uint32_t
        alike; // leading entries that it has in common with the place before; of the first place 0
};

// Sequences that share nothing with anybody are not in it.
struct sharing {
    struct sharing_place *places; // [num_places]; owned
    uint32_t num_places;
};

// In time about linear in what is compared: each entry of a table is looked at a few times at most.
// false: no memory.
bool sharing_find(struct sharing *sharing, const struct sharing_tables *tables);
bool sharing_copy(struct sharing *to, const struct sharing *from); // false: no memory
void sharing_finish(struct sharing *sharing);                      // takes a zeroed one

// How the sequences are cut: sequence s into parts of part_keys[s] keys, counted from key 0, of
// which those below whole_keys[s] may be computed together with other sequences'. Parts of
// different lengths are never the same.
struct sharing_cut {
    const uint32_t *part_keys;  // [num_seqs]; 0 = not at all
    const uint32_t *whole_keys; // [num_seqs]
    uint32_t num_seqs, block_size;
    uint32_t least; // members that a crowd is worth the while for; 2 or more
};

// Sequences whose part number `part` has the same keys.
struct crowd {
    uint32_t part, first, count; // members [first, first + count)
};

// A sequence in a crowd of some part is in one of each part before it, too.
struct crowds {
    struct crowd *crowds; // [num_crowds]; owned, as the next two
    uint32_t *members;    // sequences
    uint32_t *parts;      // [num_seqs]: leading parts that are shared
    uint32_t num_crowds, num_members;
};

bool crowds_find(struct crowds *crowds, const struct sharing *sharing,
                 const struct sharing_cut *cut); // false: no memory
void crowds_finish(struct crowds *crowds);       // takes a zeroed one

#endif
