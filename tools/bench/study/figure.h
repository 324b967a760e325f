// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// figure.h - a result: of a workload, or of one case of a study (study.h), printed as a line for
// people or as a line of JSON. Both have the same keys, and keys of their own.

#ifndef AULE_BENCH_FIGURE_H
#define AULE_BENCH_FIGURE_H

#include "tools/bench/check.h"
#include "tools/bench/measure.h"

enum { FIGURE_NUMBERS = 20 };

struct figure {
    const char *study; // or the workload
    const char *via;
    char dtype[32];
    char name[112];          // of a study's case; "": a workload
    char kernels[256];       // that served a workload; "": not known
    double bytes, flops;     // of what was timed; 0: no attention
    double rate_us;          // that GB/s and TFLOP/s are over; 0: the median
    double ceiling_gb_per_s; // 0: none
    struct times times;
    struct verdict verdict;
    bool measured; // false: only checked
    bool checked;  // the results are right
    struct figure_number {
        const char *name;
        double number;    // NaN: not known
        const char *unit; // for people: "us", "x", ""; NULL: people do not see it
        bool given;       // a parameter of the case, not a measurement
    } numbers[FIGURE_NUMBERS];
    uint32_t num_numbers;
};

void figure_add(struct figure *figure, const char *name, double number, const char *unit);
// Adds a parameter of the case. If a case is only checked, people see parameters that have a unit:
// "blocks".
void figure_add_given(struct figure *figure, const char *name, double number, const char *unit);

// The device that all figures of a run were measured on.
struct figure_device {
    const char *name, *driver, *variant;
};
// Prints the figure for people, or as JSON, where null stands for what was not measured. False: no
// host memory, said on standard error.
bool figure_print(const struct figure *figure, const struct figure_device *device, bool people);
void figure_print_check(const struct figure *figure);

#endif
