// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// log_limit.c - see log_limit.h.

#include "log_limit.h"

#include "base/clock.h"

#include <stdio.h>

static struct log_kind *find(struct log_limit *limit, const char *format)
{
    const size_t first = ((uintptr_t)format * UINT64_C(0x9E3779B97F4A7C15)) >> 32;
    for (size_t i = 0; i < LOG_KINDS; i++) {
        struct log_kind *kind = &limit->kinds[(first + i) % LOG_KINDS];
        if (!kind->format)
            kind->format = format;
        if (kind->format == format)
            return kind;
    }
    return &limit->kinds[LOG_KINDS];
}

// Pays back one line for each second that has passed.
static bool has_room(struct log_kind *kind, int64_t now_ns)
{
    const int64_t seconds = (now_ns - kind->paid_ns) / NS_PER_S;
    if (kind->used == 0)
        kind->paid_ns = now_ns;
    else if (seconds >= kind->used)
        kind->used = 0, kind->paid_ns = now_ns;
    else if (seconds > 0)
        kind->used -= (uint32_t)seconds, kind->paid_ns += seconds * NS_PER_S;
    return kind->used < LOG_BURST;
}

static uint64_t take(struct log_limit *limit, struct log_kind *kind)
{
    const uint64_t left_out = kind->left_out;
    limit->num_waiting -= left_out != 0;
    kind->left_out = 0;
    kind->used += kind->used < LOG_BURST;
    return left_out;
}

bool log_limit_allows(struct log_limit *limit, enum log_level level, const char *format,
                      const char *text, int64_t now_ns, uint64_t *left_out)
{
    struct log_kind *kind = find(limit, format);
    kind->level = level;
    if (has_room(kind, now_ns)) {
        *left_out = take(limit, kind);
        return true;
    }
    limit->num_waiting += kind->left_out++ == 0;
    snprintf(kind->last, sizeof kind->last, "%s", text);
    return false;
}

const struct log_kind *log_limit_next(struct log_limit *limit, bool all, int64_t now_ns,
                                      uint64_t *left_out)
{
    for (size_t i = 0; limit->num_waiting && i <= LOG_KINDS; i++) {
        struct log_kind *kind = &limit->kinds[i];
        if (!kind->left_out || (!all && !has_room(kind, now_ns)))
            continue;
        *left_out = take(limit, kind);
        return kind;
    }
    return NULL;
}
