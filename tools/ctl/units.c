// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// units.c - numbers as people read them: binary prefixes for bytes, decimal prefixes for counts,
// two units for times. No state.

#include "units.h"

#include <inttypes.h>
#include <stdio.h>

static const char *scaled(uint64_t value, uint64_t step, const char *const *names,
                          char text[UNITS_SIZE])
{
    double scaled = (double)value;
    int i = 0;
    // 999.95 would be printed as 1000.0, so the next unit begins there.
    for (; scaled >= (double)step - 0.05 && names[i + 1]; i++)
        scaled /= (double)step;
    snprintf(text, UNITS_SIZE, i == 0 ? "%.0f%s" : "%.1f%s", scaled, names[i]);
    return text;
}

const char *units_bytes(uint64_t bytes, char text[UNITS_SIZE])
{
    static const char *const names[] = {" B", " KiB", " MiB", " GiB", " TiB", " PiB", " EiB", NULL};
    return scaled(bytes, 1024, names, text);
}

const char *units_count(uint64_t count, char text[UNITS_SIZE])
{
    static const char *const names[] = {"", " k", " M", " G", " T", " P", " E", NULL};
    if (count < 10000)
        snprintf(text, UNITS_SIZE, "%" PRIu64, count);
    else
        scaled(count, 1000, names, text);
    return text;
}

const char *units_ms(uint64_t ms, char text[UNITS_SIZE])
{
    uint64_t s = ms / 1000;
    if (s < 1)
        snprintf(text, UNITS_SIZE, "%" PRIu64 " ms", ms);
    else if (s < 60)
        snprintf(text, UNITS_SIZE, "%" PRIu64 ".%" PRIu64 " s", s, ms % 1000 / 100);
    else if (s < 3600)
        snprintf(text, UNITS_SIZE, "%" PRIu64 " min %" PRIu64 " s", s / 60, s % 60);
    else if (s < 86400)
        snprintf(text, UNITS_SIZE, "%" PRIu64 " h %" PRIu64 " min", s / 3600, s % 3600 / 60);
    else
        snprintf(text, UNITS_SIZE, "%" PRIu64 " d %" PRIu64 " h", s / 86400, s % 86400 / 3600);
    return text;
}

const char *units_ns(uint64_t ns, char text[UNITS_SIZE])
{
    static const char *const names[] = {" ns", " us", " ms", NULL};
    return ns < 1000000000 ? scaled(ns, 1000, names, text) : units_ms(ns / 1000000, text);
}
