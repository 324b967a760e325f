// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// sharing.h - which sequences share a prefix: their block tables begin with the same blocks. Once
// for a batch, sharing_find() orders the sequences so that those with equal leading blocks are
// neighbours. sharing_join() merges the orders of several batches. Knows block tables only,
// nothing of kernels. Any thread; no lock.

#ifndef AULE_ENGINE_SHARING_H
#define AULE_ENGINE_SHARING_H

#include <stdbool.h>
#include <stdint.h>

// The block tables of some sequences.
struct sharing_tables {
    const int32_t *const *rows; // [num_seqs]: each with used[seq] entries; NULL if that is 0
    const uint32_t *used;       // [num_seqs] leading entries to compare; 0 = leave the sequence out
    uint32_t num_seqs;
};

struct sharing_place {
    uint32_t seq;
    uint32_t alike; // leading entries in common with the place before; 0 for the first place
};

// Sequences in the order of their block tables. places[0, num_places) share entries with a
// neighbour. Behind them stand the sequences that share nothing, in any order, with 0 alike.
struct sharing {
    struct sharing_place *places; // [num_all]; owned, like `firsts`
    // [num_firsts]: the first entry of each place that has 0 alike, in the order of places. They
    // all differ.
    int32_t *firsts;
    uint32_t num_places, num_all, num_firsts;
};

// Takes time about linear in the entries compared: each entry is read a few times at most. false:
// no memory.
bool sharing_find(struct sharing *sharing, const struct sharing_tables *tables);
bool sharing_copy(struct sharing *to, const struct sharing *from); // false: no memory
void sharing_finish(struct sharing *sharing);                      // takes a zeroed one

// One of several batches whose sequences are numbered one after another.
struct sharing_part {
    const struct sharing *sharing; // of the batch
    uint32_t first_seq;            // number of its sequence 0 among all
};

// Sets *meet to whether sequences of two batches may begin with the same entry. Takes a few
// nanoseconds for each first entry, and reads no block table. It may be true by chance, for a
// fraction of the cases without sharing. false: no memory.
bool sharing_meet(const struct sharing_part *parts, uint32_t count, bool *meet);
// Orders the sequences that share entries with a sequence of any batch. Sequences that share
// nothing are left out, and there are no `firsts`. `tables` has all sequences. Entries that
// sequences of one batch have in common are not compared again. false: no memory.
bool sharing_join(struct sharing *sharing, const struct sharing_tables *tables,
                  const struct sharing_part *parts, uint32_t count);

#endif
