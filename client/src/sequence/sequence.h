// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// sequence.h - what room.c and step.c may know of a sequence. Its tokens [0, num_computed) had
// their queries, [0, num_stored) have K and V in blocks or get them by a step that was made.
// num_computed <= num_stored <= num_tokens. One thread at a time; sequences that share blocks may
// be used by several threads.

#ifndef AULE_CLIENT_SEQUENCE_H
#define AULE_CLIENT_SEQUENCE_H

#include "aule/sequence.h"
#include "client/src/cache.h"

#include <stdatomic.h>

// A block that one or more sequences have. Its id never changes while several have it.
struct seq_block {
    atomic_uint sharers; // sequences
    atomic_bool sealed;
    int32_t id;
};

struct aule_sequence {
    struct handle handle;
    struct aule_cache *cache; // a reference
    bool given;               // to an offer: it ends without publishing
    int32_t *tokens;          // [token_room], owned; known ones are [0, num_known)
    uint32_t token_room, num_tokens, num_known;
    uint32_t num_public; // tokens behind these stay unknown; UINT32_MAX: none do
    uint32_t num_stored, num_computed, num_found;
    struct seq_block **blocks; // [block_room], owned; the first num_blocks hold tokens or will
    uint32_t block_room, num_blocks;
    uint32_t num_published; // blocks
    bool publish;
    struct aule_claim claim; // id 0: none
    uint8_t extra_key[WIRE_MAX_EXTRA_KEY];
    uint32_t extra_key_size;
    uint64_t offer;      // it was taken by this offer and is not accepted; 0: neither
    uint64_t generation; // of no two sequences alike; another one once an entry of `blocks` changed
    uint64_t mark;       // of the list of entries that was looked at last: finds doubles
};

static inline uint32_t blocks_for(const struct aule_cache *cache, uint64_t num_tokens)
{
    return (uint32_t)((num_tokens + cache->block_size - 1) / cache->block_size);
}

// An entry of `blocks` is another one from now on.
void sequence_touch(struct aule_sequence *sequence);

struct seq_block *seq_block_create(int32_t id, bool sealed);
// Ends one share. Writes the id to *released and returns true if it was the last one.
bool seq_block_drop(struct seq_block *block, int32_t *released);

// An empty sequence; on failure *out is ended by sequence_end(), or NULL. AULE_NO_MEMORY.
enum aule_status sequence_make(struct aule_cache *cache, const struct aule_sequence_params *params,
                               struct aule_sequence **out);
// Opens a sequence that is made, for *out; on failure it is ended. AULE_NO_MEMORY.
enum aule_status sequence_open(struct aule_sequence *sequence, struct aule_sequence **out);
// Releases its blocks, gives back an offer that is not accepted, and frees it. Takes NULL.
void sequence_end(struct aule_sequence *sequence);
// aule_sequence_append().
enum aule_status sequence_keep_tokens(struct aule_sequence *sequence, const int32_t *tokens,
                                      uint32_t count);
// Room for `num_blocks` in `blocks`. AULE_NO_MEMORY.
enum aule_status sequence_make_room(struct aule_sequence *sequence, uint32_t num_blocks);

// Publishes the full blocks of which all tokens are computed. Blocks whose runs were not submitted
// are left for the next call.
enum aule_status sequence_publish(struct aule_sequence *sequence);

#endif
