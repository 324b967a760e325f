// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// socket_rule.c - see socket_rule.h.

#include "socket_rule.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/un.h>

_Static_assert(sizeof((struct sockaddr_un *)0)->sun_path == SOCKET_PATH_MAX + 1,
               "a path and its NUL fill sun_path");

static const char *variable(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

size_t socket_rule_folder(char *folder, size_t size)
{
    const char *own = variable("AULE_RUNTIME_DIR"), *user = variable("XDG_RUNTIME_DIR");
    const int length = snprintf(folder, size, "%s%s",
                                own    ? own
                                : user ? user
                                       : "/run",
                                own ? "" : "/aule");
    return length < 0 ? size : (size_t)length;
}

void socket_rule_file(uint32_t number, char file[SOCKET_FILE_SIZE])
{
    snprintf(file, SOCKET_FILE_SIZE, "%" PRIu32 ".sock", number);
}
