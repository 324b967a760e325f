// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// copy.c - core_blocks_copy() and core_blocks_move(): copy or zero blocks of one cache on the GPU,
// in the order of the session's runs. Dispatcher thread.

#include "copy.h"

#include "core/pool/ledger.h"
#include "core/pool/session.h"
#include "run.h"
#include "weight.h"
#include "written.h"

#include <inttypes.h>
#include <stdlib.h>

struct request {
    const int32_t *from, *to;
    uint32_t count;
    struct error *error;
};

static enum status pair_error(const struct request *r, const struct hold_table *table,
                              enum status status, const char *name, uint32_t i, int32_t id)
{
    if (status == STATUS_OUT_OF_RANGE)
        return error_set(r->error, status,
                         "%s[%" PRIu32 "] = %" PRId32 " is outside the cache's %" PRIu64
                         " block ids",
                         name, i, id, cache_num_ids(table->cache));
    return error_set(r->error, status, "%s[%" PRIu32 "] = %" PRId32 " is not held by this session",
                     name, i, id);
}

// A block with this stamp is in `to`.
static enum status check_to(const struct request *r, struct copy *copy, uint32_t i, uint64_t stamp)
{
    struct block *block;
    enum status status = hold_probe(copy->table, r->to[i], &block);
    if (status != STATUS_OK)
        return pair_error(r, copy->table, status, "to", i, r->to[i]);
    if (block->sealed)
        return error_set(r->error, STATUS_SEALED, "to[%" PRIu32 "] = %" PRId32 " is sealed", i,
                         block->id);
    if (block->writer != copy->table->session->id)
        return error_set(r->error, STATUS_DENIED,
                         "to[%" PRIu32 "] = %" PRId32 " was offered to another session", i,
                         block->id);
    if (block->stamp == stamp)
        return error_set(r->error, STATUS_INVALID, "to[%" PRIu32 "] = %" PRId32 " occurs twice", i,
                         block->id);
    block->stamp = stamp;
    copy->pairs[i].to = block;
    return STATUS_OK;
}

static enum status check_from(const struct request *r, struct copy *copy, uint32_t i,
                              uint64_t stamp)
{
    struct block *block;
    if (r->from[i] == -1)
        return STATUS_OK;
    enum status status = hold_probe(copy->table, r->from[i], &block);
    if (status != STATUS_OK)
        return pair_error(r, copy->table, status, "from", i, r->from[i]);
    if (block->stamp == stamp)
        return error_set(r->error, STATUS_INVALID,
                         "from[%" PRIu32 "] = %" PRId32 " is in `to` as well", i, block->id);
    copy->pairs[i].from = block;
    return STATUS_OK;
}

static enum status check_pairs(const struct request *r, struct copy *copy)
{
    uint64_t stamp = ++copy->table->session->ledger->last_stamp;
    enum status status = STATUS_OK;
    for (uint32_t i = 0; status == STATUS_OK && i < r->count; i++)
        status = check_to(r, copy, i, stamp);
    for (uint32_t i = 0; status == STATUS_OK && i < r->count; i++)
        status = check_from(r, copy, i, stamp);
    return status;
}

static unsigned __int128 moved_bytes(const struct hold_table *table, uint32_t count)
{
    return (unsigned __int128)2 * count * table->cache->block_bytes; // read and written
}

static uint64_t copy_work(const struct hold_table *table, uint32_t count)
{
    const struct cache *cache = table->cache;
    const uint64_t layers = cache->identity.num_layers,
                   groups = layers * weight_copy_groups(cache->block_bytes / layers);
    return weight_moved_work(moved_bytes(table, count), (unsigned __int128)groups * count);
}

// `to` names each block once, so it cannot be longer than the session's blocks. That bounds the
// lists below.
static enum status check_count(const struct hold_table *table, const struct request *r)
{
    if (r->count == 0)
        return error_set(r->error, STATUS_INVALID, "a copy of 0 blocks");
    if (r->count > table->num_blocks)
        return error_set(r->error, STATUS_NOT_HELD,
                         "a copy to %" PRIu32 " blocks; the session holds %" PRIu64
                         " of this cache",
                         r->count, table->num_blocks);
    return run_check_work(table->session, copy_work(table, r->count), "the copy",
                          "name fewer blocks", r->error);
}

static void describe(struct run *run, const void *request)
{
    const struct request *r = request;
    struct engine_copy *copies = (struct engine_copy *)run->arrays;
    for (uint32_t i = 0; i < r->count; i++)
        copies[i] = (struct engine_copy){.from = r->from[i], .to = r->to[i]};
    run->engine = (struct engine_run){
        .kind = ENGINE_COPY,
        .cache = run->copy->table->cache->engine,
        .copies = copies,
        .num_copies = r->count,
    };
}

// A copy of `count` pairs, which the caller fills in. NULL: no memory.
static struct copy *copy_create(struct hold_table *table, uint32_t count, struct error *error)
{
    struct copy *copy = calloc(1, sizeof *copy + count * sizeof *copy->pairs);
    if (!copy) {
        error_set(error, STATUS_NO_MEMORY, "no host memory for a copy of %" PRIu32 " blocks",
                  count);
        return NULL;
    }
    copy->table = table;
    copy->count = count;
    return copy;
}

// The blocks and the table stay until the copy is over.
static void take_references(struct copy *copy)
{
    copy->table->num_users++;
    for (uint32_t i = 0; i < copy->count; i++) {
        if (copy->pairs[i].to)
            hold_ref(copy->table, copy->pairs[i].to->id);
        if (copy->pairs[i].from)
            hold_ref(copy->table, copy->pairs[i].from->id);
    }
}

// `fill` sets run->engine and its array.
static enum status queue(struct copy *copy, const void *request,
                         void (*fill)(struct run *run, const void *request), bool detached,
                         uint64_t *ticket, struct error *error)
{
    struct core_session *session = copy->table->session;
    uint64_t ranges = (uint64_t)copy->count * copy->table->cache->identity.num_layers;
    struct run *run;
    enum status status =
        run_create(session, copy->count * sizeof(struct engine_copy),
                   copy->count * sizeof *copy->pairs + ranges * ENGINE_RANGE_BYTES, &run, error);
    if (status != STATUS_OK)
        return status;
    run->copy = copy;
    run->weight = weight_moved_in_queue(moved_bytes(copy->table, copy->count), 0);
    run->speed = SPEED_COPY;
    run->work = run->own_work = copy_work(copy->table, copy->count);
    run->own_units = ranges;
    fill(run, request);
    status = run_queue(run, detached, ticket, error);
    if (status != STATUS_OK) {
        run_free(run);
        return status;
    }
    take_references(copy);
    written_begin(run);
    return STATUS_OK;
}

enum status core_blocks_copy(struct core_session *session, uint64_t cache, const int32_t *from,
                             const int32_t *to, uint32_t count, bool detached, uint64_t *ticket,
                             struct error *error)
{
    const struct request request = {.from = from, .to = to, .count = count, .error = error};
    struct hold_table *table;
    enum status status = session_usable(session, error);
    if (status == STATUS_OK)
        status = hold_table_find(session, cache, &table, error);
    if (status == STATUS_OK)
        status = check_count(table, &request);
    if (status != STATUS_OK)
        return status;
    struct copy *copy = copy_create(table, count, error);
    if (!copy)
        return STATUS_NO_MEMORY;
    status = run_check_tickets(session, check_pairs(&request, copy), error);
    if (status == STATUS_OK)
        status = queue(copy, &request, describe, detached, ticket, error);
    if (status != STATUS_OK)
        free(copy);
    return status;
}

// ---- from and to an arena ----

struct move {
    struct engine_arena *arena;
    const struct copy_place *places; // NULL: the copy's pairs lie one behind the other from
    uint64_t offset;                 //   here on
};

static struct copy_place place_of(const struct move *move, const struct copy *copy, uint32_t i)
{
    const struct copy_pair *pair = &copy->pairs[i];
    if (move->places)
        return move->places[i];
    return (struct copy_place){pair->to ? pair->to->id : pair->from->id,
                               move->offset + i * copy->table->cache->block_bytes};
}

static void describe_move(struct run *run, const void *request)
{
    const struct move *move = request;
    const bool out = run->copy->way == COPY_OUT;
    struct engine_copy *copies = (struct engine_copy *)run->arrays;
    for (uint32_t i = 0; i < run->copy->count; i++) {
        const struct copy_place place = place_of(move, run->copy, i);
        copies[i] = (struct engine_copy){.from = out ? place.block : ENGINE_COPY_ARENA,
                                         .to = out ? ENGINE_COPY_ARENA : place.block,
                                         .offset = place.offset};
    }
    run->engine = (struct engine_run){
        .kind = ENGINE_COPY,
        .cache = run->copy->table->cache->engine,
        .arena = move->arena,
        .copies = copies,
        .num_copies = run->copy->count,
    };
}

enum status copy_move(struct hold_table *table, struct engine_arena *arena, enum copy_way way,
                      const struct copy_place *places, uint32_t count, enum status *outcome,
                      struct error *error)
{
    const struct move move = {.arena = arena, .places = places};
    uint64_t ticket;
    struct copy *copy = copy_create(table, count, error);
    if (!copy)
        return STATUS_NO_MEMORY;
    copy->way = way;
    copy->outcome = outcome;
    for (uint32_t i = 0; i < count; i++) {
        struct block *block = block_find(table->cache, places[i].block);
        copy->pairs[i] =
            way == COPY_OUT ? (struct copy_pair){.from = block} : (struct copy_pair){.to = block};
    }
    *outcome = STATUS_BUSY;
    enum status status = queue(copy, &move, describe_move, true, &ticket, error);
    if (status != STATUS_OK)
        free(copy);
    return status;
}

// ---- from and to the session's arena ----

static enum status check_range(const struct core_session *session,
                               const struct core_move_params *params, uint64_t bytes,
                               struct error *error)
{
    if (!session->arena || !engine_arena_imported(session->arena))
        return error_set(error, STATUS_UNSUPPORTED,
                         "the device does not use this session's arena in place, so whole blocks "
                         "cannot be copied to or from it");
    if (params->offset % 16)
        return error_set(error, STATUS_MISALIGNED,
                         "blocks at offset %" PRIu64 " of the arena; multiples of 16 are wanted",
                         params->offset);
    if (params->offset > session->arena_size || bytes > session->arena_size - params->offset)
        return error_set(error, STATUS_OUT_OF_RANGE,
                         "%" PRIu32 " blocks, %" PRIu64 " bytes, at offset %" PRIu64
                         " of an arena of %" PRIu64 " bytes",
                         params->count, bytes, params->offset, session->arena_size);
    return STATUS_OK;
}

// A block that is copied out: held, and written in all layers.
static enum status check_out(const struct request *r, struct copy *copy, uint32_t i)
{
    struct block *block;
    enum status status = hold_probe(copy->table, r->from[i], &block);
    if (status != STATUS_OK)
        return pair_error(r, copy->table, status, "from", i, r->from[i]);
    const uint32_t num_layers = copy->table->cache->identity.num_layers;
    if (block->written_layers < num_layers)
        return error_set(r->error, STATUS_UNWRITTEN,
                         "from[%" PRIu32 "] = %" PRId32 " is wholly written in %" PRIu32
                         " of %" PRIu32 " layers",
                         i, block->id, (uint32_t)block->written_layers, num_layers);
    copy->pairs[i].from = block;
    return STATUS_OK;
}

static enum status check_moved(const struct request *r, struct copy *copy)
{
    const uint64_t stamp = ++copy->table->session->ledger->last_stamp;
    enum status status = STATUS_OK;
    for (uint32_t i = 0; status == STATUS_OK && i < r->count; i++)
        status = r->from ? check_out(r, copy, i) : check_to(r, copy, i, stamp);
    return status;
}

static void fill_move(struct run *run, const void *request)
{
    const struct move *move = request;
    describe_move(run, request);
    run->tensors = (struct run_tensors){
        .memory = TENSOR_HOST,
        .num_extents = 1,
        .extents = {{move->offset,
                     move->offset + run->copy->count * run->copy->table->cache->block_bytes,
                     run->copy->way == COPY_OUT}},
    };
}

enum status core_blocks_move(struct core_session *session, const struct core_move_params *params,
                             uint64_t *ticket, struct error *error)
{
    const struct request request = {.from = params->out ? params->blocks : NULL,
                                    .to = params->out ? NULL : params->blocks,
                                    .count = params->count,
                                    .error = error};
    const struct move move = {.arena = session->arena, .offset = params->offset};
    struct hold_table *table;
    enum status status = session_usable(session, error);
    if (status == STATUS_OK)
        status = hold_table_find(session, params->cache, &table, error);
    if (status == STATUS_OK)
        status = check_count(table, &request);
    if (status == STATUS_OK)
        status = check_range(session, params, params->count * table->cache->block_bytes, error);
    if (status != STATUS_OK)
        return status;
    struct copy *copy = copy_create(table, params->count, error);
    if (!copy)
        return STATUS_NO_MEMORY;
    copy->way = params->out ? COPY_OUT : COPY_IN;
    status = run_check_tickets(session, check_moved(&request, copy), error);
    if (status == STATUS_OK)
        status = queue(copy, &move, fill_move, params->detached, ticket, error);
    if (status != STATUS_OK)
        free(copy);
    return status;
}

void copy_destroy(struct copy *copy)
{
    if (!copy)
        return;
    for (uint32_t i = 0; i < copy->count; i++) {
        if (copy->pairs[i].to)
            hold_unref(copy->table, copy->pairs[i].to->id);
        if (copy->pairs[i].from)
            hold_unref(copy->table, copy->pairs[i].from->id);
    }
    hold_table_unuse(copy->table);
    free(copy);
}
