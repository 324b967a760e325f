// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// importer.h - another process that imports device memory: the program vulkan_importer, in the
// folder of the test's own program. It is started anew, not forked, because a driver does not
// survive a fork.

#ifndef AULE_TESTS_IMPORTER_H
#define AULE_TESTS_IMPORTER_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/types.h>

struct importer {
    pid_t pid;
    FILE *to, *from;
    char uuid[33]; // of the device that it opened, 32 digits
};

// Starts the program; it inherits `fd`, which stays the caller's. Fails the test if the program
// cannot import the memory.
void importer_start(struct importer *importer, int fd, uint64_t allocated, bool dedicated);
// Floats first, first + 1, ... at byte `offset` of the memory.
void importer_put(struct importer *importer, uint64_t offset, float first, uint32_t count);
bool importer_has(struct importer *importer, uint64_t offset, float first, uint32_t count);
void importer_kill(struct importer *importer); // SIGKILL
void importer_end(struct importer *importer);  // fails the test unless it ends well

#endif
