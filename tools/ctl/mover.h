// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// mover.h - the session of `save` and `load`: its cache, and blocks that go through its arena in
// pieces. A failure is reported here, once. One thread.

#ifndef AULE_CTL_MOVER_H
#define AULE_CTL_MOVER_H

#include "savefile.h"

struct mover {
    const struct ctl *ctl;
    struct aule_session *session;
    struct aule_cache *cache;
    uint64_t block_bytes, offset; // of `bytes` in the arena
    uint8_t *bytes;               // [piece] blocks, in the arena
    uint32_t piece;               // blocks that are moved at a time
};

// Opens the session and the cache of this identity. The cache's own blocks must be as long as the
// identity says. End with mover_close(), also after a failure.
enum exit_code mover_open(struct mover *mover, const struct ctl *ctl,
                          const struct savefile_identity *identity);
void mover_close(struct mover *mover);
// Between blocks[0 .. count) and mover->bytes, at most `piece` of them.
enum exit_code mover_out(struct mover *mover, const int32_t *blocks, uint32_t count);
enum exit_code mover_in(struct mover *mover, const int32_t *blocks, uint32_t count);

// The chain of keys that leads to a block. Its arrays grow.
struct mover_chain {
    int32_t *tokens;  // [count * block_size]; owned
    int32_t *blocks;  // [count]: ids; owned
    uint64_t *places; // [count]: the caller's numbers; owned
    uint32_t count, room;
};
// Room for `count` blocks, which it has then. False: no memory.
bool mover_chain_resize(struct mover_chain *chain, uint32_t count, uint32_t block_size);
void mover_chain_free(struct mover_chain *chain);

#endif
