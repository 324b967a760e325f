// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// same_file.h - detects that a program would overwrite a file that it also reads. No state.

#ifndef AULE_SAME_FILE_H
#define AULE_SAME_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/stat.h>

// True if both paths lead to one regular file. False if a path is NULL or leads nowhere.
static inline bool same_file(const char *a, const char *b)
{
    struct stat first, second;
    return a && b && stat(a, &first) == 0 && stat(b, &second) == 0 && S_ISREG(first.st_mode) &&
           first.st_dev == second.st_dev && first.st_ino == second.st_ino;
}

#endif
