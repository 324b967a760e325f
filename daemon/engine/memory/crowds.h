// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// crowds.h - the sequences that share one part of their keys, which a cascade computes together.
// Knows the order of sequences (sharing.h) and lengths, nothing of kernels. Any thread; no lock.

#ifndef AULE_ENGINE_CROWDS_H
#define AULE_ENGINE_CROWDS_H

#include "sharing.h"

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
