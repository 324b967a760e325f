// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// process.h - programs that are started, talked with by lines, and do not outlive the bench.

#ifndef AULE_BENCH_PROCESS_H
#define AULE_BENCH_PROCESS_H

#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>

struct process {
    pid_t pid;      // 0: none
    FILE *in, *out; // its standard input and output
};

// argv[0] is the program's file; argv ends with NULL. False: it does not run, and standard error
// says why.
bool process_start(struct process *process, const char *const *argv);
// Asks it to end (SIGTERM), if `ask`, and waits for that. What it ended with; -1: by a signal. Of a
// zeroed one: 0.
int process_end(struct process *process, bool ask);

// Whether it has not ended yet.
bool process_runs(const struct process *process);

// Where `name` lies beside this program, once installed or in a build folder. False: standard error
// says where it was looked for.
bool process_find(const char *name, char *path, size_t size);

#endif
