// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// report.c - core_cache_report() and core_blocks_report(): what the kernels of an attached process
// have written, and what they have passed. All is checked first. Dispatcher thread.

#include "core/pool/attached.h"
#include "core/pool/evict.h"
#include "core/pool/hold.h"
#include "core/pool/ledger.h"
#include "core/pool/pool.h"
#include "core/pool/session.h"
#include "written.h"

#include <inttypes.h>

// The session may also report what it wrote before it released the block: the block lingers.
static bool may_write(const struct hold_table *table, const struct block *block)
{
    return block && block->writer == table->session->id &&
           (hold_has(table, block->id) || attached_lingers(table, block->id));
}

static enum status check_block(const struct hold_table *table, uint64_t i, int64_t slot,
                               struct error *error)
{
    const uint32_t size = table->cache->identity.kv.block_size;
    const int64_t id = slot / size;
    struct block *block = NULL;
    enum status status = hold_probe(table, id, &block);
    if (may_write(table, block))
        return STATUS_OK;
    if (status == STATUS_OUT_OF_RANGE)
        return error_set(error, status,
                         "slots[%" PRIu64 "] = %" PRId64 " is outside the cache's %" PRIu64
                         " slots",
                         i, slot, cache_num_ids(table->cache) * size);
    if (status == STATUS_OK && block->sealed)
        return error_set(error, STATUS_SEALED,
                         "slots[%" PRIu64 "] = %" PRId64 " lies in block %" PRId64
                         ", which is sealed",
                         i, slot, id);
    return error_set(error, STATUS_NOT_HELD,
                     "slots[%" PRIu64 "] = %" PRId64 " lies in block %" PRId64
                     ", which is not leased by this session",
                     i, slot, id);
}

static enum status check_slots(const struct hold_table *table, const struct core_report *report,
                               struct error *error)
{
    const uint32_t size = table->cache->identity.kv.block_size;
    int64_t begin = 0, end = 0; // slots of the block that was checked last
    for (uint64_t i = 0; i < report->num_slots; i++) {
        const int64_t slot = report->slots[i];
        if (slot < 0 || (slot >= begin && slot < end))
            continue;
        enum status status = check_block(table, i, slot, error);
        if (status != STATUS_OK)
            return status;
        begin = slot / size * size;
        end = begin + size;
    }
    return STATUS_OK;
}

static enum status check_given(const struct hold_table *table, const int32_t *blocks,
                               uint32_t count, struct error *error)
{
    for (uint32_t i = 0; i < count; i++) {
        struct block *block;
        enum status status = hold_check(table, i, blocks[i], &block, error);
        if (status != STATUS_OK)
            return status;
        if (!block->sealed && !may_write(table, block))
            return error_set(error, STATUS_NOT_HELD,
                             "blocks[%" PRIu32 "] = %" PRId32 " is not leased by this session", i,
                             blocks[i]);
    }
    return STATUS_OK;
}

static enum status check(const struct hold_table *table, const struct core_report *report,
                         struct error *error)
{
    const uint32_t layers = table->cache->identity.num_layers;
    if (!table->attached)
        return error_set(error, STATUS_INVALID,
                         "session %" PRIu64 " is not attached to cache \"%.64s\"",
                         table->session->id, table->cache->name);
    if (report->first_layer >= layers || report->num_layers > layers - report->first_layer)
        return error_set(error, STATUS_OUT_OF_RANGE,
                         "%" PRIu32 " layers from %" PRIu32 " on; cache \"%.64s\" has %" PRIu32,
                         report->num_layers, report->first_layer, table->cache->name, layers);
    if (report->passed != CORE_PASSED_ALL && report->passed > attached_last_mark(table))
        return error_set(error, STATUS_INVALID, "passed = %" PRIu64 "; the last mark was %" PRIu64,
                         report->passed, attached_last_mark(table));
    return check_slots(table, report, error);
}

// Collects slots that follow one another in one block.
static void mark_written(struct cache *cache, const struct core_report *report)
{
    const uint32_t size = cache->identity.kv.block_size;
    const uint32_t layers =
        report->num_layers ? report->num_layers : cache->identity.num_layers - report->first_layer;
    uint64_t i = 0;
    while (i < report->num_slots) {
        if (report->slots[i] < 0) {
            i++;
            continue;
        }
        const int64_t id = report->slots[i] / size, begin = id * size, end = begin + size;
        uint8_t mask[CORE_MAX_BLOCK_SIZE / 8] = {0};
        for (; i < report->num_slots && report->slots[i] >= begin && report->slots[i] < end; i++) {
            const uint32_t offset = (uint32_t)(report->slots[i] - begin);
            mask[offset / 8] |= (uint8_t)(1u << offset % 8);
        }
        written_report(cache, block_find(cache, id), mask, report->first_layer, layers);
    }
}

static void pass(struct hold_table *table, uint64_t passed, uint64_t *mark)
{
    attached_pass(table, passed);
    *mark = attached_mark(table);
    evict_trim(table->session->pool);
}

enum status core_cache_report(struct core_session *session, const struct core_report *report,
                              uint64_t *mark, struct error *error)
{
    struct hold_table *table;
    enum status status = hold_table_find(session, report->cache, &table, error);
    if (status == STATUS_OK)
        status = check(table, report, error);
    if (status != STATUS_OK)
        return status;
    mark_written(table->cache, report);
    pass(table, report->passed, mark);
    return STATUS_OK;
}

enum status core_blocks_report(struct core_session *session, const struct core_report *report,
                               const int32_t *blocks, uint32_t count, uint64_t *mark,
                               struct error *error)
{
    struct hold_table *table;
    enum status status = hold_table_find(session, report->cache, &table, error);
    if (status == STATUS_OK)
        status = check(table, report, error);
    if (status == STATUS_OK)
        status = check_given(table, blocks, count, error);
    if (status != STATUS_OK)
        return status;
    for (uint32_t i = 0; i < count; i++) {
        struct block *block = block_find(table->cache, blocks[i]);
        if (!block->sealed)
            written_whole(table->cache, block);
    }
    pass(table, report->passed, mark);
    return STATUS_OK;
}
