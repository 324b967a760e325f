// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// report.h - what a run has to tell, for people or as one JSON document, on standard output.

#ifndef WORKER_REPORT_H
#define WORKER_REPORT_H

#include "generate.h"

struct report {
    const struct attention_params *params;
    const char *name;
    const struct attention *attention;
    const struct generation *generation;
    uint32_t prompt_tokens;
    bool compared;
    double largest_difference; // only if compared
};

// False: standard output could not be written, or memory ran out; standard error says so.
bool report_print(const struct report *report, bool json);

#endif
