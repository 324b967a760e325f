// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// cache.h - what the other parts may know of an open cache.

#ifndef AULE_CLIENT_CACHE_H
#define AULE_CLIENT_CACHE_H

#include "attachment.h"

struct aule_cache {
    struct attachment *attachment; // a reference
    uint64_t id;
    uint32_t block_size; // tokens
};

// Block ids that one message takes; more must go in parts. AULE_LIMIT.
enum aule_status cache_check_count(const struct aule_cache *cache, const char *what, uint64_t count);

#endif
