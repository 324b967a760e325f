// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// figure.h - one case of a study (study.h), as a line for people or as one of JSON with the keys
// that every result has, and its own.

#ifndef AULE_BENCH_FIGURE_H
#define AULE_BENCH_FIGURE_H

#include "check.h"
#include "measure.h"

enum { FIGURE_NUMBERS = 12 };

struct figure {
    const char *study, *via, *dtype;
    char name[96];       // of the case
    double bytes, flops; // of what was timed; 0: nothing attends there
    struct times times;
    struct verdict verdict;
    bool measured; // and not only checked
    bool checked;  // and right
    struct figure_number {
        const char *name;
        double number;
        const char *unit; // for people: "us", "x", ""
        bool given;       // what the case is about, and not what was measured of it
    } numbers[FIGURE_NUMBERS];
    uint32_t num_numbers;
};

void figure_add(struct figure *figure, const char *name, double number, const char *unit);
// What the case is about; of one that is only checked, people read what has a unit: "blocks".
void figure_add_given(struct figure *figure, const char *name, double number, const char *unit);

// The device that all figures of a run are of.
struct figure_device {
    const char *name, *driver, *variant;
};
// Of one that is only checked, JSON has null for what was not measured. False: no host memory, said
// on standard error.
bool figure_print(const struct figure *figure, const struct figure_device *device, bool people);
void figure_print_check(const struct figure *figure);

#endif
