// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// owner.c - see owner.h.

#include "owner.h"

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/vfs.h>

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77 // as include/uapi/asm-generic/socket.h of Linux has it
#endif

enum { PID_FILE_SYSTEM = 0x50494446 }; // PID_FS_MAGIC; in others all pidfds have one number

int owner_open(int fd)
{
    int pidfd = -1;
    socklen_t size = sizeof pidfd;
    return getsockopt(fd, SOL_SOCKET, SO_PEERPIDFD, &pidfd, &size) == 0 ? pidfd : -1;
}

uint64_t owner_number(int pidfd)
{
    struct statfs system;
    struct stat info;
    if (pidfd < 0 || fstatfs(pidfd, &system) != 0 || system.f_type != PID_FILE_SYSTEM ||
        fstat(pidfd, &info) != 0)
        return 0;
    return info.st_ino;
}
