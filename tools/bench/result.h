// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// result.h - the result of a workload, printed as a line for people or as a line of JSON.

#ifndef AULE_BENCH_RESULT_H
#define AULE_BENCH_RESULT_H

#include "check.h"
#include "measure.h"

#include <cjson/cJSON.h>

struct result {
    const struct workload *workload;
    enum dtype dtype, kv_dtype;
    const char *device, *driver, *via, *variant;
    char kernels[256]; // that served it; "": not known
    uint32_t clients, splits;
    struct times times;
    struct verdict verdict; // the worse of both checks
    bool checked;           // the results are right
    double read_gb_per_s;   // the ceiling; 0: not known
    double floor_us;        // of a plain read of the same bytes; 0: not measured
};

bool result_print_json(const struct result *result);
void result_print_text(const struct result *result);
void result_print_check(const struct result *result); // if nothing was timed

// Prints an object as one line of JSON. Takes `json` over. `complete`: nothing that belongs into it
// is missing for want of memory. False: nothing was printed, and standard error says why.
bool line_print(cJSON *json, bool complete);

#endif
