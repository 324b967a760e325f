// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// written.h - which slots of a block count as written while runs and copies are queued or in
// flight. After a failure, the slots of the failed run no longer do. Knows claims, not contents: it
// never reads a block. Dispatcher thread only.

#ifndef AULE_CORE_WRITTEN_H
#define AULE_CORE_WRITTEN_H

#include "run.h"

// Call this when `run` is queued. The slots that it writes count as written at once, and a copy's
// target gets the bits of its source. That is safe: later runs of the session are ordered behind
// it, and other sessions wait until block->pending is 0.
void written_begin(struct run *run);
// Call this when `run` is over. If it failed, its slots count as unwritten, also in blocks that
// later copies fill from them. If such a block was published, it leaves the prefix index before any
// look-up can find it.
void written_end(struct run *run, bool ok);
// An attached process has written the slots of `mask` (cache->layer_bytes of it) in `count` layers
// from `first` on.
void written_report(struct cache *cache, struct block *block, const uint8_t *mask, uint32_t first,
                    uint32_t count);
void written_whole(struct cache *cache, struct block *block); // all slots, in all layers

#endif
