// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// process.h - starts programs, talks with them by lines, and ends them with the bench.

#ifndef AULE_BENCH_PROCESS_H
#define AULE_BENCH_PROCESS_H

#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>

struct process {
    pid_t pid;      // 0: none
    FILE *in, *out; // pipes to its standard input and output
};

// argv[0] is the program's file; argv ends with NULL. False: it does not run, and standard error
// says why.
bool process_start(struct process *process, const char *const *argv);
// Waits for its end; with `ask`, sends SIGTERM first. Returns its exit code; -1: a signal ended it.
// A zeroed process: 0.
int process_end(struct process *process, bool ask);

// Whether it still runs.
bool process_runs(const struct process *process);

// The path of `name` beside this program, installed or in a build folder. False: standard error
// says where it was looked for.
bool process_find(const char *name, char *path, size_t size);

#endif
