// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// figure.c - see figure.h.

#include "figure.h"

#include "tools/bench/result.h"

#include <assert.h>
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

static double rate(double amount, const struct figure *figure, double unit)
{
    return figure->times.median_us > 0 ? amount / figure->times.median_us / unit : 0;
}

static bool add_texts(cJSON *json, const struct figure *f, const struct figure_device *device)
{
    const struct {
        const char *name, *text;
    } texts[] = {{"workload", f->study},       {"case", f->name}, {"device", device->name},
                 {"driver", device->driver},   {"via", f->via},   {"dtype", f->dtype},
                 {"variant", device->variant}, {"place", "paged"}};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        if (!cJSON_AddStringToObject(json, texts[i].name, texts[i].text))
            return false;
    }
    return true;
}

static bool add_number(cJSON *json, const struct figure *f, const struct figure_number *number)
{
    return number->given || f->measured
               ? cJSON_AddNumberToObject(json, number->name, number->number) != NULL
               : cJSON_AddNullToObject(json, number->name) != NULL;
}

static bool add_numbers(cJSON *json, const struct figure *f)
{
    const struct figure_number common[] = {
        {"median_us", f->times.median_us, NULL, false},
        {"p99_us", f->times.p99_us, NULL, false},
        {"gb_per_s", rate(f->bytes, f, 1e3), NULL, false},
        {"tflops", rate(f->flops, f, 1e6), NULL, false},
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
    return cJSON_AddNullToObject(json, "ceiling_ratio") &&
           cJSON_AddBoolToObject(json, "checked", f->checked);
}

static bool print_json(const struct figure *f, const struct figure_device *device)
{
    cJSON *json = cJSON_CreateObject();
    return line_print(json, json && add_texts(json, f, device) && add_numbers(json, f));
}

static void print_text(const struct figure *f)
{
    printf("%-8s %-46s %10.1f us (p99 %.1f)", f->study, f->name, f->times.median_us,
           f->times.p99_us);
    for (uint32_t i = 0; i < f->num_numbers; i++)
        printf("%s %s %.*g%s%s", i ? "," : " ", f->numbers[i].name,
               f->numbers[i].number == floor(f->numbers[i].number) ? 15 : 4, f->numbers[i].number,
               f->numbers[i].unit[0] ? " " : "", f->numbers[i].unit);
    if (f->verdict.num_rows)
        printf("; %u rows %s to %.1e", f->verdict.num_rows, f->checked ? "right" : "WRONG",
               f->verdict.worst);
    putchar('\n');
    fflush(stdout);
}

bool figure_print(const struct figure *figure, const struct figure_device *device, bool people)
{
    if (!people)
        return print_json(figure, device);
    print_text(figure);
    return true;
}

void figure_print_check(const struct figure *figure)
{
    printf("%-8s %s", figure->study, figure->name);
    for (uint32_t i = 0; i < figure->num_numbers; i++) {
        if (figure->numbers[i].given && figure->numbers[i].unit[0])
            printf(", %.0f %s", figure->numbers[i].number, figure->numbers[i].unit);
    }
    if (figure->verdict.num_rows)
        printf(": %u rows %s to %.1e\n", figure->verdict.num_rows,
               figure->checked ? "right" : "WRONG", figure->verdict.worst);
    else
        printf(": %s\n", figure->checked ? "right" : "WRONG");
    fflush(stdout);
}
