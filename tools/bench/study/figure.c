// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// figure.c - see figure.h.

#include "figure.h"

#include <assert.h>
#include <cjson/cJSON.h>
#include <math.h>
#include <stdio.h>

static void add(struct figure *figure, const struct figure_number *number)
{
    assert(figure->num_numbers < FIGURE_NUMBERS);
    figure->numbers[figure->num_numbers++] = *number;
}

void figure_add(struct figure *figure, const char *name, double number, const char *unit)
{
    add(figure, &(struct figure_number){.name = name, .number = number, .unit = unit});
}

void figure_add_given(struct figure *figure, const char *name, double number, const char *unit)
{
    add(figure,
        &(struct figure_number){.name = name, .number = number, .unit = unit, .given = true});
}

static double rate(double amount, const struct figure *f, double unit)
{
    const double us = f->rate_us > 0 ? f->rate_us : f->times.median_us;
    return us > 0 ? amount / us / unit : 0;
}

// NaN: not known.
static double ceiling_ratio(const struct figure *f)
{
    const double gb_per_s = rate(f->bytes, f, 1e3);
    return f->ceiling_gb_per_s > 0 && gb_per_s > 0 ? gb_per_s / f->ceiling_gb_per_s : NAN;
}

static bool add_texts(cJSON *json, const struct figure *f, const struct figure_device *device)
{
    const struct {
        const char *name, *text;
    } texts[] = {{"workload", f->study},       {"case", f->name},  {"device", device->name},
                 {"driver", device->driver},   {"via", f->via},    {"dtype", f->dtype},
                 {"variant", device->variant}, {"place", "paged"}, {"kernels", f->kernels}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        if (texts[i].text[0] && !cJSON_AddStringToObject(json, texts[i].name, texts[i].text))
            return false;
    }
    return true;
}

static bool add_number(cJSON *json, const struct figure *f, const struct figure_number *number)
{
    const bool known = (number->given || f->measured) && !isnan(number->number);
    return known ? cJSON_AddNumberToObject(json, number->name, number->number) != NULL
                 : cJSON_AddNullToObject(json, number->name) != NULL;
}

static bool add_numbers(cJSON *json, const struct figure *f)
{
    const struct figure_number common[] = {
        {"median_us", f->times.median_us, NULL, false},
        {"p99_us", f->times.p99_us, NULL, false},
        {"gb_per_s", rate(f->bytes, f, 1e3), NULL, false},
        {"tflops", rate(f->flops, f, 1e6), NULL, false},
        {"ceiling_ratio", ceiling_ratio(f), NULL, false},
        {"runs", f->times.runs, NULL, true},
        {"checked_rows", f->verdict.num_rows, NULL, true},
        {"worst_error", f->verdict.worst, NULL, true},
    };
    for (size_t i = 0; i < sizeof common / sizeof *common; i++) {
        if (!add_number(json, f, &common[i]))
            return false;
    }
    for (uint32_t i = 0; i < f->num_numbers; i++) {
        if (!add_number(json, f, &f->numbers[i]))
            return false;
    }
    return cJSON_AddBoolToObject(json, "checked", f->checked) != NULL;
}

static bool print_json(const struct figure *f, const struct figure_device *device)
{
    cJSON *json = cJSON_CreateObject();
    char *text = json && add_texts(json, f, device) && add_numbers(json, f)
                     ? cJSON_PrintUnformatted(json)
                     : NULL;
    const bool printed = text != NULL;
    if (printed)
        puts(text);
    else
        fprintf(stderr, "aule-bench: no host memory\n");
    cJSON_free(text);
    cJSON_Delete(json);
    return printed;
}

static void print_rows(const struct figure *f, const char *before)
{
    if (f->verdict.num_rows)
        printf("%s%u rows %s to %.1e", before, f->verdict.num_rows, f->checked ? "right" : "WRONG",
               f->verdict.worst);
}

static void print_text(const struct figure *f)
{
    const double ratio = ceiling_ratio(f);
    printf(f->name[0] ? "%-8s %-46s" : "%-8s%s", f->study, f->name);
    printf(" %10.1f us (p99 %.1f)", f->times.median_us, f->times.p99_us);
    if (f->bytes > 0)
        printf(", %.4g GB/s, %.4g TFLOP/s", rate(f->bytes, f, 1e3), rate(f->flops, f, 1e6));
    if (!isnan(ratio))
        printf(", %.1f %% of a read", 100 * ratio);
    for (uint32_t i = 0; i < f->num_numbers; i++) {
        const struct figure_number *n = &f->numbers[i];
        if (n->unit && !isnan(n->number))
            printf(", %s %.*g%s%s", n->name, n->number == floor(n->number) ? 15 : 4, n->number,
                   n->unit[0] ? " " : "", n->unit);
    }
    print_rows(f, "; ");
    putchar('\n');
}

bool figure_print(const struct figure *figure, const struct figure_device *device, bool people)
{
    bool printed = true;
    if (people)
        print_text(figure);
    else
        printed = print_json(figure, device);
    fflush(stdout);
    return printed;
}

void figure_print_check(const struct figure *figure)
{
    printf(figure->name[0] ? "%-8s %s" : "%-8s%s", figure->study, figure->name);
    for (uint32_t i = 0; i < figure->num_numbers; i++) {
        const struct figure_number *n = &figure->numbers[i];
        if (n->given && n->unit && n->unit[0])
            printf(", %.0f %s", n->number, n->unit);
    }
    print_rows(figure, figure->name[0] ? ": " : " ");
    if (!figure->verdict.num_rows)
        printf(": %s", figure->checked ? "right" : "WRONG");
    if (!figure->name[0])
        printf(" (%s", figure->dtype);
    for (uint32_t i = 0; !figure->name[0] && i < figure->num_numbers; i++)
        if (figure->numbers[i].given)
            printf(", %s %.0f", figure->numbers[i].name, figure->numbers[i].number);
    puts(figure->name[0] ? "" : ")");
    fflush(stdout);
}
