// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// port.c - see port.h. The kernel chooses the port. Its socket is never closed.

#include "port.h"

#include <arpa/inet.h>
#include <stdbool.h>

int port_unused(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t size = sizeof address;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int yes = 1;
    const bool bound = fd >= 0 && bind(fd, (struct sockaddr *)&address, size) == 0 &&
                       setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes) == 0 &&
                       getsockname(fd, (struct sockaddr *)&address, &size) == 0;
    return bound ? ntohs(address.sin_port) : 0;
}
