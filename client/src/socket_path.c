// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// socket_path.c - see socket_path.h.

#include "socket_path.h"

#include "base/socket_rule.h"
#include "error.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum aule_status copy(const char *from, char **path)
{
    if (strlen(from) > SOCKET_PATH_MAX)
        return fail(AULE_INVALID, "the socket path %s has %zu bytes, more than %d", from,
                    strlen(from), SOCKET_PATH_MAX);
    *path = strdup(from);
    return *path ? AULE_OK : fail(AULE_NO_MEMORY, "no memory for the socket's path");
}

static enum aule_status by_rule(char **path)
{
    char folder[PATH_MAX], file[SOCKET_FILE_SIZE], whole[PATH_MAX + 1 + SOCKET_FILE_SIZE];
    const size_t length = socket_rule_folder(folder, sizeof folder);
    if (length >= sizeof folder)
        return fail(AULE_INVALID, "the runtime folder's name has %zu bytes, too many for a socket",
                    length);
    socket_rule_file(0, file);
    snprintf(whole, sizeof whole, "%s/%s", folder, file);
    return copy(whole, path);
}

enum aule_status socket_path(const char *given, char **path)
{
    if (given && !*given)
        return fail(AULE_INVALID, "the socket path is empty");
    const char *set = given ? given : getenv("AULE_SOCKET");
    return set && *set ? copy(set, path) : by_rule(path);
}
