// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// line.h - an object as one line of JSON on standard output, which `aule-bench plot` reads. One
// thread.

#ifndef AULE_BENCH_LINE_H
#define AULE_BENCH_LINE_H

#include <cjson/cJSON.h>
#include <stdbool.h>

// Takes `json` over. `complete`: nothing that belongs into it is missing for want of memory. False:
// nothing was printed, and standard error says why.
bool line_print(cJSON *json, bool complete);

#endif
