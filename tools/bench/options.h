// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// options.h - the command line.

#ifndef AULE_BENCH_OPTIONS_H
#define AULE_BENCH_OPTIONS_H

#include "status.h"

struct options {
    const char *command; // "list" or "run"
    char **names;        // [num_names] of workloads; they point into argv
    int num_names;
    const char *device, *variant; // NULL = the best
    enum dtype dtype, kv_dtype;
    double seconds;  // a workload
    double pool_gib; // of K and V that are read in turns
    bool check, json;
};

enum options_result { OPTIONS_RUN, OPTIONS_DONE, OPTIONS_BAD };
enum options_result options_parse(int argc, char **argv, struct options *options);

#endif
