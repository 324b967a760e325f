// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// view_metrics.c - all counters and gauges of the daemon. It knows none of them by name.

#include "output.h"

#include <stdlib.h>

struct metric_row {
    struct aule_metric metric;
    const char *kind;
};
#define METRIC(heading, kind, member)                                                              \
    {                                                                                              \
#member, heading, COLUMN_##kind, offsetof(struct metric_row, metric.member)                \
    }
static const struct column metric_columns[] = {
    METRIC("name", TEXT, name),
    METRIC("value", ID, value),
    METRIC("unit", TEXT, unit),
    {"kind", "kind", COLUMN_POINTER, offsetof(struct metric_row, kind)},
    METRIC("meaning", TEXT, help),
    {.key = NULL},
};

static const char *kind_name(enum aule_metric_kind kind)
{
    static const char *const names[] = {
        [AULE_METRIC_COUNTER] = "counter", [AULE_METRIC_GAUGE] = "gauge"};
    return (size_t)kind < sizeof names / sizeof *names ? names[kind] : "unknown";
}

static enum exit_code show_metrics(struct ctl *ctl)
{
    struct aule_metric *metrics = NULL;
    uint32_t count = 0;
    enum aule_status status = aule_monitor_metrics(ctl->monitor, &metrics, &count);
    if (status != AULE_OK)
        return report(ctl, status);
    struct metric_row *rows = calloc(count + (size_t)1, sizeof *rows);
    enum exit_code code;
    if (rows) {
        for (uint32_t i = 0; i < count; i++)
            rows[i] = (struct metric_row){metrics[i], kind_name(metrics[i].kind)};
        const struct output_list list = {"metrics", metric_columns, rows, count, sizeof *rows, 2};
        code = output_list(ctl, &list);
    } else {
        code = complain(EXIT_CODE_FAILED, "no memory for %u metrics", count);
    }
    free(rows);
    free(metrics);
    return code;
}

const struct command metrics_command = {
    .words = {.name = "metrics",
              .help = "list all counters and gauges, with unit and meaning",
              .groups = COMMAND_ASKS | COMMAND_LOOKS},
    .run = show_metrics,
};
