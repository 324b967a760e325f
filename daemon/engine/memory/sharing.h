// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// sharing.h - which sequences of a batch share a prefix: their block tables begin with the same
// blocks. Once for a batch, sharing_find() orders the sequences so that those with equal leading
// blocks are neighbours. For sequences that are cut into parts, crowds_find() then lists the
// crowds: the sequences that share one part, which a cascade computes together. Knows block tables
// and lengths only, nothing of kernels. Any thread; no lock.

#ifndef AULE_ENGINE_SHARING_H
#define AULE_ENGINE_SHARING_H

#include <stdbool.h>
#include <stdint.h>

// The block tables of a batch.
struct sharing_tables {
    const int32_t *table; // [num_seqs, max_blocks]
    const uint32_t *used; // [num_seqs] leading entries to compare; 0 = leave the sequence out
    uint32_t num_seqs, max_blocks;
};

struct sharing_place {
    uint32_t seq;
    uint32_t alike; // leading entries in common with the place before; 0 for the first place
};

// Sequences in the order of their block tables. Sequences that share nothing are left out.
struct sharing {
    struct sharing_place *places; // [num_places]; owned
    uint32_t num_places;
};

// Takes time about linear in the entries compared: each entry is read a few times at most. false:
// no memory.
bool sharing_find(struct sharing *sharing, const struct sharing_tables *tables);
bool sharing_copy(struct sharing *to, const struct sharing *from); // false: no memory
void sharing_finish(struct sharing *sharing);                      // takes a zeroed one

// How the sequences are cut: sequence s into parts of part_keys[s] keys, counted from key 0. Parts
// that end at whole_keys[s] or below may be computed together with those of other sequences. Parts
// of different lengths are never shared.
struct sharing_cut {
    const uint32_t *part_keys;     // [num_seqs]; 0 = the sequence is not cut
    const uint32_t *whole_keys;    // [num_seqs]
    uint32_t num_seqs, block_size; // block_size: tokens
    uint32_t least;                // fewest members of a crowd; 2 or more
};

// Sequences whose part number `part` lies in the same blocks.
struct crowd {
    uint32_t part, first, count; // members [first, first + count) of struct crowds
};

// If part p of a sequence is in a crowd, so are its parts before p.
struct crowds {
    struct crowd *crowds; // [num_crowds]; owned, like the next two
    uint32_t *members;    // [num_members]: sequence numbers
    uint32_t *parts;      // [num_seqs]: number of leading parts in crowds
    uint32_t num_crowds, num_members;
};

bool crowds_find(struct crowds *crowds, const struct sharing *sharing,
                 const struct sharing_cut *cut); // false: no memory
void crowds_finish(struct crowds *crowds);       // takes a zeroed one

#endif
