// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// result.h - the result of a workload, printed as a line for people or as a line of JSON.

#ifndef AULE_BENCH_RESULT_H
#define AULE_BENCH_RESULT_H

#include "growth.h"
#include "tools/bench/baseline/baseline.h"
#include "tools/bench/gpu/ceiling.h"

struct result {
    const struct workload *workload;
    enum dtype dtype, kv_dtype;
    const char *device, *driver, *via, *variant;
    char kernels[256]; // that served it; "": not known
    bool contiguous;
    uint32_t clients, splits;
    struct times times;
    struct verdict verdict; // the worse of both checks
    bool checked;           // the results are right
    struct ceilings ceilings;
    double floor_us; // of a plain read of the same bytes; 0: not measured
    // For some workloads only; zero: not measured.
    struct growth growth;
    struct baseline baseline;
    uint32_t longest_paged, longest_contiguous;
};

bool result_print_json(const struct result *result);
void result_print_text(const struct result *result);
void result_print_check(const struct result *result); // if nothing was timed

#endif
