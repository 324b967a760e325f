// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// spread.c - see spread.h.

#include "spread.h"

#include "tools/svg/svg.h"

#include <math.h>
#include <string.h>

enum { LABEL = 190, FULL = 470, ROW = 26, HEAD = 52, FOOT = 24 };
static const char alone_color[] = "#8a8a8a", beside_color[] = "#d8483b";

// Powers of ten of microseconds.
struct axis {
    double low, high;
};

bool spread_takes(const struct point *point)
{
    return strcmp(point->workload, "isolation") == 0;
}

static uint32_t count(const struct points *points)
{
    uint32_t rows = 0;
    for (uint32_t i = 0; i < points->count; i++)
        rows += spread_takes(&points->list[i]);
    return rows;
}

double spread_height(const struct points *points)
{
    return count(points) ? HEAD + ROW * (double)count(points) + FOOT : 0;
}

static struct axis axis_of(const struct points *points)
{
    struct axis axis = {INFINITY, -INFINITY};
    for (uint32_t i = 0; i < points->count; i++) {
        const struct point *p = &points->list[i];
        if (!spread_takes(p))
            continue;
        axis.low = fmin(axis.low, floor(log10(fmax(fmin(p->alone_us, p->median_us), 1))));
        axis.high = fmax(axis.high, ceil(log10(fmax(fmax(p->alone_worst_us, p->worst_us), 10))));
    }
    return axis;
}

static double at(const struct axis *axis, double us)
{
    return LABEL + FULL * (log10(fmax(us, 1)) - axis->low) / (axis->high - axis->low);
}

static void draw_axis(FILE *file, const struct axis *axis, double top, double bottom)
{
    char text[32];
    for (double power = axis->low; power <= axis->high; power++) {
        const double x = at(axis, pow(10, power));
        snprintf(text, sizeof text, "%g ms", pow(10, power - 3));
        svg_line(file, x, top, x, bottom, "#e0e0e0");
        svg_text(file, x, bottom + 14, 11, SVG_MIDDLE, text);
    }
}

static void draw_times(FILE *file, const struct axis *axis, double y, double p50, double p99,
                       double worst, const char *color)
{
    svg_line(file, at(axis, p50), y, at(axis, worst), y, color);
    svg_line(file, at(axis, p50), y - 4, at(axis, p50), y + 4, color);
    svg_line(file, at(axis, worst), y - 4, at(axis, worst), y + 4, color);
    svg_dot(file, at(axis, p99), y, color);
}

static void draw_row(FILE *file, const struct axis *axis, const struct point *p, double y)
{
    char value[96];
    svg_text(file, LABEL - 8, y + 15, 12, SVG_RIGHT, p->name);
    draw_times(file, axis, y + 7, p->alone_us, p->alone_p99_us, p->alone_worst_us, alone_color);
    draw_times(file, axis, y + 17, p->median_us, p->p99_us, p->worst_us, beside_color);
    snprintf(value, sizeof value, "p99 %.3g ms (alone %.3g), worst %.3g ms%s", p->p99_us / 1e3,
             p->alone_p99_us / 1e3, p->worst_us / 1e3, p->checked ? "" : ", WRONG");
    svg_text(file, LABEL + FULL + 12, y + 15, 11, SVG_LEFT, value);
}

void spread_draw(FILE *file, const struct points *points, double top)
{
    const struct axis axis = axis_of(points);
    double y = top + HEAD - 12;
    svg_text(file, 10, top + 16, 15, SVG_LEFT,
             "A light neighbour's decode: median, p99 (dot) and worst; grey: alone, red: beside");
    draw_axis(file, &axis, y, y + ROW * (double)count(points));
    for (uint32_t i = 0; i < points->count; i++)
        if (spread_takes(&points->list[i])) {
            draw_row(file, &axis, &points->list[i], y);
            y += ROW;
        }
}
