// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// progress.h - a line on stderr that says how far a long command is, if stderr is a terminal. One
// thread.

#ifndef AULE_CTL_PROGRESS_H
#define AULE_CTL_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

struct progress {
    const char *what; // "saving model"; lent
    uint64_t whole;   // bytes
    int64_t started_ns, shown_ns;
    bool shows;
};

struct progress progress_begin(const char *what, uint64_t whole, bool quiet);
void progress_show(struct progress *progress, uint64_t done); // some times a second at most
void progress_end(struct progress *progress);                 // removes the line

#endif
