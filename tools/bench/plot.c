// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// plot.c - see plot.h.

#include "plot.h"

#include "points.h"
#include "spread.h"
#include "tools/complaint/same_file.h"
#include "tools/svg/svg.h"

#include <errno.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 960, BAR = 22, TITLE = 44, LABEL = 250, VALUES = 380, USUAL_HEAD_DIM = 128 };

// ---- which results become a bar ----

// Older results do not name their head dim.
static double head_dim_of(const struct point *p)
{
    return p->head_dim > 0 ? p->head_dim : USUAL_HEAD_DIM;
}

// Studies have no ceiling.
static bool is_bar(const struct point *p)
{
    return !p->name[0];
}

static bool is_drawn(const struct point *p)
{
    return is_bar(p) || spread_takes(p);
}

static bool is_first_left_out(const struct points *points, uint32_t index)
{
    const struct point *p = &points->list[index];
    for (uint32_t i = 0; i < index; i++) {
        if (strcmp(points->list[i].workload, p->workload) == 0 && !is_drawn(&points->list[i]))
            return false;
    }
    return !is_drawn(p);
}

// Says which results are left out. False: all of them.
static bool any_drawn(const struct points *points)
{
    const char *before = "aule-bench: not drawn, because studies have no bars:";
    bool any = false, all = true;
    for (uint32_t i = 0; i < points->count; i++) {
        bool drawn = is_drawn(&points->list[i]);
        any |= drawn;
        all &= drawn;
        if (!is_first_left_out(points, i))
            continue;
        fprintf(stderr, "%s %s", before, points->list[i].workload);
        before = ",";
    }
    if (!all)
        fputc('\n', stderr);
    return any;
}

// ---- bars ----

static uint32_t count_bars(const struct points *points)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < points->count; i++)
        count += is_bar(&points->list[i]);
    return count;
}

static void bar_texts(const struct point *p, char *label, size_t label_size, char *value,
                      size_t value_size)
{
    bool contiguous = strcmp(p->place, "contiguous") == 0, border = strcmp(p->via, "engine") != 0;
    char share[32] = "", dim[32] = "", peer[64] = "";
    if (head_dim_of(p) != USUAL_HEAD_DIM)
        snprintf(dim, sizeof dim, " head_dim %.0f", head_dim_of(p));
    snprintf(label, label_size, "%s %s%s %s%s%s%s", p->workload, p->dtype, dim, p->variant,
             contiguous ? " contiguous" : "", border ? " via " : "", border ? p->via : "");
    if (p->ceiling_ratio > 0)
        snprintf(share, sizeof share, ", %.1f %%", 100 * p->ceiling_ratio);
    if (p->peer_us > 0)
        snprintf(peer, sizeof peer, "; %s %.1f us", p->peer, p->peer_us);
    snprintf(value, value_size, "%.1f us, %.0f %s%s%s%s", p->median_us,
             p->gb_per_s > 10 * p->tflops ? p->gb_per_s : p->tflops,
             p->gb_per_s > 10 * p->tflops ? "GB/s" : "TFLOP/s", share, peer,
             p->checked ? "" : ", UNCHECKED");
}

// A mark where the bar would end with the peer's time.
static void draw_peer(FILE *file, const struct point *p, double y, double full)
{
    const double x = LABEL + full * fmin(p->ceiling_ratio * p->median_us / p->peer_us, 1);
    svg_line(file, x, y + 1, x, y + BAR - 3, "#d8483b");
}

static void draw_bars(FILE *file, const struct points *points, double top)
{
    const double full = WIDTH - LABEL - VALUES;
    double y = top;
    svg_text(file, 10, y - 14, 15, SVG_LEFT,
             "Workloads: how much of the ceiling measured in the same run is reached; red: a peer");
    for (uint32_t i = 0; i < points->count; i++) {
        const struct point *p = &points->list[i];
        char label[256], value[128];
        if (!is_bar(p))
            continue;
        bar_texts(p, label, sizeof label, value, sizeof value);
        svg_text(file, LABEL - 8, y + 14, 12, SVG_RIGHT, label);
        svg_box(file, LABEL, y + 2, full, BAR - 6, "#e8e8e8");
        svg_box(file, LABEL, y + 2, full * fmin(p->ceiling_ratio, 1), BAR - 6, "#3b7dd8");
        if (p->peer_us > 0)
            draw_peer(file, p, y, full);
        svg_text(file, LABEL + full + 8, y + 14, 12, SVG_LEFT, value);
        y += BAR;
    }
    svg_line(file, LABEL + full, top, LABEL + full, y, "#444444");
}

// ---- the page ----

static void draw(FILE *file, const struct points *points)
{
    const double bars = count_bars(points) ? 2 * TITLE + BAR * (double)count_bars(points) : TITLE;
    char title[600];
    snprintf(title, sizeof title, "%s, %s", points->list[0].device, points->list[0].driver);
    svg_begin(file, WIDTH, bars + spread_height(points) + 10);
    svg_text(file, 10, 22, 13, SVG_LEFT, title);
    if (count_bars(points))
        draw_bars(file, points, 2 * TITLE - 12);
    if (spread_height(points) > 0)
        spread_draw(file, points, bars);
    svg_end(file);
}

static bool write_page(const struct points *points, const char *output)
{
    FILE *file = output ? fopen(output, "w") : stdout;
    if (!file) {
        fprintf(stderr, "aule-bench: %s: %s\n", output, strerror(errno));
        return false;
    }
    draw(file, points);
    bool ok = !ferror(file);
    ok &= (output ? fclose(file) : fflush(file)) == 0;
    if (!ok)
        fprintf(stderr, "aule-bench: %s was not written\n", output ? output : "standard output");
    return ok;
}

// The drawing must not overwrite a file that it is drawn from.
static bool is_input(const char *file, const char *output)
{
    if (!same_file(file, output))
        return false;
    fprintf(stderr, "aule-bench: --output %s would replace what it is drawn from\n", output);
    return true;
}

bool plot(char *const *files, int num_files, const char *output)
{
    struct points points = {0};
    bool ok = true;
    for (int i = 0; i < num_files; i++)
        ok = ok && !is_input(files[i], output);
    for (int i = 0; ok && i < num_files; i++)
        ok = points_read(files[i], &points);
    if (ok && !points.count) {
        fprintf(stderr, "aule-bench: there is no result to plot\n");
        ok = false;
    }
    ok = ok && any_drawn(&points) && write_page(&points, output);
    free(points.list);
    return ok;
}
