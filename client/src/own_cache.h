// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// own_cache.h - caches that the library opens for itself, so that contiguous tensors can use the
// pool. There is one for each shape, which sessions share. It is opened at its first use and ends
// with its life, when the daemon closes it.

#ifndef AULE_CLIENT_OWN_CACHE_H
#define AULE_CLIENT_OWN_CACHE_H

#include "cache.h"

struct own_cache_shape {
    uint32_t num_kv_heads, head_dim, head_dim_v;
    enum aule_dtype dtype; // of K and V
};

// Finds or opens the cache of this shape: one layer, blocks of OWN_CACHE_BLOCK tokens. The
// life owns the cache, which has no reference of its own. Between enter and leave. Statuses:
// as aule_cache_open().
enum { OWN_CACHE_BLOCK = 32 };
enum aule_status own_cache_get(struct life *life, const struct own_cache_shape *shape,
                               struct aule_cache **cache);

#endif
