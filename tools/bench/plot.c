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

enum {
    WIDTH = 960,
    BAR = 22,
    TITLE = 44,
    CHART = 360,
    MARGIN = 60,
    LABEL = 250,
    VALUES = 380,
    MOST_LABELS = 12,
    USUAL_HEAD_DIM = 128
};

// ---- which results form a curve, and which a bar ----

static bool is_decode(const struct point *point)
{
    return strncmp(point->workload, "decode:", 7) == 0;
}

static bool is_cost(const struct point *point)
{
    return strcmp(point->workload, "growth") == 0;
}

static bool is_share(const struct point *point)
{
    return strcmp(point->workload, "share") == 0;
}

// One chart: `x` grows along a curve, and `fixed` is the same along it.
struct chart {
    const char *title, *x_name, *fixed_name, *floor_name;
    bool (*takes)(const struct point *point);
    double (*x)(const struct point *point);
    double (*fixed)(const struct point *point);
};

static double seqs_of(const struct point *point)
{
    return point->seqs;
}

static double longest_of(const struct point *point)
{
    return point->longest;
}

static double size_of(const struct point *point)
{
    return point->size;
}

static double nothing(const struct point *point)
{
    (void)point;
    return 0;
}

static const char a_read[] = "a plain read of the same bytes";

static const struct chart charts[] = {
    {"Decode: time against the length of the context", "tokens of context", "sequences", a_read,
     is_decode, longest_of, seqs_of},
    {"Decode: time against the size of the batch", "sequences", "tokens each", a_read, is_decode,
     seqs_of, longest_of},
    {"Cost in the daemon's core as work grows", "blocks, sequences or table entries", NULL,
     "aims: 50 ns a block, 100 a sequence, 1 an entry", is_cost, size_of, nothing},
};
enum { NUM_CHARTS = sizeof charts / sizeof *charts };

// Older results do not name their head dim.
static double head_dim_of(const struct point *p)
{
    return p->head_dim > 0 ? p->head_dim : USUAL_HEAD_DIM;
}

static bool same_curve(const struct chart *chart, const struct point *a, const struct point *b)
{
    return chart->fixed(a) == chart->fixed(b) && strcmp(a->name, b->name) == 0 &&
           a->clients == b->clients && head_dim_of(a) == head_dim_of(b) &&
           strcmp(a->variant, b->variant) == 0 && strcmp(a->dtype, b->dtype) == 0 &&
           strcmp(a->place, b->place) == 0 && strcmp(a->via, b->via) == 0;
}

static bool on_curve(const struct points *points, const struct point *p)
{
    for (uint32_t i = 0; i < points->count; i++) {
        const struct point *other = &points->list[i];
        for (int c = 0; c < NUM_CHARTS; c++)
            if (charts[c].takes(p) && charts[c].takes(other) && same_curve(&charts[c], p, other) &&
                charts[c].x(other) != charts[c].x(p))
                return true;
    }
    return false;
}

// A decode that has no other point on its curves becomes a bar, so that no workload is left out.
// Studies have no ceiling.
static bool is_bar(const struct points *points, const struct point *p)
{
    return !p->name[0] && !on_curve(points, p);
}

static bool is_drawn(const struct points *points, const struct point *p)
{
    return is_bar(points, p) || is_share(p) || spread_takes(p) || on_curve(points, p);
}

static bool is_first_left_out(const struct points *points, uint32_t index)
{
    const struct point *p = &points->list[index];
    for (uint32_t i = 0; i < index; i++) {
        if (strcmp(points->list[i].workload, p->workload) == 0 &&
            !is_drawn(points, &points->list[i]))
            return false;
    }
    return !is_drawn(points, p);
}

// Says which results are left out. False: all of them.
static bool any_drawn(const struct points *points)
{
    const char *before = "aule-bench: not drawn, because they are neither bar nor curve:";
    bool any = false, all = true;
    for (uint32_t i = 0; i < points->count; i++) {
        bool drawn = is_drawn(points, &points->list[i]);
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
        count += is_bar(points, &points->list[i]);
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
        if (!is_bar(points, p))
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

// ---- the study "share": a bar is the time to the first token, over that with a cache each ----

// True: the point before, if any, is of another prompt or other steps.
static bool begins_prompt(const struct points *points, uint32_t i)
{
    const struct point *p = &points->list[i], *before = i ? p - 1 : NULL;
    return !before || !is_share(before) || before->prompt != p->prompt ||
           before->whole_steps != p->whole_steps;
}

// Bars and the lines above them.
static uint32_t count_shares(const struct points *points)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < points->count; i++)
        if (is_share(&points->list[i]))
            count += begins_prompt(points, i) ? 2 : 1;
    return count;
}

static void draw_prompt(FILE *file, const struct point *p, double y)
{
    char text[sizeof p->device + 64]; // the page's title has the device of its first line only
    snprintf(text, sizeof text, "%.0f tokens, %s, %s", p->prompt,
             p->whole_steps ? "whole steps" : "a wait for each layer", p->device);
    svg_text(file, LABEL, y + 14, 12, SVG_LEFT, text);
}

static void draw_shares(FILE *file, const struct points *points, double top)
{
    const double full = WIDTH - LABEL - VALUES;
    double y = top;
    svg_text(file, 10, y - 14, 15, SVG_LEFT,
             "A common prompt: time to the first token, over that of processes that share nothing");
    for (uint32_t i = 0; i < points->count; i++) {
        const struct point *p = &points->list[i];
        char value[128];
        if (!is_share(p))
            continue;
        if (begins_prompt(points, i)) {
            draw_prompt(file, p, y);
            y += BAR;
        }
        snprintf(value, sizeof value, "%.2f x; computed %.2f, KV %.2f, decode %.2f x%s",
                 p->first_token_ratio, p->prefilled_ratio, p->kv_ratio, p->decode_over_own,
                 p->checked ? "" : ", WRONG");
        svg_text(file, LABEL - 8, y + 14, 12, SVG_RIGHT, p->name);
        svg_box(file, LABEL, y + 2, full, BAR - 6, "#e8e8e8");
        svg_box(file, LABEL, y + 2, full * fmin(p->first_token_ratio, 1), BAR - 6, "#2f9e58");
        svg_text(file, LABEL + full + 8, y + 14, 11, SVG_LEFT, value);
        y += BAR;
    }
}

// ---- curves ----

// The next point after `p` on its curve; NULL: `p` is the last.
static const struct point *next_on(const struct chart *chart, const struct points *points,
                                   const struct point *p)
{
    const struct point *best = NULL;
    for (uint32_t i = 0; i < points->count; i++) {
        const struct point *other = &points->list[i];
        if (chart->takes(other) && same_curve(chart, p, other) && chart->x(other) > chart->x(p) &&
            (!best || chart->x(other) < chart->x(best)))
            best = other;
    }
    return best;
}

// Whether a curve of two points or more begins at point `index`.
static bool begins(const struct chart *chart, const struct points *points, uint32_t index)
{
    const struct point *p = &points->list[index];
    if (!chart->takes(p) || !next_on(chart, points, p))
        return false;
    for (uint32_t i = 0; i < points->count; i++) {
        const struct point *other = &points->list[i];
        if (chart->takes(other) && same_curve(chart, p, other) &&
            (chart->x(other) < chart->x(p) || (chart->x(other) == chart->x(p) && i < index)))
            return false;
    }
    return true;
}

struct frame {
    double left, top, width, height;
    double low_x, high_x, low_y, high_y; // logarithms to base 2 and 10
};

// False: the chart has no curve.
static bool frame_fit(const struct chart *chart, const struct points *points, double top,
                      struct frame *frame)
{
    *frame = (struct frame){MARGIN, top, WIDTH - 6.0 * MARGIN, CHART - 1.7 * MARGIN, 1e9, -1e9,
                            1e9,    -1e9};
    for (uint32_t i = 0; i < points->count; i++) {
        if (!begins(chart, points, i))
            continue;
        for (const struct point *p = &points->list[i]; p; p = next_on(chart, points, p)) {
            frame->low_x = fmin(frame->low_x, floor(log2(chart->x(p))));
            frame->high_x = fmax(frame->high_x, ceil(log2(chart->x(p))));
            frame->low_y = fmin(frame->low_y, floor(log10(p->median_us)));
            frame->high_y = fmax(frame->high_y, ceil(log10(p->median_us) + 1e-9));
            if (p->floor_us > 0)
                frame->low_y = fmin(frame->low_y, floor(log10(p->floor_us)));
        }
    }
    return frame->high_x > frame->low_x;
}

static double at_x(const struct frame *f, double x)
{
    return f->left + f->width * (log2(x) - f->low_x) / (f->high_x - f->low_x);
}

static double at_y(const struct frame *f, double y)
{
    return f->top + f->height * (1 - (log10(y) - f->low_y) / (f->high_y - f->low_y));
}

static void draw_frame(FILE *file, const struct chart *chart, const struct frame *f)
{
    char text[64];
    svg_text(file, 10, f->top - 14, 15, SVG_LEFT, chart->title);
    for (double x = f->low_x; x <= f->high_x; x++) {
        snprintf(text, sizeof text, "%.0f", exp2(x));
        svg_line(file, at_x(f, exp2(x)), f->top, at_x(f, exp2(x)), f->top + f->height, "#e0e0e0");
        if (f->high_x - f->low_x <= MOST_LABELS || fmod(x, 2) == 0)
            svg_text(file, at_x(f, exp2(x)), f->top + f->height + 16, 11, SVG_MIDDLE, text);
    }
    for (double y = f->low_y; y <= f->high_y; y++) {
        snprintf(text, sizeof text, "%g %s", pow(10, y < 5 ? y : y - 3), y < 5 ? "us" : "ms");
        svg_line(file, f->left, at_y(f, pow(10, y)), f->left + f->width, at_y(f, pow(10, y)),
                 "#e0e0e0");
        svg_text(file, f->left - 6, at_y(f, pow(10, y)) + 4, 11, SVG_RIGHT, text);
    }
    svg_text(file, f->left + f->width / 2, f->top + f->height + 34, 12, SVG_MIDDLE, chart->x_name);
}

static void draw_curve(FILE *file, const struct chart *chart, const struct points *points,
                       const struct frame *f, const struct point *p, const char *color)
{
    for (const struct point *next; p; p = next) {
        next = next_on(chart, points, p);
        svg_dot(file, at_x(f, chart->x(p)), at_y(f, p->median_us), color);
        if (!next)
            return;
        svg_line(file, at_x(f, chart->x(p)), at_y(f, p->median_us), at_x(f, chart->x(next)),
                 at_y(f, next->median_us), color);
        if (p->floor_us > 0 && next->floor_us > 0) // a plain read of the same bytes
            svg_line(file, at_x(f, chart->x(p)), at_y(f, p->floor_us), at_x(f, chart->x(next)),
                     at_y(f, next->floor_us), "#aaaaaa");
    }
}

static void draw_chart(FILE *file, const struct chart *chart, const struct points *points,
                       const struct frame *f)
{
    static const char *const colors[] = {"#3b7dd8", "#d8483b", "#2f9e58", "#b07a1e", "#7a4fc4",
                                         "#1f9ea8", "#c43f8e", "#5d6d7e", "#8aa82a", "#a0522d"};
    uint32_t curves = 0;
    draw_frame(file, chart, f);
    for (uint32_t i = 0; i < points->count; i++) {
        const struct point *p = &points->list[i];
        char text[256];
        if (!begins(chart, points, i))
            continue;
        const char *color = colors[curves % (sizeof colors / sizeof *colors)];
        draw_curve(file, chart, points, f, p, color);
        if (p->name[0])
            snprintf(text, sizeof text, "%s", p->name);
        else
            snprintf(text, sizeof text, "%.0f %s, %s, %s, %s", chart->fixed(p), chart->fixed_name,
                     p->dtype, p->variant, p->place);
        svg_box(file, f->left + f->width + 10, f->top + 18 * curves, 10, 10, color);
        svg_text(file, f->left + f->width + 25, f->top + 18 * curves + 10, 11, SVG_LEFT, text);
        curves++;
    }
    svg_box(file, f->left + f->width + 10, f->top + 18 * curves, 10, 10, "#aaaaaa");
    svg_text(file, f->left + f->width + 25, f->top + 18 * curves + 10, 11, SVG_LEFT,
             chart->floor_name);
}

// ---- the page ----

static void draw(FILE *file, const struct points *points)
{
    struct frame frames[NUM_CHARTS];
    bool has[NUM_CHARTS];
    double bars = count_bars(points) ? 2 * TITLE + BAR * (double)count_bars(points) : TITLE,
           shares = count_shares(points) ? TITLE + BAR * (double)count_shares(points) : 0,
           spread = spread_height(points), height = bars + shares + spread;
    char title[600];
    for (int i = 0; i < NUM_CHARTS; i++) {
        has[i] = frame_fit(&charts[i], points, height + TITLE, &frames[i]);
        height += has[i] ? CHART : 0;
    }
    snprintf(title, sizeof title, "%s, %s", points->list[0].device, points->list[0].driver);
    svg_begin(file, WIDTH, height + 10);
    svg_text(file, 10, 22, 13, SVG_LEFT, title);
    if (count_bars(points))
        draw_bars(file, points, 2 * TITLE - 12);
    if (shares > 0)
        draw_shares(file, points, bars + TITLE - 12);
    if (spread > 0)
        spread_draw(file, points, bars + shares);
    for (int i = 0; i < NUM_CHARTS; i++) {
        if (has[i])
            draw_chart(file, &charts[i], points, &frames[i]);
    }
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
