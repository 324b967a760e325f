// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// error.c - one sentence for each thread. Knows no other file. Any thread.

#include "error.h"

#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

static _Thread_local char sentence[1024]; // sentences of the daemon have at most 383 bytes
static _Thread_local unsigned muted;      // error_mute(true) without its false

enum aule_status fail(enum aule_status status, const char *format, ...)
{
    if (muted)
        return status;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
    return status;
}

void error_mute(bool mute)
{
    muted += mute ? 1u : -1u;
}

enum aule_status fail_no_descriptor(const char *what)
{
    struct rlimit limit = {.rlim_cur = 0};
    getrlimit(RLIMIT_NOFILE, &limit);
    return fail(AULE_NO_MEMORY,
                "%s: no file descriptor is left; this process may have %ju (ulimit -n), and "
                "fs.file-max limits the system",
                what, (uintmax_t)limit.rlim_cur);
}

enum aule_status fail_null(const char *function, const char *pointer)
{
    static const char suffix[] = "_sized";
    size_t length = strlen(function), extra = sizeof suffix - 1;
    if (length > extra && strcmp(function + length - extra, suffix) == 0)
        length -= extra;
    return fail(AULE_INVALID, "%.*s: %s is NULL", (int)length, function, pointer);
}

const char *aule_error(void)
{
    return sentence;
}
