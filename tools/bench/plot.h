// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// plot.h - draws results: a bar for each workload against its ceiling, time over context length
// and batch size, and a neighbour's times (spread.h). It knows the lines that result.c prints, and
// no device.

#ifndef AULE_BENCH_PLOT_H
#define AULE_BENCH_PLOT_H

#include <stdbool.h>

// Reads lines of JSON from the files ("-": standard input) and writes SVG to `output` (NULL:
// standard output). Standard error names results that are neither bar nor curve. False: a line is
// no result, nothing can be drawn, or it could not be written; standard error says which.
bool plot(char *const *files, int num_files, const char *output);

#endif
