// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// process.h - what a program of aule sets up before anything else. Libraries never call it, because
// descriptors and signals belong to the program. Main thread, before any other thread starts.

#ifndef AULE_BASE_PROCESS_H
#define AULE_BASE_PROCESS_H

// Opens /dev/null for each of the descriptors 0 to 2 that is closed. Otherwise a socket could get
// the number 2, and what is printed would go into it. Reading from such a 0 and writing to such a
// 1 or 2 still fail with EBADF, so output that is lost is reported as an error.
// Also ignores SIGXFSZ: a write beyond RLIMIT_FSIZE then fails with EFBIG.
// Ends the process with exit code 1 if /dev/null cannot be opened.
void process_begin(void);

#endif
