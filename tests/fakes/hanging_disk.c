// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// hanging_disk.c - a disk that takes no block: the dynamic linker loads this into a daemon first
// (LD_PRELOAD), and a thread that has begun a file of the files tier never returns. Any thread.

#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <string.h>
#include <unistd.h>

int openat64(int folder, const char *name, int flags, ...);
int openat64(int folder, const char *name, int flags, ...)
{
    va_list values;
    va_start(values, flags);
    const mode_t mode = flags & O_CREAT ? va_arg(values, mode_t) : 0;
    va_end(values);
    int (*const real)(int, const char *, int, ...) =
        (int (*)(int, const char *, int, ...))dlsym(RTLD_NEXT, "openat64");
    const int fd = real(folder, name, flags, mode);
    while (flags & O_CREAT && strstr(name, ".aule-part-"))
        pause();
    return fd;
}
