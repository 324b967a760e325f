// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// plot.h - results as a drawing: a bar a workload against its ceiling, and time against the length
// of the context and the size of the batch. Knows the lines that result.c prints, and no device.

#ifndef AULE_BENCH_PLOT_H
#define AULE_BENCH_PLOT_H

#include <stdbool.h>

// Reads lines of JSON from the files ("-": standard input) and writes SVG to `output` (NULL:
// standard output). Standard error names what makes neither bar nor curve. False: it says which
// line of which file is none, or nothing is drawn, nor written.
bool plot(char *const *files, int num_files, const char *output);

#endif
