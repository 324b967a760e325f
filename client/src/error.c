// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// error.c - one sentence a thread. Knows no other part; any thread.

#include "error.h"

#include <stdarg.h>
#include <stdio.h>

static _Thread_local char sentence[1024]; // the daemon's own sentences have at most 383 bytes

enum aule_status fail(enum aule_status status, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(sentence, sizeof sentence, format, arguments);
    va_end(arguments);
    return status;
}

const char *aule_error(void)
{
    return sentence;
}
