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
    if (isatty(STDERR_FILENO)) // a progress bar may be there
        fprintf(stderr, "\r%30s\r", "");
    fprintf(stderr, "aule-bench: %s\n", text);
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
