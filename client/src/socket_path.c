// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// socket_path.c - the rule for where a daemon's socket is; the daemon's server has the same one.
// Reads only the environment. Any thread, unless another one changes the environment.

#include "socket_path.h"

#include "error.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *variable, *file;
} rules[] = {
    {"AULE_SOCKET", ""},
    {"AULE_RUNTIME_DIR", "/0.sock"},
    {"XDG_RUNTIME_DIR", "/aule/0.sock"},
};

static enum aule_status join(const char *folder, const char *file, char **path)
{
    if (strlen(folder) + strlen(file) > SOCKET_PATH_MAX)
        return fail(AULE_INVALID, "the socket path %s%s has %zu bytes; at most %d are allowed",
                    folder, file, strlen(folder) + strlen(file), SOCKET_PATH_MAX);
    if (asprintf(path, "%s%s", folder, file) < 0)
        return fail(AULE_NO_MEMORY, "no memory for the socket's path");
    return AULE_OK;
}

enum aule_status socket_path(const char *given, char **path)
{
    if (given)
        return *given ? join(given, "", path) : fail(AULE_INVALID, "the socket path is empty");
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
        const char *value = getenv(rules[i].variable);
        if (value && *value)
            return join(value, rules[i].file, path);
    }
    return join("/run/aule", "/0.sock", path);
}
