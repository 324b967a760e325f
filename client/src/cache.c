// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// cache.c - caches and their blocks; each call is one command to the daemon. The daemon knows which
// identities are valid and which session holds what. Any thread.

#include "cache.h"

#include "base/quote.h"
#include "caller.h"
#include "client/src/link/connection.h"
#include "error.h"
#include "session.h"
#include "socket_path.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { DEFAULT_BLOCK_SIZE = 32, DEFAULT_KEY_SIZE = 8 }; // tokens

enum aule_status cache_check_count(const struct aule_cache *cache, const char *what, uint64_t count)
{
    uint64_t most = life_room(cache->life) / sizeof(int32_t);
    if (count <= most)
        return AULE_OK;
    return fail(AULE_LIMIT,
                "%s of %" PRIu64 " blocks: a message of %" PRIu64 " bytes holds %" PRIu64, what,
                count, cache->life->info.max_message, most);
}

// ---- caches ----

// The daemon refuses what opaque blocks do not have.
static struct wire_cache_open identity_of(const struct aule_cache_params *params)
{
    const bool opaque = params->block_bytes != 0;
    const enum aule_dtype dtype = opaque ? (enum aule_dtype)0 : AULE_F16;
    const uint32_t head_dim_v = opaque ? 0 : params->head_dim,
                   block_size = opaque ? DEFAULT_KEY_SIZE : DEFAULT_BLOCK_SIZE;
    return (struct wire_cache_open){
        .name = params->name,
        .num_layers = params->num_layers,
        .num_kv_heads = params->num_kv_heads,
        .head_dim_k = params->head_dim,
        .head_dim_v = params->head_dim_v ? params->head_dim_v : head_dim_v,
        .v_is_k_prefix = params->v_is_k_prefix,
        .k_dtype = params->k_dtype ? params->k_dtype : dtype,
        .v_dtype = params->v_dtype ? params->v_dtype : dtype,
        .scale_mode = params->scale_mode,
        .block_size = params->block_size ? params->block_size : block_size,
        .fingerprint = {.data = params->fingerprint, .count = (uint32_t)params->fingerprint_size},
        .block_bytes = params->block_bytes,
    };
}

static enum aule_status check_params(const struct aule_cache_params *params)
{
    if (!params->name)
        return fail(AULE_INVALID, "the cache's name is NULL");
    if (params->fingerprint_size > WIRE_MAX_FINGERPRINT)
        return fail(AULE_INVALID, "fingerprint_size = %zu; at most %u are allowed",
                    params->fingerprint_size, WIRE_MAX_FINGERPRINT);
    if (params->fingerprint_size > 0 && !params->fingerprint)
        return fail(AULE_INVALID, "fingerprint is NULL, but fingerprint_size is %zu",
                    params->fingerprint_size);
    return AULE_OK;
}

enum aule_status cache_open_in(struct life *life, const struct aule_cache_params *params,
                               struct aule_cache *cache)
{
    struct wire_request request = {.command = WIRE_COMMAND_CACHE_OPEN,
                                   .cache_open = identity_of(params)};
    struct answer answer;
    enum aule_status status = life_call(life, &request, 0, WIRE_ANSWER_CACHE_OPEN, &answer);
    if (status != AULE_OK)
        return status;
    *cache = (struct aule_cache){.life = life,
                                 .id = answer.reply.cache_open.cache,
                                 .block_size = request.cache_open.block_size,
                                 .num_layers = params->num_layers,
                                 .num_kv_heads = params->num_kv_heads,
                                 .k_dtype = (enum aule_dtype)request.cache_open.k_dtype,
                                 .v_dtype = (enum aule_dtype)request.cache_open.v_dtype,
                                 .scale_mode = params->scale_mode,
                                 .head_dim = params->head_dim,
                                 .head_dim_v = request.cache_open.head_dim_v,
                                 .v_is_k_prefix = params->v_is_k_prefix};
    answer_finish(&answer);
    return AULE_OK;
}

// Adds advice to the daemon's sentence: a name keeps its identity as long as the cache exists,
// whether a session has it open or not.
static enum aule_status other_identity(const struct life *life, const char *name)
{
    char why[512], socket[QUOTE_SIZE(SOCKET_PATH_MAX)], word[QUOTE_SIZE(WIRE_MAX_NAME)];
    snprintf(why, sizeof why, "%s", aule_error());
    return fail(AULE_MISMATCH,
                "%s; take another name, or if no session has that cache open, drop it: aule-ctl "
                "drop-cache --socket %s %s%s",
                why, quote(socket, sizeof socket, connection_path(life->connection)),
                *name == '-' ? "-- " : "", quote(word, sizeof word, name));
}

// An ended session has closed it already.
static void tell_close(const struct aule_cache *cache)
{
    struct wire_request request = {.command = WIRE_COMMAND_CACHE_CLOSE,
                                   .cache_close = {.cache = cache->id}};
    life_tell(cache->life, &request);
}

static enum aule_status open_in(struct life *life, const struct aule_cache_params *params,
                                struct aule_cache **out)
{
    struct aule_cache *cache = calloc(1, sizeof *cache);
    if (!cache)
        return fail(AULE_NO_MEMORY, "no memory for cache %s", params->name);
    enum aule_status status = cache_open_in(life, params, cache);
    if (status != AULE_OK) {
        free(cache);
        return status == AULE_MISMATCH ? other_identity(life, params->name) : status;
    }
    status = handle_open(&cache->handle, &cache_handles);
    if (status != AULE_OK) {
        tell_close(cache);
        free(cache);
        return status;
    }
    life_ref(life);
    *out = cache;
    return AULE_OK;
}

enum aule_status aule_cache_open_sized(struct aule_session *session,
                                       const struct aule_cache_params *params, size_t params_size,
                                       struct aule_cache **cache)
{
    REQUIRE(cache);
    *cache = NULL;
    REQUIRE(session);
    REQUIRE(params);
    struct aule_cache_params whole;
    enum aule_status status = TAKE(&whole, params, params_size);
    if (status == AULE_OK)
        status = check_params(&whole);
    if (status != AULE_OK)
        return status;
    struct life *life;
    status = session_get(session, &life);
    if (status != AULE_OK)
        return status;
    status = open_in(life, &whole, cache);
    session_put(life);
    return status;
}

void aule_cache_close(struct aule_cache *cache)
{
    if (!cache || !handle_close(cache, &cache_handles))
        return;
    struct cache_mapping *mapping = atomic_load(&cache->mapping);
    if (mapping && cache->handle.pid == getpid()) // first: the daemon then takes the blocks back
        mapping->close(mapping);
    tell_close(cache);
    handle_unref(&cache->handle);
}

static void cache_end(struct handle *handle)
{
    struct aule_cache *cache = (struct aule_cache *)handle;
    struct cache_mapping *mapping = atomic_load(&cache->mapping);
    if (mapping)
        mapping->end(mapping);
    life_unref(cache->life);
    free(cache);
}

const struct handle_kind cache_handles = {"the cache", AULE_INVALID, cache_end};

enum aule_status aule_cache_state_sized(struct aule_cache *cache, struct aule_cache_state *state,
                                        size_t state_size)
{
    USE(cache);
    REQUIRE(state);
    struct wire_request request = {.command = WIRE_COMMAND_CACHE_STATE,
                                   .cache_state = {.cache = cache->id}};
    struct answer answer;
    enum aule_status status = life_ask(cache->life, &request, 0, WIRE_ANSWER_CACHE_STATE, &answer);
    if (status != AULE_OK)
        return status;
    const struct wire_cache_state_reply *reply = &answer.reply.cache_state;
    const struct aule_cache_state whole = {
        .total_blocks = reply->total_blocks,
        .free_blocks = reply->free_blocks,
        .leased_blocks = reply->leased_blocks,
        .held_blocks = reply->held_blocks,
        .evictable_blocks = reply->cached_blocks,
        .quarantined_blocks = reply->quarantined_blocks,
        .limit_blocks = reply->limit_blocks,
        .available_blocks = reply->available_blocks,
        .block_bytes = reply->block_bytes,
    };
    GIVE(state, state_size, whole);
    answer_finish(&answer);
    return AULE_OK;
}

// ---- blocks ----

static _Thread_local bool asks_again;

int aule_wait_goes_on(int goes_on)
{
    const int before = asks_again;
    asks_again = goes_on != 0;
    return before;
}

enum aule_status blocks_lease(struct aule_cache *cache, uint32_t count, int timeout_ms,
                              int32_t *block_ids)
{
    enum aule_status status = timeout_check(timeout_ms);
    if (status == AULE_OK)
        status = cache_check_count(cache, "a lease", count);
    if (status != AULE_OK)
        return status;
    struct wire_request request = {
        .command = WIRE_COMMAND_BLOCKS_LEASE,
        .blocks_lease = {.cache = cache->id,
                         .count = count,
                         .timeout_ms = timeout_ms,
                         .again = asks_again},
    };
    struct answer answer;
    status = life_ask(cache->life, &request, timeout_ms, WIRE_ANSWER_BLOCKS_LEASE, &answer);
    if (status != AULE_OK)
        return status;
    const struct wire_ints *blocks = &answer.reply.blocks_lease.blocks;
    if (blocks->count != count)
        status =
            fail(AULE_MALFORMED, "a lease of %u blocks was answered with %u", count, blocks->count);
    else if (count > 0)
        memcpy(block_ids, blocks->data, count * sizeof *block_ids);
    answer_finish(&answer);
    return status;
}

enum aule_status aule_blocks_lease(struct aule_cache *cache, uint32_t count, int timeout_ms,
                                   int32_t *block_ids)
{
    USE(cache);
    REQUIRE(block_ids);
    return blocks_lease(cache, count, timeout_ms, block_ids);
}

enum aule_status blocks_release(struct aule_cache *cache, uint32_t count, const int32_t *block_ids)
{
    enum aule_status status = cache_check_count(cache, "a release", count);
    if (status != AULE_OK)
        return status;
    struct wire_request request = {
        .command = WIRE_COMMAND_BLOCKS_RELEASE,
        .blocks_release = {.cache = cache->id, .blocks = {.data = block_ids, .count = count}},
    };
    return life_tell(cache->life, &request);
}

enum aule_status aule_blocks_release(struct aule_cache *cache, uint32_t count,
                                     const int32_t *block_ids)
{
    USE(cache);
    REQUIRE(block_ids);
    return blocks_release(cache, count, block_ids);
}
