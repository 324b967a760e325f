// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// own_cache.c - see own_cache.h. The daemon's --max-caches bounds their number. Any thread.

#include "own_cache.h"

#include "base/container_of.h"
#include "base/list.h"
#include "error.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

struct own_cache {
    struct life_part part;
    struct own_cache_shape shape;
    struct aule_cache cache;
};

// The daemon closes the cache with the session.
static void end(struct life_part *part)
{
    free(container_of(part, struct own_cache, part));
}

static bool is_of(const struct own_cache *own, const struct own_cache_shape *shape)
{
    return own->shape.num_kv_heads == shape->num_kv_heads &&
           own->shape.head_dim == shape->head_dim && own->shape.head_dim_v == shape->head_dim_v &&
           own->shape.dtype == shape->dtype;
}

static struct own_cache *find(struct life *life, const struct own_cache_shape *shape)
{
    struct life_part *part;
    LIST_EACH(life->parts, part)
        if (part->end == end && is_of(container_of(part, struct own_cache, part), shape))
            return container_of(part, struct own_cache, part);
    return NULL;
}

static enum aule_status open_as(struct life *life, const struct own_cache_shape *shape,
                                const char *owner, struct aule_cache *cache)
{
    char name[160];
    snprintf(name, sizeof name, "aule_attention %s, %u heads of %u and %u%s",
             aule_dtype_name(shape->dtype), shape->num_kv_heads, shape->head_dim, shape->head_dim_v,
             owner);
    const struct aule_cache_params params = {.name = name,
                                             .num_layers = 1,
                                             .num_kv_heads = shape->num_kv_heads,
                                             .head_dim = shape->head_dim,
                                             .head_dim_v = shape->head_dim_v,
                                             .k_dtype = shape->dtype,
                                             .v_dtype = shape->dtype,
                                             .block_size = OWN_CACHE_BLOCK};
    return cache_open_in(life, &params, cache);
}

// All sessions open the same cache: each needs blocks only during a call, so one cache for all is
// better than one for each. But any program may use that name. If the name has another identity,
// the session opens a cache with a name that only it uses.
static enum aule_status open_shape(struct life *life, const struct own_cache_shape *shape,
                                   struct aule_cache *cache)
{
    char owner[64];
    enum aule_status status = open_as(life, shape, "", cache);
    if (status != AULE_MISMATCH)
        return status;
    snprintf(owner, sizeof owner, ", session %" PRIu64 " of %" PRIx64, life->info.session,
             life->info.epoch);
    return open_as(life, shape, owner, cache);
}

// Keeps `own`, unless another thread has opened the same cache meanwhile. Returns the kept one; if
// it is not `own`, the caller still owns `own`.
static struct own_cache *keep(struct life *life, struct own_cache *own)
{
    pthread_mutex_lock(&life->mutex);
    struct own_cache *kept = find(life, &own->shape);
    if (!kept)
        LIST_PREPEND(life->parts, &own->part);
    pthread_mutex_unlock(&life->mutex);
    return kept ? kept : own;
}

static enum aule_status open_new(struct life *life, const struct own_cache_shape *shape,
                                 struct own_cache **out)
{
    struct own_cache *own = calloc(1, sizeof *own);
    if (!own)
        return fail(AULE_NO_MEMORY, "no memory for a cache");
    own->part.end = end;
    own->shape = *shape;
    enum aule_status status = open_shape(life, shape, &own->cache);
    if (status != AULE_OK) {
        free(own);
        return status;
    }
    *out = keep(life, own);
    if (*out == own)
        return AULE_OK;
    struct wire_request request = {.command = WIRE_COMMAND_CACHE_CLOSE,
                                   .cache_close = {.cache = own->cache.id}};
    free(own);
    return life_tell(life, &request);
}

enum aule_status own_cache_get(struct life *life, const struct own_cache_shape *shape,
                               struct aule_cache **cache)
{
    pthread_mutex_lock(&life->mutex);
    struct own_cache *own = find(life, shape);
    pthread_mutex_unlock(&life->mutex);
    enum aule_status status = own ? AULE_OK : open_new(life, shape, &own);
    if (status == AULE_OK)
        *cache = &own->cache;
    return status;
}
