// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// report.h - prints the result of a run on standard output, for people or as one JSON document.

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

// False: standard output could not be written, or there was no memory; standard error says so.
bool report_print(const struct report *report, bool json);

#endif
