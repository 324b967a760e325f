// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// view_tiers.c - the places outside the GPU that keep blocks, a line for each, from the daemon's
// metrics with the label `tier`. Tiers that have never done anything are left out.

#include "output.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_TIERS = 16 };

struct tier_row {
    char name[32];
    uint64_t bytes, limit_bytes, blocks, broken, hits, misses, loaded, stored, loaded_bytes,
        stored_bytes, evicted, connections, breaks, speed, load_ns, store_ns, failed;
    uint64_t load_speed, store_speed; // measured, bytes a second of a job's time
    char reasons[COLUMN_TEXT_SIZE];   // "checksum 3, timeout 1"
    bool used;
};

#define TIER(heading, kind, member)                                                                \
    {                                                                                              \
#member, heading, COLUMN_##kind, offsetof(struct tier_row, member)                         \
    }
static const struct column tier_columns[] = {
    TIER("tier", TEXT, name),
    TIER("size", BYTES, bytes),
    TIER("limit", BYTES, limit_bytes),
    TIER("blocks", U64, blocks),
    TIER("hits", U64, hits),
    TIER("misses", U64, misses),
    TIER("loaded", U64, loaded),
    TIER("stored", U64, stored),
    TIER("evicted", U64, evicted),
    TIER("estimate/s", BYTES, speed),
    TIER("loads/s", BYTES, load_speed),
    TIER("stores/s", BYTES, store_speed),
    TIER("breaker", U64, broken),
    TIER("failed", U64, failed),
    TIER("reasons", TEXT, reasons),
    TIER(NULL, BYTES, loaded_bytes),
    TIER(NULL, BYTES, stored_bytes),
    TIER(NULL, U64, connections),
    TIER(NULL, U64, breaks),
    {.key = NULL},
};

// Metrics and the fields that show them.
static const struct {
    const char *metric;
    size_t offset;
} fields[] = {
    {"aule_tier_bytes", offsetof(struct tier_row, bytes)},
    {"aule_tier_limit_bytes", offsetof(struct tier_row, limit_bytes)},
    {"aule_tier_blocks", offsetof(struct tier_row, blocks)},
    {"aule_tier_broken", offsetof(struct tier_row, broken)},
    {"aule_tier_hits_blocks_total", offsetof(struct tier_row, hits)},
    {"aule_tier_misses_blocks_total", offsetof(struct tier_row, misses)},
    {"aule_tier_loaded_blocks_total", offsetof(struct tier_row, loaded)},
    {"aule_tier_stored_blocks_total", offsetof(struct tier_row, stored)},
    {"aule_tier_loaded_bytes_total", offsetof(struct tier_row, loaded_bytes)},
    {"aule_tier_stored_bytes_total", offsetof(struct tier_row, stored_bytes)},
    {"aule_tier_load_nanoseconds_total", offsetof(struct tier_row, load_ns)},
    {"aule_tier_store_nanoseconds_total", offsetof(struct tier_row, store_ns)},
    {"aule_tier_load_speed_bytes", offsetof(struct tier_row, speed)},
    {"aule_tier_evicted_blocks_total", offsetof(struct tier_row, evicted)},
    {"aule_tier_connections_total", offsetof(struct tier_row, connections)},
    {"aule_tier_breaks_total", offsetof(struct tier_row, breaks)},
};

// The value of a label of a metric's name. False: it has no such label.
static bool label_of(const char *name, const char *label, char *out, size_t size)
{
    char pattern[32];
    snprintf(pattern, sizeof pattern, "%s=\"", label);
    const char *at = strstr(name, pattern);
    if (!at)
        return false;
    at += strlen(pattern);
    snprintf(out, size, "%.*s", (int)strcspn(at, "\""), at);
    return true;
}

// The row of this name, or a new one. NULL: there are too many.
static struct tier_row *row_of(struct tier_row *rows, uint32_t *count, const char *name)
{
    for (uint32_t i = 0; i < *count; i++) {
        if (!strcmp(rows[i].name, name))
            return &rows[i];
    }
    if (*count == MOST_TIERS)
        return NULL;
    snprintf(rows[*count].name, sizeof rows->name, "%s", name);
    return &rows[(*count)++];
}

static void add_reason(struct tier_row *row, const char *reason, uint64_t count)
{
    const size_t length = strlen(row->reasons);
    row->failed += count;
    snprintf(row->reasons + length, sizeof row->reasons - length, "%s%s %" PRIu64,
             length ? ", " : "", reason, count);
}

static void add_metric(struct tier_row *row, const struct aule_metric *metric)
{
    const size_t length = strcspn(metric->name, "{");
    char reason[32];
    row->used |= metric->value != 0;
    if (metric->value && label_of(metric->name, "reason", reason, sizeof reason))
        add_reason(row, reason, metric->value);
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        if (strlen(fields[i].metric) == length && !strncmp(fields[i].metric, metric->name, length))
            *(uint64_t *)(void *)((char *)row + fields[i].offset) = metric->value;
    }
}

static uint64_t per_second(uint64_t bytes, uint64_t ns)
{
    return ns ? (uint64_t)((double)bytes * 1e9 / (double)ns) : 0;
}

static uint32_t fill_rows(struct tier_row *rows, const struct aule_metric *metrics, uint32_t count)
{
    char name[sizeof rows->name];
    uint32_t num_rows = 0, kept = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct tier_row *row = label_of(metrics[i].name, "tier", name, sizeof name)
                                   ? row_of(rows, &num_rows, name)
                                   : NULL;
        if (row)
            add_metric(row, &metrics[i]);
    }
    for (uint32_t i = 0; i < num_rows; i++) {
        rows[i].load_speed = per_second(rows[i].loaded_bytes, rows[i].load_ns);
        rows[i].store_speed = per_second(rows[i].stored_bytes, rows[i].store_ns);
        if (rows[i].used)
            rows[kept++] = rows[i];
    }
    return kept;
}

static enum exit_code show_tiers(struct ctl *ctl)
{
    struct aule_metric *metrics = NULL;
    struct tier_row rows[MOST_TIERS];
    uint32_t count = 0;
    memset(rows, 0, sizeof rows);
    enum aule_status status = aule_monitor_metrics(ctl->monitor, &metrics, &count);
    if (status != AULE_OK)
        return report(ctl, status);
    const struct output_list list = {
        "tiers", tier_columns, rows, fill_rows(rows, metrics, count), sizeof *rows, 1};
    const enum exit_code code = output_list(ctl, &list);
    free(metrics);
    return code;
}

const struct command tiers_command = {
    .words = {.name = "tiers",
              .help = "list the places outside the GPU that keep blocks, and how they do",
              .groups = COMMAND_ASKS | COMMAND_LOOKS},
    .run = show_tiers,
};
