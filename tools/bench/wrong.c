// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The aule authors
//
// wrong.c - see wrong.h.

#include "wrong.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <unistd.h>

static atomic_bool noted;

void wrong_say(const char *format, ...)
{
    char text[512];
    va_list values;
    va_start(values, format);
    vsnprintf(text, sizeof text, format, values);
    va_end(values);
    const char *bar = isatty(STDERR_FILENO) ? "\r                              \r"
                                            : ""; // main.c may have drawn one
    fprintf(stderr, "%saule-bench: %s\n", bar, text);
    wrong_note();
}

void wrong_note(void)
{
    atomic_store(&noted, true);
}

bool wrong_noted(void)
{
    return atomic_load(&noted);
}
