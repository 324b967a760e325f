// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// bound.c - see bound.h.

#include "bound.h"

#include <sys/stat.h>
#include <unistd.h>

struct bound bound_at(const char *path)
{
    struct stat there;
    if (lstat(path, &there) != 0)
        return (struct bound){.inode = 0};
    return (struct bound){there.st_dev, there.st_ino};
}

void bound_remove(const struct bound *bound, const char *path)
{
    const struct bound now = bound_at(path);
    if (now.inode && now.inode == bound->inode && now.device == bound->device)
        unlink(path);
}
