// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// block.c - see block.h and aule.h: copies blocks on the GPU, fills them with zeroes, or moves them
// to and from the arena. The daemon checks which blocks the session may write. Any thread.

#include "block.h"

#include "error.h"
#include "ticket.h"
#include "work.h"

#include <stdlib.h>

static const char COPY_NAME[] = "a copy, from and to,";

// A message has two ids for each copy.
static enum aule_status make_copy(struct aule_cache *cache, const char *what, uint32_t count,
                                  const int32_t *from, const int32_t *to, struct call_work *work)
{
    *work = (struct call_work){
        .request = {.command = WIRE_COMMAND_BLOCKS_COPY,
                    .blocks_copy = {.cache = cache->id,
                                    .from = {.data = from, .count = count},
                                    .to = {.data = to, .count = count}}},
    };
    work->timeout_ms = &work->request.blocks_copy.timeout_ms;
    work->flags = &work->request.blocks_copy.flags;
    return cache_check_count(cache, what, 2 * (uint64_t)count);
}

static enum aule_status copy(struct aule_cache *cache, const char *what, uint32_t count,
                             const int32_t *from, const int32_t *to, int timeout_ms,
                             struct aule_ticket *ticket)
{
    struct call_work work;
    enum aule_status status = make_copy(cache, what, count, from, to, &work);
    return status == AULE_OK ? work_queue(cache->life, &work, timeout_ms, ticket) : status;
}

enum aule_status blocks_copy_to_end(struct aule_cache *cache, uint32_t count, const int32_t *from,
                                    const int32_t *to, int timeout_ms)
{
    struct call_work work;
    uint64_t id;
    enum aule_status status = make_copy(cache, COPY_NAME, count, from, to, &work);
    if (status == AULE_OK)
        status = timeout_check(timeout_ms);
    if (status == AULE_OK)
        status = life_enter(cache->life);
    if (status != AULE_OK)
        return status;
    status = work_submit(cache->life, &work, timeout_ms, &id);
    if (status == AULE_OK)
        status = ticket_reap_to_end(cache->life, id);
    life_leave(cache->life);
    return status;
}

enum aule_status aule_blocks_copy(struct aule_cache *cache, uint32_t count, const int32_t *from,
                                  const int32_t *to, int timeout_ms, struct aule_ticket *ticket)
{
    USE(cache);
    REQUIRE(from);
    REQUIRE(to);
    for (uint32_t i = 0; i < count; i++)
        if (from[i] < 0)
            return fail(AULE_OUT_OF_RANGE, "from[%u] = %d is no block", i, from[i]);
    return copy(cache, COPY_NAME, count, from, to, timeout_ms, ticket);
}

enum aule_status aule_blocks_zero(struct aule_cache *cache, uint32_t count,
                                  const int32_t *block_ids, int timeout_ms,
                                  struct aule_ticket *ticket)
{
    USE(cache);
    REQUIRE(block_ids);
    enum aule_status status = cache_check_count(
        cache, "a list to fill with zeroes, twice as long on its way,", 2 * (uint64_t)count);
    if (status != AULE_OK)
        return status;
    int32_t *nothing = malloc(count ? count * sizeof *nothing : 1);
    if (!nothing)
        return fail(AULE_NO_MEMORY, "no memory for a list of %u blocks", count);
    for (uint32_t i = 0; i < count; i++)
        nothing[i] = -1;
    status =
        copy(cache, "a list to fill with zeroes", count, nothing, block_ids, timeout_ms, ticket);
    free(nothing);
    return status;
}

// ---- to and from the arena ----

static enum aule_status move(struct aule_cache *cache, enum wire_copy_way way, uint32_t count,
                             const int32_t *block_ids, uint64_t offset, int timeout_ms,
                             struct aule_ticket *ticket)
{
    USE(cache);
    REQUIRE(block_ids);
    const struct wire_ints blocks = {.data = block_ids, .count = count}, none = {.data = NULL};
    struct call_work work = {
        .request = {.command = WIRE_COMMAND_BLOCKS_COPY,
                    .blocks_copy = {.cache = cache->id,
                                    .from = way == WIRE_COPY_OUT ? blocks : none,
                                    .to = way == WIRE_COPY_OUT ? none : blocks,
                                    .way = way,
                                    .offset = offset}},
    };
    work.timeout_ms = &work.request.blocks_copy.timeout_ms;
    work.flags = &work.request.blocks_copy.flags;
    enum aule_status status = cache_check_count(cache, "a list of blocks to move", count);
    return status == AULE_OK ? work_queue(cache->life, &work, timeout_ms, ticket) : status;
}

enum aule_status aule_blocks_export(struct aule_cache *cache, uint32_t count,
                                    const int32_t *block_ids, uint64_t offset, int timeout_ms,
                                    struct aule_ticket *ticket)
{
    return move(cache, WIRE_COPY_OUT, count, block_ids, offset, timeout_ms, ticket);
}

enum aule_status aule_blocks_import(struct aule_cache *cache, uint32_t count,
                                    const int32_t *block_ids, uint64_t offset, int timeout_ms,
                                    struct aule_ticket *ticket)
{
    return move(cache, WIRE_COPY_IN, count, block_ids, offset, timeout_ms, ticket);
}
