// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// bound.h - a file that this process has made at a path, known by its device and inode. A start
// script may clear the folder of a daemon that still runs, and start the next one there. Then the
// first one's end must leave the files of the other. Thread: dispatcher, and signal handlers.

#ifndef AULE_SERVER_BOUND_H
#define AULE_SERVER_BOUND_H

#include <sys/types.h>

struct bound {
    dev_t device;
    ino_t inode; // 0 = no file
};

// What lies at `path`, right after this process has made it.
struct bound bound_at(const char *path);
// Removes `path` unless it is another file now. Safe in a signal handler.
void bound_remove(const struct bound *bound, const char *path);

#endif
