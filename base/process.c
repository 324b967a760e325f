// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// process.c - see process.h.

#include "process.h"

#include "exit_code.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <unistd.h>

// open() takes the lowest free number, and all below `fd` are open.
static bool is_open(int fd)
{
    const int way = fd == STDIN_FILENO ? O_WRONLY : O_RDONLY;
    return fcntl(fd, F_GETFD) >= 0 || errno != EBADF || open("/dev/null", way) == fd;
}

void process_begin(void)
{
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++) {
        if (is_open(fd))
            continue;
        perror("/dev/null, for a closed standard descriptor"); // seen only if 2 is open
        _exit(EXIT_CODE_FAILED);
    }
    signal(SIGXFSZ, SIG_IGN);
}
