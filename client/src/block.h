// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// block.h - copies of blocks whose end the library waits for. Any thread.

#ifndef AULE_CLIENT_BLOCK_H
#define AULE_CLIENT_BLOCK_H

#include "cache.h"

// aule_blocks_copy(), and waits until the copy has ended, which takes as long as the session's work
// that is queued before it. timeout_ms is for a free ticket only. On any status but AULE_OK the
// targets hold nothing that may be read.
enum aule_status blocks_copy_to_end(struct aule_cache *cache, uint32_t count, const int32_t *from,
                                    const int32_t *to, int timeout_ms);

#endif
