// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// own_cache.h - caches that the library opens for itself, one a shape and shared by sessions, so
// that contiguous tensors can use the pool. They are opened at their first use and end with their
// attachment: the daemon then closes them.

#ifndef AULE_CLIENT_OWN_CACHE_H
#define AULE_CLIENT_OWN_CACHE_H

#include "cache.h"

struct own_cache_shape {
    uint32_t num_kv_heads, head_dim, head_dim_v;
    enum aule_dtype dtype; // of K and V
};

// One layer of blocks of OWN_CACHE_BLOCK tokens; the attachment's, with no reference of its own.
// Between enter and leave. The statuses of aule_cache_open().
enum { OWN_CACHE_BLOCK = 32 };
enum aule_status own_cache_get(struct attachment *attachment, const struct own_cache_shape *shape,
                               struct aule_cache **cache);
void own_cache_free(struct own_cache *caches); // memory only; takes NULL

#endif
